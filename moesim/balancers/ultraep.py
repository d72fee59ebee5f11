"""UltraEP: redundant experts by quotas, re-planned from the exact counts of every batch and layer.

After Dots-Infra/UltraEP v1.0.0 (arXiv 2606.04101). Homes (*masters*) never move. Ranks above a threshold just
over the mean hand entries of their experts, the largest first, to ranks with room and a free slot; a copy gets a
quota, filled from its own rank's tokens first. Copies stay inside one scale-up domain. Weights are pushed before
dispatch, those of an expert with many copies through a tree of relays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from moesim import limits
from moesim.balancers import BALANCERS, Balancer, BalancerParams, Context
from moesim.balancers._dealing import counts_by_source, deal
from moesim.balancers._relays import Relaying, relay_trees
from moesim.errors import Problem
from moesim.placement import Assignment, Placement, experts_per_rank

IntArray = NDArray[np.int64]

MOST_PER_DOMAIN = 512
"""Experts, and copies, that the planner of a domain has room for."""
DIRECT_RANKS = 8
"""A domain of at most as many ranks has a simpler kernel, which knows no relays."""


@dataclass(frozen=True, eq=False)
class UltraEPPlan:
    """What UltraEP decides from the counts.

    ``expert``, ``rank``, ``slot``, ``quota`` (I,): each copy: of which expert, where, in which slot of its rank,
    and its entries; by expert, its master first and then in the order decided. ``slot_table`` (R, M + X): expert
    in each slot, masters and then copies, -1 if empty. ``thresholds``: load that no rank of each domain should
    exceed, None where nothing can be done. ``paths``: ``fast0`` to ``fast2`` (which attempt), ``fallback`` or ``off``.
    """

    expert: IntArray
    rank: IntArray
    slot: IntArray
    quota: IntArray
    slot_table: IntArray
    thresholds: tuple[int | None, ...]
    paths: tuple[str, ...]


@BALANCERS.register("ultraep")
class UltraEP(Balancer):
    """Quotas over own experts and a few redundant slots a rank, inside one scale-up domain of at most 72 ranks."""

    name = "ultraep"
    constants: ClassVar[Mapping[str, str]] = {
        "launch": "time",
        "plan": "time",
        "plan_barriers": "ratio",
        "barrier": "time",
        "reroute": "time",
        "relay_rate": "bandwidth",
        "gradient": "time",
        "gradient_rate": "bandwidth",
    }
    needs = frozenset({"peer-memory"})
    max_ranks = 72
    draws = False
    weights = "before"
    counts = "all"

    class Params(BalancerParams):
        """Under the original's names, with its defaults.

        ``slots``: redundant slots of a rank. ``balance_threshold``: largest over mean load aimed at, 1 or less for
        the mean. ``epsilon``: how far above that the first attempt stops. ``min_tokens``: least entries of a copy
        once three attempts, which have a floor of their own, have failed. ``locality_aware``: copies take the tokens
        of their own rank first. ``allow_zero_master_quota``: a master may give away its last entry. ``relay``: weights
        of an expert with many copies go through relays where that helps (``adaptive``), wherever it is possible
        (``force``), or never (``off``).
        """

        slots: int = Field(default=2, ge=0, le=limits.EXPERTS)
        balance_threshold: float = Field(default=1.0, ge=0, allow_inf_nan=False, le=limits.FACTOR)
        epsilon: float = Field(default=0.01, ge=0, allow_inf_nan=False, le=limits.FACTOR)
        min_tokens: int = Field(default=1024, ge=1, le=limits.TOKENS)
        locality_aware: bool = True
        allow_zero_master_quota: bool = False
        relay: Relaying = "adaptive"

    params: UltraEP.Params

    def problems(self, ranks: int, experts: int, top_k: int) -> list[Problem]:
        found = super().problems(ranks, experts, top_k)
        if experts > MOST_PER_DOMAIN:
            found.append(
                Problem(f"ultraep cannot plan {experts} experts", legal=f"at most {MOST_PER_DOMAIN} experts")
            )
        if ranks >= 1 and ranks * self.params.slots > MOST_PER_DOMAIN:
            message = f"ultraep cannot plan {self.params.slots} redundant slots on each of {ranks} ranks"
            found.append(Problem(message, legal=f"at most {MOST_PER_DOMAIN // ranks} slots a rank"))
        return found

    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        counts = counts_by_source(ids, ranks, experts)
        decided = plan(counts, self.params)
        shares = split(counts, decided, locality_aware=self.params.locality_aware)
        slot_of = decided.rank * decided.slot_table.shape[1] + decided.slot
        slot = deal(ids, _interleaved(shares, decided.expert, slot_of))
        slots = decided.slot_table.size
        own = np.arange(experts)
        home = own // (experts // ranks)
        # Copies follow the master of their expert, and so do the trees that carry their weights.
        away = np.flatnonzero(decided.rank != home[decided.expert])
        relaying: Relaying = "off" if ranks <= DIRECT_RANKS else self.params.relay
        trees = relay_trees(home[decided.expert[away]], decided.expert[away], decided.rank[away], relaying)
        return Assignment(
            placement=Placement(
                decided.slot_table.ravel(), np.arange(ranks).repeat(slots // ranks), experts, ranks, home
            ),
            slot=slot,
            moves=np.stack([slot_of[away], trees.sender], axis=1),
            gemm_rows=np.bincount(slot.ravel(), minlength=slots),
            relayed=trees.relayed,
            details={
                "threshold": decided.thresholds[0],
                "path": decided.paths[0],
                "quotas": np.stack([decided.expert, decided.rank, decided.slot, decided.quota], axis=1),
            },
        )


def plan(counts: IntArray, params: UltraEP.Params, domain_ranks: int | None = None) -> UltraEPPlan:
    """The whole plan from ``counts`` (R, E), entries from each source rank to each expert.

    ``domain_ranks``: neighbouring ranks that make a domain; each domain is balanced by itself. All by default.
    Raises :class:`InputError` if R does not divide E.

    >>> hot = np.array([[100, 20, 0, 10, 5, 0, 5, 0]] * 4)
    >>> decided = plan(hot, UltraEP.Params(slots=1))
    >>> decided.thresholds, decided.rank[:4].tolist(), decided.quota[:4].tolist()
    ((142,), [0, 2, 3, 1], [62, 122, 122, 94])
    """
    ranks, experts = counts.shape
    masters = experts_per_rank(experts, ranks)
    group = domain_ranks or ranks
    total = counts.sum(axis=0)
    solved = []
    for first in range(0, ranks, group):
        part = total[first * masters : (first + group) * masters].reshape(group, masters)
        solved.append(_solve(part, params))
    quota = total.copy()
    table = np.full((ranks, masters + params.slots), -1, dtype=np.int64)
    table[:, :masters] = np.arange(experts).reshape(ranks, masters)
    copies: list[tuple[int, int, int, int]] = []
    filled = [masters] * ranks
    for domain, one in enumerate(solved):
        for local_expert, local_rank, entries in one.copies:
            expert, rank = local_expert + domain * group * masters, local_rank + domain * group
            table[rank, filled[rank]] = expert
            copies.append((expert, rank, filled[rank], entries))
            filled[rank] += 1
            quota[expert] -= entries
    own = np.arange(experts)
    added = np.array(copies, dtype=np.int64).reshape(-1, 4)
    every = np.concatenate([np.stack([own, own // masters, own % masters, quota], axis=1), added])
    every = every[np.argsort(every[:, 0], kind="stable")]
    return UltraEPPlan(
        expert=every[:, 0],
        rank=every[:, 1],
        slot=every[:, 2],
        quota=every[:, 3],
        slot_table=table,
        thresholds=tuple(one.threshold for one in solved),
        paths=tuple(one.path for one in solved),
    )


class _Solved(NamedTuple):
    """``copies``: (expert, rank, entries) in the order decided, numbered inside the domain."""

    threshold: int | None
    path: str
    copies: list[tuple[int, int, int]]


def _solve(total: IntArray, params: UltraEP.Params) -> _Solved:
    """Threshold and copies of one domain; ``total`` (G, M): entries of each master.

    Three attempts just above the mean, without ``min_tokens``; then the least threshold that is feasible with it.
    The original computes thresholds in float32.
    """
    ranks = len(total)
    if params.slots == 0 or ranks == 1:
        return _Solved(None, "off", [])
    load = total.sum(axis=1)
    entries = int(load.sum())
    mean = np.float32(entries) / np.float32(ranks)
    lowest = int(np.ceil(mean * np.float32(max(params.balance_threshold, 1.0))))
    highest = max(int(load.max()), lowest)
    builder = _Builder(total, load, params.slots, keep=not params.allow_zero_master_quota)
    threshold = max(lowest, int(np.ceil(np.float32(lowest) * (np.float32(1) + np.float32(params.epsilon)))))
    for attempt in range(3):
        built = builder.build(threshold, None)
        if built is not None:
            return _Solved(threshold, f"fast{attempt}", built)
        threshold = min(threshold + max(1, -(-highest // 100)), highest)
    threshold = max(lowest, -(-entries // ranks))
    built = builder.build(threshold, params.min_tokens)
    if built is None:
        threshold, built = _search(builder, threshold, highest, params.min_tokens)
    return _Solved(threshold, "fallback", built)


def _search(builder: _Builder, low: int, high: int, floor: int) -> tuple[int, list[tuple[int, int, int]]]:
    """A feasible threshold above ``low``, which is not; ``high``, the largest load, always is.

    Four probes a round cut the range in five, and its first feasible part is kept: as in the original, where four
    warps probe at once. Feasibility is not monotone, so which probes are made matters.
    """
    built: list[tuple[int, int, int]] = []
    while high - low > 1:
        width = high - low
        steps = (1, 2, 3, 4) if width <= 4 else [width * part // 5 for part in (1, 2, 3, 4)]
        below = low
        for probe in (low + step for step in steps if step < width):
            tried = builder.build(probe, floor)
            if tried is not None:
                built, high = tried, probe
                break
            below = probe
        low = below
    return high, built


class _Builder:
    """Tries thresholds on one domain. ``keep``: a master keeps its last entry."""

    def __init__(self, total: IntArray, load: IntArray, slots: int, *, keep: bool) -> None:
        masters = total.shape[1]
        self.load = load
        self.slots = slots
        self.givers = np.argsort(-load, kind="stable").tolist()
        first = np.arange(len(load))[:, None] * masters
        self.experts = (np.argsort(-total, axis=1, kind="stable") + first).tolist()
        self.spare = np.maximum(total - keep, 0).ravel().tolist()

    def build(self, threshold: int, floor: int | None) -> list[tuple[int, int, int]] | None:
        """(expert, rank, entries) of the copies that take every rank down to ``threshold``; None if infeasible.

        ``floor``: least entries of a copy; None: what is still to go, shared by the ranks that could take some.
        """
        excess = np.maximum(self.load - threshold, 0).tolist()
        slack = np.maximum(threshold - self.load, 0)
        if sum(excess) > slack.sum():
            return None
        free = np.full(len(slack), self.slots)
        copies: list[tuple[int, int, int]] = []
        for giver in self.givers:
            need = excess[giver]
            for expert in self.experts[giver]:
                if need == 0:
                    break
                need = self._hand(expert, need, floor, slack, free, copies)
            if need:
                return None
        return copies

    def _hand(
        self,
        expert: int,
        need: int,
        floor: int | None,
        slack: IntArray,
        free: IntArray,
        copies: list[tuple[int, int, int]],
    ) -> int:
        """Hand entries of one expert to the ranks with most room; returns what its home still has to give."""
        room = np.where(free > 0, slack, 0)
        spare = self.spare[expert]
        while need and spare:
            takers = int(np.count_nonzero(room))
            if not takers:
                break
            rank = int(room.argmax())
            part = min(need, int(room[rank]), spare)
            if part < (-(-need // takers) if floor is None else floor):
                break
            copies.append((expert, rank, part))
            need -= part
            spare -= part
            slack[rank] -= part
            free[rank] -= 1
            room[rank] = 0
        return need


def split(counts: IntArray, decided: UltraEPPlan, *, locality_aware: bool = True) -> IntArray:
    """Entries that each source rank sends to each copy, (R, I); ``counts`` (R, E).

    Local first: a copy takes the tokens of its own rank up to its quota, and what is left of every source is
    dealt in proportion to what the other copies lack. Otherwise everything is dealt in proportion to the quotas.
    Fractions go to the largest remainders, source by source, so that a copy may miss its quota by a few.
    """
    shares = counts[:, decided.expert]
    first = np.searchsorted(decided.expert, np.arange(counts.shape[1] + 1))
    for expert in np.flatnonzero(np.diff(first) > 1):
        copies = slice(int(first[expert]), int(first[expert + 1]))
        quota, host, left = decided.quota[copies], decided.rank[copies], counts[:, expert].copy()
        kept = np.zeros((len(counts), len(quota)), dtype=np.int64)
        if locality_aware:
            copy = np.arange(len(quota))
            kept[host, copy] = np.minimum(quota, left[host])
            left[host] -= kept[host, copy]
        tie = host if locality_aware else np.arange(len(quota))
        shares[:, copies] = kept + _in_proportion(left, quota - kept.sum(axis=0), tie)
    return shares


def _in_proportion(amounts: IntArray, weights: IntArray, tie: IntArray) -> IntArray:
    """Deal each of ``amounts`` (R,) in proportion to ``weights`` (n,), by largest remainder, then smallest ``tie``."""
    whole, fraction = np.divmod(amounts[:, None] * weights, max(int(weights.sum()), 1))
    over = amounts - whole.sum(axis=1)
    by_tie = np.argsort(tie, kind="stable")
    order = by_tie[np.argsort(-fraction[:, by_tie], axis=1, kind="stable")]
    place = np.argsort(order, axis=1)
    dealt: IntArray = whole + (place < over[:, None])
    return dealt


def _interleaved(shares: IntArray, expert: IntArray, slot: IntArray) -> IntArray:
    """Slot of each entry by expert, source and ordinal; ``shares`` (R, I), ``expert``, ``slot`` (I,) of each copy.

    The i-th of n entries of expert e that a source holds takes place (i * stride + e mod n) mod n of that source's
    shares laid end to end. Stride: n // 2 + 1, raised until it has no divisor in common with n: by one where
    n = 2 mod 4, else it has none.
    """
    ranks, copies = shares.shape
    part = shares.T.ravel()
    group = expert.repeat(ranks) * ranks + np.tile(np.arange(ranks), copies)
    order = np.argsort(group, kind="stable")
    dealt = slot.repeat(ranks)[order].repeat(part[order])
    held = np.bincount(group, part).astype(np.int64)
    # With one copy there is nothing to mix.
    mixed = np.flatnonzero((np.bincount(group) > 1) & (held > 0))
    n = held[mixed]
    stride, shift = n // 2 + 1 + (n % 4 == 2), mixed // ranks % n
    start = (held.cumsum() - held)[mixed]
    ordinal = np.arange(n.sum()) - (n.cumsum() - n).repeat(n)
    place = (ordinal * stride.repeat(n) + shift.repeat(n)) % n.repeat(n)
    dealt[start.repeat(n) + ordinal] = dealt[start.repeat(n) + place]
    return dealt
