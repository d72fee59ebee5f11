"""The fabric as SimPy sees it: flows start, and who waits for some of them is told when the last has arrived.

The only module that knows both SimPy and the fluid engine. A transfer is one batch in numpy; no flow has a process or
an event.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import simpy

from moesim.fluid import Fluid, FluidResult, finish_times
from moesim.rates import FloatArray, IntArray, columns

__all__ = ["Batch", "FluidResult", "Network", "Told", "finish_times"]

Told = Callable[[int], None]
"""What is called with the number of a group whose flows have all arrived."""


class Batch:
    """The flows of one transfer, numbered from 0; none moves before `start`."""

    def __init__(self, network: Network, first: int, size: FloatArray) -> None:
        self._network = network
        self._flows = slice(first, first + len(size))
        self._size = size

    @property
    def finish(self) -> FloatArray:
        """Finish of each flow (F,) [s], without latency; nan while it is under way."""
        return self._network.finish[self._flows]

    @property
    def release(self) -> FloatArray:
        """When each flow starts (F,) [s]; infinite as long as nobody has started it."""
        return self._network.fluid.release[self._flows]

    def moved(self) -> FloatArray:
        """What each flow (F,) has moved by now [B]."""
        return self._size - self._network.left()[self._flows]

    def start(self, chosen: IntArray, release: FloatArray) -> None:
        """Let the flows ``chosen`` (K,) begin at ``release`` (K,) [s] >= now; each once."""
        if not np.isinf(self.release[chosen]).all():
            raise ValueError("a flow is started twice")
        self._network.start(self._flows.start + chosen, release)


class Network:
    """Resources of ``capacity`` (N,) [units/s] that flows share max-min fairly.

    ``tolerance`` relative to the makespan of a batch; 0 is exact. ``finish`` (F,) [s] of the flows of all batches, nan
    of those that are under way; ``fluid``: the engine, which knows the load, the solves and the estimated error.
    """

    def __init__(self, env: simpy.Environment, capacity: FloatArray, tolerance: float) -> None:
        self.env = env
        self.fluid = Fluid(capacity, tolerance)
        # Of each flow its finish as far as it has come, its latency and its groups; of each group how many of its
        # flows are still to come, and when the latest of the others arrives. No group is -1.
        self.finish = np.zeros(0)
        self._latency = np.zeros(0)
        self._groups = np.zeros((2, 0), dtype=np.int64)
        self._missing = np.zeros(0, dtype=np.int64)
        self._latest = np.zeros(0)
        self._tell: list[tuple[Told, int]] = []
        # Started flows whose finish has not come yet; what the current step brings, and how much of it has come.
        self._open = 0
        self._coming, self._ends = np.zeros(0, dtype=np.int64), np.zeros(0)
        self._come = 0
        self._wakes: list[float] = []
        self._version = 0
        self._planning = False

    def join(
        self,
        indptr: IntArray,
        index: IntArray,
        weight: FloatArray,
        size: FloatArray,
        latency: FloatArray,
        groups: IntArray,
        told: Told,
    ) -> Batch:
        """Lay out the flows of a transfer: CSR rows as in `moesim.rates.allocate`, ``size`` (F,) [B].

        ``latency`` (F,) [s] passes between a flow's finish and its arrival. Each flow counts in two ``groups``
        (2, F), numbered from 0, -1 for none: ``told`` is called with a group when all its flows have arrived.
        """
        path, taken = columns(indptr, index, weight, len(self.fluid.load))
        size = np.asarray(size, dtype=np.float64)
        self._advance()
        first = self.fluid.add(path, taken, size, np.full(len(size), np.inf))
        offset, count = len(self._missing), int(groups.max(initial=-1)) + 1
        self.finish = np.append(self.finish, np.full(len(size), np.nan))
        self._latency = np.append(self._latency, latency)
        self._groups = np.hstack([self._groups, np.where(groups >= 0, groups + offset, -1)])
        self._missing = np.append(self._missing, np.bincount(groups[groups >= 0], minlength=count))
        self._latest = np.append(self._latest, np.zeros(count))
        self._tell += [(told, group) for group in range(count)]
        self._plan_soon()
        return Batch(self, first, size)

    def start(self, flows: IntArray, release: FloatArray) -> None:
        """Let ``flows`` (K,), numbers of the engine, begin at ``release`` (K,) [s]."""
        if len(flows) == 0:
            return
        if release.min() < self.env.now:
            raise ValueError(f"a flow is released at {release.min()} s, before now, {self.env.now} s")
        self._advance()
        self._open += len(flows)
        # To the engine they were flows of a release that never comes.
        self.fluid.release[flows] = release
        self.fluid.end = self.fluid.now
        self._plan_soon()

    def left(self) -> FloatArray:
        """What each flow of the engine has still to move now [B]."""
        self._advance()
        self._plan_soon()
        return self.fluid.left()

    def _plan_soon(self) -> None:
        """Plan at the end of this instant: all that starts now joins the same step."""
        if not self._planning:
            self._planning = True
            self.env.timeout(0).callbacks.append(lambda _: self._plan())

    def _advance(self) -> None:
        """Bring the engine to the present before it is given flows; what it had planned is void."""
        self._version += 1
        self._take()
        until = self.env.now if not self._open else min(self.env.now, self.fluid.end)
        self.fluid.commit(max(until, self.fluid.now))
        self._coming, self._ends, self._come = np.zeros(0, dtype=np.int64), np.zeros(0), 0

    def _plan(self) -> None:
        """Plan steps until one takes time."""
        self._planning = False
        self._version += 1
        while self._open:
            self.fluid.plan()
            self._coming, self._ends = self.fluid.finishing()
            self._come = 0
            self._wakes = self._closing()
            if self._wait():
                return
            self.fluid.commit(self.fluid.end)

    def _closing(self) -> list[float]:
        """When in the step something can be told, the latest first: the finish of the last flow of a group."""
        groups = self._groups[:, self._coming]
        here = groups >= 0
        coming = np.bincount(groups[here], minlength=len(self._missing))
        last = np.zeros(len(self._missing))
        for row, ends in zip(groups, here, strict=True):
            # In order of time: of flows in one group the last one counts.
            last[row[ends]] = np.maximum(last[row[ends]], self._ends[ends])
        closing = (coming > 0) & (coming == self._missing)
        times: list[float] = np.unique(last[closing]).tolist()
        return times[::-1]

    def _wait(self) -> bool:
        """Take what has come and wait for what comes next; False if the step is over."""
        self._take()
        while self._wakes and self._wakes[-1] <= self.env.now:
            self._wakes.pop()
        time = self._wakes[-1] if self._wakes else self.fluid.end
        if time <= self.env.now:
            return False
        version = self._version
        _at(self.env, time).callbacks.append(lambda _: self._go_on(version))
        return True

    def _go_on(self, version: int) -> None:
        if version == self._version and not self._wait():
            self.fluid.commit(self.fluid.end)
            self._plan()

    def _take(self) -> None:
        """Count the flows that have finished by now, and tell of the groups that miss none any more."""
        upto = int(np.searchsorted(self._ends, self.env.now, side="right"))
        if upto == self._come:
            return
        flows, ends = self._coming[self._come : upto], self._ends[self._come : upto]
        self._come = upto
        self._open -= len(flows)
        self.finish[flows] = ends
        arrival = ends + self._latency[flows]
        groups = self._groups[:, flows]
        here = groups >= 0
        touched = groups[here]
        np.maximum.at(self._latest, touched, np.broadcast_to(arrival, groups.shape)[here])
        self._missing -= np.bincount(touched, minlength=len(self._missing))
        closed = np.unique(touched[self._missing[touched] == 0])
        times, which = np.unique(self._latest[closed], return_inverse=True)
        for number, time in enumerate(times.tolist()):
            self._announce(closed[which == number].tolist(), time)

    def _announce(self, groups: list[int], time: float) -> None:
        """Tell at ``time`` that ``groups`` are complete."""

        def tell(_: simpy.Event) -> None:
            for group in groups:
                told, own = self._tell[group]
                told(own)

        _at(self.env, time).callbacks.append(tell)


def _at(env: simpy.Environment, time: float) -> simpy.Event:
    """A timeout that ends at ``time``, or one rounding step later, never before; now if it has passed."""
    delay = max(time - env.now, 0.0)
    return env.timeout(delay if env.now + delay >= time else np.nextafter(delay, np.inf))
