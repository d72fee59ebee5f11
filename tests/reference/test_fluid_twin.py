"""The engine against its slow twins: thousands of small cases in exact fractions, and works of thousands of flows."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from benchmarks.works import crossbar, superpod
from reference import maxmin_twin

from moesim import levels, lowrank
from moesim.network import FluidResult, finish_times
from moesim.rates import allocate

DATA = Path(__file__).parents[1] / "data"
Case = tuple[list[dict[int, Fraction]], list[Fraction], list[Fraction], list[Fraction]]


def _case(rng: np.random.Generator, scales: list[Fraction], late: bool) -> Case:
    """Up to 12 flows over up to 7 resources, with zero sizes, equal sizes, unused resources and weights."""
    resources = int(rng.integers(1, 8))
    capacity = [
        Fraction(int(rng.integers(1, 5))) * scales[rng.integers(len(scales))] for _ in range(resources)
    ]
    rows = []
    for _ in range(int(rng.integers(0, 13))):
        crossed = rng.permutation(resources)[: rng.integers(1, 5)]
        rows.append({int(r): Fraction(int(rng.integers(1, 4)), int(rng.integers(1, 3))) for r in crossed})
    size = [Fraction(int(rng.integers(0, 6))) for _ in rows]
    start = [Fraction(int(rng.integers(0, 4)), 2) * late for _ in rows]
    return rows, capacity, size, start


def _engine(case: Case, tolerance: float = 0.0) -> FluidResult:
    rows, capacity, size, start = case
    indptr = np.append(0, np.cumsum([len(row) for row in rows])).astype(np.int64)
    index = np.array([r for row in rows for r in row], dtype=np.int64)
    weight = np.array([float(w) for row in rows for w in row.values()])
    capacities, sizes, starts = (np.array([float(x) for x in part]) for part in (capacity, size, start))
    return finish_times(indptr, index, weight, capacities, sizes, starts, tolerance)


ONE = [Fraction(1)]
# Twelve orders of magnitude between capacities.
APART = [Fraction(1), Fraction(10**12), Fraction(1, 10**6), Fraction(10**6)]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("scales", "late"), [(ONE, False), (ONE, True), (APART, False), (APART, True)])
def test_every_finish_equals_the_twin_in_fractions(seed: int, scales: list[Fraction], late: bool) -> None:
    rng = np.random.default_rng([seed, len(scales), late])
    for _ in range(60):
        case = _case(rng, scales, late)
        expected = [float(t) for t in maxmin_twin.finish_times(*case)]
        np.testing.assert_allclose(_engine(case).finish, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("seed", [804, 839, 870])
def test_rates_that_are_decades_apart_are_exact(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capacities over 25 decades. Updates of an inverse alone would lose the slow flows in rounding of the fast."""
    rng = np.random.default_rng(seed)
    path = rng.integers(0, 6, (25, 2))
    capacity, size = 10 ** rng.uniform(-25, 0, 6), 10 ** rng.uniform(0, 6, 25)
    rows = [{int(r): Fraction(int((row == r).sum())) for r in row} for row in path]
    case = rows, [Fraction(c) for c in capacity], [Fraction(s) for s in size], [Fraction(0)] * 25
    expected = [float(t) for t in maxmin_twin.finish_times(*case)]
    np.testing.assert_allclose(_engine(case).finish, expected, rtol=1e-13, atol=0)
    monkeypatch.setattr("moesim.fluid.SPREAD", np.inf)
    assert (np.abs(_engine(case).finish / expected - 1) > 1e-9).any()


@pytest.mark.parametrize(
    "limits", [{}, {"AGE": 0}, {"CELLS": 0}, {"CELLS": 0, "SWEEPS": 1}, {"MOST_PASSES": 1}]
)
def test_every_way_to_solve_gives_the_same_finish(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triangles kept and made anew, dense and sparse, and progressive filling instead of Newton's method."""
    for name, value in limits.items():
        monkeypatch.setattr(levels, name, value)
    monkeypatch.setattr("moesim.fluid.LARGEST", 0)
    rng = np.random.default_rng(5)
    for _ in range(150):
        case = _case(rng, APART, True)
        expected = [float(t) for t in maxmin_twin.finish_times(*case)]
        np.testing.assert_allclose(_engine(case).finish, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("scales", "late"), [(ONE, False), (ONE, True), (APART, True)])
def test_merged_steps_that_hold_one_finish_equal_the_twin(
    scales: list[Fraction], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So short that nothing is merged but equal finishes, and with starts between them, merged steps are right."""
    monkeypatch.setattr("moesim.fluid.FEW", 0.5)
    rng = np.random.default_rng([7, len(scales), late])
    for _ in range(150):
        case = _case(rng, scales, late)
        expected = np.array([float(t) for t in maxmin_twin.finish_times(*case)])
        found = _engine(case, 1e-9).finish
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7 * expected.max(initial=0.0))


def test_rates_equal_the_twin_in_fractions() -> None:
    rng = np.random.default_rng(2)
    for _ in range(400):
        rows, capacity, _, _ = _case(rng, APART, False)
        indptr = np.append(0, np.cumsum([len(row) for row in rows])).astype(np.int64)
        index = np.array([r for row in rows for r in row], dtype=np.int64)
        weight = np.array([float(w) for row in rows for w in row.values()])
        found = allocate(indptr, index, weight, np.array([float(c) for c in capacity]))
        expected = [float(v) for v in maxmin_twin.rates(rows, capacity)]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("work", ["A", "B"])
def test_published_finish_times(work: str) -> None:
    """Exact finish times of 5,112 flows, which SimGrid 4.1 gives too, to 12 digits."""
    expected = np.load(DATA / "exact_finish_crossbar72.npz")[work]
    found = finish_times(*crossbar(skewed=work == "B").arguments(), 0.0)
    np.testing.assert_allclose(found.finish, expected, rtol=1e-9, atol=0)


def test_two_tiers_equal_the_twin_in_floats() -> None:
    work = superpod(48)
    found = finish_times(*work.arguments(), 0.0)
    expected = maxmin_twin.finish_times_in_floats(work.path, work.capacity, work.size)
    np.testing.assert_allclose(found.finish, expected, rtol=1e-9, atol=0)
    assert found.finish.max() == pytest.approx(1.9613627806122448e-4, rel=1e-12)


def test_low_rank_steps_start_over_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inverting anew after every block changes nothing."""
    work = superpod(16)
    expected = finish_times(*work.arguments(), 0.0).finish
    monkeypatch.setattr(lowrank, "BLOCKS", 0)
    np.testing.assert_allclose(finish_times(*work.arguments(), 0.0).finish, expected, rtol=1e-12)
