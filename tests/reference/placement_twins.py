"""EPLB's and Swift's planners, one item at a time and in plain Python, as their published rules read."""

from __future__ import annotations

import numpy as np


def eplb_slowly(weight, replicas, groups, nodes, gpus):
    """Expert of each slot of one layer, in single precision: exact for the whole numbers that the tests use."""
    if groups % nodes:
        groups = nodes = 1
    size = len(weight) // groups
    by_group = [sum(weight[g * size : (g + 1) * size]) for g in range(groups)]
    slots = []
    for members in _packed(by_group, nodes):
        experts = [e for g in members for e in range(g * size, (g + 1) * size)]
        count = dict.fromkeys(experts, 1)
        copies = list(experts)
        while len(copies) < replicas // nodes:
            share = [np.float32(weight[e]) / np.float32(count[e]) for e in experts]
            expert = experts[share.index(max(share))]
            count[expert] += 1
            copies.append(expert)
        share = [np.float32(weight[e]) / np.float32(count[e]) for e in copies]
        for mine in _packed(share, gpus // nodes):
            slots += [copies[item] for item in mine]
    return slots


def _packed(weight, packs):
    """Items of each pack in the order they came."""
    room = len(weight) // packs
    if room == 1:
        return [[item] for item in range(packs)]
    held, load = [[] for _ in range(packs)], [np.float32(0)] * packs
    for item in sorted(range(len(weight)), key=lambda item: (-weight[item], item)):
        open_ = [pack for pack in range(packs) if len(held[pack]) < room]
        pack = min(open_, key=lambda pack: (load[pack], pack))
        held[pack].append(item)
        load[pack] += np.float32(weight[item])
    return held


def swift_slowly(slots, share, reference):
    """Sets of experts on each rank after planning one layer of one host, and the largest load that is expected.

    ``slots``, ``share``: expert in each slot of each rank, and the load of that copy.
    """
    state = _Swift(slots, share)
    state.choose()
    state.spread()
    for _ in range(100):
        if not state.swap(reference):
            break
    return state.here, max(state.load)


class _Swift:
    def __init__(self, slots, share):
        self.ranks = range(len(slots))
        self.full, self.origin, self.here = {}, {}, [set() for _ in slots]
        self.free, self.received = [0 for _ in slots], [set() for _ in slots]
        self.transfers = set()
        for slot in range(len(slots[0])):
            for rank in self.ranks:
                expert = slots[rank][slot]
                self.full[expert] = self.full.get(expert, 0.0) + share[rank][slot]
                if expert in self.origin:
                    self.free[rank] += 1
                else:
                    self.origin[expert] = rank
                    self.here[rank].add(expert)
        self.weight, self.extra = dict(self.full), dict.fromkeys(self.full, 0)

    def choose(self):
        for _ in range(sum(self.free)):
            able = [e for e in self.full if self.extra[e] < len(self.ranks) - 1]
            if not able:
                return
            expert = max(able, key=lambda e: (self.weight[e], e))
            self.extra[expert] += 1
            self.weight[expert] = 2 * self.full[expert] / (self.extra[expert] + 2)

    def spread(self):
        self.count()
        for expert in sorted(self.full, key=lambda e: (-self.weight[e], e)):
            for _ in range(self.extra[expert]):
                able = [
                    rank
                    for rank in self.ranks
                    if self.free[rank]
                    and expert not in self.here[rank]
                    and (self.origin[expert], rank) not in self.transfers
                ]
                if able:
                    self.put(expert, min(able, key=lambda rank: (round(self.load[rank], 6), rank)))
        if not any(self.free):
            return
        self.carry()
        for rank in self.ranks:
            while self.free[rank]:
                missing = [e for e in self.full if e not in self.here[rank]]
                if not missing:
                    break
                self.put(max(missing, key=lambda e: (self.weight[e], -e)), rank)
                self.carry()
        self.count()

    def put(self, expert, rank):
        self.free[rank] -= 1
        self.here[rank].add(expert)
        self.received[rank].add(expert)
        self.transfers.add((self.origin[expert], rank))
        self.load[rank] += self.weight[expert]

    def carry(self):
        """What a copy really carries."""
        for expert in self.full:
            self.weight[expert] = self.full[expert] / sum(expert in held for held in self.here)

    def count(self):
        self.load = [sum(self.weight[e] for e in sorted(held)) for held in self.here]

    def swap(self, reference):
        heavy = min(self.ranks, key=lambda rank: (-round(self.load[rank], 6), rank))
        for light in sorted(self.ranks, key=lambda rank: (round(self.load[rank], 6), rank)):
            if light == heavy or {(heavy, light), (light, heavy)} & self.transfers:
                continue
            give = sorted(self.here[heavy] - self.here[light] - self.received[heavy])
            take = sorted(self.here[light] - self.here[heavy] - self.received[light])
            larger = {
                (a, b): max(
                    self.load[heavy] - self.weight[a] + self.weight[b],
                    self.load[light] + self.weight[a] - self.weight[b],
                )
                for a in give
                for b in take
            }
            if not larger:
                continue
            least = min(larger.values())
            a, b = next(pair for pair, value in larger.items() if value <= least * (1 + 1e-9))
            if self.load[heavy] - larger[a, b] < 0.01 * reference:
                continue
            for rank, gone, come in ((heavy, a, b), (light, b, a)):
                self.here[rank].remove(gone)
                self.here[rank].add(come)
                self.received[rank].add(come)
                self.load[rank] += self.weight[come] - self.weight[gone]
            self.transfers |= {(heavy, light), (light, heavy)}
            return True
        return False
