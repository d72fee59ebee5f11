"""Figures: what is drawn is what was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure

import moesim
from moesim import figures
from moesim.errors import InputError


def rows() -> list[dict[str, Any]]:
    return [
        {"protocol": protocol, "split": split, "predicted_us": predicted, "measured_us": measured}
        for protocol, split, predicted, measured in [
            ("b", "validate", 90.0, 100.0),
            ("a", "validate", 20.0, 10.0),
            ("a", "calibrate", 3000.0, 3100.0),
        ]
    ]


def test_each_row_is_a_point_coloured_by_protocol_and_marked_by_split() -> None:
    axes = Figure().add_subplot()
    assert figures.accuracy(axes, rows()) is axes
    drawn = {}
    for points in axes.collections:
        if isinstance(points, PathCollection):
            for x, y in points.get_offsets().tolist():
                drawn[x, y] = points
    assert set(drawn) == {(100.0, 90.0), (10.0, 20.0), (3100.0, 3000.0)}
    colours = {at: tuple(points.get_facecolor()[0][:3]) for at, points in drawn.items()}
    assert colours[10.0, 20.0] == colours[3100.0, 3000.0] != colours[100.0, 90.0]
    shapes = {at: len(points.get_paths()[0].vertices) for at, points in drawn.items()}
    assert shapes[10.0, 20.0] == shapes[100.0, 90.0] != shapes[3100.0, 3000.0]


def test_scales_are_logarithmic_and_equal_and_hold_every_point() -> None:
    axes = figures.accuracy(Figure().add_subplot(), rows())
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlim() == axes.get_ylim()
    low, high = axes.get_xlim()
    assert low < 10 < 3100 < high


def test_the_band_is_ten_per_cent_about_equality() -> None:
    axes = figures.accuracy(Figure().add_subplot(), rows())
    [band] = [one for one in axes.collections if isinstance(one, PolyCollection)]
    ratios = {round(y / x, 6) for x, y in band.get_paths()[0].vertices.tolist()}
    assert ratios == {0.9, 1.1}


def test_the_legend_names_protocols_splits_and_the_band() -> None:
    axes = figures.accuracy(Figure().add_subplot(), rows())
    legend = axes.get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["a", "b", "not used for fitting", "may have been fitted", "within 10%"]


def test_no_rows_make_an_empty_figure() -> None:
    assert figures.accuracy(Figure().add_subplot(), []).get_xlabel() == "measured [us]"


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_saved_in_the_format_of_its_name(tmp_path: Path, suffix: str, begins: bytes) -> None:
    statistics = {"rows": 2, "median_abs_error": 0.5, "p90_abs_error": 0.9}
    file = tmp_path / f"figure.{suffix}"
    figures.save_accuracy({"rows": rows(), "overall": statistics}, file)
    assert file.read_bytes().startswith(begins)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_other_formats_and_other_places_are_refused(tmp_path: Path) -> None:
    for name in ("figure.jpeg", "figure"):
        with pytest.raises(InputError, match=r"legal: \.png, \.svg, \.pdf"):
            figures.ready(tmp_path / name, [])
    (tmp_path / "a.png").mkdir()
    with pytest.raises(InputError, match="no regular file"):
        figures.ready(tmp_path / "a.png", [])


@pytest.fixture(scope="module")
def sweep() -> list[moesim.Result]:
    """Eight ranks, three batches: experts in order, and without imbalance or cost."""
    one = moesim.from_mapping(
        {
            "moesim": 1,
            "topology": "h200-hgx",
            "ranks": {"ep": 8},
            "model": "mixtral-8x7b",
            "workload": {"phase": "prefill", "tokens_per_rank": 64, "layers": 2, "steps": 3},
            "routing": {"kind": "lognormal", "sigma": 1.0},
            "fidelity": "bound",
            "strategies": [
                {"name": "none", "protocol": "hybrid-ep"},
                {"name": "oracle", "protocol": "hybrid-ep", "balancer": "oracle"},
            ],
        }
    )
    return [moesim.run(one.edited([f"workload.tokens_per_rank={count}"])) for count in (256, 64, 1024)]


def test_load_per_rank_is_over_the_mean(sweep: list[moesim.Result]) -> None:
    axes = figures.load_per_rank(Figure().add_subplot(), sweep[0].strategies, case=1)
    home, none, oracle = (patch.get_data().values for patch in axes.patches)
    counted = sweep[0].strategies[0].entries["home"][1]
    assert home.tolist() == (counted / counted.mean()).tolist() == none.tolist()
    assert oracle == pytest.approx(np.ones(8))


def test_imbalance_over_time_has_a_point_a_step(sweep: list[moesim.Result]) -> None:
    outcome = sweep[0].strategies[0]
    axes = figures.imbalance_over_time(Figure().add_subplot(), [outcome])
    before, after = axes.lines
    assert before.get_xdata().tolist() == [0, 1, 2]
    assert before.get_ydata().tolist() == after.get_ydata().tolist()
    loads = outcome.entries["home"][outcome.cases[:, 0] == 2]
    assert before.get_ydata()[2] == pytest.approx((loads.max(axis=1) / loads.mean(axis=1)).mean())


def test_a_sweep_is_a_line_a_strategy_in_rising_order(sweep: list[moesim.Result]) -> None:
    axes = figures.layer_by_tokens(Figure().add_subplot(), sweep)
    none, oracle = axes.lines[:2]
    assert none.get_xdata().tolist() == oracle.get_xdata().tolist() == [64, 256, 1024]
    metrics = [sweep[at].strategies[0].metrics()["layer_s"]["critical"] * 1e6 for at in (1, 0, 2)]
    assert none.get_ydata().tolist() == metrics
    by_maxvio = figures.layer_by_maxvio(Figure().add_subplot(), sweep).lines[0]
    assert sorted(by_maxvio.get_xdata()) == by_maxvio.get_xdata().tolist()


def test_crossings_are_where_the_other_becomes_faster() -> None:
    x = [10.0, 100.0, 1000.0]
    assert figures.crossings(x, [1.0, 10.0, 100.0], [10.0, 10.0, 10.0]) == [pytest.approx((100.0, 10.0))]
    assert figures.crossings(x, [1.0, 1.0, 1.0], [2.0, 3.0, 4.0]) == []
    assert figures.crossings(x, [2.0, 2.0, 2.0], [1.0, 1.0, 1.0]) == []
