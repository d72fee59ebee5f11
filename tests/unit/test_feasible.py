"""Ends that the resources allow."""

from __future__ import annotations

import numpy as np
import pytest

from moesim.feasible import feasible


def _flows(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Up to 30 flows over three of up to six resources, with equal ends and flows that are alike."""
    rng = np.random.default_rng(seed)
    kinds, resources = int(rng.integers(1, 16)), int(rng.integers(3, 7))
    path = np.argsort(rng.random((kinds, resources)), axis=1)[:, :3].T
    work = rng.uniform(0, 1, (3, kinds)) * rng.integers(0, 2, (3, kinds))
    ends = rng.choice([0.5, 1.0, 2.0, 9.0], kinds)
    twice = np.tile(np.arange(kinds), 2)
    return path[:, twice], work[:, twice], ends[twice]


def _done(path: np.ndarray, work: np.ndarray, ends: np.ndarray, resource: int, time: float) -> float:
    return float(work[:, ends <= time][path[:, ends <= time] == resource].sum())


@pytest.mark.parametrize("seed", range(30))
def test_no_resource_lets_more_through_than_it_can(seed: int) -> None:
    path, work, ends = _flows(seed)
    found = feasible(path, work, ends)
    assert (found >= ends).all()
    for resource in range(path.max() + 1):
        for time in found[(path == resource).any(axis=0)]:
            assert _done(path, work, found, resource, time) <= time * (1 + 1e-9)
    np.testing.assert_array_equal(feasible(path, work, found), found)


@pytest.mark.parametrize("seed", range(30))
def test_equal_flows_stay_equal_and_the_order_does_not_matter(seed: int) -> None:
    path, work, ends = _flows(seed)
    found = feasible(path, work, ends)
    first, second = np.split(found, 2)
    np.testing.assert_allclose(first, second, rtol=1e-12)
    order = np.random.default_rng(seed).permutation(len(ends))
    np.testing.assert_allclose(
        feasible(path[:, order], work[:, order], ends[order]), found[order], rtol=1e-12
    )


def test_a_port_that_two_others_fill_is_kept() -> None:
    """One flow each from ports 1 and 2 into port 0, each placed as if it were alone: the second ends at 2."""
    path = np.array([[0, 0], [1, 2]])
    work = np.ones((2, 2))
    assert feasible(path, work, np.array([1.0, 1.2])).tolist() == [1.0, 2.0]
    assert feasible(path, work, np.array([1.0, 1.0])).tolist() == [2.0, 2.0]
    assert feasible(path, work, np.array([1.0, 2.0])).tolist() == [1.0, 2.0]
