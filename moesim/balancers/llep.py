"""LLEP, least-loaded expert parallelism: what overflows a capacity spills to the least loaded ranks, weights with it.

After SalesforceAIResearch/LeastLoadedEP (arXiv 2601.17111). Homes never move. Planned on the host from the exact counts
of every batch and layer, expert by expert in descending count; below a threshold of imbalance plain EP stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from moesim import limits
from moesim.balancers import BALANCERS, Balancer, BalancerParams, Context
from moesim.balancers._dealing import counts_by_source, deal
from moesim.placement import Assignment, Placement, experts_per_rank
from moesim.traffic import rank_imbalance

IntArray = NDArray[np.int64]
Chunk = tuple[int, int, int]
"""Rank, and first and last (excluded) entry of an expert."""


@dataclass(frozen=True)
class LLEPPlan:
    """What LLEP decides from the counts.

    ``assignments``: expert -> its chunks (rank, first entry, end), in the order decided; experts without entries
    are left out. ``weight_transfers``: (expert, home, rank, first entry, end) of the chunks away from home, in the
    order decided. ``loads``: entries of each rank.
    """

    assignments: Mapping[int, tuple[Chunk, ...]]
    weight_transfers: tuple[tuple[int, int, int, int, int], ...]
    loads: tuple[int, ...]


@BALANCERS.register("llep")
class LLEP(Balancer):
    """Own experts, and on every rank as many slots as the most experts that spill to one."""

    name = "llep"
    constants: ClassVar[Mapping[str, str]] = {
        "launch": "time",
        "plan": "time",
        "plan_barriers": "ratio",
        "barrier": "time",
        "host_round_trip": "time",
    }
    draws = False
    weights = "before"
    counts = "all"

    class Params(BalancerParams):
        """``imbalance_threshold`` (lambda): largest over mean load from which anything is done.

        ``max_tokens_factor`` (alpha): capacity of a rank over the mean. ``min_tokens_per_gemm`` (m): least entries
        of a spilled chunk that does not finish its expert.
        """

        imbalance_threshold: float = Field(default=1.3, ge=0, allow_inf_nan=False, le=limits.FACTOR)
        max_tokens_factor: float = Field(default=1.1, gt=0, allow_inf_nan=False, le=limits.FACTOR)
        min_tokens_per_gemm: int = Field(default=1024, ge=0, le=limits.TOKENS)

    params: LLEP.Params

    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        total = counts_by_source(ids, ranks, experts).sum(axis=0)
        chosen = self.params
        load = total.reshape(ranks, -1).sum(axis=1)
        spills = bool(load.any()) and rank_imbalance(load) >= chosen.imbalance_threshold
        if spills:
            decided = plan(total, ranks, chosen.max_tokens_factor, chosen.min_tokens_per_gemm)
        else:
            decided = _plain(total, load)
        placement, slot_of = _place(decided, ranks, experts)
        chunks = [
            (slot_of[expert, rank], end - first)
            for expert, parts in sorted(decided.assignments.items())
            for rank, first, end in parts
        ]
        slots, entries = np.array(chunks, dtype=np.int64).reshape(-1, 2).T
        slot = deal(ids, slots.repeat(entries))
        # A rank that takes two chunks of an expert needs its weights once.
        moves = sorted(
            {(slot_of[expert, rank], home) for expert, home, rank, _, _ in decided.weight_transfers}
        )
        return Assignment(
            placement=placement,
            slot=slot,
            moves=np.array(moves, dtype=np.int64).reshape(-1, 2),
            gemm_rows=np.bincount(slot.ravel(), minlength=len(placement.slot_rank)),
            details={"path": "spill" if spills else "plain", "weight_transfers": decided.weight_transfers},
        )


def plan(
    total: IntArray, ranks: int, max_tokens_factor: float = 1.1, min_tokens_per_gemm: int = 1024
) -> LLEPPlan:
    """The whole plan from ``total`` (E,), entries of each expert over all ranks.

    Raises :class:`InputError` if R does not divide E.

    >>> decided = plan(np.array([400, 80, 0, 40, 20, 0, 20, 0]), 4, 1.0, 1)
    >>> decided.assignments[0], decided.loads
    (((0, 0, 60), (2, 60, 180), (3, 180, 300), (1, 300, 400)), (140, 140, 140, 140))
    """
    masters = experts_per_rank(len(total), ranks)
    state = _State(
        capacity=int(max_tokens_factor * (int(total.sum()) // ranks)),
        least=min_tokens_per_gemm,
        assigned=[0] * ranks,
        pending=total.reshape(ranks, masters).sum(axis=1).tolist(),
    )
    assignments: dict[int, tuple[Chunk, ...]] = {}
    transfers: list[tuple[int, int, int, int, int]] = []
    for expert in np.argsort(-total, kind="stable").tolist():
        count, home = int(total[expert]), expert // masters
        if count == 0:
            break
        chunks = state.take(home, count)
        assignments[expert] = tuple(chunks)
        transfers.extend((expert, home, *chunk) for chunk in chunks if chunk[0] != home)
    return LLEPPlan(assignments, tuple(transfers), tuple(state.assigned))


@dataclass(frozen=True)
class _State:
    """``assigned``, ``pending`` (R,): entries given to each rank, and of its experts that are not yet dealt with."""

    capacity: int
    least: int
    assigned: list[int]
    pending: list[int]

    def take(self, home: int, count: int) -> list[Chunk]:
        """Deal out an expert of ``count`` entries: what its home has room for stays, the rest spills."""
        self.pending[home] -= count
        kept = min(max(self._room(home), 0), count)
        others = [rank for rank in range(len(self.assigned)) if rank != home]
        if not others:
            kept = count
        chunks = [self._give(home, 0, kept)] if kept else []
        first = kept
        order = self._least_loaded(others)
        walk = list(order)
        while first < count:
            rank = next((rank for rank in walk if self._fits(rank, count - first)), None)
            if rank is None:
                # Nobody has room: the least loaded overflows, with a second chunk if it has one.
                chunks.append(self._give(order[0], first, count))
                break
            chunks.append(self._give(rank, first, first + min(count - first, self._room(rank))))
            first = chunks[-1][2]
            if kept:
                # Sorted anew after every chunk, but only where a part stayed at home: as in the original.
                walk = order = self._least_loaded(others)
            else:
                walk = walk[walk.index(rank) + 1 :]
        return chunks

    def _room(self, rank: int) -> int:
        return self.capacity - self.assigned[rank] - self.pending[rank]

    def _fits(self, rank: int, rest: int) -> bool:
        chunk = min(rest, self._room(rank))
        return chunk > 0 and (chunk >= self.least or chunk == rest)

    def _least_loaded(self, ranks: list[int]) -> list[int]:
        return sorted(ranks, key=lambda rank: self.assigned[rank] + self.pending[rank])

    def _give(self, rank: int, first: int, end: int) -> Chunk:
        self.assigned[rank] += end - first
        return rank, first, end


def _plain(total: IntArray, load: IntArray) -> LLEPPlan:
    """Every expert at home."""
    masters = len(total) // len(load)
    at_home = {
        expert: ((expert // masters, 0, count),) for expert, count in enumerate(total.tolist()) if count
    }
    return LLEPPlan(at_home, (), tuple(load.tolist()))


def _place(decided: LLEPPlan, ranks: int, experts: int) -> tuple[Placement, dict[tuple[int, int], int]]:
    """Own experts and then the copies in the order decided; and the slot of each (expert, rank)."""
    masters = experts // ranks
    copies: list[list[int]] = [[] for _ in range(ranks)]
    for expert, _, rank, _, _ in decided.weight_transfers:
        if expert not in copies[rank]:
            copies[rank].append(expert)
    width = masters + max(map(len, copies))
    table = np.full((ranks, width), -1, dtype=np.int64)
    table[:, :masters] = np.arange(experts).reshape(ranks, masters)
    for rank, held in enumerate(copies):
        table[rank, masters : masters + len(held)] = held
    rank_of, position = np.nonzero(table >= 0)
    slot_of = {(int(table[r, s]), int(r)): int(r * width + s) for r, s in zip(rank_of, position, strict=True)}
    home = np.arange(ranks).repeat(masters)
    return Placement(table.ravel(), np.arange(ranks).repeat(width), experts, ranks, home), slot_of
