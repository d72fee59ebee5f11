"""A protocol and a balancer composed into one plan: what is planned first, when weights travel, what follows what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from moesim import calibration, compute, weights
from moesim.balancers import Balancer
from moesim.calibration import Calibration
from moesim.moe import MoEModel
from moesim.placement import Placement
from moesim.plan import After, Beside, IntArray, Local, Phase, Plan, When
from moesim.protocols import Case, Protocol, last
from moesim.sources import Cited, Grade, Source
from moesim.topology import Topology
from moesim.weights import Moved


@dataclass(frozen=True, eq=False)
class Strategy:
    """A named protocol and balancer with their constants on one ``pod``, given by its name.

    ``assumed``: properties that the pod is not known to have and that this strategy needs.
    """

    name: str
    protocol: Protocol
    balancer: Balancer
    costs: Calibration
    planning: Calibration | None
    assumed: tuple[str, ...]
    pod: str

    @property
    def engines(self) -> int:
        """Send engines of a rank: those of the protocol, and one for what the balancer sends at a rate of its own."""
        return int(self.costs["cores"]) + 1

    @property
    def moving(self) -> Mapping[str, float]:
        """Constants of the balancer; none if it has none."""
        return {} if self.planning is None else self.planning.values

    @property
    def cited(self) -> tuple[Cited, ...]:
        """Every constant, and the assumed properties."""
        extra = () if self.planning is None else self.planning.cited
        granted = tuple(
            Cited(f"assume {name}", "yes", "scenario", Grade.ASSUMED, "not known of this pod")
            for name in self.assumed
        )
        return (*granted, *self.costs.cited, *extra)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Those that calibrations bring themselves."""
        return (*self.costs.sources, *(() if self.planning is None else self.planning.sources))


def build(
    name: str,
    protocol: Protocol,
    balancer: Balancer,
    assume: tuple[str, ...],
    topology: Topology,
    file: Path | None = None,
) -> Strategy:
    """A strategy with its constants on ``topology``, those of the protocol from the calibration ``file`` if given.

    Raises :class:`InputError` if a calibration is bad.
    """
    planning = (
        calibration.load(topology.name, balancer.name, balancer.constants) if balancer.constants else None
    )
    needed = (protocol.needs() | balancer.needs) - topology.properties
    assumed = tuple(sorted(needed & set(assume)))
    costs = protocol.calibrate(topology.name, file)
    return Strategy(name, protocol, balancer, costs, planning, assumed, topology.name)


def plan(strategy: Strategy, case: Case, dtype: str, train: bool = False) -> Plan:
    """The whole layer: planning, dispatch, expert GEMMs and combine, and where it trains the same backward.

    ``dtype``: format of the expert weights. They travel before dispatch, which a rank begins when it has sent its own,
    or when it has finished its own dispatch; the GEMMs wait for them. In the ``background`` the layer waits for them
    only where the assignment says that they stall: then all of it does.

    Backward, all ranks begin together, as other layers lie between. Gradients of the output travel as tokens did,
    by the saved plan, in the format of combine; weights of copies move again, because the slots have served other
    layers since. Gradients of copies return beside the backward combine and what follows: they have to be home when
    the next layer's weight gradients need the slots, so its backward dispatch hides them, too, and the attention
    between the two as far as its projections go.
    """
    first, after, beside = _first(strategy, case, dtype)
    phases, ends = _pass(strategy, case, dtype, after, "")
    phases = [*first, *phases]
    if train:
        after = (After(ends["combine"], When.ALL),)
        back, closing = _pass(strategy, case, dtype, after, "backward.")
        computed = (After(closing["expert"], When.ALL),)
        free = strategy.balancer.weights == "free"
        returned = [] if free else weights.gradients(strategy.moving, case, computed)
        phases = [*phases, *back, *returned]
        ends |= {f"backward_{stage}": name for stage, name in closing.items()}
        if returned:
            names = tuple(phase.name for phase in returned)
            between = compute.attention_backward(case.model, case.device, case.tokens)
            beside.append(Beside(names, "gradients", stage="backward_dispatch", seconds=between))
    return Plan(case.ranks, tuple(phases), ends, tuple(beside))


def _first(strategy: Strategy, case: Case, dtype: str) -> tuple[list[Phase], tuple[After, ...], list[Beside]]:
    """What comes before the pass or runs beside it, what the pass waits for."""
    balancer, costs = strategy.balancer, strategy.moving
    aside = balancer.weights == "background" and not case.assignment.stall
    # Who plans from past counts does it aside, too; LPLB splits the counts of this batch on the way to dispatch.
    planned = not aside or balancer.counts != "none"
    phases, after = weights.planning(balancer, costs, case) if planned else ([], ())
    beside: list[Beside] = []
    if balancer.weights == "background":
        moved = weights.push(balancer, costs, case, dtype, () if aside else after)
        phases = [*phases, *moved.phases]
        if not aside:
            after = tuple(After(dep.phase, When.ALL) for dep in moved.sent or after)
        elif moved.phases:
            names = tuple(phase.name for phase in moved.phases)
            beside = [Beside(names, "weights", layers=case.model.moe_layers - 1)]
    mapped = weights.remap(costs, case, after)
    return [*phases, *mapped], last(mapped, after), beside


