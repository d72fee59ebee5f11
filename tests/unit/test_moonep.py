"""MoonEP's planner against what the real one decided."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moesim import traffic
from moesim.balancers import BALANCERS
from moesim.balancers.moonep import MoonEP, destination_rows, plan
from moesim.errors import InputError

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "moonep.json").read_text())["vectors"]


@pytest.fixture(params=VECTORS, ids=lambda v: v["name"])
def vector(request):
    return request.param


def ids_of(vector) -> np.ndarray:
    """(R*S, K): the recorded picks or, where only counts were kept, any picks with those counts."""
    inputs = vector["inputs"]
    if inputs["topk"] is not None:
        return np.array(inputs["topk"]).reshape(-1, inputs["K"])
    counts = np.array(inputs["tokens_per_expert"])
    return np.tile(np.arange(inputs["E"]), inputs["R"]).repeat(counts.ravel()).reshape(-1, inputs["K"])


def balanced(vector, name):
    inputs = vector["inputs"]
    params = {"token_padding": inputs["token_padding"]} if name == "moonep" else {}
    kind = BALANCERS.get(name)
    balancer = kind(kind.Params(**params))
    return balancer.balance(ids_of(vector), inputs["R"], inputs["E"], np.random.default_rng(0))


def counted(vector, name):
    ranks = vector["inputs"]["R"]
    one = np.zeros(ranks, dtype=np.int64)
    return traffic.count(balanced(vector, name), ranks, host=one, domain=one)


def test_there_are_fourteen_vectors():
    assert len(VECTORS) == 14
    assert sum(v["outputs"]["dst"] is not None for v in VECTORS) == 10


def test_plan_from_counts(vector):
    inputs, outputs = vector["inputs"], vector["outputs"]
    decided = plan(np.array(inputs["tokens_per_expert"]), inputs["token_padding"])
    assert decided.rank_moves.tolist() == outputs["moves_home_dest_tokens"]
    assert decided.z.tolist() == outputs["z"]
    assert decided.alloc.tolist() == outputs["alloc_dest_by_expert"]
    assert decided.experts_to_copy.tolist() == outputs["experts_to_copy"]
    assert decided.cu_seqlens.tolist() == outputs["cu_seqlens"]
    assert decided.zero_fill_ranges.tolist() == outputs["zero_fill_ranges"]
    assert decided.remote_stats.tolist() == outputs["remote_stats"]
    assert decided.static_rows == inputs["NvS"]


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["outputs"]["dst"]], ids=lambda v: v["name"])
def test_place_of_each_entry(vector):
    inputs = vector["inputs"]
    decided = plan(np.array(inputs["tokens_per_expert"]), inputs["token_padding"])
    rows = destination_rows(ids_of(vector), decided)
    assert rows.reshape(inputs["R"], -1).tolist() == vector["outputs"]["dst"]
    assert (
        (balanced(vector, "moonep").placement.slot_rank[balanced(vector, "moonep").slot]).tolist()
        == (np.where(rows < 0, -rows - 1, rows) // inputs["NvS"]).tolist()
    )


def test_loads_and_imbalance(vector):
    before, after = counted(vector, "none"), counted(vector, "moonep")
    derived = vector["derived"]
    assert before.load.tolist() == derived["rank_load_before"]
    assert after.load.tolist() == derived["rank_load_after"]
    assert traffic.maxvio(before.expert_counts) == pytest.approx(derived["maxvio"], abs=5e-7)
    assert after.expert_counts.tolist() == before.expert_counts.tolist()


def test_remote_entries(vector):
    derived = vector["derived"]
    assert traffic.off_own(counted(vector, "none").entries_to).sum() == derived["remote_entries_before"]
    assert traffic.off_own(counted(vector, "moonep").entries_to).sum() == derived["remote_entries_after"]


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["inputs"]["topk"]], ids=lambda v: v["name"])
def test_remote_rows(vector):
    derived = vector["derived"]
    assert traffic.off_own(counted(vector, "none").rows).sum() == derived["remote_rows_dedup_before"]
    assert traffic.off_own(counted(vector, "moonep").rows).sum() == derived["remote_rows_dedup_after"]


def test_assignment_says_the_same_as_the_plan(vector):
    assignment = balanced(vector, "moonep")
    outputs, derived = vector["outputs"], vector["derived"]
    ranks, experts = vector["inputs"]["R"], vector["inputs"]["E"]
    epn = experts // ranks
    slots = assignment.placement.slot_expert.reshape(ranks, 2 * epn)
    assert slots[:, :epn].ravel().tolist() == list(range(experts))
    assert slots[:, epn:].tolist() == outputs["experts_to_copy"]
    padded = assignment.gemm_rows.reshape(ranks, 2 * epn).cumsum(axis=1)
    assert padded.tolist() == outputs["cu_seqlens"]
    assert assignment.static_rows == vector["inputs"]["NvS"]
    receivers = assignment.placement.slot_rank[assignment.moves[:, 0]]
    assert np.bincount(receivers, minlength=ranks).tolist() == derived["slots_recv_per_rank"]
    assert np.bincount(assignment.moves[:, 1], minlength=ranks).tolist() == derived["slots_send_per_home"]
    assert assignment.details["z"].tolist() == outputs["z"]


def test_every_copy_that_is_used_is_moved(vector):
    assignment = balanced(vector, "moonep")
    used = np.unique(assignment.slot)
    away = (
        assignment.placement.home[assignment.placement.slot_expert[used]]
        != assignment.placement.slot_rank[used]
    )
    assert assignment.moves[:, 0].tolist() == used[away].tolist()


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "ranks", "padding", "rows"),
    [
        (8192, 8, 384, 8, 128, 77824),
        (64, 8, 256, 64, 128, 1536),
        (0, 8, 256, 64, 1, 0),
        (0, 8, 256, 64, 128, 1024),
    ],
)
def test_static_rows_do_not_depend_on_the_routing(tokens, top_k, experts, ranks, padding, rows):
    counts = np.zeros((ranks, experts), dtype=np.int64)
    counts[:, 3] = tokens * top_k
    assert plan(counts, padding).static_rows == rows
    assert plan(np.roll(counts, 11, axis=1), padding).static_rows == rows


def test_ranks_of_unequal_batches_are_refused():
    with pytest.raises(InputError, match="not 3 to 4"):
        plan(np.array([[4, 0], [2, 1]]), token_padding=1)


@pytest.mark.parametrize(
    ("ranks", "experts", "top_k", "reasons"),
    [
        (128, 128, 32, []),
        (129, 129, 8, ["129 ranks"]),
        (8, 64, 33, ["33 experts a token"]),
        (7, 64, 8, ["64 experts cannot be divided evenly over 7 ranks"]),
        (192, 256, 33, ["256 experts", "192 ranks", "33 experts a token"]),
    ],
)
def test_limits_of_the_real_system(ranks, experts, top_k, reasons):
    problems = MoonEP().problems(ranks, experts, top_k)
    assert len(problems) == len(reasons)
    assert all(reason in problem.message for reason, problem in zip(reasons, problems, strict=True))
    ids = np.tile(np.arange(top_k), (ranks, 1))
    if reasons:
        with pytest.raises(InputError) as refused:
            MoonEP().balance(ids, ranks, experts, np.random.default_rng(0))
        assert refused.value.problems == tuple(problems)
    else:
        assert MoonEP().balance(ids, ranks, experts, np.random.default_rng(0)).slot.shape == (ranks, top_k)
    assert MoonEP.needs == {"multicast"}
