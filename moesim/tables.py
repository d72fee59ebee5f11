"""The tidy tables of a result, one row an observation, and their way to CSV files and back.

======  =====================================================================================
table   a row is
======  =====================================================================================
cases   a strategy, step and layer: bounds and breakdown of the slowest rank
ranks   a strategy, step, layer and rank: its stage times, and entries with experts at home and as placed
phases  a strategy, step, layer and phase: when it ran and how long it took
links   a strategy and a resource of the fabric: what it carried
======  =====================================================================================

A column ends in its unit. Numbers are written so that they read back equal.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moesim.errors import InputError, Problem
from moesim.outcome import BACKWARD, STAGES, FloatArray, IntArray, StrategyOutcome

Row = Mapping[str, Any]
TABLES = ("cases", "ranks", "phases", "links")

_TEXT = {"strategy", "phase", "label", "resource", "kind"}
_BOUND, _PART, _ENTRIES = "bound_", "part_", "entries_"
_WHOLE = {"step", "layer", "rank", f"{_ENTRIES}home", f"{_ENTRIES}placed"}


def rows(table: str, outcomes: Sequence[StrategyOutcome]) -> list[Row]:
    """All rows of ``table`` (one of :data:`TABLES`), strategies in the order of the scenario."""
    make = {"cases": _case_rows, "ranks": _rank_rows, "phases": _phase_rows, "links": _link_rows}[table]
    return [{"strategy": outcome.name, **row} for outcome in outcomes for row in make(outcome)]


def _case_rows(outcome: StrategyOutcome) -> Iterable[Row]:
    for number, (step, layer) in enumerate(outcome.cases.tolist()):
        bounds = {f"{_BOUND}{stage}_s": float(bound[number]) for stage, bound in outcome.bound.items()}
        parts = {f"{_PART}{label}_s": float(part[number]) for label, part in outcome.breakdown.items()}
        yield {"step": step, "layer": layer, **bounds, **parts}


def _rank_rows(outcome: StrategyOutcome) -> Iterable[Row]:
    columns: dict[str, Any] = {f"{stage}_s": times.tolist() for stage, times in outcome.stages.items()}
    columns |= {f"{_ENTRIES}{which}": counts.tolist() for which, counts in outcome.entries.items()}
    ranks = outcome.stages["layer"].shape[1]
    for number, (step, layer) in enumerate(outcome.cases.tolist()):
        for rank in range(ranks):
            yield {"step": step, "layer": layer, "rank": rank} | {
                name: values[number][rank] for name, values in columns.items()
            }


def _phase_rows(outcome: StrategyOutcome) -> Iterable[Row]:
    return outcome.phases


def _link_rows(outcome: StrategyOutcome) -> Iterable[Row]:
    return outcome.links


def write(path: Path, table: Sequence[Row]) -> None:
    """Write rows as CSV; a column that a row does not have is left empty."""
    names = list(dict.fromkeys(name for row in table for name in row))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def read(path: Path) -> list[dict[str, Any]]:
    """Read what :func:`write` wrote, without the empty cells; :class:`InputError` names the line."""
    table = []
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream, strict=True)
        try:
            for row in reader:
                table.append(
                    {name: _value(name, text) for name, text in row.items() if text or name in _TEXT}
                )
        except (ValueError, TypeError, csv.Error) as error:
            problem = Problem(
                f"not a table that moesim wrote ({error})", path=str(path), line=reader.line_num
            )
            raise InputError(problem) from None
    return table


def _value(name: str, text: str) -> str | int | float:
    if name in _TEXT:
        return text
    return int(text) if name in _WHOLE else float(text)


def entries(cases: Sequence[Row], ranks: Sequence[Row]) -> dict[str, IntArray]:
    """Of one strategy: ``home`` and ``placed`` -> (C, R), as far as the rows have them."""
    shape = (len(cases), len(ranks) // max(len(cases), 1))
    names = [name for name in (ranks[0] if ranks else ()) if name.startswith(_ENTRIES)]
    return {
        name[len(_ENTRIES) :]: np.array([row[name] for row in ranks], dtype=np.int64).reshape(shape)
        for name in names
    }


def arrays(
    cases: Sequence[Row], ranks: Sequence[Row]
) -> tuple[IntArray, dict[str, FloatArray], dict[str, FloatArray], dict[str, FloatArray]]:
    """Of one strategy: cases (C, 2), stages {name: (C, R)}, bounds and breakdown {name: (C,)}.

    Raises ``KeyError`` or ``ValueError`` for rows that :func:`rows` did not make.
    """
    numbers = np.array([(row["step"], row["layer"]) for row in cases], dtype=np.int64).reshape(-1, 2)
    shape = (len(cases), len(ranks) // max(len(cases), 1))
    trained = BACKWARD if ranks and f"{BACKWARD[0]}_s" in ranks[0] else ()
    stages = {
        stage: np.array([row[f"{stage}_s"] for row in ranks], dtype=np.float64).reshape(shape)
        for stage in (*STAGES, *trained)
    }
    bound = {
        stage: np.array([row[f"{_BOUND}{stage}_s"] for row in cases], dtype=np.float64) for stage in stages
    }
    labels = [name[len(_PART) : -len("_s")] for name in (cases[0] if cases else ()) if name.startswith(_PART)]
    parts = {
        label: np.array([row[f"{_PART}{label}_s"] for row in cases], dtype=np.float64) for label in labels
    }
    for name, times in (*stages.items(), *bound.items(), *parts.items()):
        if not np.isfinite(times).all():
            raise ValueError(f"{name} holds what is no time")
    return numbers, stages, bound, parts
