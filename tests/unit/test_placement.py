"""Placements."""

from __future__ import annotations

import numpy as np
import pytest

from moesim.errors import InputError, InvariantError
from moesim.placement import Placement, experts_per_rank


def test_contiguous():
    placement = Placement.contiguous(experts=6, ranks=3)
    assert placement.slot_expert.tolist() == [0, 1, 2, 3, 4, 5]
    assert placement.slot_rank.tolist() == placement.home.tolist() == [0, 0, 1, 1, 2, 2]


def test_an_expert_without_a_slot_is_our_bug():
    with pytest.raises(InvariantError, match=r"4 experts: \[1, 3\] have no slot"):
        Placement(np.array([0, 2, -1, 0]), np.array([0, 0, 1, 1]), 4, 2, np.array([0, 0, 1, 1]))


def test_a_slot_with_an_expert_that_does_not_exist_is_our_bug():
    with pytest.raises(InvariantError):
        Placement(np.array([0, 1, 2]), np.array([0, 0, 1]), 2, 2, np.array([0, 1]))


@pytest.mark.parametrize(("experts", "ranks"), [(64, 7), (8, 16), (8, 0), (8, -4)])
def test_uneven_experts_name_the_legal_ranks(experts, ranks):
    with pytest.raises(InputError) as refused:
        experts_per_rank(experts, ranks)
    (problem,) = refused.value.problems
    assert str(experts) in problem.message
    assert str(ranks) in problem.message
    assert problem.legal == ("ep of 1, 2, 4, 8, 16, 32, 64" if experts == 64 else "ep of 1, 2, 4, 8")


def test_one_rank_holds_everything():
    assert experts_per_rank(60, 1) == 60
    assert experts_per_rank(60, 60) == 1
