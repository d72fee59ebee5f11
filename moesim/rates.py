"""Max-min fair rates: how flows share the resources that they cross. Pure functions on arrays.

A flow of rate v [B/s] takes ``weight * v`` of each resource on its row. The allocation is the max-min fair
one of ``sum_f weight[f, r] * v[f] <= capacity[r]``: all flows rise together, and a flow stops when a resource
that it crosses is full. So every resource has a *level*, and a flow's rate is the least level on its row (the
fluid model of Velho, Schnorr, Casanova and Legrand, ACM TOMACS 23(4), 2013, with unit priorities).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Levels closer than this (relative) are one level: it only saves passes, and is far below what is promised.
TIE = 1e-13


def columns(
    indptr: IntArray, index: IntArray, weight: FloatArray, resources: int
) -> tuple[IntArray, FloatArray]:
    """The rows of a CSR matrix as padded columns ``(path, taken)``, both (H, F), H the longest row.

    Padding, and entries of weight 0, point at a dummy resource numbered ``resources``.
    """
    indptr = np.asarray(indptr, dtype=np.int64)
    length = np.diff(indptr)
    width = max(1, int(length.max(initial=0)))
    path = np.full((width, len(length)), resources, dtype=np.int64)
    taken = np.zeros((width, len(length)))
    flow = np.repeat(np.arange(len(length)), length)
    slot = np.arange(len(index)) - indptr[:-1].repeat(length)
    used = np.asarray(weight) > 0
    path[slot[used], flow[used]] = np.asarray(index)[used]
    taken[slot[used], flow[used]] = np.asarray(weight)[used]
    return path, taken


def distinct(path: IntArray, taken: FloatArray, dummy: int) -> tuple[IntArray, FloatArray]:
    """The columns (H, F) with each resource once on a row: what is taken of it in several places is added up."""
    path, taken = path.copy(), taken.copy()
    for first, row in enumerate(path):
        for later in range(first + 1, len(path)):
            again = np.flatnonzero((path[later] == row) & (row != dummy))
            taken[first, again] += taken[later, again]
            path[later, again], taken[later, again] = dummy, 0.0
    return path, taken


def tally(index: IntArray, amount: FloatArray, length: int) -> FloatArray:
    """The sum of ``amount`` for each ``index`` below ``length``; both arrays of one shape."""
    return np.bincount(index.ravel(), amount.ravel(), length).astype(np.float64, copy=False)


def allocate(indptr: IntArray, index: IntArray, weight: FloatArray, capacity: FloatArray) -> FloatArray:
    """Weighted max-min fair rates (F,) [B/s] of flows that all are active.

    ``indptr`` (F+1,), ``index``, ``weight``: CSR, the amount of each resource that a unit of each flow takes.
    ``capacity`` (N,) [units/s]. A flow that uses nothing gets ``inf``.

    >>> allocate(np.array([0, 1, 2]), np.array([0, 0]), np.array([1.0, 1.0]), np.array([10.0])).tolist()
    [5.0, 5.0]
    """
    path, taken = columns(indptr, index, weight, len(capacity))
    return fill(path, taken, np.append(capacity, np.inf))[0]


def fill(
    path: IntArray, taken: FloatArray, capacity: FloatArray, limit: FloatArray | None = None
) -> tuple[FloatArray, int]:
    """Rates (F,) and the number of passes, by progressive filling of all locally tightest resources at once.

    ``path``, ``taken``: (H, F) as from `columns`; ``capacity`` (N+1,), the dummy's last and infinite;
    ``limit`` (F,): an upper bound of each rate.

    The tentative level of a resource, (what is left) / (weight of its flows that have no rate yet), never
    falls as flows are given rates. So a resource whose level is the least on the row of each of its flows has
    its final level, and all such resources, wherever they are, can be closed in one pass.
    """
    width, flows = path.shape
    nodes = len(capacity)
    rate = np.full(flows, np.inf)
    limit = np.full(flows, np.inf) if limit is None else limit
    open_flow = np.arange(flows)
    left = capacity.copy()
    level = np.zeros(nodes)
    passes = 0
    while len(open_flow):
        passes += 1
        need = tally(path, taken, nodes)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Rounding aside levels only rise: what is left after large flows may be noise.
            level = np.where(need > 0, np.maximum(left / need, level), np.inf)
        on_row = level[path]
        least = on_row.min(axis=0)
        bounded = np.minimum(least, limit)
        blocked = np.zeros(nodes, dtype=bool)
        above = on_row > bounded * (1 + TIE)
        blocked[path[above]] = True
        closed = ~blocked[path[0]]
        for row in range(1, width):
            closed |= ~blocked[path[row]]
        closed |= limit <= least
        closed |= np.isinf(bounded)
        rate[open_flow[closed]] = bounded[closed]
        used = taken[:, closed] * np.where(np.isinf(bounded), 0.0, bounded)[closed]
        left = left - tally(path[:, closed], used, nodes)
        keep = ~closed
        path, taken, open_flow, limit = path[:, keep], taken[:, keep], open_flow[keep], limit[keep]
    return rate, passes


class Binding:
    """Which resources can ever be full; the others follow from these and change no rate.

    A resource r cannot bind if its flows all cross resources Q that together let less through: for each flow of r
    a q in Q, and ``sum over Q of capacity[q] * max(taken[r] / taken[q]) <= capacity[r]``. (The up-link of a host
    whose devices' ports add up to it; an engine behind its cores.) Where equality holds, a fixed order of the
    resources keeps two of them from excusing each other. What is true for flows is true for any of them, so it is
    enough to look at flows once, when they are added.
    """

    def __init__(self, capacity: FloatArray) -> None:
        self._capacity = capacity
        nodes = len(capacity) - 1
        self._rank = np.argsort(np.argsort(capacity, kind="stable"))
        # By slot of r and slot of q: the pairs that flows cross, and the largest ratio of what they take.
        self._seen: dict[tuple[int, int], tuple[IntArray, FloatArray]] = {}
        # Likewise: what Q lets through, and the last of Q in order.
        self._through: dict[tuple[int, int], FloatArray] = {}
        self._last: dict[tuple[int, int], IntArray] = {}
        self._present: dict[int, NDArray[np.bool_]] = {}
        self.kept = np.zeros(nodes + 1, dtype=bool)

    def add(self, path: IntArray, taken: FloatArray) -> None:
        """Take flows (H, F) into account: updates ``kept`` (N+1,)."""
        nodes, slots_before = len(self._capacity) - 1, len(self._present)
        missing = slots_before - len(path)
        if missing > 0:
            path = np.pad(path, ((0, missing), (0, 0)), constant_values=nodes)
            taken = np.pad(taken, ((0, missing), (0, 0)))
        for i in range(slots_before):
            for j in range(slots_before, len(path)):
                # Earlier flows have no partner in a slot that did not exist.
                self._through[i, j] = np.where(self._present[i], np.inf, 0.0)
                self._last[i, j] = np.full(nodes + 1, -1)
        changed = slots_before != len(path)
        for i, row in enumerate(path):
            present = self._present.setdefault(i, np.zeros(nodes + 1, dtype=bool))
            changed |= not present[row].all()
            present[row] = True
            for j, other in enumerate(path):
                if i != j:
                    # Crossed twice, a resource is no excuse for itself.
                    partner = np.where(other == row, nodes, other)
                    changed |= self._pair((i, j), *_pairs(row, partner, taken[i], taken[j], nodes))
        if changed:
            self._decide()

    def _decide(self) -> None:
        nodes = len(self._capacity) - 1
        through, highest = np.zeros(nodes + 1), np.full(nodes + 1, -1)
        used = np.zeros(nodes + 1, dtype=bool)
        for i, present in self._present.items():
            best, last = np.full(nodes + 1, np.inf), np.full(nodes + 1, nodes + 1)
            for slots, bound in self._through.items():
                if slots[0] == i:
                    better = bound < best
                    best, last = np.where(better, bound, best), np.where(better, self._last[slots], last)
            through[present] += best[present]
            highest[present] = np.maximum(highest, last)[present]
            used |= present
        implied = through < self._capacity * (1 - TIE)
        implied |= (through <= self._capacity * (1 + TIE)) & (highest < self._rank)
        self.kept = used & ~implied
        self.kept[nodes] = False

    def _pair(self, slots: tuple[int, int], mine: IntArray, theirs: IntArray, ratio: FloatArray) -> bool:
        """Take distinct pairs into account; whether that changed anything."""
        nodes = len(self._capacity) - 1
        seen, largest = self._seen.get(slots, (np.zeros(0, dtype=np.int64), np.zeros(0)))
        key = mine * (nodes + 1) + theirs
        at = np.searchsorted(seen, key)
        known = np.append(seen, -1)[at] == key
        old = np.where(known, np.append(largest, 0.0)[at], 0.0)
        more = np.flatnonzero(~known | (ratio > old))
        if not len(more):
            return False
        bound = self._through.setdefault(slots, np.zeros(nodes + 1))
        bound += np.bincount(mine[more], self._capacity[theirs[more]] * (ratio - old)[more], nodes + 1)
        np.maximum.at(self._last.setdefault(slots, np.full(nodes + 1, -1)), mine, self._rank[theirs])
        largest[at[known]] = np.maximum(ratio, old)[known]
        self._seen[slots] = (
            np.insert(seen, at[~known], key[~known]),
            np.insert(largest, at[~known], ratio[~known]),
        )
        return True


def binding(path: IntArray, taken: FloatArray, capacity: FloatArray) -> NDArray[np.bool_]:
    """`Binding` for flows that are all known: which resources (N+1,) can be full."""
    known = Binding(capacity)
    known.add(path, taken)
    return known.kept


def _pairs(
    mine: IntArray, theirs: IntArray, taken: FloatArray, others: FloatArray, nodes: int
) -> tuple[IntArray, IntArray, FloatArray]:
    """The distinct pairs of resources that flows cross, and the largest ratio of what they take of the two."""
    if not len(mine):
        return mine, theirs, taken
    key = mine * (nodes + 1) + theirs
    with np.errstate(divide="ignore"):
        ratio = np.where(others > 0, taken / np.where(others > 0, others, 1.0), np.inf)
    order = np.argsort(key, kind="stable")
    key = key[order]
    start = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    mine, theirs = np.divmod(key[start], nodes + 1)
    # The dummy's capacity is infinite: flows without a partner cannot be bounded.
    return mine, theirs, np.where(theirs == nodes, 1.0, np.maximum.reduceat(ratio[order], start))


def restrict(path: IntArray, taken: FloatArray, kept: NDArray[np.bool_]) -> tuple[IntArray, FloatArray]:
    """The columns without the resources that are not ``kept`` (N+1,), and without slots that nobody uses then."""
    dummy = len(kept) - 1
    keep = kept.take(path)
    keep[path == dummy] = False
    path, taken = np.where(keep, path, dummy), np.where(keep, taken, 0.0)
    order = np.argsort(~keep, axis=0, kind="stable")
    width = max(1, int(keep.sum(axis=0).max(initial=0)))
    return np.take_along_axis(path, order, 0)[:width], np.take_along_axis(taken, order, 0)[:width]
