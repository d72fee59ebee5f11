"""Water levels by Newton's method: the max-min allocation again, from a good guess, in a few passes.

Given which resource holds each flow (the lowest on its row), the levels of the resources that hold flows obey
one linear system: what a resource carries equals its capacity. Ordered by level it is triangular, because a flow
that a resource does not hold is held by a lower one. Solve, look again which resource is lowest on each row, and
repeat until every capacity is met: a semismooth Newton iteration, which is exact when it stops. When it does not
stop, progressive filling answers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moesim.rates import FloatArray, IntArray, fill, tally

MOST_PASSES = 16
# A dense triangle of N resources pays off up to this many cells an entry of the flows' rows, and up to this size.
CELLS = 100
DENSE = 2000
# Sweeps over the flows that may replace the solution of a sparse triangle.
SWEEPS = 40
# What a resource carries may miss its capacity by this much for rounding alone.
ROUNDING = 1e-14


class Settled(NamedTuple):
    """``rate`` (F,); ``level`` (N+1,), ``inf`` where a resource holds no flow; ``own`` (N,): the weight of the flows
    that each resource holds, those at their limit aside; ``passes``."""

    rate: FloatArray
    level: FloatArray
    own: FloatArray
    passes: int


def settle(
    path: IntArray,
    taken: FloatArray,
    capacity: FloatArray,
    level: FloatArray,
    limit: FloatArray | None = None,
    accuracy: float = 1e-9,
) -> Settled:
    """The max-min allocation, from the guess ``level`` (N+1,) of the levels.

    ``path``, ``taken`` (H, F) and ``capacity`` (N+1,) as in `moesim.rates.fill`; ``limit`` (F,) bounds the rates.
    ``accuracy``: how well capacities are met, relative to the part of a resource that the flows it holds take.
    """
    nodes = len(capacity) - 1
    for passes in range(1, MOST_PASSES + 1):
        order = np.argsort(level[:nodes], kind="stable")
        rank = np.append(np.empty(nodes, dtype=np.int64), nodes)
        rank[order] = np.arange(nodes)
        height, room = np.append(level[order], np.inf), capacity[order]
        rows = rank.take(path)
        holder = rows.min(axis=0)
        rate = height.take(holder)
        if limit is None:
            aside = np.flatnonzero(np.isinf(rate))
        else:
            aside = np.flatnonzero(limit <= rate)
            rate = np.minimum(rate, limit)
        holder[aside] = nodes
        dense = nodes <= DENSE and nodes**2 <= CELLS * rows.size
        system = (_Dense if dense else _Sparse)(rows, taken, holder, nodes)
        held = system.own > 0
        finite = np.where(held, height[:nodes], 0.0)
        load = system.times(finite)
        spent = rate[aside]
        free = np.isinf(spent)
        if len(aside):
            part = taken[:, aside] * np.where(free, 0.0, spent)
            load += tally(rows[:, aside], part, nodes + 1)[:nodes]
        miss = room - load
        crowded = ~held & (miss < -accuracy * room)
        if free.any():
            crowded[np.setdiff1d(rows[:, aside[free]], nodes)] = True
            crowded &= ~held
        close = np.abs(miss) <= accuracy * system.own * finite + ROUNDING * room
        if not crowded.any() and (close | ~held).all():
            settled = np.append(np.where(held, finite, np.inf)[rank[:nodes]], np.inf)
            return Settled(rate, settled, system.own[rank[:nodes]], passes)
        raised = finite + system.solve(np.where(held, miss, 0.0), accuracy * finite / 10)
        guess = np.where(held, np.where(raised > 0, raised, finite / 2), np.inf)
        if crowded.any():
            refill(guess, np.flatnonzero(crowded), rows, taken, rate, room)
        level = np.append(guess[rank[:nodes]], np.inf)
    rate, more = fill(path, taken, capacity, limit)
    level = levels_of(path, taken, capacity, rate, limit)
    heights = level.take(path)
    slot, flow = heights.argmin(axis=0), np.arange(path.shape[1])
    mine = np.isfinite(heights.min(axis=0)) if limit is None else rate < limit
    own: FloatArray = tally(path[slot, flow][mine], taken[slot, flow][mine], nodes + 1)[:nodes]
    return Settled(rate, level, own, MOST_PASSES + more)


def levels_of(
    path: IntArray, taken: FloatArray, capacity: FloatArray, rate: FloatArray, limit: FloatArray | None
) -> FloatArray:
    """The levels (N+1,) behind max-min rates (F,): of a full resource, the rate of its fastest unlimited flow."""
    load = tally(path, taken * rate, len(capacity))
    level = np.zeros(len(capacity))
    free = np.ones(len(rate), dtype=bool) if limit is None else rate < limit
    for row in path:
        np.maximum.at(level, row[free], rate[free])
    level[(load < capacity * (1 - 1e-9)) | (level == 0)] = np.inf
    return level


def refill(
    level: FloatArray,
    crowded: IntArray,
    rows: IntArray,
    taken: FloatArray,
    rate: FloatArray,
    capacity: FloatArray,
) -> None:
    """Set the levels of the ``crowded`` resources to what fills them if all else stays: flows above it sink to it."""
    chosen = np.zeros(len(capacity) + 1, dtype=bool)
    chosen[crowded] = True
    slot, flow = np.nonzero(chosen.take(rows))
    resource, speed, weight = rows[slot, flow], rate[flow], taken[slot, flow]
    order = np.lexsort((speed, resource))
    resource, speed, weight = resource[order], speed[order], weight[order]
    finite = np.where(np.isinf(speed), 0.0, speed)
    first = np.append(True, resource[1:] != resource[:-1])
    segment = np.cumsum(first) - 1
    start = np.flatnonzero(first)

    def before(values: FloatArray) -> FloatArray:
        total: FloatArray = np.cumsum(values) - values
        return np.subtract(total, total[start][segment])

    ahead = np.bincount(segment, weight)[segment] - before(weight)
    slower = before(weight * finite)
    full = np.where(np.isinf(speed), True, slower + finite * ahead >= capacity[resource])
    position = np.where(full, np.arange(len(full)), len(full))
    at = np.minimum.reduceat(position, start)
    at = at[at < len(full)]
    level[resource[at]] = np.maximum((capacity[resource[at]] - slower[at]) / ahead[at], 0.0)


class _Dense:
    """The system as one square matrix, resources in order of level, so lower triangular where flows are held.

    Its last row and column, number ``nodes``, take the padding and the flows that no resource holds.
    """

    def __init__(self, rows: IntArray, taken: FloatArray, holder: IntArray, nodes: int) -> None:
        width = nodes + 1
        cells = (holder * width + rows).ravel()
        matrix = np.bincount(cells, taken.ravel(), width * width).reshape(width, width).T
        matrix[nodes, :] = 0.0
        matrix[:, nodes] = 0.0
        self.own = matrix.diagonal()[:nodes].copy()
        self._matrix = matrix

    def times(self, height: FloatArray) -> FloatArray:
        """What held flows load on each resource (N,)."""
        from scipy.linalg.blas import dgemv

        load: FloatArray = dgemv(1.0, self._matrix, np.append(height, 0.0))
        return load[:-1]

    def solve(self, miss: FloatArray, close: FloatArray) -> FloatArray:
        """The change of levels (N,) that makes up for ``miss`` (N,), for the resources that hold flows."""
        from scipy.linalg.lapack import dtrtrs

        matrix = self._matrix
        np.fill_diagonal(matrix, np.where(matrix.diagonal() > 0, matrix.diagonal(), 1.0))
        change: FloatArray
        change, _ = dtrtrs(matrix, np.append(miss, 0.0), lower=1)
        return change[:-1]


class _Sparse:
    """The same system as the flows themselves, for fabrics of thousands of resources."""

    def __init__(self, rows: IntArray, taken: FloatArray, holder: IntArray, nodes: int) -> None:
        self._rows, self._taken, self._holder, self._nodes = rows, taken, holder, nodes
        mine = rows == holder
        self.own = tally(rows[mine], taken[mine], nodes + 1)[:nodes]

    def times(self, height: FloatArray) -> FloatArray:
        """What held flows load on each resource (N,)."""
        rate = np.append(height, 0.0).take(self._holder)
        return tally(self._rows, self._taken * rate, self._nodes + 1)[:-1]

    def solve(self, miss: FloatArray, close: FloatArray) -> FloatArray:
        """The change of levels (N,) that makes up for ``miss`` (N,), to within ``close`` (N,).

        By Jacobi sweeps, which end for a triangle, and soon where resources hardly touch each other.
        """
        holder = np.broadcast_to(self._holder, self._rows.shape)
        beside = np.flatnonzero((self._rows != holder) & (holder < self._nodes))
        row, column = self._rows.ravel()[beside], holder.ravel()[beside]
        taken, mass = self._taken.ravel()[beside], np.where(self.own > 0, self.own, np.inf)
        change = miss / mass
        for _ in range(SWEEPS):
            carried = np.bincount(row, taken * change.take(column), self._nodes + 1)[:-1]
            swept = (miss - carried) / mass
            if (np.abs(swept - change) <= close).all():
                return swept
            change = swept
        return self._triangle(row, column, taken, miss)

    def _triangle(self, row: IntArray, column: IntArray, taken: FloatArray, miss: FloatArray) -> FloatArray:
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import spsolve_triangular

        inside, every = row < self._nodes, np.arange(self._nodes)
        cells = np.append(row[inside], every), np.append(column[inside], every)
        value = np.append(taken[inside], np.where(self.own > 0, self.own, 1.0))
        matrix = csc_array((value, cells), shape=(self._nodes, self._nodes))
        change: FloatArray = spsolve_triangular(matrix, miss, lower=True)
        return np.where(self.own > 0, change, 0.0)
