"""How the copies that a rank sends are dealt to its send cores (vector cores of a die, SMs of a GPU)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from moesim.plan import IntArray


@dataclass(frozen=True, eq=False)
class Dealt:
    """Work of the cores, one row a (rank, core, slot): ``copies`` rows of ``slot`` sent by ``core`` of ``rank``."""

    rank: IntArray
    core: IntArray
    slot: IntArray
    copies: IntArray


def runs(copies: IntArray, cores: int) -> Dealt:
    """Contiguous runs of experts: the rule of CANN's fused dispatch.

    ``copies`` (R, P): rows from each rank to each slot. Each core gets floor(P / cores) consecutive slots. The slots
    left over are shared, token by token, by groups of cores: as many equal groups as divide both. The load of a core
    is therefore the sum of its experts, whatever their heat.

    >>> dealt = runs(np.array([[4, 1, 6]]), cores=2)
    >>> list(zip(dealt.core.tolist(), dealt.slot.tolist(), dealt.copies.tolist()))
    [(0, 0, 4), (1, 1, 1), (0, 2, 3), (1, 2, 3)]
    """
    slots = copies.shape[1]
    each, left = divmod(slots, cores)
    whole = cores * each
    groups = math.gcd(cores, left) if left else 1
    sharers = np.concatenate([np.ones(whole, dtype=np.int64), np.full(left, cores // groups)])
    slot = np.repeat(np.arange(slots), sharers)
    part = np.arange(len(slot)) - np.repeat(np.cumsum(sharers) - sharers, sharers)
    own = np.minimum(slot // max(each, 1), cores - 1)
    # Within its group, the i-th slot left over begins with the i-th core.
    extra = np.maximum(slot - whole, 0)
    group, turn = extra * groups // max(left, 1), (part + extra) % (cores // groups)
    shared = group * (cores // groups) + turn
    core = np.where(slot < whole, own, shared)
    sharers = sharers[slot]
    # The i-th of g sharers takes the tokens i, i + g, i + 2g ... of the slot.
    share = copies.take(slot, axis=1)
    several = np.flatnonzero(sharers > 1)
    share[:, several] = (share[:, several] + (sharers - 1 - part)[several]) // sharers[several]
    sent = np.flatnonzero(share)
    rank = sent // len(slot)
    at = sent - rank * len(slot)
    return Dealt(rank, core.take(at), slot.take(at), share.take(sent))


def slices(copies: IntArray, order: IntArray, cores: int) -> Dealt:
    """Equal slices of a rank's copies, taken in the slot order ``order`` (P,): UBEP's rule.

    No two cores of a rank differ by more than one copy.

    >>> dealt = slices(np.array([[4, 1, 6]]), np.array([0, 1, 2]), cores=2)
    >>> list(zip(dealt.core.tolist(), dealt.slot.tolist(), dealt.copies.tolist()))
    [(0, 0, 4), (0, 1, 1), (1, 2, 6)]
    """
    slots = copies.shape[1]
    ordered = copies.take(order, axis=1)
    total = ordered.sum(axis=1)
    base = np.cumsum(total) - total
    # All ranks lie one behind the other on one line; a piece ends where a slot or a slice does.
    slot_end = base[:, None] + np.cumsum(ordered, axis=1)
    slice_end = base[:, None] + (np.arange(1, cores + 1) * total[:, None]) // cores
    end = np.concatenate([slot_end.ravel(), slice_end.ravel()])
    mark = np.argsort(end, kind="stable")
    size = np.diff(end.take(mark), prepend=0)
    piece = np.flatnonzero(size > 0)
    # Before the piece that a slot ends, all slots in front of that one have ended, and so with slices.
    mark = mark.take(piece)
    place = np.where(mark < slot_end.size, mark, piece - (mark - slot_end.size))
    rank = place // slots
    return Dealt(rank, piece - place - rank * cores, order.take(place - rank * slots), size.take(piece))


def in_order(slots: int) -> IntArray:
    """(P,) the slots as they are numbered, so that neighbours on the fabric stay neighbours."""
    return np.arange(slots)


def hop_mixed(slots: int, cores: int) -> IntArray:
    """(P,) the slots in UBEP's hop-aware order.

    They are written row by row into a matrix with one column a core and read column by column, so that every core's
    share runs through the whole pod and holds the same mix of near and far experts.

    >>> hop_mixed(6, 2).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    rows = -(-slots // cores)
    order = np.arange(rows * cores).reshape(rows, cores).T.ravel()
    return order[order < slots]
