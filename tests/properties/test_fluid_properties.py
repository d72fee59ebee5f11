"""What must hold for flows over any fabric: the tolerance, starts, the order of the flows, striped planes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim import fluid
from moesim.network import FluidResult, finish_times

seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True, eq=False)
class Flows:
    path: np.ndarray
    weight: np.ndarray
    capacity: np.ndarray
    size: np.ndarray
    start: np.ndarray

    def run(self, tolerance: float = 0.0) -> FluidResult:
        flows, width = self.path.shape
        indptr = np.arange(0, flows * width + 1, width)
        rows = self.path.ravel(), self.weight.ravel()
        return finish_times(indptr, *rows, self.capacity, self.size, self.start, tolerance)


def _flows(seed: int, flows: int, late: bool = False) -> Flows:
    """Random rows over random capacities, sizes from equal to heavy-tailed."""
    rng = np.random.default_rng(seed)
    resources = int(rng.integers(2, 30))
    width = int(rng.integers(1, min(resources, 4) + 1))
    path = np.argsort(rng.random((flows, resources)), axis=1)[:, :width]
    weight = rng.choice([0.5, 1.0, 1.0, 2.0], path.shape)
    capacity = 10 ** rng.uniform(-1, 1, resources)
    kinds = (
        np.ones(flows),
        rng.uniform(0.5, 1.5, flows),
        rng.lognormal(0, 1, flows),
        rng.pareto(1.2, flows) + 0.01,
    )
    start = rng.choice(rng.uniform(0, 20, 5), flows) if late else np.zeros(flows)
    return Flows(path, weight, capacity, kinds[rng.integers(4)], start)


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(170, 700), st.sampled_from([0.003, 0.01, 0.03]))
def test_every_finish_is_within_the_tolerance(seed: int, flows: int, tolerance: float) -> None:
    case = _flows(seed, flows)
    exact, merged = case.run(), case.run(tolerance)
    within = tolerance * exact.finish.max()
    assert np.abs(merged.finish - exact.finish).max() <= within
    assert abs(merged.finish.max() - exact.finish.max()) <= within
    assert merged.solves <= exact.solves
    assert merged.error_estimate <= within * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(seeds, st.sampled_from([0.0, 0.03]))
def test_no_flow_ends_before_its_start_and_its_own_time(
    seed: int,
    tolerance: float,
) -> None:
    case = _flows(seed, 300, late=True)
    alone = case.size * (case.weight / case.capacity[case.path]).max(axis=1)
    merged = case.run(tolerance).finish
    assert (merged >= (case.start + alone) * (1 - 1e-9)).all()


def test_a_start_inside_a_merged_step_is_not_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow on a resource of its own ends exactly its own time after its start, however coarse the steps."""
    monkeypatch.setattr(fluid, "FEW", 1)
    case = _flows(1, 300)
    start = np.append(case.start, 0.0123)
    path = np.vstack([case.path, np.full(case.path.shape[1], len(case.capacity))])
    weight = np.vstack([case.weight, np.eye(1, case.path.shape[1])])
    alone = Flows(path, weight, np.append(case.capacity, 1.0), np.append(case.size, 5.0), start)
    assert alone.run(0.5).finish[-1] == pytest.approx(5.0123, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(seeds, st.booleans())
def test_equal_parts_of_a_striped_link_equal_one_fat_link(seed: int, late: bool) -> None:
    case = _flows(seed, 40, late)
    planes = 4
    path = np.concatenate([case.path * planes + plane for plane in range(planes)], axis=1)
    weight = np.concatenate([case.weight / planes] * planes, axis=1)
    striped = Flows(path, weight, np.repeat(case.capacity / planes, planes), case.size, case.start)
    np.testing.assert_allclose(striped.run().finish, case.run().finish, rtol=1e-9)


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from([1e-9, 1e3, 2**30 / 1e9]))
def test_time_scales_with_sizes_and_capacities(seed: int, scale: float) -> None:
    """No absolute time or size is built in: no whole nanoseconds, no binary giga."""
    case = _flows(seed, 60)
    once = case.run().finish
    bigger = Flows(case.path, case.weight, case.capacity, case.size * scale, case.start).run().finish
    faster = Flows(case.path, case.weight, case.capacity * scale, case.size, case.start).run().finish
    np.testing.assert_allclose(bigger, once * scale, rtol=1e-9)
    np.testing.assert_allclose(faster, once / scale, rtol=1e-9)
