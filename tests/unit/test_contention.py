"""What flows take of the fabric, of cores and of NICs."""

from __future__ import annotations

import numpy as np
import pytest
from small_cases import placed

from moesim.contention import Resources, demand, own_demand
from moesim.plan import FlowSet

CORES = 3


@pytest.fixture
def crossbar():
    return Resources(placed("crossbar", 4, "packed", "store"), CORES)


def taken_by(resources, flows):
    """(F, N) units of each resource that each flow takes in all."""
    found = demand(flows, resources)
    dense = np.zeros((len(flows), len(resources.capacity)))
    np.add.at(dense, (found.flow, found.index), found.amount)
    return dense, found


def test_a_flow_takes_its_ports_and_its_core(crossbar):
    flows = FlowSet.of(
        np.array([0, 0]),
        np.array([1, 2]),
        np.array([100.0, 300.0]),
        core=np.array([2, -1]),
        core_s=np.array([5e-6, 0]),
    )
    dense, found = taken_by(crossbar, flows)
    used = [{crossbar.name(r): dense[f, r] for r in np.flatnonzero(dense[f])} for f in range(2)]
    assert sorted(used[0].values()) == pytest.approx([5e-6, 100.0, 100.0])
    assert used[0]["rank 0 send core 2"] == pytest.approx(5e-6)
    assert sorted(used[1].values()) == pytest.approx([300.0, 300.0])
    assert found.latency.tolist() == [crossbar.routes.latency[0, 1], crossbar.routes.latency[0, 2]]


def test_flows_of_a_rank_share_in_proportion_to_what_they_carry(crossbar):
    """They have one size, what their rank sends, and so take of each resource what they carry of it."""
    flows = FlowSet.of(np.array([0, 0, 1]), np.array([1, 2, 0]), np.array([100.0, 300.0, 50.0]))
    _, found = taken_by(crossbar, flows)
    assert found.size.tolist() == [400.0, 400.0, 50.0]
    assert found.weight[found.flow == 0] == pytest.approx(0.25)
    assert found.weight[found.flow == 2] == pytest.approx(1.0)


def test_wire_not_payload_is_carried(crossbar):
    flows = FlowSet.of(np.array([0]), np.array([1]), np.array([100.0]), wire=np.array([112.0]))
    assert taken_by(crossbar, flows)[0].max() == pytest.approx(112.0)


def test_a_nic_counts_messages():
    """Seven messages at a million a second; another device of the same host is reached without a NIC."""
    routes = placed("rails", 8, "packed", "store")
    flows = FlowSet.of(
        np.array([0, 0]), np.array([4, 1]), np.array([1e4, 1e4]), messages=np.array([7.0, 7.0])
    )
    dense, _ = taken_by(Resources(routes, 1), flows)
    assert dense[:, routes.message_resource[0, 4]] == pytest.approx([7e-6, 0.0])


def test_what_carries_nothing_takes_nothing():
    resources = Resources(placed("rails", 8, "packed", "store"), 1)
    flows = FlowSet.of(np.array([0, 0]), np.array([4, 5]), np.array([0.0, 10.0]))
    dense, found = taken_by(resources, flows)
    assert not dense[0].any()
    assert np.isfinite(found.weight).all()
    assert found.size.tolist() == [0.0, 10.0]


def test_rows_are_the_same_flows_in_another_order(crossbar):
    rng = np.random.default_rng(0)
    src = rng.integers(0, 4, 20)
    flows = FlowSet.of(src, (src + rng.integers(1, 4, 20)) % 4, rng.uniform(1, 9, 20))
    dense, found = taken_by(crossbar, flows)
    chosen = rng.permutation(20)[:9]
    part = found.rows(chosen)
    again = np.zeros((9, dense.shape[1]))
    np.add.at(again, (part.flow, part.index), part.amount)
    assert again == pytest.approx(dense[chosen])
    assert np.array_equal(part.latency, found.latency[chosen])


@pytest.mark.parametrize("pod", ["crossbar", "rails"])
def test_own_demand_is_the_demand_of_the_flows_added_up(pod):
    """Many flows of a pair, some that carry nothing, some on no core, each released at its own moment."""
    ranks, flows = 8, 300
    resources = Resources(placed(pod, ranks, "packed", "store"), CORES)
    rng = np.random.default_rng(0)
    src = rng.integers(1, ranks, flows)
    sent = FlowSet.of(
        src,
        (src + rng.integers(1, ranks - 1, flows)) % ranks,
        rng.uniform(1, 9, flows) * (rng.random(flows) < 0.8),
        messages=rng.uniform(1, 5, flows),
        release=rng.uniform(0, 9e-6, flows),
        core=rng.integers(-1, CORES, flows),
        core_s=rng.uniform(0, 1e-6, flows),
    )
    dense, _ = taken_by(resources, sent)
    seconds = dense / resources.capacity
    found = own_demand(sent, resources)
    assert found.load(resources) == pytest.approx(dense.sum(axis=0))
    for rank in range(ranks):
        for part, end in ((found.outward, sent.src), (found.inward, sent.dst)):
            assert part[rank] == pytest.approx(seconds[end == rank, : resources.fabric].sum(axis=0))
        for other in range(ranks):
            there = (sent.src == rank) & (sent.dst == other)
            slowest = (sent.release + seconds.max(axis=1))[there].max(initial=0.0)
            assert found.alone[rank, other] == pytest.approx(slowest)
            assert found.release[rank, other] == sent.release[there].min(initial=np.inf)
    assert np.isinf(found.release[0]).all()


def test_no_flows(crossbar):
    none = np.empty(0, dtype=np.int64)
    found = demand(FlowSet.of(none, none, none), crossbar)
    assert len(found.index) == len(found.size) == 0


def test_names_and_kinds(crossbar):
    assert crossbar.fabric == len(crossbar.routes.names)
    assert len(crossbar.capacity) == crossbar.fabric + 4 * CORES
    assert crossbar.name(crossbar.fabric + 1 * CORES + 2) == "rank 1 send core 2"
    assert crossbar.kind(crossbar.fabric) == "core"
    assert not crossbar.is_link(crossbar.fabric)
    assert all(crossbar.is_link(i) == (crossbar.routes.raw_rate[i] > 0) for i in range(crossbar.fabric))
    assert crossbar.is_link(0)
    assert (crossbar.capacity[crossbar.fabric :] == 1).all()
