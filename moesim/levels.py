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
    nodes, last = len(capacity) - 1, None
    for passes in range(1, MOST_PASSES + 1):
        now = _Look(path, capacity, level, limit)
        if last is not None and last.confirmed(now, level, accuracy):
            return Settled(now.rate, last.by_resource(level), last.system.own[last.rank[:-1]], passes)
        now.assemble(taken)
        held, finite, room = now.held, now.finite, now.room
        miss = room - now.load
        crowded = ~held & (miss < -accuracy * room)
        if now.free.any():
            crowded[np.setdiff1d(now.rows[:, now.aside[now.free]], nodes)] = True
            crowded &= ~held
        close = np.abs(miss) <= accuracy * now.system.own * finite + ROUNDING * room
        if not crowded.any() and (close | ~held).all():
            return Settled(now.rate, now.by_resource(level), now.system.own[now.rank[:-1]], passes)
        raised = finite + now.system.solve(np.where(held, miss, 0.0), accuracy * finite / 1000)
        sound = (raised > 0) | ~held
        guess = np.where(held, np.where(sound, raised, finite / 2), np.inf)
        last = now if sound.all() else None
        if crowded.any():
            last = None
            refill(guess, np.flatnonzero(crowded), now.rows, taken, now.rate, room)
        level = np.append(guess[now.rank[:-1]], np.inf)
    rate, more = fill(path, taken, capacity, limit)
    level = levels_of(path, taken, capacity, rate, limit)
    heights = level.take(path)
    slot, flow = heights.argmin(axis=0), np.arange(path.shape[1])
    mine = np.isfinite(heights.min(axis=0)) if limit is None else rate < limit
    own: FloatArray = tally(path[slot, flow][mine], taken[slot, flow][mine], nodes + 1)[:nodes]
    return Settled(rate, level, own, MOST_PASSES + more)


class _Look:
    """What given levels (N+1,) mean: resources in order of level, who holds each flow, what is carried.

    ``rows`` (H, F): the path in that order; ``holder`` (F,): the lowest of each row, ``nodes`` for the flows ``aside``
    that are at their limit or, ``free``, on no resource with a level.
    """

    def __init__(
        self, path: IntArray, capacity: FloatArray, level: FloatArray, limit: FloatArray | None
    ) -> None:
        nodes = len(capacity) - 1
        order = np.argsort(level[:nodes], kind="stable")
        self.rank = np.append(np.empty(nodes, dtype=np.int64), nodes)
        self.rank[order] = np.arange(nodes)
        self.order, self.room = np.append(order, nodes), capacity[order]
        self.height = level[self.order]
        self.rows = self.rank.take(path)
        self.holder = self.rows.min(axis=0)
        self.rate = self.height.take(self.holder)
        if limit is None:
            self.aside = np.flatnonzero(np.isinf(self.rate))
        else:
            self.aside = np.flatnonzero(limit <= self.rate)
            self.rate = np.minimum(limit, self.rate)
        self.holder[self.aside] = nodes
        self.free = np.isinf(self.rate[self.aside])

    def assemble(self, taken: FloatArray) -> None:
        """Set up the ``system``, and the ``load`` (N,) of every resource at these levels."""
        nodes = len(self.room)
        dense = nodes <= DENSE and nodes**2 <= CELLS * self.rows.size
        self.system = (_Dense if dense else _Sparse)(self.rows, taken, self.holder, nodes)
        self.held = self.system.own > 0
        self.finite = np.where(self.held, self.height[:nodes], 0.0)
        part = taken[:, self.aside] * np.where(self.free, 0.0, self.rate[self.aside])
        self._aside_load = tally(self.rows[:, self.aside], part, nodes + 1)[:nodes]
        self.load = self.system.times(self.finite) + self._aside_load

    def by_resource(self, level: FloatArray) -> FloatArray:
        """Of ``level`` (N+1,), those of the resources that hold flows."""
        return np.where(np.append(self.held, False)[self.rank], level, np.inf)

    def confirmed(self, later: _Look, level: FloatArray, accuracy: float) -> bool:
        """Whether the levels that solve this system leave all flows where they are and overload nothing."""
        if not np.array_equal(self.order.take(self.holder), later.order.take(later.holder)):
            return False
        load = self.system.times(np.where(self.held, level[self.order[:-1]], 0.0)) + self._aside_load
        return bool((self.held | (load <= self.room * (1 + accuracy))).all())


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
        total -= total[start][segment]
        return total

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
