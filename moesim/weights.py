"""What a balancer does in a layer, as phases: it plans, it moves expert weights, it brings gradients home.

A balancer's constants say what the machine takes; it declares those that it has, and without one a step takes no
time of its own: ``plan``, ``plan_per_entry`` and ``host_round_trip`` [s], ``plan_barriers`` times ``barrier`` [s],
``remap`` [s] of ids to slots in every step, ``launch`` [s] of a push, ``reroute`` [s] beside it, ``relay_rate`` [B/s]
of a rank where there are relay trees, ``gradient`` [s] and ``gradient_rate`` [B/s] of the return of gradients.
Weights that their home pushes straight to each copy are flows and nothing else: the fabric decides, and the busiest
sender.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesim import compute
from moesim.balancers import Balancer
from moesim.plan import After, FloatArray, FlowSet, IntArray, Local, Phase, Transfer, When
from moesim.protocols import Case, last, sequence

CHUNK = 256.0 * 1024
"""Bytes that a relay has before it sends them on: 8 tiles of 32 KiB (UltraEP)."""

COUNT = 4.0
"""Bytes of a count, or of a number in a plan: int32."""

Constants = Mapping[str, float]


@dataclass(frozen=True)
class Moved:
    """Phases that move weights; what waits until a rank has ``sent`` its own, and until its copies are ``here``."""

    phases: tuple[Phase, ...] = ()
    sent: tuple[After, ...] = ()
    here: tuple[After, ...] = ()


def engine(case: Case) -> int:
    """The send engine of a rank that moves weights through relays and adds gradients: behind those of the protocol."""
    return int(case.calibration["cores"])


def planning(balancer: Balancer, costs: Constants, case: Case) -> tuple[list[Phase], tuple[After, ...]]:
    """Phases of deciding and laying out, on the critical path of the layer, and what waits for the plan.

    The counts of all ranks go to every rank, which decides for itself, or to the first, which sends the plan to all
    by multicast (3 int32 an expert and rank); then and behind barriers all ranks leave together. The counts, the trip
    over the host and the barriers go with the sync term, the work with serialisation.
    """
    apart = "sync" in case.off
    alone = apart or case.ranks == 1 or balancer.counts == "none"
    counts = [] if alone else [_counts(balancer, case)]
    work = costs.get("plan", 0.0) + case.sent * costs.get("plan_per_entry", 0.0)
    meet = 0.0 if apart else costs.get("plan_barriers", 0.0) * costs.get("barrier", 0.0)
    meet += 0.0 if apart else costs.get("host_round_trip", 0.0)
    seconds = work * ("serialisation" not in case.off) + meet
    waits = tuple(After(one.name, when) for one in counts for when in (When.MINE, When.INBOUND))
    decided = sequence([Local("plan", "planning", seconds + case.each(0.0))], waits)
    phases: list[Phase] = [*counts, *decided]
    if balancer.counts == "first" and not alone:
        # A switch writes to all at once: each port carries the plan once.
        to = np.arange(1, case.ranks)
        size = np.full(len(to), 3 * COUNT * case.model.experts * case.ranks)
        known = tuple(After(dep.phase, When.ALL) for dep in last(phases, ()))
        spread = Transfer("plan.multicast", "planning", FlowSet.of(to - 1, to, size), known)
        return [*phases, spread], (After(spread.name), After(spread.name, When.INBOUND))
    together = When.ALL if "plan_barriers" in costs else When.MINE
    return phases, tuple(After(one.name, together) for one in decided) or waits


def remap(costs: Constants, case: Case, after: tuple[After, ...]) -> list[Phase]:
    """Logical ids become slots, in one or two small kernels before every dispatch; with the serialisation term."""
    if "serialisation" in case.off or "remap" not in costs:
        return []
    return sequence([Local("plan.remap", "planning", case.each(costs["remap"]))], after)


def _counts(balancer: Balancer, case: Case) -> Transfer:
    """An int32 an expert from every rank, to every other one or to the first."""
    src, dst = np.nonzero(~np.eye(case.ranks, dtype=bool))
    to = (dst == 0) | (balancer.counts == "all")
    size = np.full(int(to.sum()), COUNT * case.model.experts)
    return Transfer("plan.counts", "planning", FlowSet.of(src[to], dst[to], size))


def push(
    balancer: Balancer, costs: Constants, case: Case, dtype: str, after: tuple[After, ...], stage: str = ""
) -> Moved:
    """The weights of every move, sent when ``after`` lets a rank; ``stage``: what the phases' names begin with.

    A relay sends on what it receives, chunk by chunk, and its last chunk when all of it is there. Weights that travel
    behind dispatch have a barrier behind them (MoonEP); before it, dispatch is what tells (UltraEP).
    """
    moves = case.assignment.moves
    if balancer.weights in ("none", "free") or (balancer.weights == "background" and not len(moves)):
        return Moved()
    launch: list[Phase] = []
    begin = after
    if "serialisation" not in case.off and "launch" in costs:
        launch = sequence([Local(f"{stage}weights.launch", "weights", case.each(costs["launch"]))], after)
    after = last(launch, after)
    sends = _sends(costs, case, dtype, after, stage)
    sent = tuple(After(one.name) for one in sends)
    here = tuple(After(one.name, When.INBOUND) for one in sends)
    if balancer.weights != "after":
        beside = _reroute(costs, case, begin) if balancer.weights == "before" and not stage else []
        sent += tuple(After(one.name) for one in beside)
        return Moved((*launch, *sends, *beside), sent, here)
    if "sync" in case.off:
        done = Local(f"{stage}weights.here", "weights", case.each(0.0), here)
    else:
        waits = (*(After(one.name, When.ALL) for one in sends), *here)
        done = Local(f"{stage}weights.barrier", "weights", case.each(costs.get("barrier", 0.0)), waits)
    return Moved((*launch, *sends, done), (After(done.name),), (After(done.name),))


def _reroute(costs: Constants, case: Case, after: tuple[After, ...]) -> list[Phase]:
    """The slot of each entry is found beside the push, and dispatch waits for both."""
    if "serialisation" in case.off or "reroute" not in costs:
        return []
    return sequence([Local("plan.reroute", "planning", case.each(costs["reroute"]))], after)


def _sends(costs: Constants, case: Case, dtype: str, after: tuple[After, ...], stage: str) -> list[Transfer]:
    moves, placement = case.assignment.moves, case.assignment.placement
    src, dst = moves[:, 1], placement.slot_rank[moves[:, 0]]
    size = case.model.expert_bytes(dtype)
    relayed = case.assignment.relayed
    if relayed is None or not relayed.any():
        return [Transfer(f"{stage}weights.push", "weights", _copies(case, src, dst, size), after)]
    # Where there are trees everybody sends at the rate of relays: one kernel has all tasks, and was measured.
    slow = np.full(len(moves), 1.0 / costs["relay_rate"] if "relay_rate" in costs else 0.0)
    first = min(CHUNK, size)

    def flows(chosen: NDArray[np.bool_], each: float) -> FlowSet:
        return _copies(case, src[chosen], dst[chosen], each, slow[chosen])

    direct = Transfer(f"{stage}weights.push", "weights", flows(~relayed, size), after)
    stream = (*after, After(direct.name, When.STREAM))
    passed = Transfer(f"{stage}weights.relay", "weights", flows(relayed, size - first), stream)
    waits = (After(passed.name), After(direct.name, When.INBOUND))
    rest = Transfer(f"{stage}weights.last chunk", "weights", flows(relayed, first), waits)
    return [direct, passed, rest]


def _copies(case: Case, src: IntArray, dst: IntArray, size: float, slow: FloatArray | None = None) -> FlowSet:
    """A flow of ``size`` [B] for each copy; ``slow`` [s/B]: what it takes of the sender's engine, where not 0."""
    sizes = np.full(len(src), size)
    if slow is None or not slow.any():
        return FlowSet.of(src, dst, sizes)
    return FlowSet.of(src, dst, sizes, core=np.where(slow > 0, engine(case), -1), core_s=sizes * slow)


