"""Fit the constants of a protocol on a pod to measurements, and write its calibration file.

Least squares of log(predicted / measured) over the rows of split ``calibrate``, in the logarithms of the constants:
each stays positive, and relative errors count alike at all sizes. Rows of split ``validate`` are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from moesim import calibration, fabrics, outfile, predict, resources, sources, units
from moesim.calibration import Calibration
from moesim.errors import InputError, Problem
from moesim.measurements import Measurement, Measurements
from moesim.plan import FloatArray
from moesim.predict import Asked, Predictor
from moesim.protocols import PROTOCOLS
from moesim.validate import Compared, statistics

MEASURED = "measurements"
"""Source of fitted constants where the rows name none of the bibliography: an entry that the file brings itself."""

_NO_WORK = ("example", "user", "moesim")
"""Entries of the bibliography that measure nothing."""

_MOST_SOURCES = 12
"""More are not named one by one."""

_FROM_NOTHING = {"time": 1e-6, "bandwidth": 1e9, "ratio": 1.0}
"""Where a constant that is 0 in the start begins."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, eq=False)
class Fitted:
    """What :func:`calibrate` found.

    ``start``: the calibration begun with. ``values``: fitted constants [SI], rounded as in the file; ``error``: one
    standard error of each, relative; ``correlation`` (n, n) between those. ``untouched``: constants that no row
    depends on: they stay as they were. ``rows``: the fitted rows, predicted with the fitted constants.
    ``unmodelled``: (row, reason) of calibrate rows left out. ``measurements``: the file, ``digest`` its SHA-256.
    """

    pod: str
    start: Calibration
    values: Mapping[str, float]
    error: Mapping[str, float]
    correlation: FloatArray
    untouched: tuple[str, ...]
    rows: tuple[Compared, ...]
    unmodelled: tuple[tuple[Measurement, str], ...]
    measurements: str
    digest: str = ""

    def to_json(self) -> dict[str, Any]:
        """One plain document with stable keys; constants in SI units, residuals as fractions."""
        return {
            "schema": 1,
            "measurements": self.measurements,
            "sources": list(_sources(self.rows)),
            "pod": self.pod,
            "protocol": self.start.kind,
            "start": self.start.path,
            "constants": [
                {
                    "name": name,
                    "value": value,
                    "written": written(self.start.kind, name, value),
                    "before": self.start[name],
                    "standard_error": self.error[name],
                }
                for name, value in self.values.items()
            ],
            "correlation": self.correlation.tolist(),
            "untouched": list(self.untouched),
            "overall": statistics(self.rows),
            "residuals": list(self._residuals()),
            "unmodelled": [{"id": row.id, "reason": reason} for row, reason in self.unmodelled],
        }

    def _residuals(self) -> Iterator[dict[str, Any]]:
        """Statistics by operation, EP size and number of SMs."""
        groups: dict[tuple[str, int, int], list[Compared]] = {}
        for one in self.rows:
            groups.setdefault((one.row.op, one.row.ep, one.row.sms or 0), []).append(one)
        for key in sorted(groups):
            yield {"op": key[0], "ep": key[1], "sms": key[2] or None, **statistics(groups[key])}


def calibrate(measured: Measurements, pod: str, kind: str, progress: Progress | None = None) -> Fitted:
    """Fit constants of protocol ``kind`` on ``pod``, a shipped name or a path, to the calibrate rows of ``measured``.

    Fitted are the constants that the pod's own file lists under ``fit``; without it the protocol's ``fittable`` ones,
    of an heir those that it states itself, if it states any. ``progress(done, all, what)`` is called at each
    evaluation. Raises :class:`InputError` for an unknown pod or protocol, and where there are too few rows.
    """
    if kind in predict.MODES:
        plain = predict.MODES[kind]["kind"]
        message = f"{kind} is a name of measurements, a mode of {plain}"
        raise InputError(Problem(message, legal=f"`--protocol {plain}`, which fits the rows of both"))
    protocol = PROTOCOLS.get(kind)
    name = fabrics.load(pod).name
    start = protocol(protocol.Params()).calibrate(name)
    names = _chosen(start, name, protocol.fittable)
    asked, unmodelled = _rows(measured, pod, kind)
    _enough(measured.path, len(asked), unmodelled, names, f"{kind} on {pod}")
    found, jacobian, rest = _solve(asked, names, start, progress)
    moved = np.abs(jacobian).max(axis=0) > 1e-6
    kept = [name for name, does in zip(names, moved, strict=True) if does]
    error, correlation = _uncertainty(jacobian[:, moved], rest)
    values = {
        name: _rounded(kind, name, value) for name, value in zip(names, found, strict=True) if name in kept
    }
    return Fitted(
        pod=name,
        start=start,
        values=values,
        error=dict(zip(kept, error.tolist(), strict=True)),
        correlation=correlation,
        untouched=tuple(name for name in names if name not in kept),
        rows=tuple(Compared(one.row, _seconds(one, values)) for one in asked),
        unmodelled=unmodelled,
        measurements=measured.path,
        digest=measured.digest,
    )


