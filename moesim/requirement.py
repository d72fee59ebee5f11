"""What a scenario may ``require`` of its result: ``"ubep.layer_s.p99 < 400us"``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moesim import units
from moesim.errors import InputError, Problem
from moesim.outcome import BACKWARD, STAGES
from moesim.registry import nearest

METRICS = tuple(f"{stage}_s" for stage in (*STAGES, *BACKWARD))
STATISTICS = ("mean", "p50", "p99", "max", "critical")

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FORM = re.compile(r"\s*(\S+?)\s*(<=|>=|<|>|=+|!=)\s*(\S.*?)\s*", re.DOTALL)
_LEGAL = '"<strategy>.<metric>.<statistic> <op> <quantity>", for example "ubep.layer_s.p99 < 400us"'


@dataclass(frozen=True)
class Requirement:
    """One requirement. ``limit`` [s], or [B] for the buffers of a rank."""

    text: str
    strategy: str
    metric: str
    statistic: str
    comparison: str
    limit: float

    def measured(self, strategy: Mapping[str, Any]) -> float:
        """The number in ``strategy``, one entry of ``strategies`` of a result's JSON document."""
        if self.metric == "buffers_B":
            buffers: Mapping[str, float] = strategy["buffers_B"]
            return float(buffers["total"] if "total" in buffers else sum(buffers.values()))
        return float(strategy["metrics"][self.metric][self.statistic])

    def holds(self, strategy: Mapping[str, Any]) -> bool:
        """Whether ``strategy`` (as for :meth:`measured`) fulfils it."""
        return _COMPARE[self.comparison](self.measured(strategy), self.limit)

    def verdict(self, strategy: Mapping[str, Any]) -> str:
        """One line: the requirement and what was found."""
        dimension = "bytes" if self.metric == "buffers_B" else "time"
        found = units.format(self.measured(strategy), dimension)
        return f"{self.text}: {'holds' if self.holds(strategy) else 'fails'}, it is {found}"


def parse(text: str) -> Requirement:
    """The requirement that ``text`` states; :class:`InputError` (without a place) otherwise.

    >>> parse("ubep.layer_s.p99 < 400us").limit
    0.0004
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise _refuse(f"{text!r} is not a requirement", _LEGAL)
    subject, comparison, quantity = match.groups()
    parts = subject.split(".")
    if len(parts) != 3:
        raise _refuse(f"{subject!r} is not <strategy>.<metric>.<statistic>", _LEGAL)
    strategy, metric, statistic = parts
    if metric not in (*METRICS, "buffers_B"):
        raise _refuse(f"unknown metric {metric!r}", nearest(metric, [*METRICS, "buffers_B"]))
    legal = ["total"] if metric == "buffers_B" else list(STATISTICS)
    if statistic not in legal:
        raise _refuse(f"unknown statistic {statistic!r} of {metric}", nearest(statistic, legal))
    if comparison not in _COMPARE:
        raise _refuse(f"unknown comparison {comparison!r}", " ".join(_COMPARE))
    limit = units.parse(quantity, "bytes" if metric == "buffers_B" else "time")
    return Requirement(text, strategy, metric, statistic, comparison, limit)


def _refuse(message: str, legal: str) -> InputError:
    return InputError(Problem(message, legal=legal))
