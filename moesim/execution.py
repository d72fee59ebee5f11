"""A plan in SimPy: ranks walk through their phases by themselves, transfers share the fabric max-min fairly."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import numpy as np
import simpy

from moesim import bounds
from moesim.contention import Demand, Resources, demand
from moesim.network import Batch, Network, Told
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
    """A transfer's flows on the network, and by source."""

    def __init__(self, phase: Transfer, resources: Resources, network: Network, told: Told) -> None:
        ranks, flows = resources.routes.ranks, phase.flows
        self.phase = phase
        self.demand: Demand = demand(flows, resources)
        part = self.demand
        self.batch = network.join(
            part.indptr,
            part.index,
            part.weight,
            part.size,
            part.latency,
            np.array([flows.src, ranks + flows.dst]),
            told,
        )
        order = np.argsort(flows.src, kind="stable")
        self.by_source: list[IntArray] = np.split(
            order, np.searchsorted(flows.src[order], np.arange(1, ranks))
        )
        self.receives = np.bincount(flows.dst, minlength=ranks) > 0
        self.wire = bounds.own_wire(flows, resources)
        self.pending: list[int] = []

    def last_senders(self) -> IntArray:
        """(R,) which rank sent the flow that arrived last at each rank, -1 where none did."""
        flows, ranks = self.phase.flows, len(self.by_source)
        arrival = self.batch.finish + self.demand.latency
        latest = np.full(ranks, -np.inf)
        np.maximum.at(latest, flows.dst, arrival)
        at = np.flatnonzero(arrival == latest[flows.dst])
        last = np.full(ranks, -1, dtype=np.int64)
        last[flows.dst[at]] = flows.src[at]
        return last


class _Execution:
    def __init__(self, plan: Plan, resources: Resources, tolerance: float) -> None:
        self.plan, self.resources = plan, resources
        self.env = simpy.Environment()
        self.network = Network(self.env, resources.capacity, tolerance)
        self.background: tuple[Demand, Batch] | None = None
        self.phases = {phase.name: _Phase(self.env, plan.ranks) for phase in plan.phases}
        self.flows = {
            phase.name: _Flows(phase, resources, self.network, partial(self._arrived, phase.name))
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
        others = None if self.background is None else self._carried(*self.background)
        self._settle()
        spans = {phase.name: self._span(phase) for phase in self.plan.phases}
        load, beside = np.zeros((2, len(self.resources.capacity)))
        for name, flows in self.flows.items():
            carried = flows.demand.load(len(load))
            load += carried
            if name in self.plan.aside:
                beside += carried
        fluid = self.network.fluid
        return Timing(self.plan, spans, load, beside, others, fluid.solves, fluid.error_estimate)

    def _settle(self) -> None:
        """Run on until every flow of the plan has arrived, also those that no phase waits for."""
        for name, flows in self.flows.items():
            for rank in np.flatnonzero(flows.receives):
                waiting = self.phases[name].arrived.wait(int(rank))
                if waiting is not None:
                    self.env.run(until=waiting)

    def _span(self, phase: Local | Transfer) -> Span:
        state = self.phases[phase.name]
        if isinstance(phase, Local):
            return Span(state.started.time, state.ended.time)
        flows = self.flows[phase.name]
        return Span(
            state.started.time, state.ended.time, state.arrived.time, flows.last_senders(), flows.wire
        )

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
        if not len(flows.by_source[rank]):
            state.end(rank)
            return
        flows.pending.append(rank)
        if len(flows.pending) == 1:
            # Ranks that start at one instant go to the network together: one solve instead of one a rank.
            yield self.env.timeout(0)
            self._submit(phase.name)

    def _submit(self, name: str) -> None:
        flows = self.flows[name]
        chosen = np.concatenate([flows.by_source[rank] for rank in flows.pending])
        flows.pending.clear()
        flows.batch.start(chosen, self.env.now + flows.phase.flows.release[chosen])

    def _arrived(self, name: str, group: int) -> None:
        """All flows of a transfer from one rank (a group below the number of ranks) or to one have arrived."""
        state, ranks = self.phases[name], self.plan.ranks
        if group < ranks:
            state.end(group)
        else:
            state.arrived.reach(group - ranks)

    def submit_background(self, flows: FlowSet, start: FloatArray) -> None:
        """Put others' flows on the fabric; nothing waits for them."""
        part = demand(flows, self.resources)
        nobody = np.full((2, len(flows)), -1)
        batch = self.network.join(
            part.indptr, part.index, part.weight, part.size, part.latency, nobody, lambda _: None
        )
        batch.start(np.arange(len(flows)), start)
        self.background = part, batch

    def _carried(self, part: Demand, batch: Batch) -> FloatArray:
        """(N,) units that flows have taken of each resource by now."""
        moved = part.weight * batch.moved()[part.flow]
        return np.bincount(part.index, moved, len(self.resources.capacity)).astype(np.float64, copy=False)
