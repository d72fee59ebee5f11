"""The closed form: a lower bound of the fluid time of a plan, and equal to it where nothing contends."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import numpy as np

from moesim.contention import OwnDemand, Resources, own_demand
from moesim.plan import After, FloatArray, FlowSet, Local, Phase, Plan, Transfer, When
from moesim.timing import Span, Timing, ready, streamed


def run(plan: Plan, resources: Resources) -> Timing:
    """Evaluate ``plan`` with each rank alone: no SimPy, no sharing between ranks.

    Dependencies are kept, so a rank still waits for the slowest one; a transfer takes each rank its own demand over
    the capacity of the resource that binds it. Every time is a lower bound of the fluid one, because the fluid gives
    no rank more than that.
    """
    spans: dict[str, Span] = {}
    load, beside = np.zeros((2, len(resources.capacity)))
    for phase in plan.phases:
        start = ready(phase.after, spans, plan.ranks)
        if isinstance(phase, Transfer):
            taken = own_demand(phase.flows, resources)
            carried = taken.load(resources)
            load += carried
            if phase.name in plan.aside:
                beside += carried
            spans[phase.name] = transfer_span(taken, resources, start)
        else:
            spans[phase.name] = Span(start, local_end(phase, spans, start))
    return Timing(plan, spans, load, beside)


def local_end(phase: Local, spans: dict[str, Span], start: FloatArray) -> FloatArray:
    """(R,) [s] end of a local phase; one that streams ends no sooner than the last arrival plus one chunk."""
    end = start + phase.duration
    source = streamed(phase.after)
    if source is None:
        return end
    arrived = spans[source].arrived
    assert arrived is not None
    return np.maximum(end, np.maximum(start, arrived) + phase.duration / phase.chunks)


def transfer_span(taken: OwnDemand, resources: Resources, start: FloatArray) -> Span:
    """Own-rank bound of a transfer: own outbound and own inbound demand over capacity, and each flow alone.

    Behind what a resource carries comes at least the latency of the nearest pair that takes it: a NIC's, not NVLink's.
    """
    latency, costs = resources.routes.latency, resources.costs
    there = np.isfinite(taken.release)
    wire = taken.outward.max(axis=1, initial=0.0)
    out = np.maximum(wire, taken.core.max(axis=1, initial=0.0))
    inward = taken.inward.max(axis=1, initial=0.0)
    reached = _reached(taken.outward, costs.onward), _reached(taken.inward, costs.before)
    crossing = np.where(there, latency, np.inf)
    arrival = np.where(there, start[:, None] + taken.alone + latency, -np.inf)
    end = start + _least(taken.release, 1) + np.maximum(out + _least(crossing, 1), reached[0])
    begun = _least(start[:, None] + taken.release, 0)
    arrived = begun + np.maximum(inward + _least(crossing, 0), reached[1])
    # Of flows that arrive together, the one of the highest rank counts as the last.
    last = len(start) - 1 - arrival[::-1].argmax(axis=0)
    return Span(
        start,
        np.maximum(end, arrival.max(axis=1)),
        np.maximum.reduce([arrived, arrival.max(axis=0), start]),
        np.where(there.any(axis=0), last, -1),
        wire + _farthest(taken, latency),
    )


def _reached(seconds: FloatArray, latency: FloatArray) -> FloatArray:
    """(R,) [s] until what each resource carries, ``seconds`` (R, N), is across, ``latency`` (R, N) behind it."""
    across: FloatArray = np.where(seconds > 0, seconds + latency, 0.0).max(axis=1, initial=0.0)
    return across


def own_wire(flows: FlowSet, resources: Resources) -> FloatArray:
    """(R,) [s] the least time that each rank's own flows need on the fabric, its cores left out, latency included."""
    taken = own_demand(flows, resources)
    wire: FloatArray = taken.outward.max(axis=1, initial=0.0)
    return wire + _farthest(taken, resources.routes.latency)


def _farthest(taken: OwnDemand, latency: FloatArray) -> FloatArray:
    """(R,) [s] largest latency of each rank's own flows."""
    farthest: FloatArray = np.where(np.isfinite(taken.release), latency, 0.0).max(axis=1)
    return farthest


