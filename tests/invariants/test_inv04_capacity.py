"""Invariants 4 and 5: no resource is ever over capacity, and the rates are max-min fair."""

from __future__ import annotations

import numpy as np
import pytest

from moesim.fluid import Fluid
from moesim.rates import allocate, columns


def _rows(rng: np.random.Generator, flows: int, resources: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    path = np.argsort(rng.random((flows, resources)), axis=1)[:, :3]
    return np.arange(0, 3 * flows + 1, 3), path.ravel(), rng.choice([0.5, 1.0, 2.0], 3 * flows)


@pytest.mark.parametrize("seed", range(20))
def test_each_flow_crosses_a_full_resource_on_which_nobody_is_faster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    flows, resources = int(rng.integers(1, 200)), int(rng.integers(3, 25))
    indptr, index, weight = _rows(rng, flows, resources)
    capacity = 10 ** rng.uniform(-6, 6, resources)
    rate = allocate(indptr, index, weight, capacity)
    load = np.bincount(index, weight * np.repeat(rate, 3), resources)
    assert (load <= capacity * (1 + 1e-9)).all()
    fastest = np.zeros(resources)
    np.maximum.at(fastest, index, np.repeat(rate, 3))
    bottleneck = (load >= capacity * (1 - 1e-9))[index] & (fastest[index] <= np.repeat(rate, 3) * (1 + 1e-9))
    assert bottleneck.reshape(flows, 3).any(axis=1).all()


@pytest.mark.parametrize("tolerance", [0.0, 0.003, 0.1])
@pytest.mark.parametrize("interrupted", [False, True])
def test_no_resource_carries_more_than_its_capacity_in_any_step(tolerance: float, interrupted: bool) -> None:
    """Also when a step is cut short by flows that nobody had announced."""
    rng = np.random.default_rng(11)
    flows, resources = 500, 20
    indptr, index, weight = _rows(rng, flows, resources)
    capacity = rng.uniform(1, 3, resources)
    size = rng.lognormal(0, 1, flows)
    path, taken = columns(indptr, index, weight, resources)
    engine = Fluid(capacity, tolerance)
    engine.add(path, taken, size, np.zeros(flows))
    carried, steps = np.zeros(resources), 0
    left = size.copy()
    while not engine.idle:
        engine.plan()
        cut = interrupted and steps % 7 == 3
        until = engine.now + 0.6 * (engine.end - engine.now) if cut else engine.end
        span = until - engine.now
        engine.commit(until)
        now_left = engine.left()[:flows]
        moved = np.bincount(index, weight * np.repeat(left - now_left, 3), resources)
        assert (moved <= capacity * span * (1 + 1e-6) + 1e-9).all()
        carried += moved
        left, steps = now_left, steps + 1
    np.testing.assert_allclose(carried, np.bincount(index, weight * np.repeat(size, 3), resources), rtol=1e-9)
    np.testing.assert_allclose(carried, engine.load, rtol=1e-9)
