"""Fits: constants that made measurements up are found again, and a file says what was fitted to what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moesim import calibrate, calibration, resources, yamlio
from moesim.calibrate import Fitted
from moesim.console_validate import calibrate_report
from moesim.errors import InputError
from moesim.measurements import Measurement, Measurements
from moesim.predict import Predictor
from moesim.protocols import PROTOCOLS

POD, KIND = "cloudmatrix384", "cann-ep"
ROW = Measurement("a", POD, KIND, "dispatch", 8, 128, 7168, 8, 256, "", "", None, None, 1.0, "calibrate")


def timed(predictor: Predictor, row: Measurement, factors: dict[str, float]) -> float:
    """[s] that the shipped constants, multiplied by ``factors``, would give."""
    asked = predictor.asked(row)
    costs = asked.case.calibration
    values = {name: costs[name] * factors.get(name, 1.0) for name in costs.values}
    return asked.seconds(replace(costs, values=values))


def made_up(factors: dict[str, float], noise: float = 0.0) -> Measurements:
    """Times that the shipped constants, multiplied by ``factors``, would give."""
    predictor, rng = Predictor(), np.random.default_rng(3)
    rows = []
    for op in ("dispatch", "combine"):
        for ep in (8, 16, 32, 64):
            for tokens in (1, 32, 512):
                row = replace(ROW, id=f"{op}{ep}-{tokens}", op=op, ep=ep, tokens_per_rank=tokens)
                seconds = timed(predictor, row, factors) * (1 + noise * rng.standard_normal())
                rows.append(replace(row, latency=seconds))
    return Measurements("made-up.csv", tuple(rows))


def fittable() -> tuple[str, ...]:
    return PROTOCOLS.get(KIND).fittable


@pytest.fixture(scope="module")
def factors() -> dict[str, float]:
    return {name: 1.0 + 0.2 * (number + 1) for number, name in enumerate(fittable())}


@pytest.fixture(scope="module")
def fitted(factors: dict[str, float]) -> Fitted:
    return calibrate.calibrate(made_up(factors), POD, KIND)


def test_constants_that_made_the_measurements_are_found_again(
    fitted: Fitted, factors: dict[str, float]
) -> None:
    assert set(fitted.values) | set(fitted.untouched) == set(fittable())
    for name, value in fitted.values.items():
        assert value == pytest.approx(fitted.start[name] * factors[name], rel=2e-3), name
    assert max(abs(one.error) for one in fitted.rows) < 1e-3


def test_rows_that_are_kept_for_validation_are_not_looked_at(
    fitted: Fitted, factors: dict[str, float]
) -> None:
    given = made_up(factors)
    others = (
        replace(given.rows[0], id="x", split="validate", latency=9.0),
        replace(given.rows[0], id="y", pod="h100-ib", latency=9.0),
        replace(given.rows[0], id="z", protocol="ubep", latency=9.0),
    )
    found = calibrate.calibrate(replace(given, rows=(*given.rows, *others)), POD, KIND)
    assert found.values == fitted.values
    assert len(found.rows) == len(given.rows)


def test_noise_is_in_the_standard_errors_and_the_residuals(factors: dict[str, float]) -> None:
    found = calibrate.calibrate(made_up(factors, noise=0.05), POD, KIND)
    document = found.to_json()
    assert 0.01 < document["overall"]["median_abs_error"] < 0.07
    for name, value in found.values.items():
        assert abs(value / (found.start[name] * factors[name]) - 1) < 5 * found.error[name], name
    assert np.diag(found.correlation) == pytest.approx(np.ones(len(found.values)))
    assert found.correlation == pytest.approx(found.correlation.T)
    assert np.abs(found.correlation).max() <= 1 + 1e-9


def test_the_file_loads_with_the_fitted_constants_and_keeps_the_rest(fitted: Fitted, tmp_path: Path) -> None:
    file = tmp_path / "out.yaml"
    calibrate.save(fitted, file)
    constants = PROTOCOLS.get(KIND).constants
    found = calibration.read(file, KIND, POD, constants)
    assert dict(found.values) == {**fitted.start.values, **fitted.values}
    assert found.access == fitted.start.access
    assert found.fit is not None
    assert (found.fit.constants, found.fit.rows.split(":")[0]) == (tuple(fitted.values), "24 rows")
    grades = {item.where: item.grade for item in found.cited}
    assert {grades[f"{KIND}.{name} ({POD})"] for name in fitted.values} == {"derived"}
    before = {item.where: item for item in fitted.start.cited}
    for item in found.cited:
        assert item.source == before[item.where].source
    comments = [
        line for line in Path(fitted.start.path).read_text().splitlines() if line.lstrip().startswith("#")
    ]
    assert comments
    assert [line for line in file.read_text().splitlines() if line.lstrip().startswith("#")] == comments


def test_a_pod_without_a_file_of_its_own_starts_from_the_default(tmp_path: Path) -> None:
    """The file then says that its constants are from the measurements."""
    pod = "h100-ib"
    predictor = Predictor()
    rows = tuple(
        replace(row, pod=pod, latency=predictor.seconds(replace(row, pod=pod)) * 1.3)
        for row in made_up({}).rows
    )
    found = calibrate.calibrate(Measurements("lab.csv", rows), pod, KIND)
    assert found.start.pod == "default"
    calibrate.save(found, tmp_path / "out.yaml")
    read = calibration.read(tmp_path / "out.yaml", KIND, pod, PROTOCOLS.get(KIND).constants)
    assert {
        item.where.split(".")[1].split()[0] for item in read.cited if item.source == "measurements"
    } == set(found.values)
    data = yamlio.load(tmp_path / "out.yaml").data
    assert data["sources"]["measurements"]["reference"] == "lab.csv"
    assert (tmp_path / "out.yaml").read_text().startswith(f"# {KIND} on {pod}, fitted")


def test_an_heir_that_states_nothing_fits_what_it_inherits(tmp_path: Path) -> None:
    """The constants are then its own, from the measurements."""
    assert not yamlio.load(resources.find("calibration", "gb300-nvl72/deepep-ll")).data["constants"]
    predictor, factors = Predictor(), dict.fromkeys(PROTOCOLS.get("deepep-ll").fittable, 1.2)
    rows = []
    for op in ("dispatch", "combine"):
        for tokens in (1, 8, 64, 256, 1024):
            row = replace(ROW, id=f"{op}{tokens}", pod="gb300-nvl72", protocol="deepep-ll", op=op)
            row = replace(row, tokens_per_rank=tokens)
            rows.append(replace(row, latency=timed(predictor, row, factors)))
    found = calibrate.calibrate(Measurements("lab.csv", tuple(rows)), "gb300-nvl72", "deepep-ll")
    calibrate.save(found, tmp_path / "out.yaml")
    data = yamlio.load(tmp_path / "out.yaml").data
    assert set(data["constants"]) == set(found.values) <= set(PROTOCOLS.get("deepep-ll").fittable)
    read = calibration.read(
        tmp_path / "out.yaml", "deepep-ll", "gb300-nvl72", PROTOCOLS.get("deepep-ll").constants
    )
    assert dict(read.values) == {**found.start.values, **found.values}
    assert max(abs(one.error) for one in found.rows) < 0.02


def test_a_constant_that_no_row_depends_on_stays_and_is_named(factors: dict[str, float]) -> None:
    given = made_up(factors)
    only = tuple(row for row in given.rows if row.op == "dispatch")
    found = calibrate.calibrate(replace(given, rows=only), POD, KIND)
    assert found.untouched
    assert all("combine" in name for name in found.untouched)
    assert any("no row depends on it" in line for line in calibrate_report(found.to_json(), 100))


def test_the_report_has_constants_correlations_and_residuals(fitted: Fitted) -> None:
    text = "\n".join(calibrate_report(fitted.to_json(), 100))
    for part in (*fitted.values, "correlation", "+1.00", "dispatch", "combine", "made-up.csv", "all"):
        assert part in text


@pytest.mark.parametrize(
    ("pod", "kind", "message"),
    [
        ("cloudmatrix38", KIND, "unknown pod 'cloudmatrix38'"),
        (POD, "cann", "unknown protocol 'cann'"),
        (POD, "rank-dedup-push", "no constant of it is fitted"),
        ("gb200-nvl72", KIND, "0 rows of split calibrate"),
    ],
)
def test_what_cannot_be_fitted(pod: str, kind: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        calibrate.calibrate(made_up({}), pod, kind)
    assert message in str(caught.value)


def test_fewer_rows_than_constants() -> None:
    given = made_up({})
    with pytest.raises(InputError, match=f"1 rows of split calibrate.* {len(fittable())} constants"):
        calibrate.calibrate(replace(given, rows=given.rows[:1]), POD, KIND)


def test_rows_that_cannot_be_modelled_are_named() -> None:
    given = made_up({})
    bad = replace(given.rows[0], id="bad", ep=7)
    found = calibrate.calibrate(replace(given, rows=(*given.rows, bad)), POD, KIND)
    assert [(row.id, reason) for row, reason in found.unmodelled] == [
        ("bad", "ep 7 does not divide 256 experts")
    ]
