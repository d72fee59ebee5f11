"""The oracle: exactly the mean on every rank, local entries first, nothing moved without need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim import traffic
from moesim.balancers.moonep import MoonEP
from moesim.balancers.none import Contiguous
from moesim.balancers.oracle import Oracle


@st.composite
def routings(draw):
    ranks, epn = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    top_k, tokens = draw(st.integers(1, min(4, ranks * epn))), draw(st.integers(0, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    skew = rng.normal(size=ranks * epn) * draw(st.sampled_from([0.0, 0.5, 2.0, 50.0]))
    scores = skew + rng.gumbel(size=(ranks * tokens, ranks * epn))
    return np.argsort(-scores, axis=1)[:, :top_k], ranks, ranks * epn


def counted(balancer, ids, ranks, experts):
    one = np.zeros(ranks, dtype=np.int64)
    assignment = balancer.balance(ids, ranks, experts, np.random.default_rng(0))
    return traffic.count(assignment, ranks, host=one, domain=one)


@settings(max_examples=200, deadline=None)
@given(routings())
def test_every_rank_has_the_mean_and_only_the_surplus_has_left_its_home(routing):
    ids, ranks, experts = routing
    plain, found = (counted(one, *routing) for one in (Contiguous(), Oracle()))
    mean = ids.size // ranks
    assert found.load.tolist() == [mean] * ranks
    assert found.expert_counts.tolist() == plain.expert_counts.tolist()
    home = np.arange(experts) // (experts // ranks)
    goes = Oracle().balance(ids, ranks, experts, np.random.default_rng(0))
    away = goes.placement.slot_rank[goes.slot] != home[ids]
    assert away.sum() == np.maximum(plain.load - mean, 0).sum()


def test_local_entries_first():
    # Rank 0 has every entry; ranks 1 to 3 take back their own.
    ids = np.repeat(np.arange(4), 4).reshape(16, 1) % 2
    found = counted(Oracle(), ids, 4, 8)
    assert found.entries_to.tolist() == (4 * np.eye(4, dtype=int)).tolist()


@pytest.mark.parametrize(("ids", "taken_from"), [([2, 2, 0, 0, 4, 2], 2), ([2, 2, 0, 2, 4, 0], 0)])
def test_a_rank_takes_its_own_entries_back_and_others_where_it_has_none(ids, taken_from):
    plain, found = (counted(one, np.array(ids)[:, None], 3, 6) for one in (Contiguous(), Oracle()))
    assert plain.load.tolist() == [2, 3, 1]
    assert found.load.tolist() == [2, 2, 2]
    changed = found.entries_to - plain.entries_to
    assert np.argwhere(changed > 0).tolist() == [[taken_from, 2]]


def test_fewer_rows_leave_their_rank_than_with_moonep():
    rng = np.random.default_rng(0)
    ids = np.argsort(-(rng.normal(size=64) + rng.gumbel(size=(16 * 64, 64))), axis=1)[:, :6]
    rows = [
        traffic.off_own(counted(one, ids, 16, 64).rows).sum() for one in (Oracle(), MoonEP(), Contiguous())
    ]
    assert rows[0] < rows[1]
    assert rows[0] < 1.05 * rows[2]
