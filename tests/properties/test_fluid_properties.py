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


def _rows(rng: np.random.Generator, flows: int) -> tuple[np.ndarray, int]:
    """Rows (F, H) of a random fabric, and how many resources it has."""
    kind = rng.integers(4)
    if kind == 0:  # anything
        resources = int(rng.integers(2, 30))
        width = int(rng.integers(1, min(resources, 4) + 1))
        return np.argsort(rng.random((flows, resources)), axis=1)[:, :width], resources
    if kind == 1:  # stretches of a line
        resources, width = int(rng.integers(6, 20)), int(rng.integers(2, 7))
        return rng.integers(0, resources - width + 1, (flows, 1)) + np.arange(width), resources
    ranks = int(rng.integers(8, 33))
    src = rng.integers(ranks, size=flows)
    dst = (src + rng.integers(1, ranks, flows)) % ranks
    if kind == 2:  # ports around one switch
        return np.stack([src, ranks + dst], axis=1), 2 * ranks
    hosts = -(-ranks // 8)  # and up-links of eight ranks
    return np.stack([src, 2 * ranks + src // 8, 2 * ranks + hosts + dst // 8, ranks + dst], axis=1), 2 * (
        ranks + hosts
    )


def _flows(seed: int, flows: int, late: bool = False) -> Flows:
    """Random rows and weights over random capacities, at times eight orders apart; sizes from equal to heavy-tailed."""
    rng = np.random.default_rng(seed)
    path, resources = _rows(rng, flows)
    weight = rng.choice([0.5, 1.0, 1.0, 2.0], path.shape)
    capacity = 10 ** rng.uniform(*[(0, 0), (-1, 1), (-4, 4)][rng.integers(3)], resources)
    kinds = (
        np.ones(flows),
        rng.uniform(0.5, 1.5, flows),
        rng.lognormal(0, 1, flows),
        rng.pareto(1.2, flows) + 0.01,
    )
    start = rng.choice(rng.uniform(0, 20, 5), flows) if late else np.zeros(flows)
    return Flows(path, weight, capacity, kinds[rng.integers(4)], start)


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(170, 700), st.sampled_from([0.001, 0.003, 0.01, 0.03, 0.1]))
def test_every_finish_is_within_the_tolerance(seed: int, flows: int, tolerance: float) -> None:
    case = _flows(seed, flows)
    exact, merged = case.run(), case.run(tolerance)
    within = tolerance * exact.finish.max()
    assert np.abs(merged.finish - exact.finish).max() <= within
    assert abs(merged.finish.max() - exact.finish.max()) <= within
    assert merged.error_estimate <= within * (1 + 1e-9)
    assert exact.error_estimate == 0.0


def _steep() -> Flows:
    """A flow that shares its link with 40 others, which something else holds back until about one instant.

    Then its rate falls to a thirtieth. Meanwhile flows somewhere else end all the time, so that steps are merged.
    """
    others, each = 40, 40
    path = [[0, 0]]
    size = [180.0]
    for other in range(1, others + 1):
        path += [[0, other]] + [[other, other]] * each
        size += [100.0] + [0.97] * each
    aside = others + 1
    path += [[aside, aside]] * 400
    weight = np.ones((len(path), 2))
    weight[[row[0] == row[1] for row in path], 1] = 0.0
    capacity = np.array([40.0] + [8.2] * others + [60.0])
    size += list(np.linspace(0.2, 20, 400))
    return Flows(np.array(path), weight, capacity, np.array(size), np.zeros(len(path)))


@pytest.mark.parametrize("tolerance", [0.01, 0.03])
def test_a_rate_that_falls_steeply_is_followed(tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _steep()
    exact = case.run().finish
    within = tolerance * exact.max()
    assert np.abs(case.run(tolerance).finish - exact).max() <= within
    monkeypatch.setattr(fluid, "FALL", np.inf)
    assert np.abs(case.run(tolerance).finish - exact).max() > 2 * within


@settings(max_examples=8, deadline=None)
@given(seeds, st.sampled_from([0.003, 0.03]))
def test_starts_in_the_midst_of_merged_steps_are_followed(seed: int, tolerance: float) -> None:
    """Dozens of starts, of which each lets flows join those that are under way."""
    case = _flows(seed, 300)
    rng = np.random.default_rng(seed)
    start = rng.choice(rng.uniform(0, 0.3 * case.run().finish.max(), 20), 300)
    late = Flows(case.path, case.weight, case.capacity, case.size, start)
    exact = late.run().finish
    assert np.abs(late.run(tolerance).finish - exact).max() <= tolerance * exact.max()


@settings(max_examples=8, deadline=None)
@given(seeds, st.booleans())
def test_the_order_of_the_flows_does_not_matter(seed: int, late: bool) -> None:
    case = _flows(seed, 400, late)
    order = np.random.default_rng(seed).permutation(400)
    mixed = Flows(case.path[order], case.weight[order], case.capacity, case.size[order], case.start[order])
    once = case.run()
    np.testing.assert_allclose(mixed.run().finish, once.finish[order], rtol=1e-9)
    for tolerance in (0.003, 0.03):
        merged, again = case.run(tolerance), mixed.run(tolerance)
        np.testing.assert_allclose(again.finish, merged.finish[order], rtol=1e-12)
        assert again.error_estimate == pytest.approx(merged.error_estimate, rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(seeds, st.sampled_from([0.0, 0.01]))
def test_equal_flows_end_at_the_same_instant(seed: int, tolerance: float) -> None:
    case = _flows(seed, 120)
    thrice = Flows(*(np.concatenate([part] * 3) for part in (case.path, case.weight)), case.capacity,
                   np.tile(case.size, 3), np.tile(case.start, 3))  # fmt: skip
    first, second, third = thrice.run(tolerance).finish.reshape(3, -1)
    np.testing.assert_allclose(second, first, rtol=1e-12)
    np.testing.assert_allclose(third, first, rtol=1e-12)


@settings(max_examples=15, deadline=None)
@given(seeds, st.sampled_from([0.0, 0.03]))
def test_nothing_is_faster_than_demand_over_capacity_and_a_byte_is_not_free(
    seed: int, tolerance: float
) -> None:
    """No finish is cut to whole units of time, however small the times and messages are."""
    case = _flows(seed, 300)
    size = case.size * 1e-12
    size[::7] = 1e-21
    tiny = Flows(case.path, case.weight, case.capacity, size, case.start)
    finish = tiny.run(tolerance).finish
    alone = size * (case.weight / case.capacity[case.path]).max(axis=1)
    assert (alone > 0).all()
    assert (finish >= alone * (1 - 1e-9)).all()
    load = np.zeros(len(case.capacity))
    np.add.at(load, case.path, case.weight * size[:, None])
    assert finish.max() >= (load / case.capacity).max() * (1 - 1e-9)


def test_there_is_no_hidden_factor() -> None:
    """One flow takes its size over its tightest capacity, to the last digit, on one link or many."""
    for hops in (1, 2, 5):
        path, weight = np.arange(hops)[None], np.ones((1, hops))
        alone = Flows(path, weight, np.linspace(392e9, 900e9, hops), np.array([1e6]), np.zeros(1))
        assert alone.run().finish[0] == pytest.approx(1e6 / 392e9, rel=1e-15)


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
