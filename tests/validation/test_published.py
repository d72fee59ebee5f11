"""Predictions against the published measurements that are shipped, and the fits that were made to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moesim import calibrate, measurements, resources, validate, yamlio
from moesim.measurements import COMPUTE, Measurements

MEDIAN, P90 = 0.06, 0.15
"""Over all validate rows. Two laboratories that measure the same kernel differ by 8 to 21 %."""

GROUP_MEDIAN, GROUP_P90 = 0.10, 0.25
"""Of each group of ten or more validate rows."""


@pytest.fixture(scope="module")
def measured() -> Measurements:
    return measurements.load(resources.find("measurements", "published"))


@pytest.fixture(scope="module")
def document(measured: Measurements) -> dict[str, Any]:
    return validate.validate(measured).to_json()


def test_every_row_can_be_modelled(document: dict[str, Any]) -> None:
    assert document["unmodelled"] == []
    assert len(document["rows"]) == 1104
    assert document["overall"]["rows"] + document["fitted"]["rows"] == 1104


def test_over_all_rows_that_were_not_fitted(document: dict[str, Any]) -> None:
    overall = document["overall"]
    assert overall["rows"] == 306
    assert overall["median_abs_error"] <= MEDIAN
    assert overall["p90_abs_error"] <= P90
    assert abs(overall["bias"]) <= 0.03


def test_no_large_group_is_far_off(document: dict[str, Any]) -> None:
    large = [one for one in document["groups"] if one["split"] == "validate" and one["rows"] >= 10]
    assert len(large) >= 12
    for one in large:
        name = f"{one['protocol']} on {one['pod']}, {one['op']}"
        assert one["median_abs_error"] <= GROUP_MEDIAN, name
        assert one["p90_abs_error"] <= GROUP_P90, name


def test_what_was_not_fitted_is_predicted_nearly_as_well_as_what_was(document: dict[str, Any]) -> None:
    assert document["overall"]["median_abs_error"] < 1.6 * document["fitted"]["median_abs_error"]


def test_statistics_are_those_of_the_rows(document: dict[str, Any], measured: Measurements) -> None:
    latency = {row.id: row.latency * 1e6 for row in measured.rows}
    errors = [
        abs(row["predicted_us"] / latency[row["id"]] - 1)
        for row in document["rows"]
        if row["split"] == "validate"
    ]
    assert np.median(errors) == pytest.approx(document["overall"]["median_abs_error"])
    assert np.percentile(errors, 90) == pytest.approx(document["overall"]["p90_abs_error"])


def fits() -> list[str]:
    """Calibrations that say what they were fitted to."""
    return [
        name
        for name in resources.names("calibration")
        if "fit" in yamlio.load(resources.find("calibration", name)).data
    ]


@pytest.fixture(scope="module")
def shipped() -> Measurements:
    files = [
        measurements.load(resources.find("measurements", name)) for name in resources.names("measurements")
    ]
    return Measurements("shipped", tuple(row for file in files for row in file.rows))


@pytest.mark.parametrize("name", fits())
def test_a_fit_gives_the_shipped_constants_again(name: str, shipped: Measurements) -> None:
    pod, kind = name.split("/")
    found = calibrate.calibrate(shipped, pod, kind)
    block = found.start.fit
    assert block is not None
    assert block.constants == tuple(found.values)
    for constant, value in found.values.items():
        assert value == pytest.approx(found.start[constant], rel=2e-3), constant
    overall = found.to_json()["overall"]
    assert overall["median_abs_error"] == pytest.approx(block.median, abs=1e-3)
    assert overall["p90_abs_error"] == pytest.approx(block.p90, abs=2e-3)
    # Of CANN EP four times are published for fitting, as many as it has constants.
    assert len(found.rows) >= (1 if kind == "cann-ep" else 4) * len(found.values)


def test_grouped_gemms_are_compared_apart() -> None:
    """The roofline leaves out what launches and small tiles cost, so it is below what was measured."""
    found = validate.validate(measurements.load(resources.find("measurements", "grouped_gemm"))).to_json()
    assert found["unmodelled"] == []
    assert (found["overall"]["rows"], found["groups"]) == (0, [])
    [fitted, free] = found["compute"]["groups"]
    assert fitted["rows"] + free["rows"] == 72
    assert {fitted["op"], free["op"]} == {COMPUTE}
    assert all(row["predicted_us"] < row["measured_us"] for row in found["rows"])
