"""EPLB's planner against what the real one decided, and the split of entries over copies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moesim.balancers._eplb import rebalance
from moesim.errors import InputError

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "eplb.json").read_text())["vectors"]
# The sort of the original is not stable: in this one it put two experts of equal weight the other way round.
SWAPPED = "lognormal_sigma1_256e_ep32_r288"
ORDER = ("weight", "num_replicas", "num_groups", "num_nodes", "num_gpus")


def planned(vector):
    weight, *sizes = (vector["inputs"][key] for key in ORDER)
    return rebalance(np.array(weight), *sizes)


@pytest.mark.parametrize("vector", [v for v in VECTORS if "error" not in v], ids=lambda v: v["name"])
def test_equal_to_the_original(vector):
    plan, outputs = planned(vector), vector["outputs"]
    weight = np.array(vector["inputs"]["weight"], dtype=np.float64)
    layer = np.arange(len(weight))[:, None]
    theirs = np.array(outputs["phy2log"])
    # Experts of equal weight are interchangeable, ...
    assert weight[layer, plan.phy2log].tolist() == weight[layer, theirs].tolist()
    assert plan.logcnt.tolist() == outputs["logcnt"]
    if vector["name"] != SWAPPED:  # ... but everywhere else they are not even interchanged.
        assert plan.phy2log.tolist() == outputs["phy2log"]
        # Copies of one expert are equal, and upstream numbers them by the same sort.
        assert np.sort(plan.log2phy).tolist() == np.sort(outputs["log2phy"]).tolist()
    share = weight / plan.logcnt
    gpu_load = share[layer, plan.phy2log].reshape(len(weight), vector["inputs"]["num_gpus"], -1).sum(axis=2)
    assert gpu_load == pytest.approx(np.array(outputs["gpu_load"]), rel=1e-6)


def test_slots_of_an_expert_hold_it_and_are_all_its_copies():
    for vector in VECTORS:
        if "error" in vector:
            continue
        plan = planned(vector)
        for layer, phy2log in enumerate(plan.phy2log):
            for expert, slots in enumerate(plan.log2phy[layer]):
                held = slots[slots >= 0]
                assert sorted(held) == np.flatnonzero(phy2log == expert).tolist()
                assert len(held) == plan.logcnt[layer, expert]


def test_there_are_fifteen_vectors_and_two_must_fail():
    assert len(VECTORS) == 15
    assert sum("error" in v for v in VECTORS) == 2


@pytest.mark.parametrize(
    ("name", "message", "legal"),
    [
        ("E_not_divisible_by_groups", "num_groups 4 does not divide 6 experts", "num_groups of 1, 2, 3, 6"),
        ("redundant_negative", "num_replicas 4: 6 experts need a slot each", "at least 6"),
    ],
)
def test_must_fail(name, message, legal):
    with pytest.raises(InputError) as refused:
        planned(next(v for v in VECTORS if v["name"] == name))
    assert [(one.message, one.legal) for one in refused.value.problems] == [(message, legal)]
