"""Echo's planner against plans by the published formulas."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moesim import traffic
from moesim.balancers.echo import Echo, plan, split
from moesim.errors import InputError

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "echo.json").read_text())["vectors"]


@pytest.fixture(params=VECTORS, ids=lambda v: v["name"])
def vector(request):
    return request.param


def planned(vector):
    inputs = vector["inputs"]
    return plan(np.array(inputs["counts"]), inputs["spare_slots_per_rank"], inputs["threshold"])


def test_there_are_fourteen_vectors():
    assert len(VECTORS) == 14
    assert sum(v["outputs"]["home_tokens_by_source"] is not None for v in VECTORS) == 12


def test_plan_from_counts(vector):
    decided, outputs = planned(vector), vector["outputs"]
    assert decided.average == outputs["avg"]
    assert decided.spill.tolist() == outputs["spill_per_expert"]
    assert decided.spare.tolist() == outputs["spare_per_rank"]
    assert decided.slot_expert.tolist() == outputs["slot_expert"]
    assert decided.slot_tokens.tolist() == outputs["slot_tokens"]


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if v["outputs"]["home_tokens_by_source"]], ids=lambda v: v["name"]
)
def test_split_by_source(vector):
    shares, at_home = split(np.array(vector["inputs"]["counts"]), planned(vector))
    assert shares.tolist() == vector["outputs"]["tokens_to_slot_by_source"]
    assert at_home.tolist() == vector["outputs"]["home_tokens_by_source"]


def test_assignment_says_the_same_as_the_plan(vector):
    inputs, outputs, derived = vector["inputs"], vector["outputs"], vector["derived"]
    counts = np.array(inputs["counts"])
    if (counts.sum(axis=1) != counts[0].sum()).any():
        pytest.skip("a batch has the same number of tokens on every rank")
    ranks, experts = counts.shape
    ids = np.tile(np.arange(experts), ranks).repeat(counts.ravel())[:, None]
    chosen = Echo.Params(slots=inputs["spare_slots_per_rank"], threshold=inputs["threshold"])
    found = Echo(chosen).balance(ids, ranks, experts, np.random.default_rng(0))
    one = np.zeros(ranks, dtype=np.int64)
    counted = traffic.count(found, ranks, one, one)
    assert counted.load.tolist() == derived["load_after"]
    assert len(found.moves) == derived["transfers"]
    assert found.details["unplaced"] == derived["unplaced_spill"]
    entries = counted.entries.reshape(ranks, ranks, -1)[:, :, experts // ranks :]
    if outputs["tokens_to_slot_by_source"]:
        assert entries.tolist() == outputs["tokens_to_slot_by_source"]


def test_no_slots_leave_all_at_home():
    decided = plan(np.array([[9, 1], [9, 1]]), slots=0)
    assert decided.slot_expert.shape == (2, 0)
    assert decided.spill.tolist() == [8, 0]


def test_threshold_gives_back_the_smallest_pieces_that_fit():
    """Load 300 of an average of 100, pieces of 10, 90 and 100: the first goes home with room for 10 %, and so on."""
    counts = np.array([[300, 90, 10, 0]])
    four = np.concatenate([counts, np.zeros((3, 4), dtype=np.int64)])
    assert plan(four, slots=1).slot_tokens.ravel().tolist() == [0, 10, 90, 100]
    assert plan(four, slots=1, threshold=0.1).slot_tokens.ravel().tolist() == [0, 0, 90, 100]
    assert plan(four, slots=1, threshold=0.99).slot_tokens.ravel().tolist() == [0, 0, 90, 100]
    assert plan(four, slots=1, threshold=1.0).slot_tokens.ravel().tolist() == [0, 0, 0, 100]
    assert plan(four, slots=1, threshold=2.0).slot_tokens.ravel().tolist() == [0, 0, 0, 0]


def test_experts_must_divide():
    with pytest.raises(InputError, match="10 experts cannot be divided evenly over 4 ranks"):
        plan(np.ones((4, 10), dtype=np.int64), 1)
