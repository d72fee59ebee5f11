"""Invariant 2: every routed entry reaches its expert, once, and comes back to where it came from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suited import suited

from moesim import traffic
from moesim.balancers import BALANCERS


@st.composite
def batches(draw):
    ranks, epn = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    top_k, tokens = draw(st.integers(1, min(6, ranks * epn))), draw(st.integers(0, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    skew = rng.normal(size=ranks * epn) * draw(st.sampled_from([0.0, 1.0, 30.0]))
    scores = skew + rng.gumbel(size=(ranks * tokens, ranks * epn))
    return np.argsort(-scores, axis=1)[:, :top_k], ranks, ranks * epn


@pytest.mark.parametrize("name", BALANCERS.names())
@settings(max_examples=60, deadline=None)
@given(batch=batches())
def test_entries_reach_their_experts_once(name, batch):
    ids, ranks, experts = batch
    assignment = suited(name, ranks, experts).balance(ids, ranks, experts, np.random.default_rng(0))
    one = np.zeros(ranks, dtype=np.int64)
    counted = traffic.count(assignment, ranks, one, one)
    arrived = np.zeros((ranks, experts), dtype=np.int64)
    for slot, expert in enumerate(assignment.placement.slot_expert):
        if expert >= 0:
            arrived[:, expert] += counted.entries[:, slot]
        else:
            assert not counted.entries[:, slot].any(), "an entry went to an empty slot"
    sent = np.zeros((ranks, experts), dtype=np.int64)
    np.add.at(sent, (np.arange(ranks).repeat(len(ids) // ranks)[:, None], ids), 1)
    assert arrived.tolist() == sent.tolist()
    # What comes back to a rank in combine is what it sent: K results for each of its tokens.
    assert (counted.entries_to.sum(axis=1) == counted.tokens * ids.shape[1]).all()
