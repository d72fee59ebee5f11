"""MoonEP: dynamic redundant experts, re-planned from the exact counts of every batch and layer.

After MoonshotAI/MoonEP, public release 26/09 (``planning.py``). Homes never move. Each rank ends up with
exactly S*K entries; the experts that overflow are copied, by their homes, to ranks that have room. All ties
go to the lowest index. Words of the original: R ranks, S tokens a rank, K experts a token, E experts, epn =
E/R, NvS rows of a rank's buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from moesim import limits
from moesim.balancers import BALANCERS, Balancer, BalancerParams, Context
from moesim.balancers._dealing import counts_by_source, deal
from moesim.errors import InputError
from moesim.placement import Assignment, Placement, experts_per_rank
from moesim.traffic import first_visits

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MoonEPPlan:
    """What MoonEP decides from the counts.

    ``rank_moves`` (M, 3): [home, destination, entries] in the order decided; ``z`` (R, R): the same as a
    matrix. ``alloc`` (R, E): entries of each expert at each destination. ``experts_to_copy`` (R, epn): remote
    experts each rank needs, ascending, padded with -1. ``cu_seqlens`` (R, 2 epn): padded end row of each
    group of the grouped GEMM, own experts and then copies. ``zero_fill_ranges`` (R, 2 epn, 2): [first row,
    rows] of padding of each group. ``remote_stats`` (R, 2): copies [received, sent]. ``static_rows``: NvS.
    """

    rank_moves: IntArray
    z: IntArray
    alloc: IntArray
    experts_to_copy: IntArray
    cu_seqlens: IntArray
    zero_fill_ranges: IntArray
    remote_stats: IntArray
    static_rows: int


@BALANCERS.register("moonep")
class MoonEP(Balancer):
    """Dynamic redundant experts in 2 epn slots a rank: own experts, then copies pushed by their homes."""

    name = "moonep"
    constants: ClassVar[Mapping[str, str]] = {
        "launch": "time",
        "plan": "time",
        "plan_per_entry": "time",
        "plan_barriers": "ratio",
        "barrier": "time",
    }
    needs = frozenset({"multicast"})
    max_ranks = 128
    max_top_k = 32
    draws = False
    weights = "after"
    counts = "first"

    class Params(BalancerParams):
        """``token_padding``: rows to which each nonempty group of the grouped GEMM is padded."""

        token_padding: int = Field(default=128, ge=1, le=limits.TOKENS)

    params: MoonEP.Params

    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        decided = plan(counts_by_source(ids, ranks, experts), self.params.token_padding)
        placement, blocks = place(decided), _blocks(decided)
        held = placement.slot_expert >= 0
        copies = np.flatnonzero(held & (placement.home[placement.slot_expert] != placement.slot_rank))
        return Assignment(
            placement=placement,
            slot=deal(ids, blocks.slot.repeat(blocks.entries)),
            moves=np.stack([copies, placement.home[placement.slot_expert[copies]]], axis=1),
            gemm_rows=np.diff(decided.cu_seqlens, axis=1, prepend=0).ravel(),
            static_rows=decided.static_rows,
            details={f.name: getattr(decided, f.name) for f in fields(decided)},
        )


def plan(counts: IntArray, token_padding: int) -> MoonEPPlan:
    """Steps A to C: the whole plan from ``counts`` (R, E), entries from each source rank to each expert.

    Raises :class:`InputError` if R does not divide E or the ranks do not hold the same number of entries.

    >>> decided = plan(np.array([[6, 0, 0], [2, 4, 0], [1, 5, 0]]), token_padding=1)
    >>> decided.rank_moves.tolist(), decided.alloc.tolist()
    ([[0, 2, 6], [1, 0, 3]], [[3, 3, 0], [0, 6, 0], [6, 0, 0]])
    """
    ranks, experts = counts.shape
    epn = experts_per_rank(experts, ranks)
    held = counts.sum(axis=1)
    if (held != held[0]).any():
        raise InputError(
            f"moonep needs the same number of entries on every rank, not {held.min()} to {held.max()}"
        )
    total = counts.sum(axis=0)
    moves = rank_moves(total.reshape(ranks, epn).sum(axis=1).tolist(), int(held[0]))
    z = np.zeros((ranks, ranks), dtype=np.int64)
    for home, destination, entries in moves:
        z[home, destination] = entries
    alloc = _allocate(z, total)
    to_copy = _experts_to_copy(alloc)
    cu_seqlens, zero_fill = _layout(alloc, to_copy, token_padding)
    sent = np.bincount(to_copy[to_copy >= 0] // epn, minlength=ranks)
    most = int(held[0]) + (token_padding - 1) * 2 * epn
    return MoonEPPlan(
        rank_moves=np.array(moves, dtype=np.int64).reshape(-1, 3),
        z=z,
        alloc=alloc,
        experts_to_copy=to_copy,
        cu_seqlens=cu_seqlens,
        zero_fill_ranges=zero_fill,
        remote_stats=np.stack([(to_copy >= 0).sum(axis=1), sent], axis=1),
        static_rows=-(-most // token_padding) * token_padding,
    )


def rank_moves(load: Sequence[int], capacity: int) -> list[tuple[int, int, int]]:
    """Step A: (home, destination, entries) until no home is above ``capacity``, the mean of ``load`` (R,).

    The emptiest rank is always filled completely by the fullest, even if that takes the giver below capacity;
    it is then filled by another later. So every destination has one giver, and there are at most R - 1 moves.
    """
    balance = [entries - capacity for entries in load]
    moves: list[tuple[int, int, int]] = []
    while True:
        surplus, deficit = max(balance), min(balance)
        if surplus <= 0:
            return moves
        giver, taker = balance.index(surplus), balance.index(deficit)
        moves.append((giver, taker, -deficit))
        balance[giver] += deficit
        balance[taker] = 0


def split_home(quota: Sequence[int], entries: Sequence[int]) -> list[tuple[int, int, int]]:
    """Step B for one home: (expert, destination, entries), largest quota and most wanted expert first.

    ``quota``: entries that each destination takes from this home. ``entries``: of each of its experts.
    Indices are positions in the two. What is not handed out stays at home.
    """
    quota, left = list(quota), list(entries)
    handed = []
    while any(quota):
        wanted, most = max(quota), max(left)
        destination, expert = quota.index(wanted), left.index(most)
        part = min(wanted, most)
        quota[destination] -= part
        left[expert] -= part
        handed.append((expert, destination, part))
    return handed


def place(decided: MoonEPPlan) -> Placement:
    """The 2 epn slots of each rank: own experts, then copies."""
    ranks, experts = decided.alloc.shape
    own = np.arange(experts).reshape(ranks, -1)
    slot_expert = np.concatenate([own, decided.experts_to_copy], axis=1)
    slot_rank = np.arange(ranks).repeat(slot_expert.shape[1])
    return Placement(slot_expert.ravel(), slot_rank, experts, ranks, np.arange(ranks).repeat(own.shape[1]))


def destination_rows(ids: NDArray[np.integer], decided: MoonEPPlan) -> IntArray:
    """Step D in full: where each entry of ``ids`` (R*S, K) is received, (R*S, K).

    Destination rank * NvS + row of its buffer. An entry whose token already sends its row to that rank
    carries only a weight there, and is encoded as -(place) - 1.
    """
    blocks = _blocks(decided)
    ends, groups = decided.cu_seqlens, decided.cu_seqlens.shape[1]
    start = (ends - np.diff(ends, axis=1, prepend=0)).ravel()[blocks.slot]
    first_row = start + blocks.slot // groups * decided.static_rows
    ordinal = np.arange(ids.size) - (blocks.entries.cumsum() - blocks.entries).repeat(blocks.entries)
    rows = deal(ids, first_row.repeat(blocks.entries) + ordinal)
    carries = first_visits((rows // max(decided.static_rows, 1)).T).T
    return np.where(carries, rows, -rows - 1)


class _Blocks(NamedTuple):
    """Nonempty (expert, destination) pairs, by expert and then destination: slot and entries of each."""

    slot: IntArray
    entries: IntArray


def _blocks(decided: MoonEPPlan) -> _Blocks:
    """Low source ranks fill low destinations: entries by expert and source fill block after block."""
    ranks, experts = decided.alloc.shape
    epn = experts // ranks
    slot_of = np.full((ranks, experts), -1, dtype=np.int64)
    own = np.arange(experts)
    slot_of[own // epn, own] = own // epn * 2 * epn + own % epn
    rank, position = np.nonzero(decided.experts_to_copy >= 0)
    slot_of[rank, decided.experts_to_copy[rank, position]] = rank * 2 * epn + epn + position
    expert, destination = np.nonzero(decided.alloc.T)
    return _Blocks(slot_of[destination, expert], decided.alloc[destination, expert])


def _allocate(z: IntArray, total: IntArray) -> IntArray:
    """Step B for all homes: entries of each expert at each destination, (R, E)."""
    ranks, experts = len(z), len(total)
    epn = experts // ranks
    alloc = np.zeros((ranks, experts), dtype=np.int64)
    for home in np.flatnonzero(z.any(axis=1)):
        takers = np.flatnonzero(z[home])
        entries = total[home * epn : (home + 1) * epn]
        for expert, taker, part in split_home(z[home, takers].tolist(), entries.tolist()):
            alloc[takers[taker], home * epn + expert] += part
    own = np.arange(experts)
    alloc[own // epn, own] = total - alloc.sum(axis=0)
    return alloc


def _experts_to_copy(alloc: IntArray) -> IntArray:
    """Remote experts that each rank needs, (R, epn), ascending, padded with -1."""
    ranks, experts = alloc.shape
    epn = experts // ranks
    remote = alloc > 0
    own = np.arange(experts)
    remote[own // epn, own] = False
    rank, expert = np.nonzero(remote)
    needed = remote.sum(axis=1)
    to_copy = np.full((ranks, epn), -1, dtype=np.int64)
    to_copy[rank, np.arange(len(rank)) - (needed.cumsum() - needed)[rank]] = expert
    return to_copy


def _layout(alloc: IntArray, to_copy: IntArray, token_padding: int) -> tuple[IntArray, IntArray]:
    """Step C: ``cu_seqlens`` (R, 2 epn) and ``zero_fill_ranges`` (R, 2 epn, 2)."""
    ranks, experts = alloc.shape
    rank = np.arange(ranks)[:, None]
    own = np.arange(experts).reshape(ranks, -1)
    copied = np.where(to_copy >= 0, alloc[rank, to_copy], 0)
    rows = np.concatenate([alloc[rank, own], copied], axis=1)
    padded = -(-rows // token_padding) * token_padding
    ends = padded.cumsum(axis=1)
    fill = padded - rows
    first = np.where(fill > 0, ends - fill, 0)
    return ends, np.stack([first, fill], axis=2)
