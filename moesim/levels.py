"""Water levels by Newton's method: the max-min allocation again, from a good guess, in a few passes.

Given which resource holds each flow (the lowest on its row), the levels of the resources that hold flows obey
one linear system: what a resource carries equals its capacity. Ordered by level it is triangular, because a flow
that a resource does not hold is held by a lower one. Solve, look again which resource is lowest on each row, and
repeat until every capacity is met: a semismooth Newton iteration. What is carried is always counted from the flows,
so the triangle need not be new: one that was set up for earlier levels serves until it no longer helps (the chord
method). When the iteration does not stop, progressive filling answers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesim.rates import FloatArray, IntArray, fill, tally

MOST_PASSES = 40
# A dense triangle of N resources pays off up to this many cells a flow, and up to this size.
CELLS = 1000
DENSE = 2000
# A triangle serves for so many passes, unless more than some passes do not suffice.
AGE = 30
SLOW = 8
# Sweeps over the flows that may replace the solution of a sparse triangle.
SWEEPS = 40
NOBODY = 255
# What a resource carries may miss its capacity by this much for rounding alone.
ROUNDING = 1e-14
# A resource that holds no flow carries no more than it can, to within this.
TIGHT = 1e-9
# Takes the place of "never" in single precision.
HUGE = 1e30


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
    triangle: Triangle | None = None,
) -> Settled:
    """The max-min allocation, from the guess ``level`` (N+1,) of the levels.

    ``path``, ``taken`` (H, F) and ``capacity`` (N+1,) as in `moesim.rates.fill`, no resource twice on a row;
    ``limit`` (F,) bounds the rates. ``accuracy``: how well capacities are met, relative to the part of a resource
    that the flows it holds take. ``triangle``: of an earlier call with the same resources.
    """
    room = capacity[:-1]
    triangle = triangle or Triangle()
    for passes in range(1, MOST_PASSES + 1):
        now = _Look(path, taken, level, limit)
        triangle.age += 1
        if not triangle.dense or triangle.age > AGE or passes > SLOW or len(triangle.slot) != len(now.slot):
            triangle.set_up(path, taken, now, level)
        else:
            triangle.update(path, taken, now.slot)
            triangle.sort(level)
        held, own = triangle.count[:-1] > 0, triangle.own[:-1]
        finite = np.where(held, level[:-1], 0.0)
        miss = room - now.load
        crowded = miss < -TIGHT * room
        if now.free is not None:
            crowded[now.free] = True
        crowded &= ~held
        gap = np.abs(miss) - ROUNDING * room
        some = crowded.any()
        if not some and (gap <= accuracy * own * finite)[held].all():
            level = np.append(np.where(held, level[:-1], np.inf), np.inf)
            return Settled(now.rate, level, np.where(held, own, 0.0), passes)
        raised = finite + triangle.solve(np.where(held, miss, 0.0), accuracy * finite / 1000)
        guess = np.where(held, np.where(raised > 0, raised, finite / 2), np.inf)
        if some:
            refill(guess, np.flatnonzero(crowded), path, taken, now.rate, room)
        level = np.append(guess, np.inf)
    rate, more = fill(path, taken, capacity, limit)
    level = levels_of(path, taken, capacity, rate, limit)
    triangle.set_up(path, taken, _Look(path, taken, level, limit), level)
    return Settled(rate, level, triangle.own[:-1], MOST_PASSES + more)


class _Look:
    """What given levels (N+1,) mean: who holds each flow, how fast it is, what is carried.

    ``slot`` (F,): where on its row the resource is that holds a flow, `NOBODY` for flows at their limit or on no
    resource with a level. ``load`` (N,): what each resource carries; ``free``: the resources of flows that nothing
    bounds.
    """

    def __init__(
        self, path: IntArray, taken: FloatArray, level: FloatArray, limit: FloatArray | None
    ) -> None:
        nodes = len(level) - 1
        self.rate = level.take(path[0])
        self.slot = np.zeros(path.shape[1], dtype=np.uint8)
        for number, row in enumerate(path[1:], 1):
            other = level.take(row)
            # Later rows have higher numbers.
            np.maximum(self.slot, (other < self.rate).view(np.uint8) * np.uint8(number), out=self.slot)
            np.minimum(self.rate, other, out=self.rate)
        aside = np.isinf(self.rate) if limit is None else limit <= self.rate
        np.maximum(self.slot, aside.view(np.uint8) * np.uint8(NOBODY), out=self.slot)
        if limit is not None:
            np.minimum(self.rate, limit, out=self.rate)
        self.free = None
        carried = self.rate
        if np.isinf(self.rate.max(initial=0.0)):
            free = np.flatnonzero(np.isinf(self.rate))
            carried = self.rate.copy()
            carried[free] = 0.0
            self.free = np.setdiff1d(path[:, free], nodes)
        load = np.zeros(nodes + 1)
        for row, amount in zip(path, taken, strict=True):
            load += np.bincount(row, amount * carried, nodes + 1)
        self.load = load[:nodes]


class Triangle:
    """The system of equations: what each resource carries of flows that each other one holds.

    ``count`` and ``own`` (N,): of the flows that each resource holds itself, how many and how heavy. A dense triangle
    is kept from one look to the next, changed only where a flow has moved, and sorted. The sparse one, for fabrics of
    many resources, is made anew. Single precision is enough, because what is missing is counted anew in each pass.
    """

    def __init__(self) -> None:
        self.slot = np.zeros(0, dtype=np.uint8)
        self.age = 0
        self.count = np.zeros(1, dtype=np.int64)
        self.own = np.zeros(1)
        self._order = np.zeros(0, dtype=np.int64)
        self._place = np.zeros(1, dtype=np.int64)
        self.dense = True
        self._cells = np.zeros(1, dtype=np.float32)

    def update(self, path: IntArray, taken: FloatArray, slot: NDArray[np.uint8]) -> None:
        """Take the moves of flows since the last look into account: what holds them now is in ``slot`` (F,)."""
        nodes = len(self.own) - 1
        moved = np.flatnonzero(self.slot != slot)
        rows, amounts = path.take(moved, axis=1), taken.take(moved, axis=1)
        old, new = _holder(rows, self.slot[moved], nodes), _holder(rows, slot[moved], nodes)
        self.count += np.bincount(new, minlength=nodes + 1) - np.bincount(old, minlength=nodes + 1)
        for row, amount in zip(rows, amounts, strict=True):
            gains, loses = row == new, row == old
            self.own += np.bincount(new[gains], amount[gains], nodes + 1)
            self.own -= np.bincount(old[loses], amount[loses], nodes + 1)
            to = self._place.take(row)
            np.add.at(self._cells, self._place.take(new) * (nodes + 1) + to, amount.astype(np.float32))
            np.subtract.at(self._cells, self._place.take(old) * (nodes + 1) + to, amount.astype(np.float32))
        self.slot = slot

    def keep(self, path: IntArray, taken: FloatArray, flows: IntArray) -> None:
        """Only some of the flows (H, F) stay, those numbered ``flows``."""
        if len(self.slot) and not self.dense:
            self.slot = self.slot[flows]
        elif len(self.slot):
            slot = np.full(len(self.slot), NOBODY, dtype=np.uint8)
            slot[flows] = self.slot[flows]
            self.update(path, taken, slot)
            self.slot = slot[flows]

    def wait(self, new: int) -> None:
        """``new`` flows come, and nothing holds them yet."""
        if len(self.slot):
            self.slot = np.append(self.slot, np.full(new, NOBODY, dtype=np.uint8))

    def sort(self, level: FloatArray) -> None:
        """Bring the triangle into the order of these levels (N+1,)."""
        nodes = len(self.own) - 1
        order = np.argsort(level[:nodes], kind="stable")
        moved = np.flatnonzero(order != self._order)
        if not len(moved):
            return
        matrix = self._cells.reshape(nodes + 1, nodes + 1)
        source = self._place[order]
        if 4 * len(moved) < nodes:
            source = source[moved]
            matrix[moved] = matrix[source]
            matrix[:, moved] = matrix[:, source]
        else:
            source = np.append(source, nodes)
            self._cells = matrix.take(source, axis=0).take(source, axis=1).ravel()
        self._order, self._place[order] = order, np.arange(nodes)

    def set_up(self, path: IntArray, taken: FloatArray, now: _Look, level: FloatArray) -> None:
        """The system of the flows (H, F) at the levels of ``now``."""
        nodes = len(now.load)
        self.slot = now.slot
        holder = _holder(path, now.slot, nodes)
        self._order = np.argsort(level[:nodes], kind="stable")
        self._place = np.empty(nodes + 1, dtype=np.int64)
        self._place[self._order], self._place[nodes] = np.arange(nodes), nodes
        self.dense = nodes <= DENSE and nodes**2 <= CELLS * path.shape[1]
        self.count = np.bincount(holder, minlength=nodes + 1)
        self.own = np.zeros(nodes + 1)
        for row, amount in zip(path, taken, strict=True):
            mine = np.flatnonzero(row == holder)
            self.own += np.bincount(row[mine], amount[mine], nodes + 1)
        self.age = 0
        if self.dense:
            self._cells = np.zeros((nodes + 1) ** 2, dtype=np.float32)
            start = self._place.take(holder) * (nodes + 1)
            for row, amount in zip(path, taken, strict=True):
                np.add.at(self._cells, start + self._place.take(row), amount.astype(np.float32))
        else:
            self._set_up_sparse(path, taken, holder)

    def _set_up_sparse(self, path: IntArray, taken: FloatArray, holder: IntArray) -> None:
        nodes = len(self.own) - 1
        held_by = np.broadcast_to(holder, path.shape)
        beside = np.flatnonzero((path != held_by) & (held_by < nodes) & (path < nodes))
        self._row, self._column = path.ravel()[beside], held_by.ravel()[beside]
        self._taken = taken.ravel()[beside]

    def solve(self, miss: FloatArray, close: FloatArray) -> FloatArray:
        """The change of levels (N,) that makes up for ``miss`` (N,); if sparse, to within ``close`` (N,)."""
        nodes = len(miss)
        held = self.count[:nodes] > 0
        if not self.dense:
            return self._sweep(miss, np.where(held, self.own[:nodes], np.inf), close)
        from scipy.linalg.blas import strsv

        own = np.where(held, self.own[:nodes], HUGE)[self._order]
        self._cells[:: nodes + 2] = np.append(own, HUGE)
        # Its rows are the columns of the system.
        matrix = self._cells.reshape(nodes + 1, nodes + 1).T
        change = np.empty(nodes)
        change[self._order] = strsv(matrix, np.append(miss[self._order], 0.0), lower=1)[:nodes]
        return change

    def _sweep(self, miss: FloatArray, mass: FloatArray, close: FloatArray) -> FloatArray:
        """Jacobi sweeps, which end for a triangle, and soon where resources hardly touch each other."""
        change = miss / mass
        for _ in range(SWEEPS):
            carried = np.bincount(self._row, self._taken * change.take(self._column), len(miss))
            swept = (miss - carried) / mass
            if (np.abs(swept - change) <= close).all():
                return swept
            change = swept
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import spsolve_triangular

        every = np.arange(len(miss))
        row, column = self._place[self._row], self._place[self._column]
        below = row > column  # but for ties
        cells = np.append(row[below], every), np.append(column[below], every)
        mass = mass[self._order]
        value = np.append(self._taken[below], np.where(np.isinf(mass), 1.0, mass))
        matrix = csc_array((value, cells), shape=(len(miss), len(miss)))
        change[self._order] = np.where(
            np.isinf(mass), 0.0, spsolve_triangular(matrix, miss[self._order], lower=True)
        )
        return change


def _holder(path: IntArray, slot: NDArray[np.uint8], nodes: int) -> IntArray:
    """The resource (F,) that holds each flow, ``nodes`` if none does."""
    holder = np.full(len(slot), nodes)
    for number, row in enumerate(path):
        np.copyto(holder, row, where=slot == number)
    return holder


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
    path: IntArray,
    taken: FloatArray,
    rate: FloatArray,
    capacity: FloatArray,
) -> None:
    """Set the levels of the ``crowded`` resources to what fills them if all else stays: flows above it sink to it."""
    chosen = np.zeros(len(capacity) + 1, dtype=bool)
    chosen[crowded] = True
    at = [np.flatnonzero(chosen.take(row)) for row in path]
    resource = np.concatenate([row[some] for row, some in zip(path, at, strict=True)])
    weight = np.concatenate([amount[some] for amount, some in zip(taken, at, strict=True)])
    speed = rate[np.concatenate(at)]
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
    fills = np.minimum.reduceat(position, start)
    fills = fills[fills < len(full)]
    to = resource[fills]
    level[to] = np.maximum((capacity[to] - slower[fills]) / ahead[fills], 0.0)
