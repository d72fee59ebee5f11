"""The fluid engine: flows start, share resources max-min fairly, finish. Pure arrays, no event loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesim.rates import FloatArray, IntArray, columns, fill

# Finishes closer than this, relative to the flow's own duration, are one instant: equal flows end together.
INSTANT = 1e-12
# Step of the approximate mode, in tolerances times the shortest makespan among the active batches.
STEP = 2.0


@dataclass(frozen=True, eq=False)
class FluidResult:
    """``finish`` (F,) [s]; ``solves`` allocations and ``passes`` inside them; ``error_estimate`` [s]."""

    finish: FloatArray
    solves: int
    passes: int
    error_estimate: float


class Fluid:
    """Flows over resources of fixed capacity (N,) [units/s], from ``now`` on; it is driven by `plan` and
    `commit`.

    With ``tolerance`` 0 a step ends at the next finish. Otherwise it may hold many: each flow gets its
    max-min share of the step, at most what it has left, so that no capacity idles for a flow that ends inside
    the step.
    """

    def __init__(self, capacity: FloatArray, tolerance: float) -> None:
        if not 0 <= tolerance < 1:
            raise ValueError(f"tolerance {tolerance} is not in [0, 1)")
        self.capacity = np.append(np.asarray(capacity, dtype=np.float64), np.inf)
        self.tolerance = tolerance
        self.now = 0.0
        self.end = np.inf
        self.solves = 0
        self.passes = 0
        self.error_estimate = 0.0
        self.load = np.zeros(len(capacity))
        self.finish = np.zeros(0)
        self._path = np.full((1, 0), len(capacity), dtype=np.int64)
        self._taken = np.zeros((1, 0))
        self._size, self._release, self._scale = np.zeros(0), np.zeros(0), np.zeros(0)
        self._active = np.zeros(0, dtype=np.int64)
        self._left = np.zeros(0)
        self._waiting = np.zeros(0, dtype=np.int64)
        self._rate = np.zeros(0)
        self._ends = np.zeros(0)
        self._told = np.zeros(0, dtype=bool)

    def add(self, path: IntArray, taken: FloatArray, size: FloatArray, release: FloatArray) -> int:
        """Flows that start at ``release`` (F,) >= ``now``; columns as from `columns`. Returns the first one's
        number."""
        first = self._path.shape[1]
        width = max(len(path), len(self._path))
        self._path = np.concatenate(
            [_widen(self._path, width, len(self.load)), _widen(path, width, len(self.load))], 1
        )
        self._taken = np.concatenate([_widen(self._taken, width, 0.0), _widen(taken, width, 0.0)], 1)
        self._size = np.append(self._size, size)
        self._release = np.append(self._release, np.maximum(release, self.now))
        carried = np.bincount(path.ravel(), (taken * size).ravel(), len(self.capacity))[:-1]
        self.load += carried
        scale = float((carried / self.capacity[:-1]).max(initial=0.0, where=carried > 0))
        self._scale = np.append(self._scale, np.full(len(size), scale))
        self.finish = np.append(self.finish, np.full(len(size), np.nan))
        self._waiting = np.append(self._waiting, first + np.arange(len(size)))
        self.end = self.now
        return first

    @property
    def idle(self) -> bool:
        """Whether no flow is active or waiting."""
        return not len(self._active) and not len(self._waiting)

    @property
    def release(self) -> FloatArray:
        """Start (F,) [s] of every flow so far."""
        return self._release

    def plan(self) -> FloatArray:
        """Choose the step that starts ``now``: sets ``end``, and returns the distinct instants of its
        finishes [s]."""
        self._start()
        active, left = self._active, self._left
        horizon = float(self._release[self._waiting].min(initial=np.inf))
        path, taken = self._path[:, active], self._taken[:, active]
        rate = self._solve(path, taken)
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.where(left > 0, left / rate, 0.0)
        first = float(ends.min(initial=np.inf))
        step = (
            STEP * self.tolerance * float(self._scale[active].min(initial=np.inf)) if self.tolerance else 0.0
        )
        step = min(step, horizon - self.now)
        if step > first and len(active):
            mean = self._solve(path, taken, left / step)
            done = mean >= left / step * (1 - INSTANT)
            ends = np.where(done, np.minimum(ends, step), np.inf)
            rate = mean
            self.end = self.now + step
        else:
            step = min(first, horizon - self.now)
            slack = INSTANT * (self.now + step - self._release[active])
            ends = np.where(ends <= step + slack, step, np.inf)
            self.end = self.now + step if first <= horizon - self.now else horizon
        self._rate, self._ends = rate, self.now + ends
        self._told = np.zeros(len(active), dtype=bool)
        return np.unique(self._ends[np.isfinite(ends)])

    def pop(self, until: float) -> tuple[IntArray, FloatArray]:
        """Flows that the plan ends by ``until`` and that have not been asked for before, and when they
        end."""
        due = (self._ends <= until) & ~self._told
        self._told |= due
        return self._active[due], self._ends[due]

    def commit(self, until: float) -> None:
        """Move to ``until`` <= ``end``. Flows that the plan ends by then have ended when it said."""
        done = self._ends <= until
        span = until - self.now
        if until < self.end and span > 0:
            self._cut(done, span)
        self._left = np.maximum(self._left - self._rate * span, 0.0) if span > 0 else self._left
        self.finish[self._active[done]] = self._ends[done]
        keep = ~done
        self._active, self._left = self._active[keep], self._left[keep]
        self._rate, self._ends = self._rate[keep], self._ends[keep]
        self.now = until

    def _cut(self, done: np.ndarray, span: float) -> None:
        """A step ends early: share ``span`` again among the flows that have not been reported as finished."""
        path, taken = self._path[:, self._active], self._taken[:, self._active]
        spent = np.bincount(
            path[:, done].ravel(), (taken[:, done] * self._left[done]).ravel(), len(self.capacity)
        )
        room = np.maximum(self.capacity - spent / span, 1e-12 * self.capacity)
        self._rate = np.where(done, self._left / span, 0.0)
        others = ~done
        self._rate[others] = self._solve(path[:, others], taken[:, others], self._left[others] / span, room)

    def _start(self) -> None:
        due = self._release[self._waiting] <= self.now
        if due.any():
            self._active = np.append(self._active, self._waiting[due])
            self._left = np.append(self._left, self._size[self._waiting[due]])
            self._waiting = self._waiting[~due]

    def _solve(
        self,
        path: IntArray,
        taken: FloatArray,
        limit: FloatArray | None = None,
        capacity: FloatArray | None = None,
    ) -> FloatArray:
        rate, passes = fill(path, taken, self.capacity if capacity is None else capacity, limit)
        self.solves += 1
        self.passes += passes
        return rate


def _widen(array: np.ndarray, width: int, padding: float) -> np.ndarray:
    """The columns ``array`` (H, F) with rows of padding below, ``width`` in all."""
    missing = width - len(array)
    return np.pad(array, ((0, missing), (0, 0)), constant_values=padding) if missing else array


def finish_times(
    indptr: IntArray,
    index: IntArray,
    weight: FloatArray,
    capacity: FloatArray,
    size: FloatArray,
    start: FloatArray,
    tolerance: float,
) -> FluidResult:
    """When each flow finishes (F,) [s]: CSR rows as in `moesim.rates.allocate`, ``size`` [B], ``start`` [s].

    ``tolerance`` is relative to the makespan; 0 is exact.

    >>> two = finish_times([0, 1, 2], [0, 0], [1.0, 1.0], [10.0], [10.0, 30.0], [0.0, 0.0], 0.0)
    >>> two.finish.tolist()
    [2.0, 4.0]
    """
    fluid = Fluid(np.asarray(capacity), tolerance)
    path, taken = columns(np.asarray(indptr), np.asarray(index), np.asarray(weight), len(capacity))
    size, start = np.asarray(size, dtype=np.float64), np.asarray(start, dtype=np.float64)
    fluid.now = float(start.min(initial=np.inf)) if len(start) else 0.0
    fluid.add(path, taken, size, start)
    while not fluid.idle:
        fluid.plan()
        fluid.commit(fluid.end)
    return FluidResult(fluid.finish, fluid.solves, fluid.passes, fluid.error_estimate)
