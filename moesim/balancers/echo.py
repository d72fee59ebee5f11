"""Echo: spare experts that take what overflows the average, re-planned from the exact counts of every batch and layer.

After NVIDIA/Megatron-LM, ``offloading_planner.py`` at 005742f (PR 2368, arXiv 2603.07685). Homes never move. What
each rank has above the average spills from its largest experts; the spill of all experts and the room of all ranks
lie end to end on one line, and where they overlap entries move. A rank has a few spare slots and keeps the
largest pieces; the rest stays at home. Ties that the original leaves open go to the lowest expert.
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

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class EchoPlan:
    """What Echo decides from the counts.

    ``average``: entries of all ranks / R, rounded down. ``spill`` (E,): entries above it, from the largest experts of
    each rank (of equal ones the highest); ``spare`` (R,): room below it. ``slot_expert``, ``slot_tokens`` (R, k):
    expert in each spare slot, largest share first, -1 if empty, and its entries.
    """

    average: int
    spill: IntArray
    spare: IntArray
    slot_expert: IntArray
    slot_tokens: IntArray


@BALANCERS.register("echo")
class Echo(Balancer):
    """Own experts, and a few spare slots a rank that take what is above the average elsewhere."""

    name = "echo"
    constants: ClassVar[Mapping[str, str]] = {
        "launch": "time",
        "plan": "time",
        "plan_barriers": "ratio",
        "barrier": "time",
    }
    draws = False
    weights = "before"
    counts = "all"

    class Params(BalancerParams):
        """``slots``: spare slots of a rank. ``threshold``: give pieces back while the home stays below 1 + threshold
        times the average; 0: never.
        """

        slots: int = Field(default=2, ge=0, le=limits.EXPERTS)
        threshold: float = Field(default=0.0, ge=0, allow_inf_nan=False, le=limits.FACTOR)

    params: Echo.Params

    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        counts = counts_by_source(ids, ranks, experts)
        decided = plan(counts, self.params.slots, self.params.threshold)
        masters = experts // ranks
        own = np.arange(experts).reshape(ranks, masters)
        slot_expert = np.concatenate([own, decided.slot_expert], axis=1)
        home = np.arange(ranks).repeat(masters)
        width = slot_expert.shape[1]
        placement = Placement(slot_expert.ravel(), np.arange(ranks).repeat(width), experts, ranks, home)
        slot = deal(ids, _slots_in_order(counts, decided))
        rank, position = np.nonzero(decided.slot_expert >= 0)
        copies = rank * width + masters + position
        return Assignment(
            placement=placement,
            slot=slot,
            moves=np.stack([copies, home[placement.slot_expert[copies]]], axis=1),
            gemm_rows=np.bincount(slot.ravel(), minlength=slot_expert.size),
            details={
                "average": decided.average,
                "spill": decided.spill,
                "spare": decided.spare,
                "unplaced": int(decided.spill.sum() - decided.slot_tokens.sum()),
                "slot_tokens": decided.slot_tokens,
            },
        )


def plan(counts: IntArray, slots: int, threshold: float = 0.0) -> EchoPlan:
    """The whole plan from ``counts`` (R, E), entries from each source rank to each expert.

    Raises :class:`InputError` if R does not divide E.

    >>> decided = plan(np.array([[100, 20, 0, 10, 5, 0, 5, 0]] * 4), slots=1)
    >>> decided.average, decided.slot_expert.tolist(), decided.slot_tokens.tolist()
    (140, [[-1], [0], [0], [0]], [[0], [100], [120], [120]])
    """
    ranks, experts = counts.shape
    masters = experts_per_rank(experts, ranks)
    total = counts.sum(axis=0)
    average = int(total.sum()) // ranks
    by_rank = total.reshape(ranks, masters)
    order = np.argsort(by_rank, axis=1, kind="stable")
    above = np.maximum(np.take_along_axis(by_rank, order, axis=1).cumsum(axis=1) - average, 0)
    spill = np.empty_like(by_rank)
    np.put_along_axis(spill, order, np.diff(above, axis=1, prepend=0), axis=1)
    load = by_rank.sum(axis=1)
    spare = np.maximum(average - load, 0)
    pieces = _overlaps(spill.ravel(), spare)
    pieces = np.where(_largest(pieces, slots), pieces, 0)
    if threshold > 0:
        pieces = _needed(pieces, load, average * (1 + threshold))
    slot_expert = np.full((ranks, slots), -1, dtype=np.int64)
    slot_tokens = np.zeros((ranks, slots), dtype=np.int64)
    rank, position, expert = _filled(pieces)
    slot_expert[rank, position] = expert
    slot_tokens[rank, position] = pieces[expert, rank]
    return EchoPlan(average, spill.ravel(), spare, slot_expert, slot_tokens)


def split(counts: IntArray, decided: EchoPlan) -> tuple[IntArray, IntArray]:
    """Entries from each source to each spare slot, (R, R, k), and to each expert at home, (R, E).

    A slot first takes from every source in proportion to its entries of the expert, rounded down (in float32, as the
    original); what it lacks then is taken from the sources in order.
    """
    shares = np.zeros((len(counts), *decided.slot_expert.shape), dtype=np.int64)
    total = counts.sum(axis=0)
    for expert in np.unique(decided.slot_expert[decided.slot_expert >= 0]):
        rank, position = np.nonzero(decided.slot_expert == expert)
        wanted, held = decided.slot_tokens[rank, position], counts[:, expert]
        portion = held.astype(np.float32) / np.float32(total[expert])
        whole = np.floor(portion[:, None] * wanted.astype(np.float32)).astype(np.int64)
        rest = _overlaps(held - whole.sum(axis=1), wanted - whole.sum(axis=0))
        shares[:, rank, position] = whole + rest
    at_home = counts.copy()
    used = decided.slot_expert >= 0
    np.subtract.at(at_home.T, decided.slot_expert[used], np.moveaxis(shares, 0, -1)[used])
    return shares, at_home


def _overlaps(lengths: IntArray, others: IntArray) -> IntArray:
    """Overlap of each of ``lengths`` (m,) with each of ``others`` (n,), both laid end to end from zero: (m, n)."""
    ends, other_ends = lengths.cumsum(), others.cumsum()
    last = np.minimum(ends[:, None], other_ends)
    first = np.maximum((ends - lengths)[:, None], other_ends - others)
    overlap: IntArray = np.maximum(last - first, 0)
    return overlap


def _filled(pieces: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Rank, position and expert of each piece of ``pieces`` (E, R), largest first on each rank, then lowest expert."""
    order = np.argsort(-pieces, axis=0, kind="stable")
    position, rank = np.nonzero(np.take_along_axis(pieces, order, axis=0))
    return rank, position, order[position, rank]


