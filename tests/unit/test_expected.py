from __future__ import annotations

import numpy as np
import pytest

from moesim import expected, moe, traffic
from moesim.balancers import static_assignment
from moesim.placement import Placement


def test_visited_is_the_closed_form_of_the_model_s_own_gate() -> None:
    v3 = moe.load("deepseek-v3")
    assert expected.visited(v3, 8) == traffic.expected_groups_limited(8, 256, 8, 8, 4)
    lite = moe.load("deepseek-v2-lite")
    assert expected.visited(lite, 8) == traffic.expected_groups(8, 64, 6)


def test_groups_that_do_not_divide_fall_back_to_the_unrestricted_gate() -> None:
    v2 = moe.load("deepseek-v2")
    assert (v2.experts, v2.n_group) == (160, 8)
    assert expected.visited(v2, 20) == traffic.expected_groups(20, 160, 6)
    assert expected.visited(v2, 16) < traffic.expected_groups(16, 160, 6)


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_uniform_counts_agree_with_a_large_draw(ranks: int) -> None:
    lite = moe.load("deepseek-v2-lite")
    tokens = 400
    host = np.arange(ranks) // 4
    _, found = expected.uniform(lite, tokens, host, host)
    rng = np.random.default_rng(1)
    ids = rng.random((tokens * ranks, lite.experts)).argsort(axis=1)[:, : lite.top_k]
    drawn = traffic.count(
        static_assignment(Placement.contiguous(lite.experts, ranks), ids), ranks, host, host
    )
    for name in ("entries_to", "rows", "rows_host", "rows_domain", "load", "tokens"):
        ours, theirs = getattr(found, name), getattr(drawn, name)
        assert ours.shape == theirs.shape, name
        # The mean over all ranks, within five standard deviations of a binomial count.
        assert ours.sum() == pytest.approx(theirs.sum(), abs=5 * np.sqrt(theirs.sum()) + ranks**2), name


def test_sums_are_the_expectation_to_within_one() -> None:
    v3 = moe.load("deepseek-v3")
    _, found = expected.uniform(v3, 3, np.zeros(64, dtype=np.int64), np.zeros(64, dtype=np.int64))
    assert (found.entries.sum(axis=1) == 24).all()
    assert (found.entries_to.sum(axis=1) == 24).all()
    for axis in (0, 1):
        assert np.abs(found.rows.sum(axis=axis) - 3 * expected.visited(v3, 64)).max() < 1
    assert found.load.sum() == 3 * 8 * 64


def test_no_tokens_send_nothing() -> None:
    lite = moe.load("deepseek-v2-lite")
    _, found = expected.uniform(lite, 0, np.arange(8), np.arange(8))
    assert found.entries.sum() == found.rows.sum() == found.rows_host.sum() == 0


def test_hosts_of_unequal_size_are_reached_by_more_or_fewer_tokens() -> None:
    lite = moe.load("deepseek-v2-lite")
    host = np.array([0, 0, 0, 1, 2, 2, 2, 2])
    _, found = expected.uniform(lite, 1000, host, host)
    one = 1 - np.prod([(64 - 8 - j) / (64 - j) for j in range(6)])
    assert found.rows_host[0, 1] == round(1000 * one)
    assert found.rows_host[0, 1] < found.rows_host[0, 0] < found.rows_host[0, 2]


@pytest.mark.parametrize(("mean", "rows", "columns"), [(0.3, 7, 7), (2.0, 4, 8), (1.75, 16, 64), (0.0, 3, 3)])
def test_spread_keeps_row_sums_and_stays_next_to_the_mean(mean: float, rows: int, columns: int) -> None:
    found = expected.spread(mean, rows, columns)
    assert np.abs(found.sum(axis=1) - mean * columns).max() < 1
    assert np.abs(found.sum(axis=0) - mean * rows).max() < 1
    assert found.min() >= np.floor(mean)
    assert found.max() <= np.ceil(mean)


@pytest.mark.parametrize(("ranks", "tokens"), [(4, 64), (8, 64), (16, 64), (16, 1), (64, 3)])
def test_balanced_pairs_exchange_the_same(ranks: int, tokens: int) -> None:
    """Every token visits min(R, 8) ranks, so a pair exchanges tokens x min(R, 8) / R rows, to within one."""
    v3 = moe.load("deepseek-v3")
    host = np.arange(ranks) // 4
    _, found = expected.balanced(v3, tokens, host, np.zeros_like(host), tokens * 8)
    each = tokens * min(ranks, 8) / ranks
    assert np.abs(found.rows - each).max() < 1
    assert np.abs(found.entries_to - tokens * 8 / ranks).max() <= 1
    for axis in (0, 1):
        assert (found.rows.sum(axis=axis) == tokens * min(ranks, 8)).all()
        assert (found.entries_to.sum(axis=axis) == tokens * 8).all()
    hosts = ranks // 4
    assert np.abs(found.rows_host - tokens * min(1, min(ranks, 8) / hosts)).max() <= 0.5
    assert (found.rows_domain == tokens).all()
    assert (found.tokens == tokens).all()


def test_balanced_with_masked_selections_has_fewer_entries_and_as_many_rows() -> None:
    v3 = moe.load("deepseek-v3")
    host = np.zeros(8, dtype=np.int64)
    _, found = expected.balanced(v3, 128, host, host, 1014)
    assert (found.entries.sum(axis=1) == 1014).all()
    assert (found.rows == 128).all()
