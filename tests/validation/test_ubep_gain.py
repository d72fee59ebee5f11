"""UBEP against CANN EP on CloudMatrix384 (arXiv 2607.06202): EP64, one expert a die, latency of dispatch.

Published: 34.7 to 52.4 % less, over a batch sweep that is not named.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from small_cases import layer

from moesim import moe, traces

LEAST, MOST = 34.7, 52.4
SHAPE = {"hidden": 7168, "experts": 64, "top_k": 8, "intermediate": 2048}
BATCHES = (8, 32, 64, 128)


@cache
def gain(batch, kind="uniform"):
    """Per cent that the slowest die's dispatch is shorter with sentinels polled."""
    model = moe.load({"layers": 1, "moe_layers": 1, **SHAPE})
    what = {"ep": 64, "tokens_per_rank": batch, "phase": "decode", "layers": [0], "steps": 1, "seed": 0}
    ids = traces.compose({"kind": kind}, model, cache=False, **what).ids[0, 0].astype(np.int64)
    took = {}
    for name in ("cann-ep", "ubep"):
        one = layer(name, pod_name="cloudmatrix384", ep=64, tokens=batch, ids=ids, **SHAPE)
        took[name] = one.fluid(tolerance=0.003).end("dispatch").max()
    return float(100 * (1 - took["ubep"] / took["cann-ep"]))


def test_the_gain_falls_with_the_batch():
    assert list(np.diff([gain(batch) for batch in BATCHES]) < 0) == [True] * 3


@pytest.mark.parametrize("batch", [8, 32, 64])
def test_the_gain_lies_in_the_published_range(batch):
    assert LEAST <= gain(batch) <= MOST


def test_the_largest_batch_is_near_the_published_range():
    """Fixed costs and wire alone leave 31 to 33 % there, so the sweep may have ended earlier."""
    assert LEAST - 3 <= gain(128) <= MOST
