"""When each phase of a plan ran on each rank, and how the time of the slowest rank came about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from moesim.plan import After, FloatArray, IntArray, Phase, Plan, Transfer, When

WAIT = "wait"
WIRE = "wire"
WEIGHTS = "weights"


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

    ``others`` (N,): units that flows of others took of each resource until the plan had ended, None without others.
    ``error_estimate`` [s]: of the finish of a flow, for the completions that were merged in ``solves`` allocations.
    """

    plan: Plan
    spans: Mapping[str, Span]
    load: FloatArray
    others: FloatArray | None = None
    solves: int = 0
    error_estimate: float = 0.0

    def end(self, stage: str) -> FloatArray:
        """(R,) [s] when ``stage`` (dispatch, expert, combine) closed on each rank."""
        return self.spans[self.plan.ends[stage]].end


def breakdown(timing: Timing) -> dict[str, float]:
    """Seconds by label along the time line of the rank that ends last; they sum to its layer time.

    Walks back from the end of the combine. A local phase counts under its own label. Where the rank waited for a
    transfer, the time before the sender of the last flow had begun is ``wait``, the least time of that sender's flows
    on the fabric is ``wire``, and what cores and contention added to it carries the transfer's own label.
    """
    phases = {phase.name: phase for phase in timing.plan.phases}
    name = timing.plan.ends["combine"]
    rank = int(np.argmax(timing.spans[name].end))
    when = When.MINE
    spent: defaultdict[str, float] = defaultdict(float)
    while True:
        phase = phases[name]
        start = float(timing.spans[name].start[rank])
        if isinstance(phase, Transfer):
            # What streams and has enough to do itself was held up by the start of the transfer only.
            if when is not When.STREAM:
                _add_transfer(spent, phase, timing.spans[name], rank, when)
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
            cause = phases[name].label if phases[name].label == WEIGHTS else WAIT
            spent[cause] += start - float(timing.spans[name].end[rank])
            when = When.MINE
    dust = 1e-9 * sum(spent.values())
    return {label: seconds for label, seconds in spent.items() if seconds > dust}


def _add_transfer(spent: dict[str, float], phase: Transfer, span: Span, rank: int, when: When) -> None:
    """Split what a rank spent on a transfer into waiting, wire and the rest."""
    assert span.last is not None
    assert span.wire is not None
    start = float(span.start[rank])
    moment, sender = float(span.end[rank]), rank
    if when is When.INBOUND:
        moment = float(span.moment(When.INBOUND)[rank])
        sender = int(span.last[rank]) if span.last[rank] >= 0 else rank
    begun = min(max(float(span.start[sender]), start), moment)
    wire = min(float(span.wire[sender]), moment - begun)
    spent[WAIT] += begun - start
    spent[WIRE] += wire
    spent[phase.label] += moment - begun - wire


def _binding(timing: Timing, phase: Phase, rank: int) -> After | None:
    """The dependency that let ``phase`` start last on ``rank``."""
    waits = [(float(timing.spans[dep.phase].moment(dep.when)[rank]), dep) for dep in phase.after]
    return max(waits, key=lambda item: item[0])[1] if waits else None
