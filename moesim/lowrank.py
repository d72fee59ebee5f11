"""Exact levels from one finish to the next, by low-rank updates of the inverse system.

A flow that ends, or that another resource comes to hold, changes one column of the system of `moesim.levels` by a
vector with a handful of entries. So the new levels cost a few matrix columns (Sherman, Morrison and Woodbury) where
a new solution would cost the whole matrix; the updates are worked into the inverse every `BLOCK` of them.
"""

from __future__ import annotations

import numpy as np

from moesim.levels import refill, settle
from moesim.rates import FloatArray, IntArray

BLOCK = 64
# Blocks between two inversions from scratch, which stop rounding from piling up.
BLOCKS = 40
MOST_PASSES = 12
# Levels and loads this close (relative) are equal: well above rounding, well below what is promised.
SLACK = 1e-12
# More resources than this, and the inverse takes too much memory.
LARGEST = 2500


class LowRank:
    """Max-min rates of flows that end one after the other.

    ``path``, ``taken`` (H, F), ``capacity`` (N+1,) as in `moesim.rates.fill`; ``level`` (N+1,) a guess of the levels.
    ``rate`` (F,) is up to date after each `remove`; removed flows read 1. ``level`` (N+1,) likewise.

    Unknowns are the levels of the resources that hold flows and the loads of those that hold none: for these the
    row says ``load - x / unit = 0``, so that one that overflows is seen without another pass over the flows. The
    unit, a typical level, keeps unknowns alike in size; ``taken`` should be shares of the capacity for the same
    reason.
    """

    def __init__(self, path: IntArray, taken: FloatArray, capacity: FloatArray, level: FloatArray) -> None:
        self.capacity = capacity
        self.nodes = len(capacity) - 1
        self.passes = 0
        self._grave = self.nodes + 1
        self._path, self._taken = path.copy(), taken
        # One move of up to BLOCK flows, each of which may fill one resource and empty another.
        most = 3 * BLOCK
        self._diagonal = np.arange(most)
        self._new = np.zeros(most, dtype=np.int64)
        self._old = np.zeros(most, dtype=np.int64)
        self._columns = np.zeros((most, self.nodes + 2))
        self._alive = np.ones(path.shape[1], dtype=bool)
        self._start(level)

    def _start(self, level: FloatArray) -> None:
        """Solve from scratch and invert the system."""
        from scipy.linalg.lapack import dtrtri

        nodes, alive = self.nodes, np.flatnonzero(self._alive)
        path, taken = self._path[:, alive], self._taken[:, alive]
        found = settle(path, taken, self.capacity, level, accuracy=1e-12)
        self.level = found.level
        self.rate = np.ones(len(self._alive))
        self.rate[alive] = found.rate
        self.passes += found.passes
        self._unit = float(np.median(found.rate)) if len(alive) else 1.0
        self._ceiling = np.append(self.capacity, np.inf) * (self._unit * (1 + SLACK))
        order = np.argsort(self.level[:nodes], kind="stable")
        rank = np.empty(nodes + 1, dtype=np.int64)
        rank[order], rank[nodes] = np.arange(nodes), nodes
        rows = rank.take(path)
        holder = rows.min(axis=0)
        width = nodes + 1
        cells = (holder * width + rows).ravel()
        matrix = np.bincount(cells, taken.ravel(), width * width).reshape(width, width)[:nodes, :nodes].T
        count = np.bincount(holder, minlength=width)[:nodes]
        matrix[count == 0, count == 0] = -1.0 / self._unit
        inverse, _ = dtrtri(matrix, lower=1)
        self._inverse = np.zeros((nodes + 2, nodes + 2))
        self._inverse[:nodes, :nodes] = np.tril(inverse)[rank[:nodes]][:, rank[:nodes]].T
        self._holder = np.full(len(self._alive), self._grave)
        self._holder[alive] = np.append(order, nodes)[holder]
        self._count = np.append(count[rank[:nodes]], [0, 0])
        self._base = np.zeros(nodes + 2)
        right = np.where(self._count[:nodes] > 0, self.capacity[:nodes], 0.0)
        self._base[:nodes] = right @ self._inverse[:nodes, :nodes]
        self._used = self._blocks = 0

    def remove(self, flows: IntArray) -> None:
        """``flows`` have ended: bring the rates of the others up to date."""
        self._alive[flows] = False
        if len(flows) > BLOCK:
            self._path[:, flows] = self._grave
            self._start(self.level)
            return
        self._move(flows, np.full(len(flows), self._grave))
        self._path[:, flows] = self._grave
        self._settle()

    def _settle(self) -> None:
        """Move flows to the lowest resource of their row until each is there and nothing overflows."""
        for _ in range(MOST_PASSES):
            self.passes += 1
            value = self._solution()
            inside = self._count > 0
            height = np.where(inside, value, np.inf)
            height[self._grave] = 1.0
            heights = height.take(self._path)
            rate = heights.min(axis=0)
            moving = np.flatnonzero(height.take(self._holder) > rate * (1 + SLACK))
            over = ~inside & (value > self._ceiling)
            if not len(moving) and not over.any():
                if not height.min() > 0:  # also when the system was singular
                    break
                self.rate, self.level = rate, np.append(height[: self.nodes], np.inf)
                return
            to = self._path[heights[:, moving].argmin(axis=0), moving]
            if over.any():
                moving, to = self._sink(np.flatnonzero(over), height, rate, moving, to)
            if len(moving) > BLOCK // 2 or self._blocks > BLOCKS:
                break
            self._move(moving, to)
        self._start(self.level)

    def _sink(
        self, over: IntArray, height: FloatArray, rate: FloatArray, moving: IntArray, to: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Flows that resources ``over`` their capacity take over, with those that move anyway."""
        level = height[: self.nodes].copy()
        path = np.minimum(self._path, self.nodes)
        refill(level, over, path, self._taken, rate, self.capacity[: self.nodes])
        level = np.append(level, [np.inf, 1.0])
        target = self._holder.copy()
        target[moving] = to
        lowest = np.minimum(level.take(target), height.take(target))
        for row in self._path:
            mine = level.take(row)
            sinking = np.isin(row, over) & (mine < lowest * (1 - SLACK))
            target = np.where(sinking, row, target)
            lowest = np.where(sinking, mine, lowest)
        moving = np.flatnonzero(target != self._holder)
        return moving, target[moving]

    def _move(self, flows: IntArray, to: IntArray) -> None:
        """Let resources ``to`` hold ``flows``: the updates of the system, and of who holds any flow at all."""
        old = self._holder[flows]
        before = self._count > 0
        np.subtract.at(self._count, old, 1)
        np.add.at(self._count, to, 1)
        self._count[self.nodes :] = 0
        self._holder[flows] = to
        after = self._count > 0
        changed = np.flatnonzero(before != after)
        need = len(flows) + len(changed)
        if self._used + need > BLOCK:
            self._absorb()
        at = self._used
        part = self._inverse[self._path[:, flows]] * self._taken[:, flows, None]
        self._columns[at : at + len(flows)] = part.sum(axis=0)
        self._new[at : at + len(flows)], self._old[at : at + len(flows)] = to, old
        at += len(flows)
        for resource in changed:
            # A resource that takes its first flow gets its own level as unknown; one that loses its last, its load.
            sign = 1.0 if after[resource] else -1.0
            self._base += self._inverse[resource] * (sign * self.capacity[resource])
            self._columns[at] = self._inverse[resource] / self._unit
            self._new[at], self._old[at] = (resource, self._grave)[:: int(sign)]
            at += 1
        self._used = at

    def _solution(self) -> FloatArray:
        """The unknowns (N+2,) under the updates so far."""
        used = self._used
        if not used:
            return self._base
        from scipy.linalg.blas import dgemv
        from scipy.linalg.lapack import dgesv

        columns = self._columns[:used]
        system = self._update()
        new, old = self._new[:used], self._old[:used]
        _, _, share, _ = dgesv(system, self._base[new] - self._base[old], 1, 1)
        return dgemv(-1.0, columns.T, share, 1.0, self._base)

    def _update(self) -> FloatArray:
        """The small system (K, K) of the updates so far."""
        used = self._used
        columns = self._columns[:used]
        new, old = self._new[:used], self._old[:used]
        system = (columns.take(new, axis=1) - columns.take(old, axis=1)).T
        system[self._diagonal[:used], self._diagonal[:used]] += 1.0
        return system

    def _absorb(self) -> None:
        """Work the updates into the inverse."""
        from scipy.linalg.blas import dgemm
        from scipy.linalg.lapack import dgesv

        if not self._used:
            return
        value = self._solution()
        used = self._used
        columns = self._columns[:used]
        change = self._inverse.take(self._new[:used], axis=1) - self._inverse.take(self._old[:used], axis=1)
        _, _, weights, _ = dgesv(self._update().T, columns)
        self._inverse = dgemm(-1.0, weights.T, change.T, 1.0, self._inverse.T, overwrite_c=1).T
        self._base = value
        self._used = 0
        self._blocks += 1
