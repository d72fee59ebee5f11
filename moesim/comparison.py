"""Two results side by side: a ratio for every strategy and metric; unlike is never compared with unlike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moesim import summary
from moesim.errors import InputError
from moesim.outcome import BACKWARD, STAGES


@dataclass(frozen=True)
class Row:
    """One metric of one strategy in both results. ``ratio`` is b / a: above 1, ``b`` needs more."""

    strategy: str
    metric: str
    statistic: str
    a: float
    b: float

    @property
    def ratio(self) -> float:
        """b / a; 1 where both are zero, infinite where only ``a`` is."""
        if self.a == 0:
            return 1.0 if self.b == 0 else float("inf")
        return self.b / self.a


@dataclass(frozen=True)
class Comparison:
    """Rows for the strategies of both results, names of those that only one has, changed inputs."""

    rows: tuple[Row, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    differences: tuple[str, ...]

    def worse(self, limit: float) -> list[Row]:
        """Rows in which ``b`` needs more than ``1 + limit`` times what ``a`` needs."""
        return [row for row in self.rows if row.ratio > 1 + limit]

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain data with stable keys."""
        return {
            "rows": [
                {
                    "strategy": row.strategy,
                    "metric": row.metric,
                    "statistic": row.statistic,
                    "a": row.a,
                    "b": row.b,
                    "ratio": None if row.ratio == float("inf") else row.ratio,
                }
                for row in self.rows
            ],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "differences": list(self.differences),
        }


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> Comparison:
    """Compare two summaries (:meth:`Result.to_json`, :func:`moesim.result.load_summary`).

    Raises :class:`InputError` if one is no summary, if their fidelity or tolerance differs, or if no strategy is
    in both.
    """
    for which, document in (("the first result", a), ("the second result", b)):
        if not isinstance(document, Mapping):
            raise TypeError(f"{which} is a {type(document).__name__}, compare takes Result.to_json()")
        summary.check(document, which)
    for key in ("fidelity", "tolerance"):
        if a.get(key) != b.get(key):
            raise InputError(
                f"cannot compare: {key} is {a.get(key)} in the first and {b.get(key)} in the second; "
                "run both alike"
            )
    first, second = _by_name(a), _by_name(b)
    both = [name for name in first if name in second]
    if not both:
        raise InputError(f"cannot compare: no strategy is in both ({', '.join(first)}; {', '.join(second)})")
    rows = tuple(row for name in both for row in _rows(name, first[name], second[name]))
    return Comparison(
        rows=rows,
        only_a=tuple(name for name in first if name not in second),
        only_b=tuple(name for name in second if name not in first),
        differences=tuple(_differences(a.get("scenario"), b.get("scenario"), "")),
    )


def _by_name(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {item["name"]: item for item in document["strategies"]}


def _rows(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Row]:
    trained = all("backward_s" in one["metrics"] for one in (a, b))
    for stage in ("layer", *STAGES[:3], *(BACKWARD if trained else ())):
        for statistic in ("critical", "mean", "p50", "p99", "max"):
            metric = f"{stage}_s"
            values = (float(one["metrics"][metric][statistic]) for one in (a, b))
            yield Row(name, metric, statistic, *values)
    totals = (float(sum(one["buffers_B"].values())) for one in (a, b))
    yield Row(name, "buffers_B", "total", *totals)


def _differences(a: object, b: object, place: str) -> Iterator[str]:
    """Every key in which two resolved scenarios differ, as ``key: old -> new``."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from _differences(a.get(key), b.get(key), f"{place}.{key}" if place else str(key))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for number, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _differences(x, y, f"{place}.{number}")
    elif a != b:
        yield f"{place}: {a} -> {b}"
