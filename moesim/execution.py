"""A plan in SimPy: ranks walk through their phases by themselves, transfers share the fabric max-min fairly."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import numpy as np
import simpy

from moesim import bounds
from moesim.contention import Demand, Resources, demand
from moesim.network import Batch, Network
from moesim.plan import After, FloatArray, FlowSet, IntArray, Local, Plan, Transfer, When
from moesim.timing import Span, Timing, streamed

Steps = Generator[simpy.Event, None, None]


def run(
    plan: Plan,
    resources: Resources,
    *,
    tolerance: float,
    background: tuple[FlowSet, FloatArray] | None = None,
) -> Timing:
    """Run ``plan`` once, all ranks starting at time zero.

    ``tolerance`` is relative to the time of a transfer; 0 is exact. ``background``: flows of others on the same
    fabric, and when each starts [s]; they share it and are not waited for.
    """
    execution = _Execution(plan, resources, tolerance)
    if background is not None:
        execution.submit_background(*background)
    return execution.run()


class _Moment:
    """What happened on each rank of a phase: an event a rank, made when somebody first waits for it."""

    def __init__(self, env: simpy.Environment, ranks: int) -> None:
        self._env = env
        self._events: dict[int, simpy.Event] = {}
        self.time = np.full(ranks, np.nan)

    def reach(self, rank: int) -> None:
        self.time[rank] = self._env.now
        if rank in self._events:
            self._events[rank].succeed()

    def wait(self, rank: int) -> simpy.Event | None:
        """The event to wait for, or None when it has happened."""
        if not np.isnan(self.time[rank]):
            return None
        if rank not in self._events:
            self._events[rank] = self._env.event()
        return self._events[rank]


class _Phase:
    """The state of one phase while the plan runs."""

    def __init__(self, env: simpy.Environment, ranks: int) -> None:
        self.started = _Moment(env, ranks)
        self.ended = _Moment(env, ranks)
        self.arrived = _Moment(env, ranks)
        self.everybody = _Moment(env, 1)
        self.running = ranks

    def end(self, rank: int) -> None:
        self.ended.reach(rank)
        self.running -= 1
        if self.running == 0:
            self.everybody.reach(0)


class _Flows:
    """A transfer's flows: their demand, by source, and how many a rank still waits for."""

    def __init__(self, phase: Transfer, resources: Resources, ranks: int) -> None:
        self.phase = phase
        self.demand: Demand = demand(phase.flows, resources)
        order = np.argsort(phase.flows.src, kind="stable")
        self.by_source: list[IntArray] = np.split(
            order, np.searchsorted(phase.flows.src[order], np.arange(1, ranks))
        )
        self.outbound = np.bincount(phase.flows.src, minlength=ranks)
        self.inbound = np.bincount(phase.flows.dst, minlength=ranks)
        self.receives = self.inbound > 0
        self.last = np.full(ranks, -1, dtype=np.int64)
        self.wire = bounds.own_wire(phase.flows, resources)
        self.pending: list[int] = []


