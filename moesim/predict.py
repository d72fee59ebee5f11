"""What moesim predicts for one measurement, from its pod, protocol and shape alone.

Routing is what the notes of the row say, else balanced; counts are expectations, so nothing is drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from moesim import (
    bounds,
    build,
    compute,
    execution,
    expected,
    fabrics,
    limits,
    moe,
    protocols,
    ranks,
    resources,
)
from moesim.calibration import Calibration
from moesim.contention import Resources
from moesim.errors import InputError, Problem
from moesim.measurements import COMPUTE, Measurement
from moesim.moe import MoEModel
from moesim.placement import Assignment
from moesim.plan import IntArray, Plan
from moesim.protocols import PROTOCOLS, Case, Protocol
from moesim.registry import near
from moesim.routing import Routes, routes
from moesim.topology import Topology
from moesim.traffic import Traffic, expected_groups

MODES: Mapping[str, dict[str, Any]] = {
    # Section "Pure RDMA" of the measurements: DeepEP's low-latency kernels before they knew NVLink.
    "deepep-ll-rdma": {"kind": "deepep-ll", "transport": "rdma"},
}
"""Names in measurements for a protocol with a parameter."""

_SECOND = re.compile(r"\btest_ep\.py\b|\bV2\b|\belastic\b")
"""Whose source or notes say this was measured with DeepEP's second generation, not with the kernels of `deepep-ht`."""

MOST_RANKS = 768
"""Larger groups are not modelled: routes between all pairs would take longer than all other rows together."""

MOST_PAIRS = 5_000_000
"""Most (rank, expert) pairs: their counts are held as a matrix."""

_EXPERTS, _HIDDEN = 256, 7168
"""Blank ``experts`` means 256 at this width, which is that of DeepSeek-V3."""

_LIKE = {"fp8": ("fp8", "mxfp8"), "fp4": ("nvfp4", "mxfp4")}
"""Formats that a coarse name may mean, the likelier first."""

_MASKED = (re.compile(r"\b(\d+) masked selections"), re.compile(r"\b(\d+) of (\d+) selections unmasked"))
_RANDOM = re.compile(r"random router|unique ranks|group-limited")
_LIMITED = re.compile(r"group-limited top-(\d+) groups")
_BUSIEST = re.compile(r"rank0 gets (\d+) tokens")
_SLOTS = re.compile(r"(\d+) expert slots")

COMPUTE_ROUTING = (
    "each distinct token of the busiest rank has as many entries there as a uniform gate gives, "
    "spread evenly over its expert slots"
)
"""What is assumed of the rows of :data:`moesim.measurements.COMPUTE`."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A measurement that can be predicted: the operation of ``protocol`` in ``case``."""

    row: Measurement
    protocol: Protocol
    case: Case

    def seconds(self, costs: Calibration | None = None, fidelity: str = "bound") -> float:
        """[s] until the slowest rank has done the operation, all ranks starting together.

        ``costs``: constants to use in place of the pod's own. At fidelity ``bound`` the larger of the longest path
        and the whole load of any resource over its capacity.
        """
        case = self.case if costs is None else replace(self.case, calibration=costs)
        phases = self.protocol.operation(self.row.op, case)
        if phases is None:
            raise InputError(f"{self.protocol.kind} has no operation {self.row.op}")
        plan = Plan(case.ranks, phases)
        shared = Resources(case.routes, int(case.calibration["cores"]))
        if fidelity == "fluid":
            fluid = execution.run(plan, shared, tolerance=0.0)
            return max(float(span.end.max()) for span in fluid.spans.values())
        ran = bounds.run(plan, shared)
        return max(*bounds.latest(ran).values(), float((ran.load / shared.capacity).max(initial=0.0)))


