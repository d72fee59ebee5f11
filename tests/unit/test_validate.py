"""Errors of predictions: their statistics, groups, and what is kept apart."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from moesim import validate
from moesim.console_validate import validate_report
from moesim.measurements import COMPUTE, Measurement, Measurements
from moesim.predict import Predictor
from moesim.validate import Compared, Validation, statistics

ROW = Measurement(
    "a", "h200-hgx", "deepep-ll", "dispatch", 8, 128, 7168, 8, 256, "", "", None, None, 1e-4, "validate"
)


def compared(errors: list[float], **changes: Any) -> list[Compared]:
    """Rows of 100 us that were predicted with these errors."""
    return [
        Compared(replace(ROW, id=f"{changes.get('split', 'v')}{number}", **changes), 1e-4 * (1 + error))
        for number, error in enumerate(errors)
    ]


def test_statistics_by_hand() -> None:
    errors = [0.01 * step for step in range(-5, 6)]
    assert statistics(compared(errors)) == {
        "rows": 11,
        "median_abs_error": pytest.approx(0.03),
        "p90_abs_error": pytest.approx(0.05),
        "bias": pytest.approx(0.0, abs=1e-12),
    }
    assert statistics(compared([0.5, -0.1]))["bias"] == pytest.approx(0.2)
    assert statistics([]) == {"rows": 0, "median_abs_error": None, "p90_abs_error": None, "bias": None}


@pytest.fixture
def document() -> dict[str, Any]:
    rows = [
        *compared([0.1, -0.2]),
        *compared([0.04], split="calibrate"),
        *compared([0.3], pod="h100-ib"),
        *compared([-0.5], op=COMPUTE, protocol="grouped-gemm", pod="gb200-nvl72"),
    ]
    unknown = replace(ROW, id="u", pod="mars", line=7)
    return Validation("m.csv", tuple(rows), ((unknown, "unknown pod 'mars'"),)).to_json()


def test_overall_is_of_rows_that_were_not_used_for_fitting(document: dict[str, Any]) -> None:
    overall = document["overall"]
    assert (overall["rows"], overall["split"]) == (3, "validate")
    assert overall["median_abs_error"] == pytest.approx(0.2)
    assert (document["fitted"]["rows"], document["fitted"]["bias"]) == (1, pytest.approx(0.04))


def test_groups_are_by_pod_protocol_operation_and_split(document: dict[str, Any]) -> None:
    keys = [(group["pod"], group["op"], group["split"], group["rows"]) for group in document["groups"]]
    assert keys == [
        ("h100-ib", "dispatch", "validate", 1),
        ("h200-hgx", "dispatch", "calibrate", 1),
        ("h200-hgx", "dispatch", "validate", 2),
    ]
    worst = document["groups"][2]["worst"]
    assert [row["error"] for row in worst] == pytest.approx([-0.2, 0.1])


def test_a_grouped_gemm_is_reported_apart_with_the_routing_assumed(document: dict[str, Any]) -> None:
    assert [group["bias"] for group in document["compute"]["groups"]] == pytest.approx([-0.5])
    assert "uniform gate" in document["compute"]["routing"]
    assert len(document["rows"]) == 5


def test_rows_and_unmodelled_rows_are_listed(document: dict[str, Any]) -> None:
    first = document["rows"][0]
    assert {key: first[key] for key in ("id", "predicted_us", "measured_us", "error")} == {
        "id": "v0",
        "predicted_us": pytest.approx(110.0),
        "measured_us": pytest.approx(100.0),
        "error": pytest.approx(0.1),
    }
    assert document["unmodelled"] == [
        {
            "id": "u",
            "line": 7,
            "pod": "mars",
            "protocol": "deepep-ll",
            "op": "dispatch",
            "reason": "unknown pod 'mars'",
        }
    ]
    assert json.loads(json.dumps(document)) == document


def test_the_report_says_all_of_it(document: dict[str, Any]) -> None:
    text = "\n".join(validate_report(document, 100))
    for part in (
        "20.0%",
        "-50.0%",
        "unknown pod 'mars'",
        "+30.0%",
        "uniform gate",
        "m.csv",
        "rows not used for fitting",
    ):
        assert part in text
    lines = [line for line in text.splitlines() if line.startswith("  deepep-ll  h200-hgx")]
    assert [line.split()[3] for line in lines] == ["2", "1"]


def test_a_pod_without_constants_of_its_own_is_named() -> None:
    own, other = ROW, replace(ROW, id="b", pod="cloudmatrix384")
    found = validate.validate(Measurements("m.csv", (own, other))).to_json()
    assert [group["calibrations"] for group in found["groups"]] == [
        ["default/deepep-ll"],
        ["h200-hgx/deepep-ll"],
    ]
    lines = validate_report(found, 100)
    assert "  deepep-ll on cloudmatrix384: default/deepep-ll stands in" in lines
    assert not any("deepep-ll on h200-hgx" in line for line in lines)


def test_only_rows_that_can_be_modelled_are_predicted() -> None:
    seconds = Predictor().seconds(ROW)
    rows = (ROW, replace(ROW, id="b", pod="mars"), replace(ROW, id="c", latency=seconds))
    calls = []
    found = validate.validate(Measurements("m.csv", rows), lambda *call: calls.append(call))
    assert [one.row.id for one in found.rows] == ["a", "c"]
    assert found.rows[1].error == pytest.approx(0.0, abs=1e-12)
    assert [(row.id, reason) for row, reason in found.unmodelled] == [("b", "unknown pod 'mars'")]
    assert calls == [(0, 3, "h200-hgx deepep-ll")]


def test_without_any_row_that_can_be_modelled_there_are_no_numbers() -> None:
    found = validate.validate(Measurements("m.csv", (replace(ROW, pod="mars"),))).to_json()
    assert (found["overall"]["rows"], found["overall"]["median_abs_error"], found["groups"]) == (0, None, [])
    assert any("mars" in line for line in validate_report(found, 80))