def gradients(costs: Constants, case: Case, after: tuple[After, ...]) -> list[Phase]:
    """Homes pull the fp32 gradients of their copies once all ranks have them, beside what follows.

    Copies of an expert on one rank are added there. A balancer with a ``gradient_rate`` zeroes the slots from the
    home, by as many bytes the other way, at that rate (UltraEP); others zero them where they are.
    """
    placement = case.assignment.placement
    used = np.flatnonzero((placement.slot_expert >= 0) & (case.assignment.gemm_rows > 0))
    expert, rank = placement.slot_expert[used], placement.slot_rank[used]
    away = rank != placement.home[expert]
    pairs = np.unique(np.stack([expert[away], rank[away]], axis=1), axis=0)
    if not len(pairs):
        return []
    copy, home = pairs[:, 1], placement.home[pairs[:, 0]]
    phases: list[Phase] = []
    if "serialisation" not in case.off and costs.get("gradient"):
        phases = sequence([Local("gradients.launch", "gradients", case.each(costs["gradient"]))], after)
    after = last(phases, after)
    size = compute.gradient_bytes(case.model)
    pull = _copies(case, copy, home, size)
    phases.append(Transfer("gradients.pull", "gradients", pull, after))
    if "gradient_rate" in costs:
        slow = np.full(len(pairs), 1.0 / costs["gradient_rate"])
        phases.append(Transfer("gradients.zero", "gradients", _copies(case, home, copy, size, slow), after))
    return phases
