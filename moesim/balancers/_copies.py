"""What placements with copies share: an even split of entries over copies, and what a new placement moves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesim.balancers import Context
from moesim.errors import Problem
from moesim.placement import Assignment, Placement

IntArray = NDArray[np.int64]


def by_expert(ids: NDArray[np.integer]) -> IntArray:
    """Positions of the entries of ``ids`` (N, K), row after row, by expert."""
    flat = ids.ravel()
    # Sixteen-bit ids take numpy's radix sort.
    return np.argsort(flat.astype(np.uint16) if flat.size and flat.max() < 2**16 else flat, kind="stable")


def ordinals(ids: NDArray[np.integer]) -> IntArray:
    """How many entries of the same expert come before each entry of ``ids`` (N, K), row after row.

    >>> ordinals(np.array([[0, 3], [3, 1], [0, 3]])).tolist()
    [[0, 0], [1, 0], [1, 2]]
    """
    counts = np.bincount(ids.ravel())
    found = np.empty(ids.size, dtype=np.int64)
    found[by_expert(ids)] = np.arange(ids.size) - (counts.cumsum() - counts).repeat(counts)
    return found.reshape(ids.shape)


def split_evenly(ids: NDArray[np.integer], placement: Placement) -> IntArray:
    """Slot of each entry of ``ids`` (T*R, K): the j-th entry of an expert goes to its copy number j mod n.

    Copies are in the order of their slots. As even as whole entries can be: what planners of the EPLB family assume.
    Deployments take the place of the entry in its rank's batch for j, or chance, and come close.
    """
    held = np.flatnonzero(placement.slot_expert >= 0)
    in_order = held[np.argsort(placement.slot_expert[held], kind="stable")]
    copies = np.bincount(placement.slot_expert[held], minlength=placement.experts)
    first = copies.cumsum() - copies
    wide = ids.astype(np.int64)
    return in_order[first[wide] + ordinals(ids) % copies[wide]]


def assigned(
    ids: NDArray[np.integer],
    slot_expert: IntArray,
    ranks: int,
    experts: int,
    moves: IntArray | None = None,
    details: dict[str, object] | None = None,
    stall: bool = False,
) -> Assignment:
    """Entries split evenly over the copies in ``slot_expert`` (P,), the same number of slots on every rank."""
    placement = placed(slot_expert, ranks, experts)
    slot = split_evenly(ids, placement)
    return Assignment(
        placement=placement,
        slot=slot,
        moves=np.empty((0, 2), dtype=np.int64) if moves is None else moves,
        gemm_rows=np.bincount(slot.ravel(), minlength=len(slot_expert)),
        details=details or {},
        stall=stall,
    )


def placed(slot_expert: IntArray, ranks: int, experts: int) -> Placement:
    """``slot_expert`` (P,) on ranks that have P/R slots each; the home of an expert is the rank of its first slot."""
    slot_rank = np.arange(len(slot_expert)) // (len(slot_expert) // ranks)
    first = np.zeros(experts, dtype=np.int64)
    backwards = slot_expert[::-1]
    held = backwards >= 0
    first[backwards[held]] = slot_rank[::-1][held]  # of several the last written stays
    return Placement(slot_expert, slot_rank, experts, ranks, first)


def round_robin(experts: int, slots: int) -> IntArray:
    """(P,) experts in order over the slots, and from the first one again: where EPLB starts before it has counted."""
    return np.arange(slots) % experts


def arrivals(before: IntArray, after: IntArray, ranks: int) -> IntArray:
    """Slots of ``after`` (P,) whose expert its rank has nowhere in ``before`` (P,); of two on one rank the first."""
    slots, per_rank = len(after), len(after) // ranks
    rank = np.arange(slots) // per_rank
    base = int(max(before.max(initial=0), after.max(initial=0))) + 1
    had, wants = rank * base + before, rank * base + after
    _, first = np.unique(wants, return_index=True)
    new = (after >= 0) & ~np.isin(wants, had[before >= 0])
    return np.sort(first[new[first]])


def shared_out(before: IntArray, after: IntArray, ranks: int) -> IntArray:
    """``moves`` (M, 2) [slot, sender] from one placement (P,) to another: receivers are shared out over the holders.

    The receivers of an expert, by rank, are cut into as many equal runs as ranks hold it, one run for each holder; of
    those left over each holder takes one.
    """
    slots = arrivals(before, after, ranks)
    per_rank = len(after) // ranks
    moves = np.empty((len(slots), 2), dtype=np.int64)
    for number, slot in enumerate(slots.tolist()):
        expert = after[slot]
        holders = np.unique(np.flatnonzero(before == expert) // per_rank)
        receivers = slots[after[slots] == expert]
        position, run = int(np.searchsorted(receivers, slot)), len(receivers) // len(holders)
        even = run * len(holders)
        moves[number] = slot, holders[position // run if position < even else position - even]
    return moves


def schedule(context: Context, interval: int, one_by_one: bool = True) -> tuple[int, bool]:
    """Number of the plan that was last begun to be put in place, 0 for none, and whether its weights move in this step.

    Plan k is made before step k * ``interval``; ``one_by_one``: layer number l moves its weights l steps later.
    """
    plan, since = divmod(context.step - context.layer * one_by_one, interval)
    return max(plan, 0), since == 0 and plan > 0


def window(context: Context, size: int, end: int) -> IntArray:
    """(E,) entries of each expert in the ``size`` steps before step ``end``."""
    counted: IntArray = context.past[max(0, end - size) : end].sum(axis=0)
    return counted


def indivisible(what: str, slots: int, ranks: int, experts: int) -> list[Problem]:
    """The problem of ``slots`` that cannot be laid out evenly over the ranks; none if they can.

    ``what``: the parameter that adds slots to the E experts.
    """
    if slots % ranks == 0:
        return []
    extra = [slots // ranks * ranks - experts, (slots // ranks + 1) * ranks - experts]
    legal = f"{what} of {' or '.join(str(value) for value in extra if value >= 0)}"
    message = f"{experts} experts and {slots - experts} copies cannot be divided evenly over {ranks} ranks"
    return [Problem(message, legal=legal)]
