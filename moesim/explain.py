"""What a scenario would simulate, without simulating it: ceilings, closed forms, constants, sources.

Routing is taken as uniform, so that nothing has to be drawn; the answer is there in well under a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from moesim import bounds, expected, strategy, traffic
from moesim.balancers import Context
from moesim.build import Built, build
from moesim.contention import Resources
from moesim.moe import MoEModel
from moesim.outcome import cited_json, plain_data, shortage
from moesim.placement import Assignment
from moesim.plan import Plan, Transfer
from moesim.protocols import Case, Protocol
from moesim.result import SCHEMA, source_json, sources_of
from moesim.routing import Routes
from moesim.scenario import Scenario
from moesim.strategy import Strategy
from moesim.topology import Tier, Topology
from moesim.traffic import Traffic

_PROBE = 200_000
"""Most entries that a balancer is asked about."""


@dataclass(frozen=True, eq=False)
class _Setting:
    """What all strategies of a scenario share: what it names, and its traffic under a uniform gate."""

    built: Built
    routes: Mapping[str, Routes]
    assignment: Assignment
    traffic: Traffic

    @property
    def topology(self) -> Topology:
        return self.built.topology

    @property
    def model(self) -> MoEModel:
        return self.built.model


def explain(asked: Scenario) -> dict[str, Any]:
    """One plain document with stable keys; :class:`InputError` if the scenario could not be run.

    ``ceilings`` of a strategy are for a uniform gate: ``floor_s`` is the time of the busiest resource alone,
    ``bound_s`` adds the fixed costs, and the bandwidths are what ``floor_s`` would allow.
    """
    built = build(asked)
    chosen = built.strategies
    setting = _setting(built)
    cited = dict.fromkeys([*built.topology.cited, *(item for one in chosen for item in one.cited)])
    used = sources_of(list(cited), [source for one in chosen for source in one.sources])
    document: dict[str, Any] = plain_data(
        {
            "schema": SCHEMA,
            "scenario": asked.resolved(),
            "applied": list(asked.applied),
            "pod": _pod(built.topology),
            "links": _links(built.topology, set(setting.routes)),
            "ranks": _ranks(setting),
            "model": _model(setting),
            "strategies": [_strategy(built, setting, one) for one in chosen],
            "cited": [cited_json(item) for item in cited],
            "sources": [source_json(source) for source in used],
            "warnings": _warnings(built),
        }
    )
    return document


def _setting(built: Built) -> _Setting:
    tokens = built.scenario.workload.tokens_per_rank
    return _Setting(built, built.routes, *expected.uniform(built.model, tokens, *built.groups))


def _pod(topology: Topology) -> dict[str, Any]:
    device = topology.device
    return {
        "name": topology.name,
        "family": topology.family,
        "path": topology.path,
        "parameters": dict(topology.parameters),
        "properties": sorted(topology.properties),
        "faults": list(topology.faults),
        "devices": len(topology.devices),
        "hosts": len(set(topology.host[topology.devices].tolist())),
        "domains": len(set(topology.domain[topology.devices].tolist())),
        "nic_rates": sorted({rate for rate in topology.message_rate.tolist() if np.isfinite(rate)}),
        "device": {
            "name": device.name,
            "cores": device.cores,
            "core_kind": device.core_kind,
            "compute_FLOPps": dict(device.compute),
            "compute_efficiency": device.compute_efficiency,
            "hbm_Bps": device.hbm_rate,
            "hbm_efficiency": device.hbm_efficiency,
            "memory_B": device.memory,
            "engines_Bps": {
                access: {Tier(tier).name.lower(): rate for tier, rate in rates.items()}
                for access, rates in device.engines.items()
            },
        },
    }


def _links(topology: Topology, accesses: set[str]) -> list[dict[str, Any]]:
    """One row a kind of link and direction-wise capacity: raw, and what each access makes of it."""
    shares = {access: topology.share(access) for access in sorted(accesses)}
    columns = [topology.link_capacity, topology.link_latency, *shares.values()]
    kinds, kind = np.unique(topology.link_kind, return_inverse=True)
    table, where, counts = np.unique(
        np.column_stack([kind, *columns]), axis=0, return_inverse=True, return_counts=True
    )
    outward = topology.link_capacity * (topology.vertex_kind[topology.link_src] == "device")
    leaving = np.bincount(where.ravel(), weights=outward, minlength=len(table))
    return [
        {
            "kind": str(kinds[int(row[0])]),
            "directed": int(count),
            "capacity_Bps": float(row[1]),
            "per_device_Bps": float(leaving[number] / len(topology.devices)),
            "latency_s": float(row[2]),
            "efficiency": dict(zip(shares, row[3:].tolist(), strict=True)),
            "effective_Bps": {access: row[1] * share for access, share in zip(shares, row[3:], strict=True)},
        }
        for number, (row, count) in enumerate(zip(table, counts, strict=True))
    ]


def _ranks(setting: _Setting) -> dict[str, Any]:
    host, domain = setting.traffic.host, setting.traffic.domain
    reach = setting.traffic.by_reach(setting.traffic.entries_to)
    sent = max(int(setting.traffic.entries_to.sum()), 1)
    names = setting.topology.device_names()
    return {
        "ep": len(host),
        "hosts": int(host.max()) + 1,
        "domains": int(domain.max()) + 1,
        "first": names[setting.built.devices[0]],
        "last": names[setting.built.devices[-1]],
        "entries_share": {where: float(count.sum()) / sent for where, count in reach.items()},
    }


def _model(setting: _Setting) -> dict[str, Any]:
    model, groups = setting.model, setting.traffic
    dtype = setting.built.expert_dtype
    local = model.experts // len(groups.host)
    return {
        "name": model.name,
        "source": model.source,
        "grade": model.grade.value,
        "hidden": model.hidden,
        "dispatch_width": model.dispatch_width,
        "experts": model.experts,
        "top_k": model.top_k,
        "moe_layers": model.moe_layers,
        "experts_per_rank": local,
        "expert_dtype": dtype,
        "expert_B": model.expert_bytes(dtype),
        "weights_B": local * model.moe_layers * model.expert_bytes(dtype),
        "ranks_per_token": expected.visited(model, len(groups.host)),
    }


def _strategy(built: Built, setting: _Setting, one: Strategy) -> dict[str, Any]:
    protocol, calibration = one.protocol, one.costs
    case = Case(
        model=built.model,
        device=built.topology.device,
        routes=setting.routes[calibration.access],
        traffic=setting.traffic,
        assignment=setting.assignment,
        calibration=calibration,
        capacity=built.scenario.workload.tokens_per_rank,
        off=frozenset(built.scenario.switch_off),
    )
    buffers = strategy.buffers(one, _balanced(one, case), built.expert_dtype, built.train)
    return {
        "name": one.name,
        "protocol": protocol.kind,
        "balancer": one.balancer.name,
        "assumed": list(one.assumed),
        "calibration": calibration.path,
        "fit": None if calibration.fit is None else asdict(calibration.fit),
        "access": calibration.access,
        "formats": dict(zip(("dispatch", "combine"), protocol.formats, strict=True)),
        "dispatch_row_B": protocol.dispatch_row(built.model),
        "combine_row_B": protocol.combine_row(built.model),
        "definition": protocol.bandwidth_name,
        "ceilings": {
            "dispatch": _ceiling(case, protocol, "dispatch"),
            "combine": _ceiling(case, protocol, "combine"),
        },
        "buffers_B": buffers,
        "notes": [
            *strategy.notes(one, case),
            *_shortage(one, case, buffers, built.expert_dtype),
        ],
    }


def _shortage(one: Strategy, case: Case, buffers: Mapping[str, float], dtype: str) -> list[str]:
    short = shortage(strategy.memory(case, case.model, dtype, buffers))
    return [] if short is None else [f"does not fit: {short}"]


def _balanced(one: Strategy, case: Case) -> Case:
    """``case`` with the slots and static rows that the balancer gives to perfectly balanced tokens."""
    experts, ranks, top_k = case.model.experts, case.ranks, case.model.top_k
    tokens = min(case.capacity, _PROBE // (ranks * top_k))
    ids = np.arange(tokens * ranks * top_k).reshape(-1, top_k) % experts
    first = replace(Context.first(ranks, experts), host=case.traffic.host, domain=case.traffic.domain)
    assignment = one.balancer.balance(ids, ranks, experts, np.random.default_rng(0), first)
    rows = assignment.static_rows
    if rows is not None and tokens < case.capacity:
        # Static rows are in proportion to the tokens, but for the padding.
        rows = -(-rows * case.capacity // tokens)
    return replace(case, assignment=replace(assignment, static_rows=rows))


def _ceiling(case: Case, protocol: Protocol, stage: str) -> dict[str, Any]:
    """Busiest resource and closed form of one operation alone, all ranks starting together."""
    plan = Plan(case.ranks, (protocol.dispatch if stage == "dispatch" else protocol.combine)(case, ()))
    logical, library = protocol.payload_bytes(case, stage), protocol.logical_bytes(case, stage)
    shared = Resources(case.routes, int(case.calibration["cores"]))
    timing = bounds.run(plan, shared)
    busy = timing.load / shared.capacity
    transfers = [phase for phase in plan.phases if isinstance(phase, Transfer)]
    sent = np.zeros(case.ranks)
    for one in transfers:
        sent += np.bincount(one.flows.src, weights=one.flows.wire, minlength=case.ranks)
    floor, wire = float(busy.max()), float(sent.max())
    return {
        "wire_B": wire,
        "logical_B": logical,
        "library_B": library,
        "crossed_B": traffic.crossed(transfers, case.routes.tier),
        "floor_s": floor,
        "bottleneck": shared.name(int(busy.argmax())) if floor else None,
        "fabric_s": float(busy[: shared.fabric].max(initial=0.0)),
        "fabric_bottleneck": _fabric_bottleneck(case.routes, busy),
        "wire_Bps": wire / floor if floor else None,
        "logical_Bps": logical / floor if floor else None,
        "library_Bps": library / floor if floor else None,
        "bound_s": max(float(span.end.max()) for span in timing.spans.values()),
    }


def _fabric_bottleneck(found: Routes, busy: np.ndarray[Any, np.dtype[np.float64]]) -> str | None:
    fabric = busy[: len(found.names)]
    return found.names[int(fabric.argmax())] if fabric.any() else None


def _warnings(built: Built) -> list[str]:
    lines = [*built.warnings, *(f"the pod is broken: {fault}" for fault in built.topology.faults)]
    if built.scenario.workload.tokens_per_rank == 0:
        lines.append("no tokens: only fixed costs remain")
    return lines
