"""How far the optimum is from the five steps that LPLB makes, and whether it would take its answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from reference.lplb_twin import five_steps

from moesim.balancers.lplb import neighbours, plan

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "lplb.json").read_text())["vectors"]
# Single precision tells in these: what is kept of loads that are a thousandth of the largest.
ROUGH = {"cube8_64_ep8_r2_lognormal2.0": 0.03, "ring8_256_ep32_r1": 0.002}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_the_recorded_steps_begin_at_ones_and_are_accepted(vector):
    most, r2o = max(vector["inputs"]["workload_per_expert"]), np.array(vector["inputs"]["r2o"])
    for group in vector["outputs"]["groups"]:
        dup, fixed = np.array(group["dup_workload"]), np.array(group["fixed_workload"])
        keep, accepted = five_steps(dup / most, fixed / most, r2o)
        assert accepted == group["ipm5_accepted"]
        assert keep == pytest.approx(
            np.array(group["ipm5_keep_fraction"]), abs=ROUGH.get(vector["name"], 1.5e-4)
        )


@pytest.mark.parametrize("sigma", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("mean", [2, 1000])
def test_the_steps_are_accepted_and_come_close_to_the_optimum(sigma, mean):
    rng, r2o = np.random.default_rng(0), neighbours("cube")
    lost = []
    for _ in range(20):
        load = rng.poisson(mean * np.exp(rng.normal(size=(8, 8)) * sigma))
        most = load.max()
        keep, accepted = five_steps(load[:, :2] / most, load[:, 2:].sum(axis=1) / most, r2o)
        assert accepted
        reached = load[:, 2:].sum(axis=1) + (load[:, :2] * keep).sum(axis=1)
        for d in range(2):
            reached = reached + (load[:, d] * (1 - keep[:, d]))[r2o[:, d]]
        lost.append(reached.max() / plan(load, r2o, 2).largest[0])
    assert min(lost) > 1 - 1e-6
    assert np.mean(lost) < 1.02
    assert max(lost) < 1.1
