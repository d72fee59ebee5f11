"""CANN EP on CloudMatrix384 (arXiv 2506.12708): latencies of the two operators, predicted and published.

Batch 128 a die, hidden 7168, top-8, INT8 there and BF16 back. The table names neither experts nor routing: 128 experts
and uniform routing are taken, as when the constants were solved.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from small_cases import layer, stages

from moesim import moe, traces
from moesim.protocols import build

PUBLISHED = {8: (116, 118), 16: (131, 132), 32: (133, 146), 64: (141, 150)}
"""EP -> dispatch and combine [us]."""

OPERATIONS = ("dispatch", "combine")
EXPERTS, TOP_K, TOKENS = 128, 8, 128
SHAPE = {"hidden": 7168, "experts": EXPERTS, "top_k": TOP_K, "intermediate": 8}


@cache
def uniform(ep, seed):
    """Picks that a scenario with uniform routing and this seed draws."""
    model = moe.load({"layers": 1, "moe_layers": 1, **SHAPE})
    what = {"ep": ep, "tokens_per_rank": TOKENS, "phase": "decode", "layers": [0], "steps": 1, "seed": seed}
    return traces.compose({"kind": "uniform"}, model, cache=False, **what).ids[0, 0].astype(np.int64)


def predicted(ep, seed=0, **constants):
    """Dispatch and combine of the slowest die [us] in a layer whose GEMMs are next to nothing."""
    one = layer(
        "cann-ep",
        pod_name="cloudmatrix384",
        ep=ep,
        tokens=TOKENS,
        ids=uniform(ep, seed),
        constants=constants,
        **SHAPE,
    )
    times = stages(one.fluid(tolerance=0.003))
    return np.array([times[operation].max() * 1e6 for operation in OPERATIONS])


@pytest.mark.parametrize("ep", PUBLISHED)
def test_cells_within_five_per_cent(ep):
    assert predicted(ep) == pytest.approx(PUBLISHED[ep], rel=0.05)


@pytest.mark.parametrize("ep", [8, 16, 32])
def test_cells_do_not_hang_on_the_seed(ep):
    assert np.mean([predicted(ep, seed) for seed in range(1, 7)], axis=0) == pytest.approx(
        PUBLISHED[ep], rel=0.05
    )


def test_two_constants_an_operation_follow_from_two_cells():
    """What a line of 50 us at any EP leaves open at EP8 and EP32 gives the line; EP16 and EP64 are predictions."""
    flat = {f"{one}_at_8": 50e-6 for one in OPERATIONS} | {f"{one}_per_doubling": 0.0 for one in OPERATIONS}
    open_8, open_32 = (PUBLISHED[ep] - predicted(ep, **flat) + 50 for ep in (8, 32))
    costs = build("cann-ep").calibrate("cloudmatrix384")
    at_8 = [costs[f"{one}_at_8"] * 1e6 for one in OPERATIONS]
    per_doubling = [costs[f"{one}_per_doubling"] * 1e6 for one in OPERATIONS]
    assert at_8 == pytest.approx(open_8, abs=0.3)
    assert per_doubling == pytest.approx((open_32 - open_8) / 2, abs=0.15)


@pytest.mark.parametrize("ep", [8, 32])
def test_the_solved_cells_come_out(ep):
    assert predicted(ep) == pytest.approx(PUBLISHED[ep], rel=0.005)
