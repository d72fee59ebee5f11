"""What a balancer cost in one layer that has run: copies, planning, and what its transfers show of themselves."""

from __future__ import annotations

import numpy as np

from moesim.plan import Transfer
from moesim.protocols import Case
from moesim.timing import Timing


def costs(case: Case, ran: Timing, parts: dict[str, float]) -> dict[str, float]:
    """The keys of :data:`moesim.outcome.COSTS` of one case; ``parts``: its breakdown, label -> [s].

    Copies are experts whose weights a rank sends to another in this layer, once (backward they go again).
    ``planning_s``: until the last rank has the plan, less what is looked up beside a push. Of weights and gradients
    the time on the path of the slowest rank is exposed, and what else passes between the first byte and the last
    arrival is hidden.
    """
    moves, ranks = case.assignment.moves, case.ranks
    to = case.assignment.placement.slot_rank[moves[:, 0]]
    found = {
        "copies_total": float(len(moves)),
        "copies_most_sent": float(np.bincount(moves[:, 1], minlength=ranks).max()),
        "copies_most_received": float(np.bincount(to, minlength=ranks).max()),
        "planning_s": _planning(ran),
    }
    for label in ("weights", "gradients"):
        shown = parts.get(label, 0.0)
        took = sum(_took(ran, label, stage) for stage in ("", "backward."))
        found |= {f"{label}_exposed_s": shown, f"{label}_hidden_s": max(took - shown, 0.0)}
    return found


def _planning(ran: Timing) -> float:
    ends = [
        span.last_end
        for name, span in ran.spans.items()
        if (name == "plan" or name.startswith("plan.")) and name != "plan.reroute"
    ]
    return max(ends, default=0.0)


def _took(ran: Timing, label: str, stage: str) -> float:
    """[s] from the first byte of a pass to the last arrival; ``stage``: what the names of its phases begin with."""
    begin, end = np.inf, 0.0
    for phase in ran.plan.phases:
        backward = phase.name.startswith("backward.")
        if not isinstance(phase, Transfer) or phase.label != label or backward != bool(stage):
            continue
        if len(phase.flows):
            span = ran.spans[phase.name]
            begin = min(begin, float(span.start[phase.flows.src].min()))
            end = max(end, span.last_end)
    return max(end - begin, 0.0)
