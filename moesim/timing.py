"""When each phase of a plan ran on each rank, and how the time of the slowest rank came about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from moesim.plan import After, FloatArray, IntArray, Phase, Plan, Transfer, When

WAIT = "wait"
WIRE = "wire"
BALANCING = ("planning", "weights", "gradients")
"""Labels of what a balancer costs: waiting for it, or for a rank that is held up by it, is its price too."""


@dataclass(frozen=True, eq=False)
class Span:
    """One phase on all ranks: ``start`` and ``end`` (R,) [s].

    For a transfer ``end`` is when the rank's own flows have arrived, ``arrived`` (R,) [s] when the last flow towards
    the rank has, ``last`` (R,) which rank sent that one (-1: nothing came), and ``wire`` (R,) [s] the least time that
    the rank's own flows need on the fabric, latency included.
    """

    start: FloatArray
    end: FloatArray
    arrived: FloatArray | None = None
    last: IntArray | None = None
    wire: FloatArray | None = None

    @property
    def last_end(self) -> float:
        """[s] when all ranks have ended and all flows have arrived."""
        ends = [self.end] if self.arrived is None else [self.end, self.arrived]
        return max(float(end.max(initial=0.0)) for end in ends)

    def moment(self, when: When) -> FloatArray:
        """(R,) [s] when a phase that waits for ``when`` of this one may start."""
        if when is When.ALL:
            return np.full_like(self.end, self.end.max(initial=0.0))
        if when is When.STREAM:
            return self.start
        if when is When.INBOUND:
            if self.arrived is None:
                raise ValueError("only a transfer has inbound flows")
            return np.maximum(self.arrived, self.start)
        return self.end


def ready(after: tuple[After, ...], spans: Mapping[str, Span], ranks: int) -> FloatArray:
    """(R,) [s] when all dependencies of a phase let it start; 0 where it has none."""
    start = np.zeros(ranks)
    for dep in after:
        start = np.maximum(start, spans[dep.phase].moment(dep.when))
    return start


def streamed(after: tuple[After, ...]) -> str | None:
    """The transfer that a phase works on chunk by chunk, if there is one."""
    return next((dep.phase for dep in after if dep.when is When.STREAM), None)


@dataclass(frozen=True, eq=False)
class Timing:
    """A plan that has run: phase name -> :class:`Span`, ``load`` (N,) units that each resource carried for it.

    ``beside`` (N,): those of them for what runs beside the layer. ``others`` (N,): units that flows of others took of
    each resource until the plan had ended, None without others. ``error_estimate`` [s]: of the finish of a flow, for
    the completions that were merged in ``solves`` allocations.
    """

    plan: Plan
    spans: Mapping[str, Span]
    load: FloatArray
    beside: FloatArray
    others: FloatArray | None = None
    solves: int = 0
    error_estimate: float = 0.0

    def end(self, stage: str) -> FloatArray:
        """(R,) [s] when ``stage`` closed on each rank."""
        return self.spans[self.plan.ends[stage]].end

    @property
    def last(self) -> FloatArray:
        """(R,) [s] when the layer closed on each rank."""
        return self.spans[self.plan.last].end


def stages(ran: Timing) -> dict[str, FloatArray]:
    """(R,) [s] of each stage, from where the one before it ended on that rank, and of the ``layer``.

    A plan with a backward pass also has ``backward``, all three stages of it.
    """
    times: dict[str, FloatArray] = {}
    before = np.zeros(ran.plan.ranks)
    for stage in ran.plan.ends:
        end = ran.end(stage)
        times[stage] = end - before
        before = end
    if "backward_combine" in times:
        times["backward"] = before - ran.end("combine")
    return times | {"layer": before}


def exposed(ran: Timing, closed: Timing) -> dict[str, float]:
    """Label -> [s] by which what runs beside the layer outlasts the work that hides it; see :class:`Beside`.

    ``closed``: the closed form of the same plan, so that what counts as hidden does not hang on the fidelity.
    """
    found: dict[str, float] = {}
    layer, other = float(ran.last.max(initial=0.0)), float(closed.last.max(initial=0.0))
    for one in ran.plan.beside:
        spans = [ran.spans[name] for name in one.phases]
        end = max(span.last_end for span in spans)
        room = layer + one.layers * other + one.seconds
        if one.stage is not None:
            before = list(closed.plan.ends)[list(closed.plan.ends).index(one.stage) - 1]
            room += float(closed.end(one.stage).max() - closed.end(before).max())
        if end > room:
            found[one.label] = found.get(one.label, 0.0) + end - room
    return found


def breakdown(timing: Timing) -> dict[str, float]:
    """Seconds by label along the time line of the rank that ends last; they sum to its layer time.

    Walks back from the end of the layer. A local phase counts under its own label. Where the rank waited for a
    transfer, the time before the sender of the last flow had begun is ``wait``, the least time of that sender's flows
    on the fabric is ``wire``, and what cores and contention added to it carries the transfer's own label. What a
    balancer sends keeps its label in all, and so does waiting for a rank that does it.
    """
    phases = {phase.name: phase for phase in timing.plan.phases}
    name = timing.plan.last
    rank = int(np.argmax(timing.spans[name].end))
    when = When.MINE
    spent: defaultdict[str, float] = defaultdict(float)
    while True:
        phase = phases[name]
        start = float(timing.spans[name].start[rank])
        if isinstance(phase, Transfer):
            # What streams and has enough to do itself was held up by the start of the transfer only.
            if when is not When.STREAM:
                _add_transfer(spent, timing, phase, rank, when)
        else:
            source = streamed(phase.after)
            end = float(timing.spans[name].end[rank])
            tail = float(phase.duration[rank]) / phase.chunks
            if source is not None and end > start + float(phase.duration[rank]) * (1 + 1e-9):
                spent[phase.label] += tail
                name, when = source, When.INBOUND
                continue
            spent[phase.label] += end - start
        binding = _binding(timing, phase, rank)
        if binding is None:
            spent[WAIT] += start
            break
        name, when = binding.phase, binding.when
        if when is When.ALL:
            # Waiting for weights that others still push is the price of the weights, not of a straggler.
            ended = timing.spans[name].end
            if phases[name].label in BALANCING:
                spent[phases[name].label] += start - float(ended[rank])
            else:
                _add_wait(spent, timing, int(ended.argmax()), float(ended[rank]), start)
            when = When.MINE
    dust = 1e-9 * sum(spent.values())
    return {label: seconds for label, seconds in spent.items() if seconds > dust}


def _add_transfer(spent: dict[str, float], timing: Timing, phase: Transfer, rank: int, when: When) -> None:
    """Split what a rank spent on a transfer into waiting, wire and the rest."""
    span = timing.spans[phase.name]
    assert span.last is not None
    assert span.wire is not None
    start = float(span.start[rank])
    moment, sender = float(span.end[rank]), rank
    if when is When.INBOUND:
        moment = float(span.moment(When.INBOUND)[rank])
        sender = int(span.last[rank]) if span.last[rank] >= 0 else rank
    begun = min(max(float(span.start[sender]), start), moment)
    wire = min(float(span.wire[sender]), moment - begun)
    _add_wait(spent, timing, sender, start, begun)
    spent[phase.label if phase.label in BALANCING else WIRE] += wire
    spent[phase.label] += moment - begun - wire


def _add_wait(spent: dict[str, float], timing: Timing, other: int, start: float, end: float) -> None:
    """Of the time that a rank waited for ``other``, what that one spent on balancing counts as such."""
    done = start
    for phase in timing.plan.phases:
        if done >= end:
            break
        span = timing.spans[phase.name]
        ran_on = max(float(span.start[other]), done), min(float(span.end[other]), end)
        if phase.label in BALANCING and phase.name not in timing.plan.aside and ran_on[1] > ran_on[0]:
            spent[phase.label] += ran_on[1] - ran_on[0]
            spent[WAIT] += ran_on[0] - done
            done = ran_on[1]
    spent[WAIT] += max(end - done, 0.0)


def _binding(timing: Timing, phase: Phase, rank: int) -> After | None:
    """The dependency that let ``phase`` start last on ``rank``."""
    waits = [(float(timing.spans[dep.phase].moment(dep.when)[rank]), dep) for dep in phase.after]
    return max(waits, key=lambda item: item[0])[1] if waits else None