def _largest(pieces: IntArray, slots: int) -> NDArray[np.bool_]:
    """Which of ``pieces`` (E, R) the slots of each rank hold."""
    rank, position, expert = _filled(pieces)
    kept = np.zeros(pieces.shape, dtype=bool)
    kept[expert, rank] = position < slots
    return kept


def _needed(pieces: IntArray, load: IntArray, limit: float) -> IntArray:
    """``pieces`` (E, R) without the smallest of each home that fit there: of its ``load`` (R,), up to ``limit``.

    Of equal ones those of the lowest expert, then of the lowest rank, go back first.
    """
    expert, rank = np.nonzero(pieces)
    home, size = expert // (len(pieces) // len(load)), pieces[expert, rank]
    order = np.lexsort((rank, expert, size, home))
    expert, rank, home, size = expert[order], rank[order], home[order], size[order]
    offloaded = np.bincount(home, size, minlength=len(load)).astype(np.int64)
    before = offloaded.cumsum() - offloaded
    back = size.cumsum() - before[home] <= limit - (load - offloaded)[home]
    kept = pieces.copy()
    kept[expert[back], rank[back]] = 0
    return kept


def _slots_in_order(counts: IntArray, decided: EchoPlan) -> IntArray:
    """Slot of each entry by expert, source and ordinal: a source fills the spare slots in order, then the home."""
    ranks, experts = counts.shape
    masters, slots = experts // ranks, decided.slot_expert.shape[1]
    width = masters + slots
    shares, at_home = split(counts, decided)
    rank, position = np.nonzero(decided.slot_expert >= 0)
    own = np.arange(experts)
    # One row a copy: those in spare slots by rank and slot, then the homes; a stable sort keeps that order.
    expert = np.concatenate([decided.slot_expert[rank, position], own])
    slot = np.concatenate([rank * width + masters + position, own // masters * width + own % masters])
    part = np.concatenate([shares[:, rank, position].T, at_home.T])
    group = (expert[:, None] * ranks + np.arange(ranks)).ravel()
    order = np.argsort(group, kind="stable")
    return slot.repeat(ranks)[order].repeat(part.ravel()[order])
