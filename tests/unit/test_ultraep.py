"""UltraEP's planner and relay rule against what the real ones decide."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from moesim import traffic
from moesim.balancers._relays import relay_trees
from moesim.balancers.ultraep import UltraEP, plan, split
from moesim.errors import InputError

DATA = Path(__file__).parent.parent / "data"
VECTORS = json.loads((DATA / "ultraep.json").read_text())["vectors"]
RELAYS = json.loads((DATA / "ultraep_relay.json").read_text())["vectors"]


@pytest.fixture(params=VECTORS, ids=lambda v: v["name"])
def vector(request):
    return request.param


def params_of(inputs):
    return UltraEP.Params(
        slots=inputs["num_local_redundant"],
        balance_threshold=inputs["balance_threshold"],
        epsilon=inputs["oracle_eps"],
        min_tokens=inputs["min_tokens_per_replica"],
        locality_aware=inputs["locality_aware"],
        allow_zero_master_quota=inputs["allow_zero_master_quota"],
    )


def planned(vector):
    inputs = vector["inputs"]
    return plan(np.array(inputs["loads_per_rank"]), params_of(inputs), inputs["nvl_domain_size"])


def by_expert(decided, columns):
    """One list an expert of the ``columns`` (C, I) of its copies, (n, C) each."""
    table = np.stack(columns, axis=1)
    return [table[decided.expert == expert].tolist() for expert in range(decided.expert.max() + 1)]


def test_there_are_seventeen_and_twelve_vectors():
    assert (len(VECTORS), len(RELAYS)) == (17, 12)


def test_plan_from_counts(vector):
    decided, outputs = planned(vector), vector["outputs"]
    assert list(decided.thresholds) == outputs["threshold_used_per_domain"]
    assert list(decided.paths) == outputs["path_taken_per_domain"]
    copies = by_expert(decided, [decided.rank, decided.slot, decided.quota])
    assert copies == outputs["instances_per_expert_rank_slot_quota"]
    assert decided.slot_table.tolist() == outputs["slot_table_rank_major"]


def test_split_by_source(vector):
    counts, outputs, decided = (
        np.array(vector["inputs"]["loads_per_rank"]),
        vector["outputs"],
        planned(vector),
    )
    shares = split(counts, decided, locality_aware=vector["inputs"]["locality_aware"])
    found = [
        [shares[s, decided.expert == e].tolist() for e in range(counts.shape[1])] for s in range(len(counts))
    ]
    all_sources = outputs["source_split_per_source_rank_per_expert_per_instance"]
    assert all_sources is not None or outputs["source_split_rank0"] is not None
    if all_sources is not None:
        assert found == all_sources
    if outputs["source_split_rank0"] is not None:
        assert found[0] == outputs["source_split_rank0"]


def test_loads_and_remote_entries(vector):
    decided, derived = planned(vector), vector["derived"]
    counts = np.array(vector["inputs"]["loads_per_rank"])
    ranks, masters = len(counts), counts.shape[1] // len(counts)
    after = np.bincount(decided.rank, decided.quota, minlength=ranks)
    assert after.tolist() == derived["rank_load_after"]
    assert traffic.rank_imbalance(after) == pytest.approx(derived["imbalance_after"], abs=5e-7)
    assert (decided.rank != decided.expert // masters).sum() == derived["replicas"]
    if "remote_entries_after" in derived:
        shares = split(counts, decided, locality_aware=vector["inputs"]["locality_aware"])
        local = sum(shares[rank, decided.rank == rank].sum() for rank in range(ranks))
        assert counts.sum() - local == derived["remote_entries_after"]


@pytest.mark.parametrize("vector", RELAYS, ids=lambda v: v["name"])
def test_relay_trees(vector):
    inputs, outputs = vector["inputs"], vector["outputs"]
    copies = [
        (one["master"], number, replica)
        for number, one in enumerate(inputs["experts"])
        for replica in one["replicas"]
    ]
    home, expert, rank = np.array(copies).T
    trees = relay_trees(home, expert, rank, inputs.get("mode", "adaptive"), inputs.get("max_relays", 8))
    for number, task in enumerate(outputs["tasks"]):
        own = expert == number
        direct = rank[own & ~trees.relayed].tolist()
        assert (trees.sender[own & ~trees.relayed] == task["master"]).all()
        if task["relay"]:
            leaves = [rank[own & trees.relayed & (trees.sender == relay)].tolist() for relay in direct]
            assert task["relays"] == [{"rank": r, "leaves": to} for r, to in zip(direct, leaves, strict=True)]
        else:
            assert direct == task["direct_to"]
            assert not trees.relayed[own].any()
    sends = np.bincount(trees.sender, minlength=inputs["domain_ranks"])
    assert sends.tolist() == outputs["sender_load_experts"]


def test_a_relay_is_a_copy_on_a_rank_that_sends_little():
    """The first expert's home sends twice, so rank 1 is no relay of the second expert."""
    home, expert = np.array([1, 1, 0, 0, 0, 0]), np.array([0, 0, 1, 1, 1, 1])
    trees = relay_trees(home, expert, np.array([2, 3, 1, 2, 3, 4]), "adaptive")
    assert trees.sender.tolist() == [1, 1, 2, 0, 0, 3]
    assert relay_trees(home, expert, np.array([2, 3, 1, 2, 3, 4]), "off").sender.tolist() == home.tolist()


