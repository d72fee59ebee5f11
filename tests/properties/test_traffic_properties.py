"""The fast counter against the slow one, on small random pods, placements and batches."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.traffic_counter import count_slowly

from moesim import traffic
from moesim.balancers import static_assignment
from moesim.placement import Placement


@st.composite
def cases(draw):
    """Slots anywhere (copies and empty ones too), hosts and domains of any size and order."""
    ranks = draw(st.integers(1, 5))
    experts = draw(st.integers(1, 6))
    extra = draw(st.lists(st.integers(-1, experts - 1), max_size=4))
    slot_expert = np.array(draw(st.permutations(list(range(experts)) + extra)), dtype=np.int64)
    rank = st.integers(0, ranks - 1)
    slot_rank = np.array(draw(st.lists(rank, min_size=len(slot_expert), max_size=len(slot_expert))))
    host = np.array(draw(st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks)))
    domain = np.array(draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks)))
    filled = np.flatnonzero(slot_expert >= 0).tolist()
    top_k = draw(st.integers(1, 4))
    tokens = ranks * draw(st.integers(0, 4))
    one = st.lists(st.sampled_from(filled), min_size=top_k, max_size=top_k)
    slot = np.array(draw(st.lists(one, min_size=tokens, max_size=tokens)), dtype=np.int64).reshape(
        tokens, top_k
    )
    placement = Placement(slot_expert, slot_rank, experts, ranks, home=np.zeros(experts, dtype=np.int64))
    return static_assignment(placement, slot), ranks, host, domain


@settings(max_examples=300, deadline=None)
@given(cases())
def test_equal_to_counting_one_by_one(case):
    assignment, ranks, host, domain = case
    placement = assignment.placement
    fast = traffic.count(assignment, ranks, host, domain)
    slow = count_slowly(
        assignment.slot.tolist(),
        placement.slot_rank.tolist(),
        placement.slot_expert.tolist(),
        placement.experts,
        host.tolist(),
        domain.tolist(),
    )
    for name, expected in slow.items():
        counted = getattr(fast, name)
        assert counted.dtype == np.int64, name
        assert counted.tolist() == expected, name


@settings(max_examples=100, deadline=None)
@given(cases())
def test_rows_and_entries_bound_each_other(case):
    assignment, ranks, host, domain = case
    counted = traffic.count(assignment, ranks, host, domain)
    top_k = assignment.slot.shape[1]
    assert (counted.rows <= counted.entries_to).all()
    assert (counted.entries_to <= counted.rows * top_k).all()
    assert (counted.rows_host.sum(axis=1) <= counted.rows.sum(axis=1)).all()
    assert (counted.rows <= counted.rows_host[:, host]).all()
    assert (counted.rows <= counted.rows_domain[:, domain]).all()
    assert (counted.rows_host <= counted.tokens[:, None]).all()
    assert (counted.entries_to.sum(axis=1) == counted.tokens * top_k).all()
    reach = counted.by_reach(counted.rows)
    assert (sum(reach.values()) == counted.rows.sum(axis=1)).all()
    assert (traffic.off_own(counted.rows).sum(axis=1) == counted.rows.sum(axis=1) - reach["rank"]).all()


@settings(max_examples=100, deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_tokens_of_a_rank_and_their_choices_can_be_in_any_order(case, random):
    assignment, ranks, host, domain = case
    tokens = len(assignment.slot) // ranks
    order = [rank * tokens + t for rank in range(ranks) for t in random.sample(range(tokens), tokens)]
    mixed = np.array(
        [random.sample(row, len(row)) for row in assignment.slot[order].tolist()], dtype=np.int64
    )
    other = static_assignment(assignment.placement, mixed.reshape(assignment.slot.shape))
    one, two = (traffic.count(which, ranks, host, domain) for which in (assignment, other))
    for name in ("entries", "rows", "rows_host", "rows_domain"):
        assert getattr(one, name).tolist() == getattr(two, name).tolist()
