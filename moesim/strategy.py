"""A protocol and a balancer composed into one plan: what is planned first, when weights travel, what follows what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from moesim import calibration, compute
from moesim.balancers import Balancer
from moesim.calibration import Calibration
from moesim.moe import MoEModel
from moesim.plan import After, FlowSet, Local, Phase, Plan, Transfer, When
from moesim.protocols import Case, Protocol, last, sequence
from moesim.sources import Cited, Grade
from moesim.topology import Topology


@dataclass(frozen=True, eq=False)
class Strategy:
    """A named protocol and balancer with their constants on one pod.

    ``assumed``: properties that the pod is not known to have and that this strategy needs.
    """

    name: str
    protocol: Protocol
    balancer: Balancer
    costs: Calibration
    planning: Calibration | None
    assumed: tuple[str, ...]

    @property
    def cited(self) -> tuple[Cited, ...]:
        """Every constant, and the assumed properties."""
        extra = () if self.planning is None else self.planning.cited
        granted = tuple(
            Cited(f"assume {name}", "yes", "scenario", Grade.ASSUMED, "not known of this pod")
            for name in self.assumed
        )
        return (*granted, *self.costs.cited, *extra)


def build(
    name: str, protocol: Protocol, balancer: Balancer, assume: tuple[str, ...], topology: Topology
) -> Strategy:
    """A strategy with its constants on ``topology``. Raises :class:`InputError` if a calibration is bad."""
    planning = (
        calibration.load(topology.name, balancer.name, balancer.constants) if balancer.constants else None
    )
    needed = (protocol.needs() | balancer.needs) - topology.properties
    assumed = tuple(sorted(needed & set(assume)))
    return Strategy(name, protocol, balancer, protocol.calibrate(topology.name), planning, assumed)


def plan(strategy: Strategy, case: Case, dtype: str) -> Plan:
    """The whole layer: planning, dispatch, weights where the balancer moves some, expert GEMMs, combine.

    ``dtype``: format of the expert weights. Weights are pushed by their home once it has finished its own dispatch and
    before the GEMMs, which wait for the barrier behind the push (MoonEP's order).
    """
    before = _planning(strategy, case)
    dispatch = strategy.protocol.dispatch(case, tuple(After(dep.phase, When.ALL) for dep in last(before, ())))
    arrived = (After(dispatch[-1].name),)
    weights = _weights(strategy, case, dtype, arrived)
    rows, slot_rank = strategy.protocol.gemm_rows(case), case.assignment.placement.slot_rank
    seconds = compute.grouped_gemm(case.model, case.device, dtype, rows, slot_rank, case.ranks)
    gemm = Local("expert.gemm", "gemm", seconds, (*arrived, *last(weights, ())))
    combine = strategy.protocol.combine(case, (After(gemm.name),))
    phases = (*before, *dispatch, *weights, gemm, *combine)
    return Plan(
        case.ranks, phases, {"dispatch": dispatch[-1].name, "expert": gemm.name, "combine": combine[-1].name}
    )


def _planning(strategy: Strategy, case: Case) -> list[Phase]:
    """Decide and lay out, on the critical path of the layer; all ranks leave it together."""
    c = strategy.planning
    if c is None:
        return []
    barriers = c["plan_barriers"] * c["barrier"] * ("sync" not in case.off)
    work = c["plan"] * ("serialisation" not in case.off)
    entries = case.traffic.entries.sum(axis=1) * c["plan_per_entry"] * ("serialisation" not in case.off)
    return sequence([Local("plan", "planning", work + barriers + entries)], ())


def _weights(strategy: Strategy, case: Case, dtype: str, after: tuple[After, ...]) -> list[Phase]:
    """Each home pushes the experts that others need; a barrier behind it tells everybody that they are there."""
    c = strategy.planning
    if c is None:
        return []
    moves = case.assignment.moves
    size = np.full(len(moves), case.model.expert_bytes(dtype))
    flows = FlowSet.of(moves[:, 1], case.assignment.placement.slot_rank[moves[:, 0]], size)
    launch: list[Phase] = []
    if "serialisation" not in case.off:
        launch = sequence([Local("weights.launch", "weights", case.each(c["launch"]))], after)
    push = Transfer("weights.push", "weights", flows, last(launch, after))
    if "sync" in case.off:
        return [
            *launch,
            push,
            Local("weights.here", "weights", case.each(0.0), (After(push.name, When.INBOUND),)),
        ]
    waits = (After(push.name, When.ALL), After(push.name, When.INBOUND))
    return [*launch, push, Local("weights.barrier", "weights", case.each(c["barrier"]), waits)]


def buffers(strategy: Strategy, case: Case, dtype: str) -> dict[str, float]:
    """Bytes per rank by kind: the protocol's, and the static slots and rows of a balancer that moves weights."""
    sizes = strategy.protocol.buffers(case)
    static = case.assignment.static_rows
    if static is not None:
        slots = case.local // 2
        sizes |= {"weight_slots": slots * case.model.expert_bytes(dtype)}
        if "tokens" not in sizes:
            sizes |= {"expert_rows": float(static) * strategy.protocol.dispatch_row(case.model)}
    return sizes


def memory(case: Case, model: MoEModel, dtype: str, sizes: Mapping[str, float]) -> dict[str, float]:
    """Bytes per rank: expert weights of all MoE layers, buffers, what the device has. Attention and KV are not ours."""
    homes = np.bincount(case.assignment.placement.home, minlength=case.ranks).max()
    return {
        "expert_weights": float(homes) * model.expert_bytes(dtype) * model.moe_layers,
        "buffers": float(sum(sizes.values())),
        "device": case.device.memory,
    }
