"""Statistics of a demand: by hand on a tiny one, and the table beside the closest recording."""

from __future__ import annotations

import numpy as np
import pytest

from moesim import moe
from moesim.traces import Trace, compose
from moesim.traces.statistics import REAL, imbalance, overlap, ranks_hit


def tiny(phase: str) -> Trace:
    ids = np.array([[[[0, 1], [1, 2], [6, 7]]], [[[1, 3], [2, 1], [0, 4]]]], dtype=np.uint16)
    requests = np.array([[0, 0, 1], [0, 0, 2]], dtype=np.int32)
    return Trace(ids, 8, np.array([0]), requests, phase, "by hand")


def test_by_hand() -> None:
    trace = tiny("decode")
    assert trace.counts().tolist() == [[[1, 2, 1, 0, 0, 0, 1, 1]], [[1, 2, 1, 1, 1, 0, 0, 0]]]
    # Loads of two ranks: 4 and 2, then 5 and 1.
    assert imbalance(trace.counts().astype(float), 2) == pytest.approx((4 / 3 + 5 / 3) / 2)
    assert ranks_hit(trace, 4) == pytest.approx((1 + 2 + 1 + 2 + 2 + 2) / 6)
    # Slot 0 shares one of two experts with its step before, slot 1 both, slot 2 has a new request.
    assert overlap(trace, 1) == pytest.approx((1 + 2) / 4)
    assert overlap(trace, 2) is None
    # In prefill the second token of request 0 follows the first, in both steps.
    assert overlap(tiny("prefill"), 1) == pytest.approx((1 + 1) / 4)


def test_a_recording_is_closest_to_itself_and_agrees_with_it() -> None:
    trace = compose(
        {"kind": "recorded", "trace": "gpt-oss-20b_decode"},
        moe.load("gpt-oss-20b"),
        ep=8,
        tokens_per_rank=4096,
        phase="prefill",
        layers=range(24),
        steps=1,
        seed=0,
        cache=False,
    )
    found = trace.statistics()
    assert found["closest"] == "gpt-oss-20b, decode"
    table = found["table"]
    assert isinstance(table, list)
    beside = {name: (mine, real) for name, mine, real in table if real is not None}
    assert {"sigma", "zipf", "expert", "imbalance 8", "overlap 1", "overlap 16", "ranks_hit 16"} <= set(
        beside
    )
    for name, (mine, real) in beside.items():
        assert mine == pytest.approx(real, rel=0.1), name


@pytest.mark.parametrize(
    ("sigma", "closest"),
    [(0.2, "DeepSeek-V2-Lite, mixed chat"), (0.7, "DeepSeek-R1, decode (random places)")],
)
def test_a_synthetic_demand_stands_beside_the_recording_of_like_spread(sigma: float, closest: str) -> None:
    trace = compose(
        {"kind": "lognormal", "sigma": sigma},
        moe.load("deepseek-v3"),
        ep=16,
        tokens_per_rank=1024,
        phase="decode",
        layers=range(4),
        steps=1,
        seed=0,
        cache=False,
    )
    assert trace.statistics()["closest"] == closest
    assert closest in REAL


def test_no_tokens_no_statistics() -> None:
    trace = compose(
        {"kind": "uniform"},
        moe.load("mixtral-8x7b"),
        ep=2,
        tokens_per_rank=0,
        phase="decode",
        layers=[0],
        steps=1,
        seed=0,
        cache=False,
    )
    assert trace.ids.shape == (1, 1, 0, 2)
    assert trace.statistics() == {"tokens": 0}
