"""The static balancers, and what every balancer refuses."""

from __future__ import annotations

import numpy as np
import pytest

from moesim.balancers import BALANCERS
from moesim.balancers.none import Contiguous
from moesim.balancers.shuffled import Shuffled
from moesim.errors import InputError


def test_names():
    assert {"moonep", "none", "random"} <= set(BALANCERS.names())


def test_unknown_name_suggests():
    with pytest.raises(InputError, match="did you mean 'moonep'"):
        BALANCERS.get("moonpe")


def test_none_is_the_identity():
    ids = np.array([[0, 5], [2, 3], [7, 6], [1, 0]], dtype=np.uint16)
    assignment = Contiguous().balance(ids, ranks=4, experts=8, rng=np.random.default_rng(0))
    assert assignment.slot.tolist() == ids.tolist()
    assert assignment.slot.dtype == np.int64
    assert assignment.placement.slot_rank.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert assignment.gemm_rows.tolist() == [2, 1, 1, 1, 0, 1, 1, 1]
    assert assignment.moves.shape == (0, 2)
    assert assignment.static_rows is None


def test_random_deals_the_same_number_to_each_rank():
    ids = np.array([[0, 5], [2, 3], [7, 6], [1, 0]])
    assignment = Shuffled().balance(ids, ranks=4, experts=8, rng=np.random.default_rng(3))
    placement = assignment.placement
    assert placement.slot_expert.tolist() != list(range(8))
    assert sorted(placement.slot_expert.tolist()) == list(range(8))
    assert np.bincount(placement.slot_rank).tolist() == [2, 2, 2, 2]
    assert (placement.slot_expert[assignment.slot] == ids).all()
    assert (placement.home[placement.slot_expert] == placement.slot_rank).all()


def test_random_places_by_the_seed_and_not_by_the_routing():
    some, other = np.array([[0, 5], [2, 3]]), np.array([[7, 6], [6, 4]])
    first = Shuffled().balance(some, 2, 8, np.random.default_rng(3)).placement.slot_expert.tolist()
    assert Shuffled().balance(other, 2, 8, np.random.default_rng(3)).placement.slot_expert.tolist() == first
    assert Shuffled().balance(some, 2, 8, np.random.default_rng(4)).placement.slot_expert.tolist() != first


def test_random_puts_every_expert_everywhere_in_turn():
    rng = np.random.default_rng(0)
    ids = np.array([[0], [3]])
    homes = np.array([Shuffled().balance(ids, 2, 4, rng).placement.home for _ in range(2000)])
    # Each expert is on rank 1 half of the time: 1000, four sigmas are 90.
    assert np.abs(homes.sum(axis=0) - 1000).max() < 90


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([[0, 8]] * 4), "run from 0 to 8"),
        (np.array([[-1, 0]] * 4), "run from -1 to 0"),
        (np.array([[0, 1]] * 5), "5 tokens"),
        (np.zeros(4, dtype=np.int64), r"not int64 \(4,\)"),
        (np.zeros((4, 2)), "not float64"),
    ],
)
def test_bad_ids(ids, message):
    with pytest.raises(InputError, match=message):
        Contiguous().balance(ids, ranks=4, experts=8, rng=np.random.default_rng(0))


def test_all_problems_at_once():
    with pytest.raises(InputError) as refused:
        Contiguous().balance(np.array([[0, 9]] * 4), ranks=3, experts=8, rng=np.random.default_rng(0))
    assert len(refused.value.problems) == 3
