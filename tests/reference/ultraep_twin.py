"""UltraEP's rule, one candidate and one entry at a time: slow, and readable beside its description."""

from __future__ import annotations

from fractions import Fraction
from math import gcd

import numpy as np


def plan_slowly(total, slots, *, threshold, epsilon, floor, keep):
    """Threshold, path and copies (expert, rank, quota) of one domain; ``total`` [G][M]."""
    ranks, masters = len(total), len(total[0])
    load = [sum(row) for row in total]
    if slots == 0 or ranks == 1:
        return None, "off", []

    def build(at, least):
        excess = [max(entries - at, 0) for entries in load]
        slack = [max(at - entries, 0) for entries in load]
        if sum(excess) > sum(slack):
            return None
        hosted = [[] for _ in range(ranks)]
        copies = []
        for source in sorted(range(ranks), key=lambda r: (-load[r], r)):
            need = excess[source]
            if need > sum(slack):
                return None
            for local in sorted(range(masters), key=lambda m: (-total[source][m], m)):
                expert, entries = source * masters + local, total[source][local]
                avail = entries - (1 if keep and entries else 0)
                while need and avail:
                    takers = [
                        r
                        for r in range(ranks)
                        if slack[r] and len(hosted[r]) < slots and expert not in hosted[r]
                    ]
                    if not takers:
                        break
                    smallest = -(-need // len(takers)) if least is None else least
                    able = [r for r in takers if min(need, slack[r], avail) >= smallest]
                    if not able:
                        break
                    to = max(able, key=lambda r: (slack[r], -r))
                    quota = min(need, slack[to], avail)
                    copies.append((expert, to, quota))
                    hosted[to].append(expert)
                    slack[to] -= quota
                    need -= quota
                    avail -= quota
            if need:
                return None
        return copies

    f32 = np.float32
    low = int(np.ceil(f32(sum(load)) / f32(ranks) * f32(max(threshold, 1.0))))
    high = max(*load, low)
    at = max(low, int(np.ceil(f32(low) * (f32(1) + f32(epsilon)))))
    for attempt in range(3):
        copies = build(at, None)
        if copies is not None:
            return at, f"fast{attempt}", copies
        at = min(at + max(1, -(-high // 100)), high)
    at = low
    while sum(max(e - at, 0) for e in load) > sum(max(at - e, 0) for e in load):
        at += 1
    copies = build(at, floor)
    while copies is None and at + 1 < high:
        gap = high - at
        probes = range(at + 1, high) if gap <= 4 else [at + gap * part // 5 for part in (1, 2, 3, 4)]
        for probe in probes:
            if build(probe, floor) is not None:
                high = probe
                break
            at = probe
    return (at, "fallback", copies) if copies is not None else (high, "fallback", build(high, floor))


def split_slowly(held, hosts, quotas, *, local):
    """Entries of one expert from each source to each copy; ``held`` by source, ``hosts`` and ``quotas`` by copy."""
    shares = [[0] * len(hosts) for _ in held]
    left, lacks = list(held), list(quotas)
    if local:
        for copy, host in enumerate(hosts):
            own = min(lacks[copy], left[host])
            shares[host][copy] += own
            left[host] -= own
            lacks[copy] -= own
    whole = sum(lacks)
    for source, rest in enumerate(left):
        if not rest:
            continue
        exact = [Fraction(rest * lack, whole) for lack in lacks]
        given = [int(part) for part in exact]
        order = sorted(range(len(hosts)), key=lambda c: (given[c] - exact[c], hosts[c] if local else 0, c))
        for copy in order[: rest - sum(given)]:
            given[copy] += 1
        shares[source] = [a + b for a, b in zip(shares[source], given, strict=True)]
    return shares


def copy_of_entry(ordinal, held, expert, shares):
    """Which copy the entry number ``ordinal`` of the ``held`` that a source has of ``expert`` goes to."""
    stride = held // 2 + 1
    while gcd(stride, held) != 1:
        stride += 1
    place = (ordinal * stride + expert % held) % held
    for copy, share in enumerate(shares):
        if place < share:
            return copy
        place -= share
    raise AssertionError("an entry has no copy")
