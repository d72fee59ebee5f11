"""Invariant 9: every logical expert is hosted, whatever the balancer makes of the batch."""

from __future__ import annotations

import numpy as np
import pytest
from suited import suited

from moesim.balancers import BALANCERS
from moesim.errors import InvariantError
from moesim.placement import Placement


@pytest.mark.parametrize("name", BALANCERS.names())
@pytest.mark.parametrize("hot", [0, 37, 63], ids=["first", "middle", "last"])
@pytest.mark.parametrize("ranks", [1, 4, 16, 64])
def test_experts_without_tokens_keep_a_place(name, hot, ranks):
    ids = np.full((ranks * 5, 1), hot)
    placement = suited(name, ranks, 64).balance(ids, ranks, 64, np.random.default_rng(0)).placement
    hosted = np.bincount(placement.slot_expert[placement.slot_expert >= 0], minlength=64)
    assert hosted.min() >= 1


def test_a_placement_that_forgets_one_cannot_be_made():
    whole = Placement.contiguous(8, 4)
    for forgotten in range(8):
        slots = np.where(whole.slot_expert == forgotten, -1, whole.slot_expert)
        with pytest.raises(InvariantError, match=rf"\[{forgotten}\] have no slot"):
            Placement(slots, whole.slot_rank, 8, 4, whole.home)
