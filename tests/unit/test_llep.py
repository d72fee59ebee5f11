"""LLEP's planner against what the real one decided."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moesim import traffic
from moesim.balancers.llep import LLEP, plan
from moesim.errors import InputError

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "llep.json").read_text())["vectors"]


@pytest.fixture(params=VECTORS, ids=lambda v: v["name"])
def vector(request):
    return request.param


def planned(vector):
    inputs = vector["inputs"]
    return plan(
        np.array(inputs["global_expert_counts"]),
        inputs["ep_size"],
        inputs["max_tokens_factor"],
        inputs["min_tokens_per_gemm"],
    )


def balanced(counts, **params):
    """All ``counts`` (E,) over four ranks, token by token; K = 1."""
    ids = np.arange(len(counts)).repeat(counts)[:, None]
    return LLEP(LLEP.Params(**params)).balance(ids, 4, len(counts), np.random.default_rng(0))


def test_there_are_nine_vectors():
    assert len(VECTORS) == 9


def test_plan_from_counts(vector):
    decided, outputs = planned(vector), vector["outputs"]
    chunks = {str(expert): [list(chunk) for chunk in found] for expert, found in decided.assignments.items()}
    assert chunks == outputs["assignments"]
    assert [list(moved) for moved in decided.weight_transfers] == outputs["weight_transfers"]
    assert list(decided.loads) == outputs["gpu_loads"]


def test_ratios(vector):
    inputs, derived = vector["inputs"], vector["derived"]
    native = np.array(inputs["global_expert_counts"]).reshape(inputs["ep_size"], -1).sum(axis=1)
    assert native.tolist() == derived["native_loads"]
    before = traffic.rank_imbalance(native)
    assert before == pytest.approx(derived["gpu_imbalance_ratio"], abs=5e-6)
    assert (before < LLEP.Params().imbalance_threshold) == derived[
        "would_fall_back_to_plain_ep_at_lambda_1_3"
    ]
    after = traffic.rank_imbalance(np.array(planned(vector).loads))
    assert after == pytest.approx(derived["after"], abs=5e-6)


def test_chunks_are_runs_of_entries_in_the_order_of_sources():
    counts = [400, 80, 0, 40, 20, 0, 20, 0]
    found = balanced(counts, max_tokens_factor=1.0, min_tokens_per_gemm=1)
    rank = found.placement.slot_rank[found.slot.ravel()]
    assert rank[:400].tolist() == [0] * 60 + [2] * 120 + [3] * 120 + [1] * 100
    assert found.placement.slot_expert.tolist() == [0, 1, -1, 2, 3, 0, 4, 5, 0, 6, 7, 0]
    assert found.moves.tolist() == [[5, 0], [8, 0], [11, 0]]
    assert found.gemm_rows.tolist() == [60, 80, 0, 0, 40, 100, 20, 0, 120, 20, 0, 120]
    assert found.details["path"] == "spill"


def test_plain_below_the_threshold():
    found = balanced([26, 0, 24, 0, 25, 0, 25, 0])
    assert found.details["path"] == "plain"
    assert len(found.moves) == 0
    assert found.placement.slot_expert.tolist() == list(range(8))
    assert balanced([26, 0, 24, 0, 25, 0, 25, 0], imbalance_threshold=1.04).details["path"] == "spill"


def test_a_rank_that_overflows_with_a_second_chunk_gets_the_weights_once():
    """Nobody has room for more than 80 % of the entries: the rest goes to the first receiver again."""
    found = balanced([100, 0, 0, 0], max_tokens_factor=0.8, min_tokens_per_gemm=0)
    transfers = [moved[2] for moved in found.details["weight_transfers"]]
    assert len(transfers) == len(set(transfers)) + 1
    assert len(found.moves) == len(set(transfers))


def test_one_rank_keeps_all_whatever_its_capacity():
    assert plan(np.array([5, 3]), 1, 0.5).loads == (8,)


def test_experts_must_divide():
    with pytest.raises(InputError, match="10 experts cannot be divided evenly over 4 ranks"):
        plan(np.ones(10, dtype=np.int64), 4)
