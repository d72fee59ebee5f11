"""What says that it leaves nothing to chance must not change with the seed."""

from __future__ import annotations

import numpy as np
import pytest
from suited import suited

from moesim import moe
from moesim.balancers import BALANCERS
from moesim.traces import KINDS, compose


@pytest.mark.parametrize("name", [name for name, kind in KINDS if not kind.draws])
def test_routing_that_draws_nothing_is_the_same_for_every_seed_and_step(name: str) -> None:
    model = moe.load("mixtral-8x7b")
    options = {"ep": 4, "tokens_per_rank": 16, "phase": "decode", "layers": [0], "steps": 2, "cache": False}
    one, other = (compose({"kind": name}, model, seed=seed, **options).ids for seed in (0, 1))  # type: ignore[arg-type]
    assert np.array_equal(one, other)
    assert np.array_equal(one[0], one[1])


@pytest.mark.parametrize("name", [name for name, balancer in BALANCERS if not balancer.draws])
def test_a_balancer_that_draws_nothing_is_the_same_for_every_generator(name: str) -> None:
    ids = np.random.default_rng(3).permuted(np.tile(np.arange(8), (64, 1)), axis=1)[:, :2]
    one, other = (suited(name, 4, 8).balance(ids, 4, 8, np.random.default_rng(seed)) for seed in (0, 1))
    assert np.array_equal(one.slot, other.slot)
    assert np.array_equal(one.placement.slot_expert, other.placement.slot_expert)
    assert np.array_equal(one.moves, other.moves)
