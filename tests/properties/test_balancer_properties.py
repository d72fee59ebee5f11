"""What holds of every balancer in the middle of a run: any step, layer, past, hosts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suited import suited

from moesim import traffic
from moesim.balancers import BALANCERS, Context


@st.composite
def batches(draw):
    ranks, epn = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 16])), draw(st.integers(1, 4))
    experts = ranks * epn
    top_k, tokens = draw(st.integers(1, min(4, experts))), draw(st.integers(0, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    skew = draw(st.sampled_from([0.0, 1.0, 30.0]))

    def one():
        scores = rng.normal(size=experts) * skew + rng.gumbel(size=(ranks * tokens, experts))
        return np.argsort(-scores, axis=1)[:, :top_k]

    step, layer = draw(st.integers(0, 24)), draw(st.integers(0, 3))
    past = np.array([np.bincount(one().ravel(), minlength=experts) for _ in range(step)], dtype=np.int64)
    hosts = np.arange(ranks) // draw(st.integers(1, ranks))
    domain = hosts // 2 if draw(st.booleans()) else np.zeros_like(hosts)
    return one(), ranks, experts, Context(step, layer, 4, past.reshape(step, experts), hosts, domain)


@pytest.mark.parametrize("name", BALANCERS.names())
@settings(max_examples=60, deadline=None)
@given(case=batches())
def test_entries_reach_a_slot_of_their_expert_and_loads_add_up(name, case):
    ids, ranks, experts, context = case
    balancer, before = suited(name, ranks, experts), context.past.copy()
    found = balancer.balance(ids, ranks, experts, np.random.default_rng(0), context)
    placement = found.placement
    assert (placement.slot_expert[found.slot] == ids).all()
    counted = traffic.count(found, ranks, context.host, context.domain)
    assert counted.expert_counts.tolist() == np.bincount(ids.ravel(), minlength=experts).tolist()
    assert counted.load.sum() == ids.size
    assert (found.gemm_rows >= counted.entries.sum(axis=0)).all()
    hosted = np.bincount(placement.slot_expert[placement.slot_expert >= 0], minlength=experts)
    assert hosted.min() >= 1
    # The home holds its expert: gradients of copies return there.
    held = set(zip(placement.slot_rank.tolist(), placement.slot_expert.tolist(), strict=True))
    assert {(rank, expert) for expert, rank in enumerate(placement.home.tolist())} <= held
    assert np.array_equal(context.past, before)


@pytest.mark.parametrize("name", BALANCERS.names())
@settings(max_examples=40, deadline=None)
@given(case=batches())
def test_moves_go_to_other_ranks_and_depend_on_nothing_but_the_arguments(name, case):
    ids, ranks, experts, context = case
    used = suited(name, ranks, experts)
    used.balance(ids[::-1], ranks, experts, np.random.default_rng(1), Context.first(ranks, experts))
    one, two = (
        balancer.balance(ids, ranks, experts, np.random.default_rng(0), context)
        for balancer in (used, suited(name, ranks, experts))
    )
    assert np.array_equal(one.slot, two.slot)
    assert np.array_equal(one.moves, two.moves)
    assert np.array_equal(one.placement.slot_expert, two.placement.slot_expert)
    slot, sender = one.moves.T
    assert len(np.unique(slot)) == len(slot)
    assert (one.placement.slot_rank[slot] != sender).all()
    assert ((sender >= 0) & (sender < ranks)).all()
    if used.weights in ("none", "free"):
        assert len(slot) == 0
    if one.stall:
        assert len(slot) > 0
    assert one.relayed is None or one.relayed.shape == slot.shape


EVEN = ("eplb", "eplb-periodic", "recorded", "swift")


@pytest.mark.parametrize("name", EVEN)
@settings(max_examples=60, deadline=None)
@given(case=batches())
def test_copies_share_as_evenly_as_whole_entries_can(name, case):
    ids, ranks, experts, context = case
    found = suited(name, ranks, experts).balance(ids, ranks, experts, np.random.default_rng(0), context)
    rows = np.bincount(found.slot.ravel(), minlength=len(found.gemm_rows))
    for expert in range(experts):
        of_copies = rows[found.placement.slot_expert == expert]
        assert of_copies.max() - of_copies.min() <= 1
