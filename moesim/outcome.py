"""What one strategy did in a scenario: times of every rank, where they went, what they cost.

Arrays keep the axes *case* (one step of one MoE layer) and *rank*; the summary that users read is computed
from them in one place, so that a table, a JSON document and a notebook cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim import units
from moesim.errors import InvariantError
from moesim.sources import Cited

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

STAGES = ("dispatch", "expert", "combine", "layer")
"""Stages that every layer has."""

BACKWARD = ("backward_dispatch", "backward_expert", "backward_combine", "backward")
"""Those that a layer in training has besides; the last one is the whole backward pass."""

TIERS = ("self", "device", "host", "domain", "scale_out")
COSTS = (
    "copies_total",
    "copies_most_sent",
    "copies_most_received",
    "planning_s",
    "weights_exposed_s",
    "weights_hidden_s",
    "gradients_exposed_s",
    "gradients_hidden_s",
)
"""What a balancer costs a layer, keys of a summary: copies of weights that travel, and times."""

FIXED = ("launch", "planning", "metadata", "sync", "unexplained", "wait")
"""Labels of a breakdown that are fixed costs or waiting, not work of a resource."""

IMBALANCES = ("rank_max_over_mean", "rows_max_over_mean", "maxvio")


def statistics(times: FloatArray) -> dict[str, float]:
    """Pool ``times`` (C, R) [s] over cases and ranks.

    ``critical`` is the mean over cases of the largest over ranks: what a step pays for the layer.

    >>> statistics(np.array([[1.0, 3.0], [2.0, 2.0]]))["critical"]
    2.5
    """
    return {
        "mean": float(times.mean()),
        "p50": float(np.percentile(times, 50)),
        "p99": float(np.percentile(times, 99)),
        "max": float(times.max()),
        "critical": float(times.max(axis=1).mean()),
    }


def shortage(memory: Mapping[str, float]) -> str | None:
    """How far ``expert_weights`` and ``buffers`` [B] exceed the memory of ``device`` [B]; None if they do not."""
    needed, device = memory.get("expert_weights", 0.0) + memory["buffers"], memory.get("device")
    if device is None or needed <= device:
        return None
    needs, has = units.format(needed, "bytes"), units.format(device, "bytes")
    return f"expert weights and buffers take {needs} a rank, the device has {has}"


@dataclass(frozen=True, eq=False)
class StrategyOutcome:
    """One strategy's share of a :class:`moesim.result.Result`.

    ``cases`` (C, 2): step and layer number. ``stages``: stage -> (C, R) [s], in training also those of the backward
    pass. ``bound``: stage -> (C,) [s], the closed form of the slowest rank. ``breakdown``: label -> (C,) [s] along
    the slowest rank; the labels of a case sum to its layer time. ``bottleneck``: resource and its utilisation, 0 to 1.
    ``formats``: of a row in dispatch and in combine. ``traffic_B``: payload of both over all ranks, mean per case, by
    the tier between owner and expert; ``crossed_B``: ``payload`` and ``wire`` bytes that cross each tier, on each hop
    of a relayed row; ``weights_B``: of the expert weights that the balancer pushed; ``balancing``: what it cost, the
    keys of :data:`COSTS`. ``entries``: ``home`` and ``placed`` -> (C, R) entries that each rank computes with experts
    at home, and as they were balanced.
    ``buffers_B``, ``memory_B``: per rank. ``error_estimate`` [s]: of the finish of a flow. ``phases``, ``links``: rows
    of the tidy tables of the same name. ``cited``: every constant that entered, with source and grade.

    Raises :class:`InvariantError` when shapes disagree or a breakdown does not sum to its layer time.
    """

    name: str
    protocol: str
    balancer: str
    assumed: tuple[str, ...]
    cases: IntArray
    stages: Mapping[str, FloatArray]
    bound: Mapping[str, FloatArray]
    breakdown: Mapping[str, FloatArray]
    bottleneck: tuple[str, float]
    imbalance: Mapping[str, Any]
    traffic_B: Mapping[str, float]
    buffers_B: Mapping[str, float]
    memory_B: Mapping[str, float]
    bandwidth_Bps: Mapping[str, Any]
    phases: tuple[Mapping[str, Any], ...] = ()
    links: tuple[Mapping[str, Any], ...] = ()
    formats: Mapping[str, str] = field(default_factory=dict)
    crossed_B: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    solves: int = 0
    error_estimate: float = 0.0
    weights_B: float = 0.0
    balancing: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(COSTS, 0.0))
    entries: Mapping[str, IntArray] = field(default_factory=dict)
    cited: tuple[Cited, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.cases)
        for stage in (*STAGES, *self.stages):
            if self.stages[stage].shape != self.stages["layer"].shape or len(self.stages[stage]) != count:
                raise InvariantError(
                    f"{self.name}: {stage} times {self.stages[stage].shape} for {count} cases"
                )
            if self.bound[stage].shape != (count,):
                raise InvariantError(
                    f"{self.name}: {stage} bound {self.bound[stage].shape} for {count} cases"
                )
        total = sum((np.asarray(part) for part in self.breakdown.values()), np.zeros(count))
        slowest = self.stages["layer"].max(axis=1)
        if not np.allclose(total, slowest, rtol=1e-6, atol=1e-12):
            raise InvariantError(
                f"{self.name}: the breakdown sums to {total.max():g} s, not to the layer's time"
            )

    def __eq__(self, other: object) -> bool:
        return same(self, other)

    def __repr__(self) -> str:
        cases, ranks = self.stages["layer"].shape
        return (
            f"<StrategyOutcome {self.name}: {self.protocol}, {self.balancer}; {cases} cases of {ranks} ranks>"
        )

    __hash__ = None  # type: ignore[assignment]

    def metrics(self) -> dict[str, dict[str, float]]:
        """``dispatch_s``, ``expert_s``, ``combine_s``, ``layer_s``, backward ones -> the five statistics [s]."""
        return {f"{stage}_s": statistics(times) for stage, times in self.stages.items()}

    def shortage(self) -> str | None:
        """What does not fit into the memory of a device, with both numbers; None if all does."""
        short = shortage({**self.memory_B, "buffers": sum(self.buffers_B.values())})
        return None if short is None else f"{self.name}: {short}"

    def _fixed_and_waiting(self) -> float:
        whole = float(self.stages["layer"].max(axis=1).sum())
        parts = (float(np.sum(part)) for label, part in self.breakdown.items() if label in FIXED)
        return sum(parts) / whole if whole else 0.0

    def to_json(self) -> dict[str, Any]:
        """The summary as plain data with stable keys; a number that does not exist is ``None``.

        ``fixed_and_waiting``: share of the critical layer time that the slowest rank spends so, not working.
        """
        resource, utilisation = self.bottleneck
        after = self.imbalance.get("after", {})
        document = {
            "name": self.name,
            "protocol": self.protocol,
            "balancer": self.balancer,
            "assumed": list(self.assumed),
            "metrics": self.metrics(),
            "bound_s": {stage: float(bound.mean()) for stage, bound in self.bound.items()},
            "bottleneck": {
                "resource": resource,
                "utilisation": utilisation,
                "fixed_and_waiting": self._fixed_and_waiting(),
            },
            "breakdown_s": {label: float(part.mean()) for label, part in self.breakdown.items()},
            "imbalance": {key: self.imbalance.get(key) for key in IMBALANCES}
            | {"after": {key: after.get(key) for key in IMBALANCES}},
            "formats": dict(self.formats),
            "traffic_B": {tier: self.traffic_B.get(tier, 0.0) for tier in TIERS},
            "crossed_B": {
                what: {tier: self.crossed_B.get(what, {}).get(tier, 0.0) for tier in TIERS}
                for what in ("payload", "wire")
            },
            "weights_B": self.weights_B,
            "balancing": dict(self.balancing),
            "buffers_B": dict(self.buffers_B),
            "memory_B": dict(self.memory_B),
            "bandwidth_Bps": dict(self.bandwidth_Bps),
            "solves": self.solves,
            "error_estimate_s": self.error_estimate,
            "cited": [cited_json(item) for item in self.cited],
            "warnings": list(self.warnings),
        }
        plain: dict[str, Any] = plain_data(document)
        return plain


def cited_json(cited: Cited) -> dict[str, str]:
    """A cited number as plain data."""
    return {
        "where": cited.where,
        "value": cited.value,
        "source": cited.source,
        "grade": cited.grade.value,
        "note": cited.note,
    }


def plain_data(value: Any) -> Any:
    """``value`` as what JSON can hold: numpy's numbers become Python's, NaN and infinities ``None``."""
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain_data(value.tolist())
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    if isinstance(value, np.generic):
        return plain_data(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def same(a: Any, b: Any) -> bool:
    """Whether two results hold the same values: arrays element by element, NaN equal to NaN."""
    if is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and a.shape == b.shape
            and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        )
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)
