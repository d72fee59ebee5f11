"""The fabric as SimPy sees it: batches of flows go in, one event a group comes out as its flows arrive.

The only module that knows both SimPy and the fluid engine. One process serves all flows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import simpy

from moesim.fluid import Fluid, FluidResult, finish_times
from moesim.rates import FloatArray, IntArray, columns

__all__ = ["Batch", "FluidResult", "Network", "finish_times"]


class Batch:
    """Flows that were submitted together.

    ``done[g]``, for each group g that has a flow, fires when the last flow of the group has arrived,
    ``first[g]`` when the first has; the value of both is that time [s].
    """

    def __init__(
        self, env: simpy.Environment, engine: Fluid, flows: slice, groups: IntArray, n_groups: int
    ) -> None:
        self._env, self._engine, self._flows = env, engine, flows
        out_group, in_group = groups
        named = np.append(out_group, in_group[in_group != out_group])
        self._missing = np.bincount(named[named >= 0], minlength=n_groups)
        self._latest = np.zeros(n_groups)
        used = [int(group) for group in np.flatnonzero(self._missing)]
        self.done: dict[int, simpy.Event] = {group: env.event() for group in used}
        self.first: dict[int, simpy.Event] = {group: env.event() for group in used}
        self._opened = np.zeros(n_groups, dtype=bool)

    @property
    def finish(self) -> FloatArray:
        """Finish of each flow (F,) [s], without latency; nan while it is under way."""
        return self._engine.finish[self._flows]

    @property
    def start(self) -> FloatArray:
        """Release of each flow (F,) [s]."""
        return self._engine.release[self._flows]

    def _arrivals(self, group: IntArray, arrival: FloatArray) -> None:
        """Flows of ``group`` (K,) arrive at ``arrival`` (K,) >= now; fires what that completes."""
        np.maximum.at(self._latest, group, arrival)
        for g in np.unique(group[~self._opened[group]]):
            self._opened[g] = True
            _fire(self._env, self.first[g], float(arrival[group == g].min()))
        np.subtract.at(self._missing, group, 1)
        for g in np.unique(group[self._missing[group] == 0]):
            _fire(self._env, self.done[g], float(self._latest[g]))


class Network:
    """Resources of ``capacity`` (N,) [units/s] that flows share max-min fairly.

    ``tolerance`` relative to the makespan of a batch; 0 is exact. ``solves`` counts allocations, ``load``
    (N,) the units that all flows submitted so far take of each resource.
    """

    def __init__(self, env: simpy.Environment, capacity: FloatArray, tolerance: float) -> None:
        self.env = env
        self.fluid = Fluid(capacity, tolerance)
        self._batches: list[Batch] = []
        self._owner = np.zeros(0, dtype=np.int64)
        self._groups = np.zeros((2, 0), dtype=np.int64)
        self._latency = np.zeros(0)
        self._wake: simpy.Event = env.event()
        env.process(self._serve())

    @property
    def solves(self) -> int:
        """Allocations so far."""
        return self.fluid.solves

    @property
    def load(self) -> FloatArray:
        """Units (N,) of each resource that the flows submitted so far take."""
        return self.fluid.load

    def submit(
        self,
        indptr: IntArray,
        index: IntArray,
        weight: FloatArray,
        size: FloatArray,
        release: FloatArray,
        latency: FloatArray,
        out_group: IntArray,
        in_group: IntArray,
        n_groups: int,
    ) -> Batch:
        """Start flows: CSR rows as in `moesim.rates.allocate`, ``size`` (F,) [B], ``release`` (F,) [s] >=
        now.

        ``latency`` (F,) [s] passes between a flow's finish and its arrival. Each flow counts in its
        ``out_group`` and its ``in_group`` (F,), both below ``n_groups``, -1 for none.
        """
        size, release = np.asarray(size, dtype=np.float64), np.asarray(release, dtype=np.float64)
        if len(release) and release.min() < self.env.now:
            raise ValueError(f"a flow is released at {release.min()} s, before now, {self.env.now} s")
        self._advance()
        path, taken = columns(indptr, index, weight, len(self.fluid.load))
        first = self.fluid.add(path, taken, size, release)
        groups = np.array([out_group, in_group], dtype=np.int64)
        batch = Batch(self.env, self.fluid, slice(first, first + len(size)), groups, n_groups)
        self._owner = np.append(self._owner, np.full(len(size), len(self._batches)))
        self._groups = np.concatenate([self._groups, groups], axis=1)
        self._latency = np.append(self._latency, latency)
        self._batches.append(batch)
        if not self._wake.triggered:
            self._wake.succeed()
        return batch

    def _advance(self) -> None:
        """Bring the engine to the present before flows are added."""
        if self.fluid.now < self.env.now:
            if self.fluid.idle:
                self.fluid.now = self.fluid.end = self.env.now
            else:
                self._report(self.env.now)
                self.fluid.commit(min(self.env.now, self.fluid.end))

    def _serve(self) -> Any:
        """Plan a step, report each finish in it at its time, move on; start again when flows are
        submitted."""
        while True:
            if self.fluid.idle:
                yield self._wake
            self._wake = self.env.event()
            yield self.env.timeout(0)  # everything else that is submitted at this instant joins the same step
            self._wake = self.env.event()
            self.fluid.plan()
            for time in self.fluid.instants():
                if time > self.env.now:
                    yield _at(self.env, time) | self._wake
                if self._wake.triggered:
                    break
                self._report(time)
            else:
                self.fluid.commit(self.fluid.end)

    def _report(self, time: float) -> None:
        """Tell the batches which of their flows have finished by ``time``."""
        flows, ends = self.fluid.pop(time)
        for owner in np.unique(self._owner[flows]):
            mine = self._owner[flows] == owner
            out_group, in_group = self._groups[:, flows[mine]]
            arrival = ends[mine] + self._latency[flows[mine]]
            inward = in_group != out_group
            group, arrival = np.append(out_group, in_group[inward]), np.append(arrival, arrival[inward])
            self._batches[owner]._arrivals(group[group >= 0], arrival[group >= 0])


def _at(env: simpy.Environment, time: float) -> simpy.Event:
    """A timeout that ends at ``time``, or one rounding step later, never before."""
    delay = time - env.now
    return env.timeout(delay if env.now + delay >= time else np.nextafter(delay, np.inf))


def _succeed(event: simpy.Event, value: float) -> None:
    event.succeed(value)


def _fire(env: simpy.Environment, event: simpy.Event, time: float) -> None:
    """Let ``event`` succeed at ``time``, with it as its value."""
    if time <= env.now:
        event.succeed(time)
        return
    _at(env, time).callbacks.append(lambda _: _succeed(event, time))