def cold_crowd():
    """A hot rank whose eight experts are all too small for the floor of the fast path: (4, 32)."""
    counts = np.zeros((4, 32), dtype=np.int64)
    counts[:, :8] = np.array([3, 3, 2, 2])[:, None]
    return counts


def test_floor_of_the_fallback_can_leave_all_at_home():
    decided = plan(cold_crowd(), UltraEP.Params(slots=1))
    assert (decided.thresholds, decided.paths) == ((80,), ("fallback",))
    assert len(decided.expert) == 32


def test_fallback_searches_the_least_threshold_that_slots_allow():
    """Three slots, one expert each, nine of ten entries: 80 - 27 = 53 at the hot rank."""
    decided = plan(cold_crowd(), UltraEP.Params(slots=1, min_tokens=1))
    assert (decided.thresholds, decided.paths) == ((53,), ("fallback",))
    assert np.bincount(decided.rank, decided.quota).tolist() == [53, 9, 9, 9]
    emptied = plan(cold_crowd(), UltraEP.Params(slots=1, min_tokens=1, allow_zero_master_quota=True))
    assert emptied.thresholds == (50,)


def test_each_domain_is_balanced_by_itself():
    counts = np.array([[8, 0, 0, 0]] * 4)
    decided = plan(counts, UltraEP.Params(slots=1, min_tokens=1), 2)
    assert decided.paths == ("fast0", "fast0")
    assert np.bincount(decided.rank, decided.quota).tolist() == [17, 15, 0, 0]
    assert decided.slot_table.tolist() == [[0, -1], [1, 0], [2, -1], [3, -1]]


def test_entries_of_a_source_are_interleaved():
    """Ten entries of expert 0: seven for its home, three for the copy; places 0 7 4 1 8 5 2 9 6 3 by a stride of 7."""
    counts = np.array([[10, 0], [6, 4]])
    balancer = UltraEP(UltraEP.Params(slots=1, locality_aware=False))
    ids = np.tile([0, 1], 2).repeat(counts.ravel())[:, None]
    assert split(counts, plan(counts, balancer.params), locality_aware=False).tolist() == [
        [7, 3, 0],
        [4, 2, 4],
    ]
    slot = balancer.balance(ids, 2, 2, np.random.default_rng(0)).slot.ravel()
    home, copy = 0, 3
    assert slot[:10].tolist() == [home, copy, home, home, copy, home, home, copy, home, home]


def test_a_copy_may_miss_its_quota_and_be_left_empty():
    """Each source has one entry, half of it for either copy, and rounds alone. Weights travel all the same."""
    ids = np.zeros((4, 1), dtype=np.int64)
    found = UltraEP(UltraEP.Params(slots=1, locality_aware=False)).balance(
        ids, 4, 4, np.random.default_rng(0)
    )
    assert found.details["quotas"].tolist() == [
        [0, 0, 0, 2],
        [0, 1, 1, 2],
        [1, 1, 0, 0],
        [2, 2, 0, 0],
        [3, 3, 0, 0],
    ]
    assert found.moves.tolist() == [[3, 0]]
    assert (found.slot == 0).all()


def test_small_domains_push_directly():
    def relayed(ranks):
        ids = np.zeros((ranks * 64, 1), dtype=np.int64)
        return UltraEP().balance(ids, ranks, ranks, np.random.default_rng(0)).relayed.any()

    assert not relayed(8)
    assert relayed(12)


def test_limits():
    def found(ranks, experts, **params):
        return [(p.message, p.legal) for p in UltraEP(UltraEP.Params(**params)).problems(ranks, experts, 8)]

    assert found(64, 256) == found(72, 288) == []
    assert [legal for _, legal in found(73, 73)] == ["at most 72"]
    assert [legal for _, legal in found(64, 576)] == ["at most 512 experts"]
    assert [legal for _, legal in found(64, 256, slots=9)] == ["at most 8 slots a rank"]
    with pytest.raises(ValidationError):
        UltraEP.Params(relay="always")


def test_experts_must_divide():
    with pytest.raises(InputError, match="10 experts cannot be divided evenly over 4 ranks"):
        plan(np.ones((4, 10), dtype=np.int64), UltraEP.Params())


def test_thresholds_are_computed_in_float32():
    """2^24 + 1 entries are 2^24 there, so that the first threshold is below the mean, and cannot hold."""
    counts = np.array([[2**24 - 7, 8], [0, 0]])
    decided = plan(counts, UltraEP.Params(epsilon=0.0))
    assert decided.thresholds == (2**23 + -(-(2**24 - 7) // 100),)
    assert decided.paths == ("fast1",)


def test_floor_of_an_attempt_is_rounded_up():
    """Five to give to two takers at a threshold of four: three each, and expert 0 has two to spare. Five works."""
    total = np.array([[3, 2, 2, 2], [0, 0, 0, 0], [1, 0, 0, 0]])
    counts = np.concatenate([total.reshape(1, -1), np.zeros((2, 12), dtype=np.int64)])
    decided = plan(counts, UltraEP.Params(epsilon=0.0, slots=3, min_tokens=1))
    assert (decided.thresholds, decided.paths) == ((5,), ("fast1",))
