"""MoonEP's fast planner against the slow one, and what its rule promises, on random routing."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.moonep_twin import plan_slowly

from moesim.balancers.moonep import MoonEP, destination_rows, plan


@st.composite
def routings(draw):
    """Picks (R, S, K) of distinct experts, skewed as far as all entries going to the same K."""
    ranks, epn = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    experts = ranks * epn
    top_k, tokens = draw(st.integers(1, min(4, experts))), draw(st.integers(0, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    skew = rng.normal(size=experts) * draw(st.sampled_from([0.0, 0.5, 2.0, 50.0]))
    scores = skew + rng.gumbel(size=(ranks, tokens, experts))
    picks = np.argsort(-scores, axis=2)[:, :, :top_k].reshape(ranks, tokens, top_k)
    return picks, experts, draw(st.sampled_from([1, 2, 7, 128]))


@settings(max_examples=300, deadline=None)
@given(routings())
def test_equal_to_planning_one_entry_at_a_time(routing):
    picks, experts, padding = routing
    ranks, _, top_k = picks.shape
    slow = plan_slowly(picks.tolist(), experts, padding)
    counts = np.stack([np.bincount(rank.ravel(), minlength=experts) for rank in picks])
    fast = plan(counts, padding)
    for name in ("rank_moves", "alloc", "experts_to_copy", "cu_seqlens", "zero_fill_ranges"):
        assert getattr(fast, name).tolist() == slow[name], name
    assert fast.static_rows == slow["static_rows"]
    flat = picks.reshape(-1, top_k)
    assert destination_rows(flat, fast).ravel().tolist() == [place for rank in slow["dst"] for place in rank]
    assignment = MoonEP(MoonEP.Params(token_padding=padding)).balance(
        flat.astype(np.uint16), ranks, experts, np.random.default_rng(0)
    )
    assert assignment.placement.slot_rank[assignment.slot].ravel().tolist() == slow["goes_to"]


@settings(max_examples=200, deadline=None)
@given(routings())
def test_what_the_rule_promises(routing):
    picks, experts, padding = routing
    ranks, tokens, top_k = picks.shape
    counts = np.stack([np.bincount(rank.ravel(), minlength=experts) for rank in picks])
    decided = plan(counts, padding)
    assert (decided.alloc.sum(axis=0) == counts.sum(axis=0)).all()
    assert (decided.alloc.sum(axis=1) == tokens * top_k).all()
    assert (decided.alloc >= 0).all()
    assert len(decided.rank_moves) <= ranks - 1
    assert ((decided.z > 0).sum(axis=0) <= 1).all(), "a destination receives from one home"
    assert decided.remote_stats[:, 0].sum() == decided.remote_stats[:, 1].sum()
    assert (decided.cu_seqlens[:, -1] <= decided.static_rows).all()
    assert decided.zero_fill_ranges[:, :, 1].sum() == decided.cu_seqlens[:, -1].sum() - ranks * tokens * top_k
    rows = destination_rows(picks.reshape(-1, top_k), decided)
    places = np.where(rows < 0, -rows - 1, rows).ravel()
    assert len(np.unique(places)) == len(places), "no two entries in one row"
