"""Traffic: by hand, by enumeration, against closed forms and against logged ratios."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from moesim import traffic
from moesim.balancers import static_assignment
from moesim.balancers.none import Contiguous
from moesim.errors import InputError
from moesim.placement import Placement


def count_contiguous(ids, ranks, experts, host=None, domain=None):
    one = np.zeros(ranks, dtype=np.int64)
    assignment = Contiguous().balance(ids, ranks, experts, np.random.default_rng(0))
    return traffic.count(assignment, ranks, one if host is None else host, one if domain is None else domain)


def picks(rng, tokens, experts, top_k):
    """Tokens with K distinct experts, all sets equally likely."""
    return rng.random((tokens, experts)).argpartition(top_k, axis=1)[:, :top_k]


# By hand: 4 ranks with 2 experts each, 1 token a rank; hosts {0, 1} and {2, 3}.
IDS = np.array([[0, 1, 2], [2, 5, 7], [4, 5, 0], [1, 3, 5]])
HOST = np.array([0, 0, 1, 1])


def test_counts_by_hand():
    counted = count_contiguous(IDS, 4, 8, HOST, np.arange(4))
    assert counted.entries_to.tolist() == [[2, 1, 0, 0], [0, 1, 1, 1], [1, 0, 2, 0], [1, 1, 1, 0]]
    assert counted.rows.tolist() == [[1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 1, 0], [1, 1, 1, 0]]
    assert counted.rows_host.tolist() == [[1, 0], [1, 1], [1, 1], [1, 1]]
    assert counted.rows_domain.tolist() == counted.rows.tolist()
    assert counted.load.tolist() == [4, 3, 4, 1]
    assert counted.expert_counts.tolist() == [2, 2, 2, 1, 1, 3, 0, 1]
    assert counted.tokens.tolist() == [1, 1, 1, 1]


def test_shares_by_hand():
    counted = count_contiguous(IDS, 4, 8, HOST, np.array([0, 0, 0, 1]))
    reach = {name: rows.tolist() for name, rows in counted.by_reach(counted.rows).items()}
    assert reach == {
        "rank": [1, 1, 1, 0],
        "host": [1, 0, 0, 1],
        "domain": [0, 1, 1, 0],
        "beyond": [0, 1, 0, 2],
    }


def test_off_own():
    counted = count_contiguous(IDS, 4, 8, HOST)
    assert traffic.off_own(counted.rows).tolist() == [[0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0]]
    assert traffic.off_own(counted.rows_host, HOST).tolist() == [[0, 0], [0, 1], [1, 0], [1, 0]]
    assert counted.rows[0, 0] == 1


def test_by_tier():
    tier = np.array([[0, 1, 4], [1, 0, 3], [4, 2, 0]], dtype=np.int8)
    sums = traffic.by_tier(np.arange(9.0).reshape(3, 3), tier)
    assert sums == {"self": 12.0, "device": 4.0, "host": 7.0, "domain": 5.0, "scale_out": 8.0}


def test_by_tier_of_one_rank():
    assert traffic.by_tier(np.array([[7]]), np.zeros((1, 1), dtype=np.int8)) == {
        "self": 7.0,
        "device": 0.0,
        "host": 0.0,
        "domain": 0.0,
        "scale_out": 0.0,
    }


def test_replicas_are_counted_where_the_entry_goes():
    placement = Placement(
        np.array([0, 1, -1, 1, 0, 0]), np.array([1, 0, 0, 1, 0, 1]), experts=2, ranks=2, home=np.array([1, 0])
    )
    counted = traffic.count(
        static_assignment(placement, np.array([[0, 3], [4, 5]])), 2, np.array([0, 0]), np.array([0, 1])
    )
    assert counted.entries.tolist() == [[1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 1]]
    assert counted.entries_to.tolist() == [[0, 2], [1, 1]]
    assert counted.rows.tolist() == [[0, 1], [1, 1]]
    assert counted.rows_host.tolist() == [[1], [1]]
    assert counted.expert_counts.tolist() == [3, 1]


def test_more_ranks_than_a_byte_counts():
    counted = count_contiguous(
        np.tile([[0, 256, 299]], (300, 1)), 300, 300, np.arange(300), np.arange(300) // 150
    )
    assert np.unique(np.nonzero(counted.rows)[1]).tolist() == [0, 256, 299]
    assert counted.rows_host.tolist() == counted.rows.tolist()
    assert counted.rows_domain.tolist() == [[1, 1]] * 300


def test_zero_tokens():
    counted = count_contiguous(np.empty((0, 2), dtype=np.int64), 4, 8, HOST)
    assert counted.rows.shape == (4, 4)
    assert counted.rows_host.shape == (4, 2)
    assert not counted.rows.any()
    assert not counted.entries.any()
    assert traffic.rows_imbalance(counted) == 1.0


@pytest.mark.parametrize(
    ("ranks", "hosts", "tokens"), [(3, 3, 4), (2, 2, 3), (2, 3, 2)], ids=["ranks", "tokens", "hosts"]
)
def test_sizes_that_disagree_are_refused(ranks, hosts, tokens):
    assignment = static_assignment(Placement.contiguous(4, 2), np.zeros((tokens, 1), dtype=np.int64))
    with pytest.raises(ValueError, match=f"{hosts}"):
        traffic.count(assignment, ranks, np.zeros(hosts, dtype=np.int64), np.zeros(ranks, dtype=np.int64))


def test_imbalance():
    assert traffic.rank_imbalance(np.array([4, 1, 1, 2])) == 2.0
    assert traffic.rank_imbalance(np.zeros(3)) == 1.0
    assert traffic.maxvio(np.array([1, 0, 5, 2])) == 1.5
    assert traffic.maxvio(np.zeros(4, dtype=np.int64)) == 0.0
    # Rows received: 3, 3, 3, 1.
    assert traffic.rows_imbalance(count_contiguous(IDS, 4, 8)) == pytest.approx(3 / 2.5)


# Closed forms.


@pytest.mark.parametrize(
    ("hosts", "unrestricted", "limited"), [(2, 1.993, 1.926), (4, 3.614, 2.928), (8, 5.295, 3.629)]
)
def test_published_hosts_visited(hosts, unrestricted, limited):
    """DeepSeek-V3's sizes: 256 experts, top 8, 4 of 8 groups kept."""
    assert round(traffic.expected_groups(hosts, 256, 8), 3) == unrestricted
    assert round(traffic.expected_groups_limited(hosts, 256, 8, n_group=8, topk_group=4), 3) == limited


