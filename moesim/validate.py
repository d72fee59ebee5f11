"""How far predictions are from measurements: errors by pod, protocol and operation, and what cannot be modelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moesim.errors import InputError
from moesim.measurements import COMPUTE, SPLITS, Measurement, Measurements
from moesim.predict import COMPUTE_ROUTING, Predictor

SCHEMA = 1
WORST = 3
"""Rows of a group that a report names."""

Progress = Callable[[int, int, str], None]
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Compared:
    """A measurement and what was predicted for it [s], with the constants called ``calibration`` (``pod/kind``)."""

    row: Measurement
    predicted: float
    calibration: str = ""

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.row.latency - 1.0

    @property
    def key(self) -> Key:
        """Group of the row: pod, protocol, op, split."""
        return self.row.pod, self.row.protocol, self.row.op, self.row.split


@dataclass(frozen=True)
class Validation:
    """What :func:`validate` returns: rows that could be predicted, and (row, reason) of those that could not."""

    path: str
    rows: tuple[Compared, ...]
    unmodelled: tuple[tuple[Measurement, str], ...]

    def communication(self, split: str | None = None) -> list[Compared]:
        """Compared rows of communication, of one split if it is given."""
        return [
            one for one in self.rows if one.row.op != COMPUTE and (split is None or one.row.split == split)
        ]

    def to_json(self) -> dict[str, Any]:
        """One plain document with stable keys; errors are fractions of the measured time.

        ``overall``: of the validate rows of communication. ``groups``: each pod, protocol, op and split.
        ``compute``: the same of grouped GEMMs, apart. ``rows``: all that could be predicted.
        """
        compute = [one for one in self.rows if one.row.op == COMPUTE]
        return {
            "schema": SCHEMA,
            "measurements": self.path,
            "fidelity": "bound",
            "overall": {"split": "validate", **statistics(self.communication("validate"))},
            "fitted": {"split": "calibrate", **statistics(self.communication("calibrate"))},
            "groups": _groups(self.communication()),
            "compute": {"routing": COMPUTE_ROUTING, "groups": _groups(compute)},
            "unmodelled": [_unmodelled(row, reason) for row, reason in self.unmodelled],
            "rows": [_row(one) for one in self.rows],
        }


def validate(measured: Measurements, progress: Progress | None = None) -> Validation:
    """Predict every row of ``measured`` in closed form; nothing is fitted here.

    ``progress(done, all, what)`` is called now and then.
    """
    predictor = Predictor(Path(measured.path).parent)
    compared: list[Compared] = []
    unmodelled: list[tuple[Measurement, str]] = []
    for number, row in enumerate(measured.rows):
        if progress is not None and number % 100 == 0:
            progress(number, len(measured.rows), f"{row.pod} {row.protocol}")
        try:
            compared.append(_compared(predictor, row))
        except InputError as error:
            unmodelled.append((row, "; ".join(_told(error))))
    return Validation(measured.path, tuple(compared), tuple(unmodelled))


def _compared(predictor: Predictor, row: Measurement) -> Compared:
    if row.op == COMPUTE:
        return Compared(row, predictor.seconds(row))
    asked = predictor.asked(row)
    costs = asked.case.calibration
    return Compared(row, asked.seconds(), f"{costs.pod}/{costs.kind}")


def statistics(rows: Sequence[Compared]) -> dict[str, float | int | None]:
    """Rows, median and 90th percentile of the absolute error, and the mean error (bias); None where no rows are."""
    if not rows:
        return {"rows": 0, "median_abs_error": None, "p90_abs_error": None, "bias": None}
    errors = np.array([one.error for one in rows])
    return {
        "rows": len(rows),
        "median_abs_error": float(np.median(np.abs(errors))),
        "p90_abs_error": float(np.percentile(np.abs(errors), 90)),
        "bias": float(errors.mean()),
    }


def _groups(rows: Iterable[Compared]) -> list[dict[str, Any]]:
    """Statistics of each group and its worst rows, groups in alphabetic order, calibrate before validate."""
    members: dict[Key, list[Compared]] = {}
    for one in rows:
        members.setdefault(one.key, []).append(one)
    return [
        {
            "pod": key[0],
            "protocol": key[1],
            "op": key[2],
            "split": key[3],
            "calibrations": sorted({one.calibration for one in members[key] if one.calibration}),
            **statistics(members[key]),
            "worst": [_row(one) for one in sorted(members[key], key=lambda one: -abs(one.error))[:WORST]],
        }
        for key in sorted(members, key=lambda key: (key[1], key[0], key[2], SPLITS.index(key[3])))
    ]


def _row(one: Compared) -> dict[str, Any]:
    row = one.row
    return {
        "id": row.id,
        "pod": row.pod,
        "protocol": row.protocol,
        "op": row.op,
        "ep": row.ep,
        "tokens_per_rank": row.tokens_per_rank,
        "send_bytes": row.send_bytes,
        "sms": row.sms,
        "split": row.split,
        "predicted_us": one.predicted * 1e6,
        "measured_us": row.latency * 1e6,
        "error": one.error,
    }


def _unmodelled(row: Measurement, reason: str) -> dict[str, str | int]:
    return {
        "id": row.id,
        "line": row.line,
        "pod": row.pod,
        "protocol": row.protocol,
        "op": row.op,
        "reason": reason,
    }


def _told(error: InputError) -> list[str]:
    return [
        problem.message + (f" (legal: {problem.legal})" if problem.legal else "")
        for problem in error.problems
    ]
