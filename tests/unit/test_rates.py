from __future__ import annotations

import numpy as np
import pytest

from moesim.rates import Binding, allocate, binding, columns, fill, restrict


def _rates(rows: list[dict[int, float]], capacity: list[float]) -> list[float]:
    indptr = np.append(0, np.cumsum([len(row) for row in rows])).astype(np.int64)
    index = np.array([r for row in rows for r in row], dtype=np.int64)
    weight = np.array([w for row in rows for w in row.values()])
    return allocate(indptr, index, weight, np.array(capacity)).tolist()


def test_a_flow_alone_gets_its_tightest_resource() -> None:
    assert _rates([{0: 1.0, 1: 2.0, 2: 1.0}], [10.0, 10.0, 7.0]) == [5.0]


def test_what_a_slow_flow_leaves_goes_to_the_others() -> None:
    assert _rates([{0: 1.0, 1: 1.0}, {0: 1.0}, {0: 1.0}], [10.0, 1.0]) == [1.0, 4.5, 4.5]


def test_heavier_flows_take_more_at_the_same_rate() -> None:
    assert _rates([{0: 1.0}, {0: 3.0}], [8.0]) == [2.0, 2.0]


def test_resources_that_nobody_uses_do_not_matter() -> None:
    assert _rates([{1: 1.0}], [1e-300, 5.0, 0.0]) == [5.0]


def test_a_resource_taken_with_weight_zero_does_not_limit() -> None:
    assert _rates([{0: 0.0, 1: 1.0}], [1.0, 5.0]) == [5.0]


def test_a_flow_that_takes_nothing_is_unlimited() -> None:
    assert _rates([{}, {0: 1.0}], [5.0]) == [np.inf, 5.0]


def test_no_flows() -> None:
    assert _rates([], [5.0]) == []


def test_capacities_twelve_orders_apart() -> None:
    found = _rates([{0: 1.0, 1: 1.0}, {0: 1.0}, {1: 1.0}], [1e12, 1.0])
    assert found == pytest.approx([0.5, 1e12 - 0.5, 0.5], rel=1e-15)


def test_a_limit_frees_capacity_for_the_others() -> None:
    path, taken = columns(np.array([0, 1, 2]), np.array([0, 0]), np.ones(2), 1)
    rate, _ = fill(path, taken, np.array([10.0, np.inf]), np.array([2.0, np.inf]))
    assert rate.tolist() == [2.0, 8.0]


def test_all_local_bottlenecks_close_in_one_pass() -> None:
    pairs = np.arange(100)
    path, taken = columns(np.arange(101), pairs, np.ones(100), 100)
    _, passes = fill(path, taken, np.append(np.linspace(1, 2, 100), np.inf))
    assert passes == 1


def test_an_uplink_as_wide_as_its_ports_cannot_bind() -> None:
    # Ports 0 and 1 of capacity 3, an uplink 2 behind both, a port 3 on the other side.
    index = np.array([0, 2, 3, 1, 2, 3])
    path, taken = columns(np.array([0, 3, 6]), index, np.ones(6), 4)
    wide = binding(path, taken, np.array([3.0, 3.0, 6.0, 10.0, np.inf]))
    assert wide.tolist() == [True, True, False, False, False]
    narrow = binding(path, taken, np.array([3.0, 3.0, 5.9, 10.0, np.inf]))
    assert narrow.tolist() == [True, True, True, False, False]


def test_of_two_equal_resources_in_series_one_stays() -> None:
    path, taken = columns(np.array([0, 2]), np.array([0, 1]), np.ones(2), 2)
    kept = binding(path, taken, np.array([4.0, 4.0, np.inf]))
    assert kept.sum() == 1
    path, taken = restrict(path, taken, kept)
    assert fill(path, taken, np.array([4.0, 4.0, np.inf]))[0].tolist() == [4.0]


def test_resources_bind_again_when_flows_come_that_avoid_what_excused_them() -> None:
    """In whatever order, and however long their rows are."""
    capacity = np.array([10.0, 2.0, 2.0, np.inf])
    behind = columns(np.array([0, 2]), np.array([0, 1]), np.ones(2), 3)
    around = columns(np.array([0, 1]), np.array([0]), np.ones(1), 3)
    for order in ([behind, around], [around, behind]):
        known = Binding(capacity)
        for path, taken in order:
            known.add(path, taken)
        assert known.kept.tolist() == [True, True, False, False]
    known = Binding(capacity)
    known.add(*behind)
    assert known.kept.tolist() == [False, True, False, False]


def test_flows_added_piece_by_piece_keep_enough_resources() -> None:
    rng = np.random.default_rng(8)
    for _ in range(300):
        resources, flows = int(rng.integers(1, 9)), int(rng.integers(1, 12))
        capacity = np.append(rng.choice([1.0, 2.0, 3.0, 4.0], resources), np.inf)
        rows = [rng.permutation(resources)[: rng.integers(1, 5)] for _ in range(flows)]
        indptr = np.append(0, np.cumsum([len(row) for row in rows]))
        weight = rng.choice([0.5, 1.0, 2.0], indptr[-1])
        path, taken = columns(indptr, np.concatenate(rows), weight, resources)
        known = Binding(capacity)
        for flow in range(flows):
            width = len(rows[flow])
            known.add(path[:width, [flow]], taken[:width, [flow]])
        few_path, few_taken = restrict(path, taken, known.kept)
        np.testing.assert_allclose(
            fill(few_path, few_taken, capacity)[0], fill(path, taken, capacity)[0], rtol=1e-12
        )


def test_a_resource_crossed_twice_does_not_excuse_itself() -> None:
    # The flow takes 0.5 and 1 of resource 0, and its share of resource 1 keeps only the second below 0.4.
    path, taken = columns(np.array([0, 3]), np.array([0, 0, 1]), np.array([0.5, 1.0, 1.0]), 2)
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        kept = binding(path[order], taken[order], np.array([1.0, 0.7, np.inf]))
        few, weights = restrict(path[order], taken[order], kept)
        rate = fill(few, weights, np.array([1.0, 0.7, np.inf]))[0]
        assert rate.tolist() == pytest.approx([1 / 1.5])
