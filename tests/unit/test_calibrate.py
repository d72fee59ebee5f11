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
    found = calibration.read(file, POD, KIND, constants)
    assert dict(found.values) == {**fitted.start.values, **fitted.values}
    assert found.access == fitted.start.access
    assert found.fit is not None
    assert (found.fit.constants, found.fit.rows.split(":")[0]) == (tuple(fitted.values), "24 rows")
    grades = {item.where: item.grade for item in found.cited}
    fitted_ones = {f"{KIND}.{name} (out.yaml)" for name in fitted.values}
    assert {grades[name] for name in fitted_ones} == {"derived"}
    before = {item.where.split()[0]: item for item in fitted.start.cited}
    for item in found.cited:
        kept = before[item.where.split()[0]].source
        assert item.source == ("measurements" if item.where in fitted_ones else kept)
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
    read = calibration.read(tmp_path / "out.yaml", pod, KIND, PROTOCOLS.get(KIND).constants)
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
        tmp_path / "out.yaml", "gb300-nvl72", "deepep-ll", PROTOCOLS.get("deepep-ll").constants
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
        ("cloudmatrix38", KIND, "unknown topology 'cloudmatrix38'"),
        (POD, "cann", "unknown protocol 'cann'"),
        (POD, "deepep-ll-rdma", "--protocol deepep-ll`, which fits the rows of both"),
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


PUBLISHED = resources.find("measurements", "published")


@pytest.mark.parametrize(
    ("texts", "path", "source", "reference"),
    [
        (["aic"], "lab.csv", "aic", None),
        (["our lab"], "lab.csv", "measurements", "lab.csv, SHA-256 0123456789ab; our lab"),
        (["aic", "our lab"], "lab.csv", "measurements", "lab.csv, SHA-256 0123456789ab; aic; our lab"),
        ([""], "lab.csv", "measurements", "lab.csv, SHA-256 0123456789ab"),
        (["user"], "lab.csv", "measurements", "lab.csv, SHA-256 0123456789ab; user"),
        # The shipped file again: its text stands for what the calibration cites.
        (["arXiv 2506.12708 v2, Table 7"], str(PUBLISHED), "cann-table", None),
    ],
)
def test_fitted_constants_cite_what_the_rows_do(
    fitted: Fitted, tmp_path: Path, texts: list[str], path: str, source: str, reference: str | None
) -> None:
    rows = tuple(
        replace(one, row=replace(one.row, source=texts[number % len(texts)]))
        for number, one in enumerate(fitted.rows)
    )
    given = replace(fitted, rows=rows, measurements=path, digest="0123456789abcdef")
    calibrate.save(given, tmp_path / "out.yaml")
    data = yamlio.load(tmp_path / "out.yaml").data
    assert {data["constants"][name]["source"] for name in fitted.values} == {source}
    assert data["fit"]["file"] == f"{Path(path).name}, SHA-256 0123456789ab"
    assert data["fit"]["sources"] == [text for text in texts if text]
    entry = data.get("sources", {}).get("measurements")
    assert (None if entry is None else entry["reference"]) == reference
    read = calibration.read(tmp_path / "out.yaml", POD, KIND, PROTOCOLS.get(KIND).constants)
    assert read.fit is not None
    assert (read.fit.pod, read.fit.file) == (POD, data["fit"]["file"])
    assert [one.key for one in read.sources] == ([] if entry is None else ["measurements"])


def test_many_sources_are_counted(fitted: Fitted) -> None:
    rows = tuple(replace(one, row=replace(one.row, source=one.row.id)) for one in fitted.rows)
    named = replace(fitted, rows=rows).to_json()["sources"]
    assert named == [*(one.row.id for one in fitted.rows[:12]), f"{len(rows) - 12} others"]


@pytest.mark.parametrize(
    "text", ["a: b # c", "12e3", "'x' \"y\"", "{a}, [b", "é 漢字", "a\nb", "\x85c\u2028d", "\x07"]
)
def test_any_text_of_a_source_can_be_read_again(fitted: Fitted, tmp_path: Path, text: str) -> None:
    rows = tuple(replace(one, row=replace(one.row, source=text)) for one in fitted.rows)
    calibrate.save(replace(fitted, rows=rows, measurements=f"{text}.csv"), tmp_path / "out.yaml")
    read = calibration.read(tmp_path / "out.yaml", POD, KIND, PROTOCOLS.get(KIND).constants)
    shown = "".join(c if c.isprintable() else " " for c in text).strip()
    assert read.fit is not None
    assert read.fit.sources == ((shown,) if shown else ())


def test_the_file_says_of_which_protocol_it_is(fitted: Fitted, tmp_path: Path) -> None:
    calibrate.save(fitted, tmp_path / "out.yaml")
    assert list(yamlio.load(tmp_path / "out.yaml").data)[:2] == ["moesim", "protocol"]
    with pytest.raises(InputError, match="'cann-ep' where one of 'ubep'"):
        calibration.read(tmp_path / "out.yaml", POD, "ubep", PROTOCOLS.get("ubep").constants)


def test_a_pod_by_its_path(tmp_path: Path, factors: dict[str, float]) -> None:
    """In the rows from the folder of their file, on the command line from anywhere."""
    path = tmp_path / "my-pod.yaml"
    path.write_text(resources.find("topology", POD).read_text(encoding="utf-8"), encoding="utf-8")
    given = made_up(factors)
    rows = tuple(replace(row, pod="my-pod.yaml") for row in given.rows)
    other = replace(given.rows[0], id="other")
    found = calibrate.calibrate(Measurements(str(tmp_path / "m.csv"), (*rows, other)), str(path), KIND)
    assert (found.pod, found.start.pod, len(found.rows)) == ("my-pod", "default", len(rows))
    with pytest.raises(InputError, match="0 rows of split calibrate"):
        calibrate.calibrate(given, str(path), KIND)
    by_path = calibrate.calibrate(given, str(resources.find("topology", POD)), KIND)
    assert (by_path.pod, by_path.start.pod, len(by_path.rows)) == (POD, POD, len(given.rows))


def test_the_report_points_out_what_the_rows_do_not_fix_and_what_went_far(fitted: Fitted) -> None:
    document = fitted.to_json()
    plain = "\n".join(calibrate_report(document, 100))
    assert "+- is one standard error" in plain
    first, second, *_ = document["constants"]
    document["correlation"] = np.eye(len(document["constants"])).tolist()
    document["correlation"][1][0] = document["correlation"][0][1] = -0.97
    for one in document["constants"]:
        one["before"] = one["value"] / 1.9
    first["before"], second["before"] = first["value"] * 2.5, 0.0
    lines = calibrate_report(document, 100)
    start = lines.index("worth a look")
    assert lines[start + 1 : lines.index("", start)] == [
        f"  {first['name']} and {second['name']}: correlation -0.97, the rows hardly tell the two apart",
        f"  {first['name']}: 0.4 times what it was at the start",
    ]