def _pass(
    strategy: Strategy, case: Case, dtype: str, after: tuple[After, ...], stage: str
) -> tuple[list[Phase], dict[str, str]]:
    """Dispatch, weights, GEMMs and combine, and the phases that close the three; ``stage`` begins all names."""
    protocol = strategy.protocol.for_gradients() if stage else strategy.protocol
    moves = strategy.balancer.weights
    before = after_dispatch = Moved()
    if moves == "before":
        before = weights.push(strategy.balancer, strategy.moving, case, dtype, after, stage)
        after = before.sent
    dispatch = protocol.dispatch(case, after)
    if stage:
        dispatch = _named(_planned(dispatch), stage)
    arrived = (After(dispatch[-1].name),)
    if moves == "after":
        after_dispatch = weights.push(strategy.balancer, strategy.moving, case, dtype, arrived, stage)
    rows, slot_rank = _gemm_rows(strategy, protocol, case)
    work = compute.grouped_gemm_backward if stage else compute.grouped_gemm
    seconds = work(case.model, case.device, dtype, rows, slot_rank, case.ranks)
    gemm = Local(f"{stage}expert.gemm", "gemm", seconds, (*arrived, *before.here, *after_dispatch.here))
    combine = _named(protocol.combine(case, (After(gemm.name),)), stage)
    ends = {"dispatch": dispatch[-1].name, "expert": gemm.name, "combine": combine[-1].name}
    return [*before.phases, *dispatch, *after_dispatch.phases, gemm, *combine], ends


def _gemm_rows(strategy: Strategy, protocol: Protocol, case: Case) -> tuple[IntArray, IntArray]:
    """Rows of each group of the GEMMs, and its rank. Free copies are as if they were a rank's own experts."""
    if strategy.balancer.weights != "free":
        return protocol.gemm_rows(case), case.assignment.placement.slot_rank
    own = case.model.experts // case.ranks
    rows = (case.traffic.load[:, None] + np.arange(own)) // own
    return rows.ravel(), np.arange(case.ranks).repeat(own)


def _planned(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """``phases`` without those that plan or exchange counts: that is known from the forward pass."""
    instead: dict[str, tuple[After, ...]] = {}
    kept: list[Phase] = []
    for phase in phases:
        waits: list[After] = []
        for dep in phase.after:
            known = instead.get(dep.phase, (dep,))
            everybody = dep.phase in instead and dep.when is When.ALL
            waits += [replace(one, when=When.ALL) if everybody else one for one in known]
        if phase.label in ("planning", "metadata"):
            instead[phase.name] = tuple(waits)
        else:
            kept.append(replace(phase, after=tuple(dict.fromkeys(waits))))
    return tuple(kept)


def _named(phases: Sequence[Phase], stage: str) -> tuple[Phase, ...]:
    """``phases`` under names that begin with ``stage``."""
    own = {phase.name for phase in phases}
    return tuple(
        replace(
            phase,
            name=stage + phase.name,
            after=tuple(
                replace(dep, phase=stage + dep.phase) if dep.phase in own else dep for dep in phase.after
            ),
        )
        for phase in phases
    )


def notes(strategy: Strategy, case: Case) -> tuple[str, ...]:
    """What the answer hangs on, in sentences: constants not measured on the pod, and what the protocol says."""
    fallbacks = (
        f"{item.kind} is not calibrated on {strategy.pod}: its default constants are used"
        for item in (strategy.costs, strategy.planning)
        if item is not None and item.pod == calibration.FALLBACK
    )
    return (*fallbacks, *strategy.protocol.describe(case))


def buffers(strategy: Strategy, case: Case, dtype: str, train: bool = False) -> dict[str, float]:
    """Bytes per rank by kind: the protocol's, and what a balancer adds.

    Slots for copies that are filled anew in every layer are shared by all layers (``weight_slots``), and so are those
    of their fp32 gradients; copies that stay have a slot in each layer (``redundant_experts``), and what changes in
    the background is staged. A balancer that fixes the rows that come has a buffer for those.
    """
    if strategy.balancer.weights == "free":
        at_home = Placement.contiguous(case.model.experts, case.ranks)
        case = replace(case, assignment=replace(case.assignment, placement=at_home))
    sizes = strategy.protocol.buffers(case)
    balancer, expert = strategy.balancer, case.model.expert_bytes(dtype)
    own = case.model.experts // case.ranks
    more = max(case.local - own, 0)
    shared = balancer.weights in ("before", "after")
    if shared:
        sizes |= {"weight_slots": more * expert}
    elif more:
        sizes |= {"redundant_experts": more * expert * case.model.moe_layers}
    if train and more:
        layers = 1 if shared else case.model.moe_layers
        sizes |= {"gradient_slots": more * compute.gradient_bytes(case.model) * layers}
    moves = case.assignment.moves
    if balancer.weights == "background" and not case.assignment.stall:
        to = case.assignment.placement.slot_rank[moves[:, 0]]
        sizes |= {"staging": float(np.bincount(to, minlength=1).max()) * expert}
    static = case.assignment.static_rows
    if static is not None and "tokens" not in sizes:
        sizes |= {"expert_rows": float(static) * strategy.protocol.dispatch_row(case.model)}
    return sizes


def memory(case: Case, model: MoEModel, dtype: str, sizes: Mapping[str, float]) -> dict[str, float]:
    """Bytes per rank: expert weights of all MoE layers, buffers, what the device has. Attention and KV are not ours."""
    return {
        "expert_weights": float(case.model.experts // case.ranks)
        * model.expert_bytes(dtype)
        * model.moe_layers,
        "buffers": float(sum(sizes.values())),
        "device": case.device.memory,
    }
