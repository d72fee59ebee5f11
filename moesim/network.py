"""The fabric as SimPy sees it: batches of flows go in, one event a group comes out as its flows arrive.

The only module that knows both SimPy and the fluid engine. Callbacks serve all flows; no flow has a process.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import simpy

from moesim.fluid import Fluid, FluidResult, finish_times
from moesim.rates import FloatArray, IntArray, columns

__all__ = ["Batch", "FluidResult", "Network", "finish_times"]


class Batch:
    """Flows that were submitted together.

    ``done[g]``, for each group g that has a flow, fires when the last flow of the group has arrived, ``first[g]``
    when the first has; the value of both is that time [s].
    """

    def __init__(
        self, env: simpy.Environment, engine: Fluid, first: int, groups: IntArray, latency: FloatArray
    ) -> None:
        self._env, self._engine = env, engine
        self._flows = slice(first, first + groups.shape[1])
        # Plain lists: flows arrive one by one, and arrays are slow at that.
        self._groups: list[list[int]] = groups.T.tolist()
        self._latency: list[float] = latency.tolist()
        self._missing: dict[int, int] = {}
        self._latest: dict[int, float] = {}
        for pair in self._groups:
            for group in dict.fromkeys(pair):
                if group >= 0:
                    self._missing[group] = self._missing.get(group, 0) + 1
        self.done: dict[int, simpy.Event] = {group: env.event() for group in sorted(self._missing)}
        self.first: dict[int, simpy.Event] = {group: env.event() for group in sorted(self._missing)}

    @property
    def finish(self) -> FloatArray:
        """Finish of each flow (F,) [s], without latency; nan while it is under way."""
        return self._engine.finish[self._flows]

    @property
    def start(self) -> FloatArray:
        """Release of each flow (F,) [s]."""
        return self._engine.release[self._flows]

    def _finished(self, flow: int, time: float) -> None:
        """Flow number ``flow`` of the engine has left its source for good at ``time``."""
        own = flow - self._flows.start
        arrival = time + self._latency[own]
        for group in dict.fromkeys(self._groups[own]):
            if group < 0:
                continue
            if group not in self._latest:
                self._latest[group] = arrival
                _fire(self._env, self.first[group], arrival)
            latest = self._latest[group] = max(self._latest[group], arrival)
            self._missing[group] -= 1
            if not self._missing[group]:
                _fire(self._env, self.done[group], latest)


class Network:
    """Resources of ``capacity`` (N,) [units/s] that flows share max-min fairly.

    ``tolerance`` relative to the makespan of a batch; 0 is exact. ``solves`` counts allocations, ``load`` (N,) the
    units that all flows submitted so far take of each resource.
    """

    def __init__(self, env: simpy.Environment, capacity: FloatArray, tolerance: float) -> None:
        self.env = env
        self.fluid = Fluid(capacity, tolerance)
        self._batches: list[Batch] = []
        self._begins: list[int] = []
        # What the current step will tell, what of it has been told, and which plan that was.
        self._coming: list[tuple[float, int]] = []
        self._told = 0
        self._version = 0
        self._planning = False

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
        """Start flows: CSR rows as in `moesim.rates.allocate`, ``size`` (F,) [B], ``release`` (F,) [s] >= now.

        ``latency`` (F,) [s] passes between a flow's finish and its arrival. Each flow counts in its ``out_group`` and
        its ``in_group`` (F,), both below ``n_groups``, -1 for none.
        """
        size, release = np.asarray(size, dtype=np.float64), np.asarray(release, dtype=np.float64)
        if len(release) and release.min() < self.env.now:
            raise ValueError(f"a flow is released at {release.min()} s, before now, {self.env.now} s")
        groups = np.array([out_group, in_group], dtype=np.int64)
        if groups.max(initial=-1) >= n_groups:
            raise ValueError(f"group {groups.max()} of {n_groups} groups")
        path, taken = columns(indptr, index, weight, len(self.fluid.load))
        self._advance()
        first = self.fluid.add(path, taken, size, release)
        batch = Batch(self.env, self.fluid, first, groups, np.asarray(latency, dtype=np.float64))
        self._batches.append(batch)
        self._begins.append(first)
        if not self._planning:
            # Everything else that is submitted at this instant joins the same step.
            self._planning = True
            self.env.timeout(0).callbacks.append(lambda _: self._plan())
        return batch

    def _advance(self) -> None:
        """Bring the engine to the present before flows are added; what it had planned is void."""
        self._version += 1
        if self.fluid.idle:
            self.fluid.now = self.fluid.end = max(self.fluid.now, self.env.now)
        else:
            self._tell()
            self.fluid.commit(max(min(self.env.now, self.fluid.end), self.fluid.now))
        self._coming, self._told = [], 0

    def _plan(self) -> None:
        """Plan steps until one takes time."""
        self._planning = False
        self._version += 1
        while not self.fluid.idle or self._coming:
            self.fluid.plan()
            flows, ends = self.fluid.finishing()
            self._coming, self._told = list(zip(ends.tolist(), flows.tolist(), strict=True)), 0
            if self._wait():
                return
            self.fluid.commit(self.fluid.end)
            self._coming = []

    def _wait(self) -> bool:
        """Tell what is due and wait for what comes next; False if the step is over."""
        self._tell()
        left = self._told < len(self._coming)
        time = self._coming[self._told][0] if left else self.fluid.end
        if time <= self.env.now:
            return False
        version = self._version
        _at(self.env, time).callbacks.append(lambda _: self._go_on(version))
        return True

    def _go_on(self, version: int) -> None:
        if version == self._version and not self._wait():
            self.fluid.commit(self.fluid.end)
            self._coming = []
            self._plan()

    def _tell(self) -> None:
        """Tell the batches which of their flows have finished by now."""
        while self._told < len(self._coming) and self._coming[self._told][0] <= self.env.now:
            time, flow = self._coming[self._told]
            self._told += 1
            self._batches[bisect_right(self._begins, flow) - 1]._finished(flow, time)


def _at(env: simpy.Environment, time: float) -> simpy.Event:
    """A timeout that ends at ``time``, or one rounding step later, never before."""
    delay = time - env.now
    return env.timeout(delay if env.now + delay >= time else np.nextafter(delay, np.inf))


def _fire(env: simpy.Environment, event: simpy.Event, time: float) -> None:
    """Let ``event`` succeed at ``time``, with it as its value."""

    def succeed(_: simpy.Event) -> None:
        event.succeed(time)

    if time <= env.now:
        event.succeed(time)
    else:
        _at(env, time).callbacks.append(succeed)