@pytest.mark.parametrize(
    ("ep", "ratio", "logged"), [(16, 3.273, (3.264, 3.275)), (32, 2.011, (1.998, 2.017))]
)
def test_nvlink_to_rdma_ratio_that_users_log(ep, ratio, logged):
    """Rows over NVLink per row over RDMA in DeepEP: distinct ranks per distinct hosts of 8."""
    predicted = traffic.expected_groups(ep, 256, 8) / traffic.expected_groups(ep // 8, 256, 8)
    assert round(predicted, 3) == ratio
    counted = count_contiguous(
        picks(np.random.default_rng(1), 1024 * ep, 256, 8), ep, 256, host=np.arange(ep) // 8
    )
    measured = counted.rows.sum() / counted.rows_host.sum()
    assert measured == pytest.approx(predicted, rel=4e-3)
    assert logged[0] <= predicted <= logged[1]


@pytest.mark.parametrize("top_k", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_closed_form_by_enumeration(groups, top_k):
    """Each set of K of 6 experts once: the rows are the closed form times the number of sets."""
    ids = np.array(list(combinations(range(6), top_k)))
    every = np.tile(ids, (groups, 1))
    counted = count_contiguous(every, groups, 6)
    per_token = counted.rows.sum(axis=1) / len(ids)
    assert per_token == pytest.approx(traffic.expected_groups(groups, 6, top_k), rel=1e-14)


@pytest.mark.parametrize(("topk_group", "top_k"), [(1, 1), (1, 2), (2, 1), (2, 3), (2, 4), (3, 4), (4, 5)])
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_group_limited_form_by_enumeration(groups, topk_group, top_k):
    """4 expert groups of 2: each choice of kept groups, each set of K of their experts, once."""
    ids = [
        chosen
        for kept in combinations(range(4), topk_group)
        for chosen in combinations([e for group in kept for e in (2 * group, 2 * group + 1)], top_k)
    ]
    counted = count_contiguous(np.tile(ids, (groups, 1)), groups, 8)
    expected = traffic.expected_groups_limited(groups, 8, top_k, n_group=4, topk_group=topk_group)
    assert counted.rows.sum(axis=1) / len(ids) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("groups", [2, 8, 64])
def test_all_groups_kept_is_no_limit(groups):
    limited = traffic.expected_groups_limited(groups, 256, 8, n_group=8, topk_group=8)
    assert limited == pytest.approx(traffic.expected_groups(groups, 256, 8), rel=1e-14)


def within_five_errors(per_rank_rows, tokens, expected):
    """Mean over ranks within five standard errors of ``expected``, all five below one percent."""
    mean = per_rank_rows / tokens
    error = mean.std(ddof=1) / np.sqrt(len(mean))
    assert 0 < 5 * error < 0.01 * expected
    assert abs(mean.mean() - expected) < 5 * error


@pytest.mark.parametrize(("experts", "top_k"), [(256, 8), (128, 6), (192, 4)])
def test_uniform_gate_meets_the_closed_form(experts, top_k):
    ranks, tokens = 64, 400
    ids = picks(np.random.default_rng(7), ranks * tokens, experts, top_k)
    counted = count_contiguous(ids, ranks, experts, np.arange(ranks) // 8, np.arange(ranks) // 16)
    within_five_errors(counted.rows.sum(axis=1), tokens, traffic.expected_groups(64, experts, top_k))
    within_five_errors(counted.rows_host.sum(axis=1), tokens, traffic.expected_groups(8, experts, top_k))
    within_five_errors(counted.rows_domain.sum(axis=1), tokens, traffic.expected_groups(4, experts, top_k))


@pytest.mark.parametrize("hosts", [2, 4, 8, 16])
def test_group_limited_gate_meets_the_closed_form(hosts):
    ranks, tokens, rng = 64, 400, np.random.default_rng(11)
    kept = picks(rng, ranks * tokens, 8, 4)
    within = picks(rng, ranks * tokens, 4 * 32, 8)
    ids = np.take_along_axis(kept, within // 32, axis=1) * 32 + within % 32
    counted = count_contiguous(ids, ranks, 256, np.arange(ranks) // (ranks // hosts))
    limited = traffic.expected_groups_limited(hosts, 256, 8, 8, 4)
    within_five_errors(counted.rows_host.sum(axis=1), tokens, limited)
    # The closed form of the unrestricted gate is far off here: the counter tells the two apart.
    assert traffic.expected_groups(hosts, 256, 8) / limited > 1.03


@pytest.mark.parametrize(
    ("groups", "experts", "top_k"), [(3, 256, 8), (0, 256, 8), (512, 256, 8), (8, 256, 257), (8, 256, 0)]
)
def test_impossible_gates_are_refused(groups, experts, top_k):
    with pytest.raises(InputError):
        traffic.expected_groups(groups, experts, top_k)
    with pytest.raises(InputError):
        traffic.expected_groups_limited(groups, experts, top_k, 8, 8)


@pytest.mark.parametrize(
    ("groups", "top_k", "n_group", "topk_group"),
    [(8, 8, 8, 9), (8, 8, 8, 0), (8, 8, 0, 0), (8, 8, 7, 4), (8, 33, 8, 1), (16, 4, 24, 4), (16, 4, 3, 2)],
)
def test_impossible_group_limits_are_refused(groups, top_k, n_group, topk_group):
    with pytest.raises(InputError):
        traffic.expected_groups_limited(groups, 48 if n_group in (24, 3) else 256, top_k, n_group, topk_group)