def _least(values: FloatArray, axis: int) -> FloatArray:
    """(R,) smallest of ``values`` (R, R), 0 where there is none."""
    least = values.min(axis=axis)
    return np.where(np.isfinite(least), least, 0.0)


def stages(timing: Timing, resources: Resources) -> tuple[dict[str, FloatArray], dict[str, float]]:
    """Bounds of every stage: (R,) [s] for each rank, and [s] for the largest over ranks, of a bound run.

    Dispatch and layer begin together on all ranks, so they follow from the longest path, the largest over ranks also
    where it leads over another rank; the layer also from each resource's whole load over its capacity, less that of
    transfers that run beside it. The others begin at a moment that differs from rank to rank and that no closed form
    knows: a rank that begins late may find everything there. So for a rank only its own work counts, and for the
    largest over ranks also what the last rank to begin must still send to another. Each is a bound for itself and
    they do not add up; nor need a rank of those in the first carry what is in the second.
    """
    ends = timing.plan.ends
    ranked = {"dispatch": timing.end("dispatch"), "layer": timing.last}
    last = latest(timing)
    busiest = float(((timing.load - timing.beside) / resources.capacity).max(initial=0.0))
    largest = {"dispatch": last[ends["dispatch"]], "layer": max(last[timing.plan.last], busiest)}
    follow = [(ends[before], stage, ends[stage]) for before, stage in pairwise(ends)]
    if "backward_combine" in ends:
        follow.append((ends["combine"], "backward", ends["backward_combine"]))
    for first, stage, closes in follow:
        ranked[stage], least = _within(timing, first, closes)
        largest[stage] = max(float(ranked[stage].max(initial=0.0)), least)
    return ranked, largest


def latest(timing: Timing) -> dict[str, float]:
    """Phase -> [s] the least time at which its last rank ends.

    The last flow of a transfer arrives somewhere, and who waits for it goes on from there: which rank that is no
    closed form knows, so it takes the least of what the ranks have to do.
    """
    ended: dict[str, float] = {}
    begun: dict[str, float] = {}
    for phase in timing.plan.phases:
        span = timing.spans[phase.name]
        ends = [span.end] if span.arrived is None else [span.end, span.arrived]
        waits = [(begun if _alongside(phase, dep) else ended)[dep.phase] for dep in phase.after]
        begun[phase.name] = start = max(waits, default=0.0)
        soonest = start + float(_part(phase, span).min())
        ended[phase.name] = max(soonest, *(float(end.max()) for end in ends))
    return ended


def _within(timing: Timing, first: str, last: str) -> tuple[FloatArray, float]:
    """From the end of ``first`` to that of ``last``: own work of each rank (R,) [s]; the path at its least rank [s].

    Own work is local phases and sending; what others send may be there already.
    """
    begun: dict[str, FloatArray] = {}
    own: dict[str, FloatArray] = {first: np.zeros(timing.plan.ranks)}
    least: dict[str, float] = {first: 0.0}
    soonest: dict[str, float] = {}
    for phase in timing.plan.phases:
        known = [dep for dep in phase.after if dep.phase in own]
        if not known or phase.name == first:
            continue
        foreign = (When.INBOUND, When.STREAM)
        start = reduce(np.maximum, ((begun if dep.when in foreign else own)[dep.phase] for dep in known))
        part = _part(phase, timing.spans[phase.name])
        begun[phase.name] = start
        own[phase.name] = start + part
        soonest[phase.name] = max((soonest if _alongside(phase, dep) else least)[dep.phase] for dep in known)
        least[phase.name] = soonest[phase.name] + float(part.min())
    return own[last], least[last]


def _alongside(phase: Phase, dep: After) -> bool:
    """Whether ``phase`` runs beside the one it waits for: a transfer that streams ends with no regard to it."""
    return isinstance(phase, Transfer) and dep.when is When.STREAM


def _part(phase: Phase, span: Span) -> FloatArray:
    """(R,) [s] that each rank still needs for a phase when all that it waits for has ended."""
    if isinstance(phase, Transfer):
        return span.end - span.start
    return phase.duration / phase.chunks if streamed(phase.after) else phase.duration