class Predictor:
    """Predicts measurements; keeps what they share (pods, routes, constants) as long as it lives.

    ``base``: the folder that paths of pods may be relative to, after the current one.
    """

    def __init__(self, base: Path | None = None) -> None:
        self._base = base
        self._pods: dict[tuple[str, int], Topology] = {}
        self._routes: dict[tuple[str, int, str], Routes] = {}
        self._protocols: dict[tuple[str, str], tuple[Protocol, Calibration]] = {}

    def seconds(self, row: Measurement) -> float:
        """[s] that ``row`` should have taken; :class:`InputError` says why it cannot be modelled."""
        return self._gemm(row) if row.op == COMPUTE else self.asked(row).seconds()

    def asked(self, row: Measurement) -> Asked:
        """The row's operation on its pod; :class:`InputError` says why it cannot be modelled."""
        pod = self._pod(row.pod, row.ep)
        protocol, costs = self._protocol(row, pod.name)
        protocols.check_sms(row.sms, pod.device)
        devices = ranks.place(pod, row.ep)
        missing = protocol.needs() - build.properties(pod, devices)
        if missing:
            raise InputError(f"{protocol.kind} needs {', '.join(sorted(missing))} between its {row.ep} ranks")
        found = self._routed(pod, devices, row.pod, costs.access)
        model = _model(row, int(found.host.max()) + 1)
        protocol.check(model, row.ep)
        assignment, traffic = self._counted(row, model, found)
        case = Case(
            model=model,
            device=pod.device,
            routes=found,
            traffic=traffic,
            assignment=assignment,
            calibration=costs,
            capacity=int(traffic.tokens.max()),
        )
        return Asked(row, protocol, case)

    def _pod(self, name: str, ep: int) -> Topology:
        """The pod, with as many times its usual hosts as ``ep`` needs if their number is the user's choice."""
        if name not in resources.names("topology") and not resources.is_path(name):
            raise _unknown("pod", name, resources.names("topology"))
        if ep > MOST_RANKS:
            raise InputError(f"EP{ep}: at most {MOST_RANKS} ranks are modelled")
        pod = self._loaded(name, 1)
        times = -(-ep // len(pod.devices))
        if times > 1 and "hosts" in pod.parameters:
            pod = self._loaded(name, times)
        return pod

    def _loaded(self, name: str, times: int) -> Topology:
        key = (name, times)
        if key not in self._pods:
            hosts = (
                {} if times == 1 else {"hosts": times * int(str(self._loaded(name, 1).parameters["hosts"]))}
            )
            self._pods[key] = fabrics.load(name, hosts, self._base)
        return self._pods[key]

    def _routed(self, pod: Topology, devices: IntArray, name: str, access: str) -> Routes:
        key = (name, len(devices), access)
        if key not in self._routes:
            self._routes[key] = routes(pod, devices, access)
        return self._routes[key]

    def _protocol(self, row: Measurement, pod: str) -> tuple[Protocol, Calibration]:
        mode = _mode(row)
        if mode["kind"] not in PROTOCOLS.names():
            raise _unknown("protocol", row.protocol, [*PROTOCOLS.names(), *MODES])
        spec = {**mode, **_parameters(row, mode["kind"])}
        key = (pod, repr(spec))
        if key not in self._protocols:
            protocol = protocols.build(spec)
            _check_formats(row, protocol)
            self._protocols[key] = protocol, protocol.calibrate(pod)
        return self._protocols[key]

    @staticmethod
    def _counted(row: Measurement, model: MoEModel, found: Routes) -> tuple[Assignment, Traffic]:
        """Entries and rows in closed form, under the routing that the notes state."""
        tokens = 1 if row.op == "alltoall" else row.tokens_per_rank
        if tokens is None:
            raise InputError("tokens_per_rank is blank")
        random = _RANDOM.search(row.notes) is not None
        selections = _selections(row, tokens * model.top_k)
        if random:
            return expected.uniform(model, tokens, found.host, found.domain)
        return expected.balanced(model, tokens, found.host, found.domain, selections)

    def _gemm(self, row: Measurement) -> float:
        """[s] of the grouped GEMM of the busiest rank, by the roofline; see :data:`COMPUTE_ROUTING`."""
        pod, model = self._pod(row.pod, row.ep), _known_model(row)
        tokens, slots = _BUSIEST.search(row.notes), _SLOTS.search(row.notes)
        if tokens is None or slots is None:
            raise InputError("the notes do not say `rank0 gets N tokens` and `N expert slots`")
        if not pod.device.compute:
            raise InputError(f"{row.pod} describes no device")
        held = _stated(slots[1], "expert slots", model.experts, limits.EXPERTS)
        if held % row.ep:
            raise InputError(f"ep {row.ep} does not divide {held} expert slots")
        local = held // row.ep
        distinct = _stated(tokens[1], "tokens", 1, limits.TOKENS)
        entries = distinct * model.top_k / expected_groups(row.ep, model.experts, model.top_k)
        rows = expected.spread(entries / local, 1, local)[0]
        form = _formats(row.dispatch_dtype or model.expert_dtype)[0]
        of_rank = np.zeros(local, dtype=np.int64)
        return float(compute.grouped_gemm(model, pod.device, form, rows, of_rank, 1)[0])


def kind(row: Measurement) -> str:
    """The protocol that a row was measured with, by moesim's own name."""
    found: str = _mode(row)["kind"]
    return found


def _mode(row: Measurement) -> dict[str, Any]:
    if row.protocol == "deepep-ht" and _SECOND.search(f"{row.source} {row.notes}"):
        return {"kind": "deepep-v2"}
    return MODES.get(row.protocol, {"kind": row.protocol})


def _unknown(what: str, name: str, names: list[str]) -> InputError:
    likely = near(name, names)
    return InputError(f"unknown {what} {name!r}" + (f", {likely}" if likely else ""))


def _model(row: Measurement, hosts: int) -> MoEModel:
    """The shape of the row; of an all-to-all, a model whose tokens go once to each rank, in rows of its bytes."""
    if row.op == "alltoall":
        if row.send_bytes is None:
            raise InputError("send_bytes is blank")
        return _shaped(-(-row.send_bytes // (2 * row.ep)), row.ep, row.ep)
    experts = row.experts
    if experts is None and row.hidden == _HIDDEN:
        experts = _EXPERTS
    if row.hidden is None or row.top_k is None or experts is None:
        shape = {"hidden": row.hidden, "topk": row.top_k, "experts": experts}
        raise InputError(f"{', '.join(name for name, value in shape.items() if value is None)} not given")
    if row.top_k > experts:
        raise InputError(f"topk {row.top_k} of {experts} experts")
    if experts % row.ep:
        raise InputError(f"ep {row.ep} does not divide {experts} experts")
    if experts * row.ep > MOST_PAIRS:
        raise InputError(f"{experts} experts on {row.ep} ranks are too many")
    limited = _LIMITED.search(row.notes)
    if limited is None:
        return _shaped(row.hidden, row.top_k, experts)
    # DeepEP's benchmark makes a group of experts of each host.
    kept = _stated(limited[1], "groups", 1, limits.EXPERTS)
    return _shaped(row.hidden, row.top_k, experts, hosts, min(kept, hosts))


def _shaped(hidden: int, top_k: int, experts: int, groups: int = 1, kept: int = 1) -> MoEModel:
    """A model of this shape; what its experts compute plays no part."""
    if experts % groups or top_k > kept * (experts // groups):
        raise InputError(f"top-{kept} of {groups} groups do not fit {experts} experts, topk {top_k}")
    like = moe.load("deepseek-v3")
    shape = {"hidden": hidden, "dispatch_width": hidden, "experts": experts, "top_k": top_k}
    return replace(like, name="measured", n_group=groups, topk_group=kept, **shape)  # type: ignore[arg-type]


def _known_model(row: Measurement) -> MoEModel:
    """The catalogue's model of this shape: the size of its experts is not in a row."""
    for name in moe.names():
        model = moe.load(name)
        if (model.hidden, model.top_k, model.experts) == (row.hidden, row.top_k, row.experts):
            return model
    raise InputError(f"no model is known with hidden {row.hidden}, topk {row.top_k}, experts {row.experts}")


def _parameters(row: Measurement, kind: str) -> dict[str, Any]:
    """Parameters of the protocol ``kind`` that the row states."""
    fields = PROTOCOLS.get(kind).Params.model_fields
    given: dict[str, Any] = {}
    for name, text in (("dispatch", row.dispatch_dtype), ("combine", row.combine_dtype)):
        if text and name in fields:
            legal = get_args(fields[name].annotation)
            given[name] = next((form for form in _formats(text) if form in legal), text)
    if row.sms is not None:
        if "sms" not in fields:
            raise InputError(f"{kind} has no choice of the number of SMs")
        given["sms"] = row.sms
    return given


def _formats(text: str) -> tuple[str, ...]:
    """Names of :data:`moesim.moe.DTYPES` that a source may mean by ``text``, the likelier first."""
    name = text.lower()
    return _LIKE.get(name, (name,))


def _check_formats(row: Measurement, protocol: Protocol) -> None:
    """Refuse a format that the protocol does not send."""
    stated = (("dispatch", row.dispatch_dtype), ("combine", row.combine_dtype))
    for (name, text), form in zip(stated, protocol.formats, strict=True):
        if text and form not in _formats(text):
            raise InputError(f"{protocol.kind} has no {name} in {text}")


def _selections(row: Measurement, selections: int) -> int:
    """Entries of a rank: ``selections`` less those that the benchmark masked.

    DeepEP's low-latency test masks as many picks at random, some of them twice: S (1 - 1/S)^n are left of S.
    """
    less = _MASKED[0].search(row.notes)
    if less is not None:
        masked = _stated(less[1], "masked selections", 0, selections)
        return round(selections * (1 - 1 / selections) ** masked)
    share = _MASKED[1].search(row.notes)
    if share is None:
        return selections
    whole = _stated(share[2], "selections", 1, limits.TOKENS)
    return selections * _stated(share[1], "unmasked selections", 0, whole) // whole


def _stated(digits: str, what: str, least: int, most: int) -> int:
    """A number that the notes state of ``what``; refused where it cannot be one."""
    value = int(digits) if len(digits) <= 15 else math.inf
    if not least <= value <= most:
        shown = digits if len(digits) <= 15 else f"{digits[:12]}..."
        raise InputError(Problem(f"the notes say {shown} {what}", legal=f"{least:,} to {most:,}"))
    return int(value)