def _chosen(start: Calibration, pod: str, fittable: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the constants to fit."""
    if start.pod == pod and start.fit is not None:
        return start.fit.constants
    stated = {item.where for item in start.cited} if start.pod == pod and start.inherited else set()
    own = tuple(name for name in fittable if f"{start.kind}.{name} ({pod})" in stated)
    return own or fittable


def _rows(
    measured: Measurements, pod: str, kind: str
) -> tuple[list[Asked], tuple[tuple[Measurement, str], ...]]:
    """Calibrate rows of the protocol on the pod, and those that it cannot model."""
    base = Path(measured.path).parent
    predictor, wanted = Predictor(base), _file(pod, None)
    same = {name: _file(name, base) == wanted for name in {row.pod for row in measured.rows}}
    asked: list[Asked] = []
    unmodelled: list[tuple[Measurement, str]] = []
    for row in measured.rows:
        if row.split != "calibrate" or not same[row.pod] or predict.kind(row) != kind:
            continue
        try:
            one = predictor.asked(row)
            one.seconds()
        except InputError as error:
            unmodelled.append((row, "; ".join(problem.message for problem in error.problems)))
        else:
            asked.append(one)
    return asked, tuple(unmodelled)


def _file(pod: str, base: Path | None) -> Path | None:
    """The file of a pod, resolved, by which two names of it are the same; None if there is none."""
    try:
        return resources.find("topology", pod, base).resolve()
    except InputError:
        return None


def _enough(
    path: str, rows: int, unmodelled: Sequence[tuple[Measurement, str]], names: Sequence[str], what: str
) -> None:
    if not names:
        raise InputError(f"{what}: no constant of it is fitted to measurements")
    if rows >= max(len(names), 1):
        return
    message = f"{rows} rows of split calibrate for {what}, {len(names)} constants to fit: {', '.join(names)}"
    if unmodelled:
        message += f"; {len(unmodelled)} rows cannot be modelled, the first because {unmodelled[0][1]}"
    raise InputError(Problem(message, path=path, legal=f"at least {len(names)} rows"))


def _seconds(one: Asked, values: Mapping[str, float]) -> float:
    costs = one.case.calibration
    return one.seconds(replace(costs, values={**costs.values, **values}))


def _solve(
    asked: Sequence[Asked], names: Sequence[str], start: Calibration, progress: Progress | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(n,) values, (rows, n) derivatives of log time by log value, (rows,) log residuals of the best fit."""
    from scipy.optimize import least_squares

    measured = np.log([one.row.latency for one in asked])
    calls = 0

    def residuals(logs: FloatArray) -> FloatArray:
        nonlocal calls
        calls += 1
        if progress is not None:
            progress(calls, 0, f"fit of {start.kind}")
        values = dict(zip(names, np.exp(logs).tolist(), strict=True))
        return np.log([_seconds(one, values) for one in asked]) - measured

    dimension = PROTOCOLS.get(start.kind).constants
    begin = np.log([start[name] or _FROM_NOTHING[dimension[name]] for name in names])
    # Levenberg-Marquardt leaves alone what no row depends on.
    found = least_squares(residuals, begin, method="lm", xtol=1e-5, ftol=1e-7)
    return np.exp(found.x), np.asarray(found.jac), found.fun


def _uncertainty(jacobian: FloatArray, rest: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(n,) relative standard errors and (n, n) correlations, from the curvature at the best fit."""
    freedom = max(1, len(rest) - jacobian.shape[1])
    covariance = np.linalg.pinv(jacobian.T @ jacobian) * float(rest @ rest) / freedom
    error = np.sqrt(np.diag(covariance))
    scale = np.where(error > 0, error, 1.0)
    return error, covariance / np.outer(scale, scale)


def written(kind: str, name: str, value: float) -> str:
    """A constant as it stands in a file: four digits and its unit."""
    dimension = PROTOCOLS.get(kind).constants[name]
    return f"{value:.4g}" if dimension == "ratio" else units.format(value, dimension).replace(" ", "")


def _rounded(kind: str, name: str, value: float) -> float:
    return units.parse(written(kind, name, value), PROTOCOLS.get(kind).constants[name])


def save(fitted: Fitted, output: str | Path) -> None:
    """Write the calibration file, whole or not at all: that of the start with the fitted constants in their places.

    A fitted constant cites what the rows it was fitted to name as their source.
    """
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 200
    yaml.preserve_quotes = True
    document = yaml.load(Path(fitted.start.path).read_text(encoding="utf-8"))
    if "protocol" not in document:
        document.insert(1, "protocol", fitted.start.kind)
    if "inherits" in document:
        # Of the pod that was measured, on whatever pod the file is used.
        document["inherits"] = calibration.ancestor(fitted.pod, str(document["inherits"]))
    cited = [
        _put(document["constants"], name, written(fitted.start.kind, name, value), _source(fitted, name))
        for name, value in fitted.values.items()
    ]
    document["fit"] = _in_line(_block(fitted))
    if MEASURED in cited:
        document.setdefault("sources", {})[MEASURED] = _in_line(
            {
                "title": "Measurements given to moesim calibrate",
                "reference": "; ".join([_data(fitted), *_sources(fitted.rows)]),
            }
        )
    if fitted.start.pod != fitted.pod:
        start = f"{fitted.start.pod}/{fitted.start.kind}"
        file = _printable(Path(fitted.measurements).name)
        title = f"{fitted.start.kind} on {fitted.pod}, fitted by moesim calibrate to {file}."
        document.yaml_set_start_comment(f"{title}\nWhat was not fitted is that of {start}.")
    with outfile.replaced(output) as stream:
        yaml.dump(document, stream)


def _put(constants: Any, name: str, value: str, source: str) -> str:
    """Set a constant among those of a file, its comments left where they are; gives back its source."""
    cell = {"value": value, "source": source, "grade": "derived"}
    if isinstance(constants.get(name), dict):
        constants[name].update(cell)
    else:
        constants[name] = _in_line(cell)
    return source


def _source(fitted: Fitted, name: str) -> str:
    """Key of the source of a fitted constant, in the bibliography if the rows name one that is there."""
    start = fitted.start
    shipped = resources.name_of("measurements", Path(fitted.measurements)) is not None
    if shipped and start.pod == fitted.pod and start.fit is not None and name in start.fit.constants:
        # These rows again: what they name is in the bibliography under the key that the file cites.
        return next(item.source for item in start.cited if item.where.startswith(f"{start.kind}.{name} "))
    named = {one.row.source for one in fitted.rows}
    known = sources.bibliography().keys() - set(_NO_WORK)
    return named.pop() if len(named) == 1 and named <= known else MEASURED


def _sources(rows: Sequence[Compared]) -> tuple[str, ...]:
    """What the rows name as their source, each once."""
    texts = [text for text in dict.fromkeys(_printable(one.row.source) for one in rows) if text]
    more = len(texts) - _MOST_SOURCES
    return (*texts[:_MOST_SOURCES], *([f"{more} others"] if more > 0 else []))


def _data(fitted: Fitted) -> str:
    """The file of the measurements and how to know it again."""
    digest = f", SHA-256 {fitted.digest[:12]}" if fitted.digest else ""
    return f"{_printable(Path(fitted.measurements).name)}{digest}"


def _printable(text: str) -> str:
    """``text`` on one line, of characters that a YAML file may hold."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


def _block(fitted: Fitted) -> dict[str, object]:
    """What was fitted to what, as :class:`moesim.calibration.Fit` has it."""
    return {
        "rows": _described(fitted.rows),
        "constants": list(fitted.values),
        "median": _share(fitted, "median_abs_error"),
        "p90": _share(fitted, "p90_abs_error"),
        "pod": fitted.pod,
        "file": _data(fitted),
        "sources": list(_sources(fitted.rows)),
    }


def _share(fitted: Fitted, key: str) -> str:
    return units.format(float(statistics(fitted.rows)[key] or 0.0), "ratio")


def _in_line(cell: Mapping[str, object]) -> Any:
    """A mapping that YAML writes in one line."""
    from ruamel.yaml.comments import CommentedMap

    found = CommentedMap(cell)
    found.fa.set_flow_style()
    return found


def _described(rows: Sequence[Compared]) -> str:
    """``264 rows: combine EP8, dispatch EP8``."""
    kinds = sorted({(one.row.op, one.row.ep) for one in rows})
    return f"{len(rows)} rows: " + ", ".join(f"{op} EP{ep}" for op, ep in kinds)
