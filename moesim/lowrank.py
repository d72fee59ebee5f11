"""Exact levels from one finish to the next, by low-rank updates of the inverse system.

A flow that ends, or that another resource comes to hold, changes one column of the system of `moesim.levels` by a
vector with a handful of entries. So the new levels cost a few matrix columns (Sherman, Morrison and Woodbury) where
a new solution would cost the whole matrix; the updates are worked into the inverse every `BLOCK` of them.
"""

from __future__ import annotations

import numpy as np

from moesim.levels import refill, settle
from moesim.rates import FloatArray, IntArray

BLOCK = 16
# Updates that one finish may bring; more, and the system is solved from scratch.
MOST = 256
# Blocks between two inversions from scratch, which stop rounding from piling up.
BLOCKS = 80
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
        from scipy.linalg.blas import dgemm, dgemv
        from scipy.linalg.lapack import dgesv

        self._dgemm, self._dgemv, self._dgesv = dgemm, dgemv, dgesv
        self.capacity = capacity
        self.nodes = len(capacity) - 1
        self.passes = 0
        self._grave = self.nodes + 1
        self._path, self._taken = path.copy(), taken
        # One move of up to MOST // 2 flows, each of which may fill one resource and empty another.
        most = 3 * (MOST // 2)
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
        self._height = np.append(found.level, 1.0)
        self.rate = np.ones(len(self._alive))
        self.rate[alive] = found.rate
        self.passes += found.passes
        self._unit = float(np.median(found.rate)) if len(alive) else 1.0
        self._ceiling = np.append(self.capacity, np.inf) * (self._unit * (1 + SLACK))
        order = np.argsort(found.level[:nodes], kind="stable")
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
        count = count[rank[:nodes]]
        # Plain numbers: most moves are of one or two flows.
        self._count: list[int] = [*count.tolist(), 0, 0]
        # What turns unknowns into levels, and the most that the unknowns which are loads may be.
        self._lift = np.append(np.where(count > 0, 0.0, np.inf), [np.inf, 1.0])
        self._most = np.append(np.where(count > 0, np.inf, self._ceiling[:nodes]), [np.inf, np.inf])
        self._base = np.zeros(nodes + 2)
        self._base[:nodes] = np.where(count > 0, self.capacity[:nodes], 0.0) @ self._inverse[:nodes, :nodes]
        self._used = self._blocks = 0

    @property
    def level(self) -> FloatArray:
        """The levels (N+1,), ``inf`` where a resource holds no flow."""
        return np.append(self._height[: self.nodes], np.inf)

    def remove(self, flows: IntArray) -> None:
        """``flows`` have ended: bring the rates of the others up to date."""
        self._alive[flows] = False
        if len(flows) > MOST // 2:
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
            height = value + self._lift
            heights = height.take(self._path)
            rate = heights.min(axis=0)
            moving = (height.take(self._holder) > rate * (1 + SLACK)).nonzero()[0]
            over = (value > self._most).nonzero()[0]
            if not len(moving) and not len(over):
                if not height.min() > 0:  # also when the system was singular
                    break
                self.rate, self._height = rate, height
                if self._used > BLOCK:
                    self._absorb()
                return
            to = self._path[heights[:, moving].argmin(axis=0), moving]
            if len(over):
                moving, to = self._sink(over, height, rate, moving, to)
            if len(moving) > MOST // 2 or self._blocks > BLOCKS:
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
        self._holder[flows] = to
        touched = {resource: self._count[resource] > 0 for resource in [*old.tolist(), *to.tolist()]}
        for resource in old.tolist():
            self._count[resource] -= 1
        for resource in to.tolist():
            self._count[resource] += 1
        self._count[self._grave] = 0
        changed = [resource for resource, before in touched.items() if before != (self._count[resource] > 0)]
        need = len(flows) + len(changed)
        if self._used + need > MOST:
            self._absorb()
        at = self._used
        part = self._inverse[self._path[:, flows]] * self._taken[:, flows, None]
        self._columns[at : at + len(flows)] = part.sum(axis=0)
        self._new[at : at + len(flows)], self._old[at : at + len(flows)] = to, old
        at += len(flows)
        for resource in changed:
            # A resource that takes its first flow gets its own level as unknown; one that loses its last, its load.
            gains = self._count[resource] > 0
            share = self._inverse[resource] * self.capacity[resource]
            self._base = self._base + share if gains else self._base - share
            self._lift[resource], self._most[resource] = (
                (0.0, np.inf) if gains else (np.inf, self._ceiling[resource])
            )
            self._columns[at] = self._inverse[resource] / self._unit
            self._new[at], self._old[at] = (resource, self._grave) if gains else (self._grave, resource)
            at += 1
        self._used = at

    def _solution(self) -> FloatArray:
        """The unknowns (N+2,) under the updates so far."""
        used = self._used
        if not used:
            return self._base
        columns = self._columns[:used]
        system = self._update()
        new, old = self._new[:used], self._old[:used]
        _, _, share, _ = self._dgesv(system, self._base[new] - self._base[old], 1, 1)
        unknowns: FloatArray = self._dgemv(-1.0, columns.T, share, 1.0, self._base)
        return unknowns

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
        if not self._used:
            return
        value = self._solution()
        used = self._used
        columns = self._columns[:used]
        change = self._inverse.take(self._new[:used], axis=1) - self._inverse.take(self._old[:used], axis=1)
        _, _, weights, _ = self._dgesv(self._update().T, columns)
        self._inverse = self._dgemm(-1.0, weights.T, change.T, 1.0, self._inverse.T, overwrite_c=1).T
        self._base = value
        self._used = 0
        self._blocks += 1
