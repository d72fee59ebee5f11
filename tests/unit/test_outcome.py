from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from moesim.errors import InvariantError
from moesim.outcome import STAGES, StrategyOutcome, plain_data, same, statistics

Make = Callable[..., StrategyOutcome]


def test_statistics_pool_over_cases_and_ranks_but_critical_takes_the_slowest_rank_of_each_case() -> None:
    times = np.array([[1.0, 2.0, 3.0], [10.0, 4.0, 4.0]])
    found = statistics(times)
    assert found == {
        "mean": 4.0,
        "p50": 3.5,
        "p99": pytest.approx(np.sort(times.ravel())[-2] + 0.95 * 6.0),
        "max": 10.0,
        "critical": 6.5,
    }


def test_critical_of_a_stage_and_of_the_layer_may_be_different_ranks(make_outcome: Make) -> None:
    metrics = make_outcome("a").metrics()
    parts = sum(metrics[f"{stage}_s"]["critical"] for stage in STAGES[:3])
    assert metrics["layer_s"]["critical"] < parts
    assert metrics["layer_s"]["mean"] == pytest.approx(
        sum(metrics[f"{stage}_s"]["mean"] for stage in STAGES[:3])
    )


def test_breakdown_of_the_document_sums_to_the_critical_layer_time(make_outcome: Make) -> None:
    document = make_outcome("a").to_json()
    assert sum(document["breakdown_s"].values()) == pytest.approx(document["metrics"]["layer_s"]["critical"])


def test_a_breakdown_that_does_not_sum_is_our_bug(make_outcome: Make) -> None:
    good = make_outcome("a")
    with pytest.raises(InvariantError, match="breakdown sums"):
        make_outcome("a", breakdown={**good.breakdown, "sync": np.array([0.0, 1e-7])})


@pytest.mark.parametrize("field", ["stages", "bound"])
def test_arrays_of_another_shape_are_our_bug(make_outcome: Make, field: str) -> None:
    good = getattr(make_outcome("a"), field)
    with pytest.raises(InvariantError, match="expert"):
        make_outcome("a", **{field: {**good, "expert": good["expert"][:1]}})


def test_a_missing_tier_is_zero_and_a_missing_imbalance_is_none(make_outcome: Make) -> None:
    document = make_outcome("a", traffic_B={"host": 5.0}, imbalance={"maxvio": float("nan")}).to_json()
    assert document["traffic_B"] == {"self": 0.0, "device": 0.0, "host": 5.0, "domain": 0.0, "scale_out": 0.0}
    assert document["imbalance"]["maxvio"] is None
    assert document["imbalance"]["after"] == {
        "rank_max_over_mean": None,
        "rows_max_over_mean": None,
        "maxvio": None,
    }


def test_a_layer_is_shared_by_fixed_costs_and_waiting_and_what_resources_are_busy_with(
    make_outcome: Make,
) -> None:
    assert make_outcome("a").to_json()["bottleneck"]["fixed_and_waiting"] == pytest.approx(0.05 + 0.15)
    slowest = make_outcome("a").stages["layer"].max(axis=1)
    labels = ("launch", "planning", "metadata", "sync", "unexplained", "wait", "wire", "reduce")
    parts = make_outcome("a", breakdown=dict.fromkeys(labels, slowest / 8))
    assert parts.to_json()["bottleneck"]["fixed_and_waiting"] == pytest.approx(6 / 8)


def test_document_is_plain_json(make_outcome: Make) -> None:
    made = make_outcome("a", bottleneck=("x", np.float64(0.5)), buffers_B={"dispatch": np.int64(7)})
    document = made.to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_plain_data_keeps_structure() -> None:
    assert plain_data({1: (np.arange(2), np.float32(0.5), float("inf"))}) == {"1": [[0, 1], 0.5, None]}


def test_same_sees_every_difference(make_outcome: Make) -> None:
    base = make_outcome("a")
    assert base == make_outcome("a")
    assert base != make_outcome("b")
    assert base != make_outcome("a", 1.0 + 1e-9)
    assert base != make_outcome("a", solves=322)
    assert base != make_outcome("a", bound={**base.bound, "layer": base.bound["layer"] * 2})
    assert not same(np.zeros(2), np.zeros((2, 1)))
    assert same({"a": [float("nan")]}, {"a": (float("nan"),)})
    assert not same({"a": 1}, {"a": 1, "b": 2})