class _Execution:
    def __init__(self, plan: Plan, resources: Resources, tolerance: float) -> None:
        self.plan, self.resources = plan, resources
        self.env = simpy.Environment()
        self.network = Network(self.env, resources.capacity, tolerance)
        self.phases = {phase.name: _Phase(self.env, plan.ranks) for phase in plan.phases}
        self.flows = {
            phase.name: _Flows(phase, resources, plan.ranks)
            for phase in plan.phases
            if isinstance(phase, Transfer)
        }

    def run(self) -> Timing:
        for phase in self.plan.phases:
            for rank in range(self.plan.ranks):
                steps = (
                    self._transfer(phase, rank) if isinstance(phase, Transfer) else self._local(phase, rank)
                )
                self.env.process(steps)
        for phase in self.plan.phases:
            waiting = self.phases[phase.name].everybody.wait(0)
            if waiting is not None:
                self.env.run(until=waiting)
        self._settle()
        spans = {phase.name: self._span(phase) for phase in self.plan.phases}
        parts = [flows.demand for flows in self.flows.values()]
        load = sum((part.load(len(self.resources.capacity)) for part in parts), np.zeros(1))
        return Timing(self.plan, spans, load, self.network.solves)

    def _settle(self) -> None:
        """Run on until every flow of the plan has arrived, also those that no phase waits for."""
        for name, flows in self.flows.items():
            for rank in np.flatnonzero(flows.inbound):
                waiting = self.phases[name].arrived.wait(int(rank))
                if waiting is not None:
                    self.env.run(until=waiting)

    def _span(self, phase: Local | Transfer) -> Span:
        state = self.phases[phase.name]
        if isinstance(phase, Local):
            return Span(state.started.time, state.ended.time)
        flows = self.flows[phase.name]
        return Span(state.started.time, state.ended.time, state.arrived.time, flows.last, flows.wire)

    def _wait(self, after: tuple[After, ...], rank: int) -> Steps:
        for dep in after:
            state = self.phases[dep.phase]
            moments = {
                When.MINE: state.ended,
                When.OUTBOUND: state.ended,
                When.INBOUND: state.arrived,
                When.STREAM: state.started,
            }
            event = state.everybody.wait(0) if dep.when is When.ALL else moments[dep.when].wait(rank)
            if event is not None:
                yield event
            if dep.when is When.INBOUND and (begun := state.started.wait(rank)) is not None:
                # Others' flows can be here before the rank has come to the transfer itself.
                yield begun

    def _local(self, phase: Local, rank: int) -> Steps:
        state = self.phases[phase.name]
        yield from self._wait(phase.after, rank)
        state.started.reach(rank)
        duration = float(phase.duration[rank])
        source = streamed(phase.after)
        end = self.env.now + duration
        if source is not None:
            event = self.phases[source].arrived.wait(rank)
            if event is not None:
                yield event
            end = max(end, self.env.now + duration / phase.chunks)
        if end > self.env.now:
            yield self.env.timeout(end - self.env.now)
        state.end(rank)

    def _transfer(self, phase: Transfer, rank: int) -> Steps:
        state, flows = self.phases[phase.name], self.flows[phase.name]
        yield from self._wait(phase.after, rank)
        state.started.reach(rank)
        if not flows.receives[rank]:
            state.arrived.reach(rank)
        if not flows.outbound[rank]:
            state.end(rank)
            return
        flows.pending.append(rank)
        if len(flows.pending) == 1:
            # Ranks that start at one instant go to the network together: one solve instead of one a rank.
            yield self.env.timeout(0)
            self._submit(phase.name)

    def _submit(self, name: str) -> None:
        flows, ranks = self.flows[name], self.plan.ranks
        chosen = np.concatenate([flows.by_source[rank] for rank in flows.pending])
        flows.pending.clear()
        src, dst = flows.phase.flows.src[chosen], flows.phase.flows.dst[chosen]
        part = flows.demand.rows(chosen)
        batch = self.network.submit(
            part.indptr,
            part.index,
            part.weight,
            part.size,
            self.env.now + flows.phase.flows.release[chosen],
            part.latency,
            src,
            ranks + dst,
            2 * ranks,
        )
        for group, event in batch.done.items():
            towards = np.flatnonzero(dst == group - ranks)
            event.callbacks.append(partial(self._arrived, name, group, batch, towards, chosen))

    def _arrived(
        self, name: str, group: int, batch: Batch, towards: IntArray, chosen: IntArray, _: simpy.Event
    ) -> None:
        """All flows of one submission from (or to) one rank have arrived; ``towards`` are those to it."""
        ranks, state, flows = self.plan.ranks, self.phases[name], self.flows[name]
        if group < ranks:
            state.end(group)
            return
        rank, mine = group - ranks, chosen[towards]
        # Whose finish is not yet written down has just come, and NaN is the largest to argmax.
        arrival = batch.finish[towards] + flows.demand.latency[mine]
        flows.inbound[rank] -= len(mine)
        flows.last[rank] = flows.phase.flows.src[mine[arrival.argmax()]]
        if flows.inbound[rank] == 0:
            state.arrived.reach(rank)

    def submit_background(self, flows: FlowSet, start: FloatArray) -> None:
        """Put others' flows on the fabric; nothing waits for them."""
        part = demand(flows, self.resources)
        zeros = np.zeros(len(flows), dtype=np.int64)
        self.network.submit(
            part.indptr, part.index, part.weight, part.size, start, part.latency, zeros, zeros, 1
        )
