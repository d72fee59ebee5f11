"""The README's tables of predicted against published: every predicted number is what a run gives."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import moesim
from moesim import measurements, resources, validate

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").splitlines()
OPERATORS = {"hidden": 7168, "layers": 1, "moe_layers": 1, "top_k": 8, "intermediate": 8}
"""A model whose experts compute next to nothing, so that operators are compared alone."""


def rows(after: str, heading: str) -> list[list[str]]:
    """Cells of the table headed ``heading`` that follows the first line starting with ``after``."""
    start = next(number for number, line in enumerate(README) if line.startswith(after))
    table = itertools.dropwhile(lambda line: not line.startswith(f"| {heading} |"), README[start:])
    lines = itertools.takewhile(lambda line: line.startswith("|"), table)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][2:]


def numbers(after: str, heading: str) -> list[list[float]]:
    """The numeric cells of :func:`rows`."""
    return [[float(cell) for cell in row if cell.isdigit()] for row in rows(after, heading)]


def operators(
    pod: str, ep: int, tokens: int, experts: int, *protocols: Any, routing: str = "uniform"
) -> moesim.Result:
    """One layer with each of ``protocols``."""
    workload = {"phase": "decode", "tokens_per_rank": tokens, "layers": "all"}
    return moesim.run(
        moesim.from_mapping(
            {
                "moesim": 1,
                "topology": pod,
                "ranks": {"ep": ep},
                "model": {"name": "operators", "experts": experts, "expert_dtype": "int8"} | OPERATORS,
                "workload": workload,
                "routing": {"kind": routing},
                "strategies": [{"name": f"s{n}", "protocol": item} for n, item in enumerate(protocols)],
            }
        )
    )


def times(result: moesim.Result, stage: str, statistic: str) -> list[float]:
    """[us] of each strategy."""
    return [outcome.metrics()[f"{stage}_s"][statistic] * 1e6 for outcome in result.strategies]


@pytest.mark.parametrize("row", numbers("CANN EP on CloudMatrix384", "EP"), ids=lambda row: f"EP{row[0]:.0f}")
def test_cann_ep(row: list[float]) -> None:
    ep, _, dispatch, _, combine = row
    result = operators("cloudmatrix384", int(ep), 128, 256, "cann-ep", routing="balanced")
    found = times(result, "dispatch", "critical") + times(result, "combine", "critical")
    assert [dispatch, combine] == pytest.approx(found, abs=0.6)


@pytest.mark.parametrize(
    "row", numbers("UBEP (`sp`) against", "tokens a rank"), ids=lambda row: f"{row[0]:.0f} tokens"
)
def test_ubep(row: list[float]) -> None:
    tokens, cann, ubep, gain = row
    sets = [f"workload.tokens_per_rank={tokens:.0f}", "workload.steps=1"]
    found = times(moesim.run(moesim.load("ubep-vs-cann-balanced", sets=sets)), "dispatch", "critical")
    # One step here; the table has the mean of all steps of the scenario.
    assert [cann, ubep] == pytest.approx(found, rel=0.02)
    assert gain == pytest.approx(100 * (1 - found[1] / found[0]), abs=1.0)


@pytest.mark.parametrize(
    "row", numbers("DeepEP low-latency on H800", "EP"), ids=lambda row: f"EP{row[0]:.0f}"
)
def test_deepep_low_latency(row: list[float]) -> None:
    ep, _, dispatch, _, combine = row
    result = operators("h800-ib", int(ep), 128, 256, "deepep-ll")
    found = times(result, "dispatch", "mean") + times(result, "combine", "mean")
    assert [dispatch, combine] == pytest.approx(found, abs=0.6)


PLACES: dict[str, list[str]] = {
    "by chance": [],
    "two a host": ["routing.at=[0,32,64,96,128,160,192,224]"],
    "eight neighbours": ["routing.at=[0,1,2,3,4,5,6,7]"],
}


@pytest.mark.parametrize("row", rows("Scheduling ablation", "heat"), ids=lambda row: ", ".join(row[:3]))
def test_ablation(row: list[str]) -> None:
    heat, places, tokens, *predicted = row
    sets = [f"routing.heat={heat}", f"workload.tokens_per_rank={tokens}", "workload.steps=1", *PLACES[places]]
    phases = moesim.run(moesim.load("ubep-ablation", sets=sets)).phases
    sends = phases[phases.phase == "dispatch.send"].groupby("strategy", sort=False).max_s.max() * 1e6
    assert [float(cell) for cell in predicted] == pytest.approx(list(sends), abs=0.3)


@pytest.fixture(scope="module")
def accuracy() -> dict[str, Any]:
    return validate.validate(measurements.load(resources.find("measurements", "published"))).to_json()


def errors(one: dict[str, Any]) -> list[float]:
    """Rows, and median and 90th percentile of the error [%]."""
    return [one["rows"], 100 * one["median_abs_error"], 100 * one["p90_abs_error"]]


def test_accuracy_over_all(accuracy: dict[str, Any]) -> None:
    shown = [[float(cell) for cell in row[1:]] for row in rows("`moesim validate` predicts", "rows")]
    for cells, key in zip(shown, ("overall", "fitted"), strict=True):
        assert cells == pytest.approx(errors(accuracy[key]), abs=0.06)


def test_accuracy_by_group(accuracy: dict[str, Any]) -> None:
    table = rows("The same kernel measured", "protocol")
    shown = {tuple(cell.strip("`") for cell in row[:3]): [float(cell) for cell in row[3:]] for row in table}
    found = {
        (one["protocol"], one["pod"], one["op"]): errors(one)
        for one in accuracy["groups"]
        if one["split"] == "validate"
    }
    assert shown.keys() == found.keys()
    for name, cells in shown.items():
        assert cells == pytest.approx(found[name], abs=0.06), name
