"""CANN EP on CloudMatrix384 (arXiv 2506.12708): latencies of the two operators, predicted and published.

Batch 128 a die, hidden 7168, top-8, INT8 there and BF16 back. The table names neither experts nor routing: 256 experts
and balanced routing are taken, as in every validation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from small_cases import layer, stages

from moesim import calibrate, measurements, moe, predict, traces
from moesim.protocols import build

PUBLISHED = {8: (116, 118), 16: (131, 132), 32: (133, 146), 64: (141, 150)}
"""EP -> dispatch and combine [us]."""

BANDWIDTH = {8: (71, 131), 16: (63, 117), 32: (62, 105), 64: (58, 103)}
"""EP -> the same table's GB/s a rank, whose definition it does not state."""

FITTED = (8, 32)
OPERATIONS = ("dispatch", "combine")
TOKENS = 128
SHAPE = {"hidden": 7168, "experts": 256, "top_k": 8, "intermediate": 8}


def rows(cells):
    """The cells of these EP sizes as measurements to fit."""
    found = []
    for ep in cells:
        for op, latency in zip(OPERATIONS, PUBLISHED[ep], strict=True):
            found.append(
                measurements.Measurement(
                    id=f"{op} {ep}",
                    pod="cloudmatrix384",
                    protocol="cann-ep",
                    op=op,
                    ep=ep,
                    tokens_per_rank=TOKENS,
                    hidden=7168,
                    top_k=8,
                    experts=256,
                    dispatch_dtype="INT8",
                    combine_dtype="BF16",
                    sms=None,
                    send_bytes=None,
                    latency=latency * 1e-6,
                    split="calibrate",
                )
            )
    return tuple(found)


@cache
def picks(ep, kind, seed=0):
    """Picks that a scenario with this routing draws."""
    model = moe.load({"layers": 1, "moe_layers": 1, **SHAPE})
    what = {"ep": ep, "tokens_per_rank": TOKENS, "phase": "decode", "layers": [0], "steps": 1, "seed": seed}
    return traces.compose({"kind": kind}, model, cache=False, **what).ids[0, 0].astype(np.int64)


def fluid(ep, kind="balanced", seed=0):
    """Dispatch and combine of the slowest die [us] in a layer whose GEMMs are next to nothing."""
    one = layer(
        "cann-ep", pod_name="cloudmatrix384", ep=ep, tokens=TOKENS, ids=picks(ep, kind, seed), **SHAPE
    )
    times = stages(one.fluid(tolerance=0.003))
    return np.array([times[operation].max() * 1e6 for operation in OPERATIONS])


@pytest.mark.parametrize("ep", PUBLISHED)
def test_cells_within_five_per_cent(ep):
    found = [predict.Predictor().seconds(row) * 1e6 for row in rows([ep])]
    assert found == pytest.approx(PUBLISHED[ep], rel=0.05)


@pytest.mark.parametrize("ep", PUBLISHED)
def test_bytes_are_those_of_the_published_bandwidth_less_five_per_cent(ep):
    case = predict.Predictor().asked(rows([ep])[0]).case
    for op, latency, rate in zip(OPERATIONS, PUBLISHED[ep], BANDWIDTH[ep], strict=True):
        published = latency * 1e-6 * rate * 1e9
        assert published / build("cann-ep").logical_bytes(case, op) == pytest.approx(1.05, abs=0.015)


@pytest.mark.parametrize("ep", PUBLISHED)
def test_fluid_says_the_same_within_two_per_cent(ep):
    found = [predict.Predictor().seconds(row) * 1e6 for row in rows([ep])]
    assert fluid(ep) == pytest.approx(found, rel=0.02)


def test_the_shipped_constants_are_those_that_two_cells_an_operation_give():
    """EP8 and EP32 are fitted; EP16 and EP64 are predictions."""
    fitted = calibrate.calibrate(
        measurements.Measurements("table", rows(FITTED)), "cloudmatrix384", "cann-ep"
    )
    shipped = build("cann-ep").calibrate("cloudmatrix384")
    assert set(fitted.values) == {f"{op}_{part}" for op in OPERATIONS for part in ("at_8", "per_doubling")}
    for name, value in fitted.values.items():
        assert shipped[name] == pytest.approx(value, rel=0.005), name


def test_the_fit_is_to_the_published_rows_only():
    """A cell that is 10 % slower moves the constants: they are not what the fit began with."""
    slower = [replace(row, latency=1.1 * row.latency) for row in rows(FITTED)]
    fitted = calibrate.calibrate(
        measurements.Measurements("table", tuple(slower)), "cloudmatrix384", "cann-ep"
    )
    shipped = build("cann-ep").calibrate("cloudmatrix384")
    assert all(fitted.values[f"{op}_at_8"] > 1.2 * shipped[f"{op}_at_8"] for op in OPERATIONS)


@pytest.mark.parametrize("ep", [8, 16, 32])
def test_random_routing_costs_up_to_a_tenth_more(ep):
    """Stragglers: the table's routing is not known, and this is how much hangs on it."""
    ratio = np.mean([fluid(ep, "uniform", seed) for seed in range(1, 4)], axis=0) / fluid(ep)
    assert (ratio > 1.0).all()
    assert (ratio < 1.1).all()
