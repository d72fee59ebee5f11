"""Routes: resources, shares, latencies, engines, faults."""

from __future__ import annotations

import numpy as np
import pytest

from moesim import fabrics
from moesim.errors import InputError
from moesim.ranks import place
from moesim.routing import Routes, routes
from moesim.topology import Tier, Topology

GB = 1e9


def row(found: Routes, src: int, dst: int) -> dict[str, float]:
    """Resource name -> units of it per wire byte."""
    _, index, weight = found.rows(np.array([src * found.ranks + dst]))
    return {found.names[i]: float(w) for i, w in zip(index, weight, strict=True)}


def ceiling(found: Routes, pairs: list[tuple[int, int]], kind: str | None = None) -> float:
    """Largest common rate [B/s] of flows between ``pairs``, over the resources of one kind or all."""
    demand = np.zeros(len(found.names))
    _, index, weight = found.rows(np.array([s * found.ranks + d for s, d in pairs]))
    np.add.at(demand, index, weight)
    of_kind = np.array([kind in (None, k) for k in found.kinds]) & (demand > 0)
    return float((found.capacity[of_kind] / demand[of_kind]).min())


@pytest.fixture(scope="module")
def cm384() -> Topology:
    return fabrics.load("cloudmatrix384")


@pytest.fixture(scope="module")
def two_hosts(cm384: Topology) -> Routes:
    return routes(cm384, place(cm384, 32), "write")


def test_a_flow_takes_few_resources(two_hosts: Routes) -> None:
    assert row(two_hosts, 0, 1) == {
        "die0 sibling to die1": 1,
        "die0 write engine": pytest.approx(1 / (210 * GB)),
    }
    assert row(two_hosts, 0, 2).keys() == {"die0 lane up", "die2 lane down", "die0 write engine"}
    expected = {"die0 lane up", "host0 trunk up", "host1 trunk down", "die20 lane down", "die0 write engine"}
    assert row(two_hosts, 0, 20).keys() == expected


def test_merged_links_have_their_summed_capacity(two_hosts: Routes) -> None:
    capacity = dict(zip(two_hosts.names, two_hosts.capacity, strict=True))
    assert capacity["die0 lane up"] == pytest.approx(196 * GB)
    assert capacity["host0 trunk up"] == pytest.approx(3136 * GB)
    assert capacity["die0 sibling to die1"] == pytest.approx(270 * GB)


@pytest.mark.parametrize(
    ("access", "rates"),
    [("write", (210, 137, 135)), ("read", (210, 167, 164)), ("store", (210, 137, 135))],
)
def test_engines_limit_by_tier(cm384: Topology, access: str, rates: tuple[float, ...]) -> None:
    found = routes(cm384, place(cm384, 32), access)
    assert [ceiling(found, [(0, d)]) for d in (1, 2, 16)] == pytest.approx([r * GB for r in rates])


def test_a_writer_is_limited_as_source_and_a_reader_as_destination(cm384: Topology) -> None:
    fan_in = [(s, 0) for s in (2, 4)]
    fan_out = [(0, d) for d in (2, 4)]
    write, read = (routes(cm384, place(cm384, 16), access) for access in ("write", "read"))
    assert ceiling(write, fan_out, "engine") == pytest.approx(137 / 2 * GB)
    assert ceiling(write, fan_in, "engine") == pytest.approx(137 * GB)
    assert ceiling(read, fan_in, "engine") == pytest.approx(167 / 2 * GB)
    assert ceiling(read, fan_out, "engine") == pytest.approx(167 * GB)


@pytest.mark.parametrize(
    ("profile", "one", "two", "sibling"),
    [("cm384", 1.3, 2.1, 0.2), ("ubep", 0.929, 2.5, 0.218), ("strata", 0.7, 2.1, 0.2)],
)
def test_latency_profiles_add_up_along_the_path(profile: str, one: float, two: float, sibling: float) -> None:
    pod = fabrics.load({"name": "cloudmatrix384", "latency": profile})
    found = routes(pod, place(pod, 32), "write")
    assert found.latency[0, [0, 1, 2, 16]] == pytest.approx(np.array([0, sibling, one, two]) * 1e-6)


@pytest.mark.parametrize(
    ("profile", "one", "two", "sibling"),
    [("cm384", 1.2, 1.9, 0.2), ("ubep", 0.929, 2.5, 0.218), ("strata", 0.7, 2.1, 0.2)],
)
def test_reads_have_their_own_latency_where_it_is_published(
    profile: str, one: float, two: float, sibling: float
) -> None:
    pod = fabrics.load({"name": "cloudmatrix384", "latency": profile})
    found = routes(pod, place(pod, 32), "read")
    assert found.latency[0, [0, 1, 2, 16]] == pytest.approx(np.array([0, sibling, one, two]) * 1e-6)


def test_tiers(two_hosts: Routes) -> None:
    assert two_hosts.tier[0, [0, 1, 2, 16]].tolist() == [Tier.SELF, Tier.DEVICE, Tier.HOST, Tier.DOMAIN]
    pod = fabrics.load("h100-ib")
    found = routes(pod, place(pod, 16), "store")
    assert found.tier[0, [0, 1, 8]].tolist() == [Tier.SELF, Tier.HOST, Tier.SCALE_OUT]


def test_own_rank_takes_nothing(two_hosts: Routes) -> None:
    assert all(row(two_hosts, r, r) == {} for r in range(32))


@pytest.mark.parametrize(("access", "share"), [("store", 0.8), ("bulk", 256 / 288), ("write", 0.8)])
def test_nvlink_capacity_is_what_packets_leave(access: str, share: float) -> None:
    pod = fabrics.load("gb200-nvl72")
    found = routes(pod, place(pod, 72), access)
    assert found.capacity == pytest.approx(900 * GB * share)
    assert found.raw_rate == pytest.approx(900 * GB)


def test_planes_striped_evenly_are_one_fat_link() -> None:
    pod = fabrics.load("gb200-nvl72")
    port = {
        "capacity": "900GB/s",
        "efficiency": "80%",
        "latency": "0.4325us",
        "source": "example",
        "grade": "spec",
    }
    fat = fabrics.load(
        {"fabric": {"kind": "crossbar", "devices": 72, "devices_per_host": 4, "prefix": "gpu", "port": port}}
    )
    ours, theirs = (routes(p, place(p, 72), "store") for p in (pod, fat))
    assert np.array_equal(ours.index, theirs.index)
    assert np.allclose(ours.capacity, theirs.capacity)
    assert np.allclose(ours.weight, theirs.weight)
    assert np.allclose(ours.latency, theirs.latency)


def test_rails_meet_on_a_leaf_and_cross_on_the_spine() -> None:
    pod = fabrics.load("h100-ib")
    found = routes(pod, place(pod, 16), "store")
    same, cross = row(found, 0, 8), row(found, 0, 9)
    assert not any("spine" in name for name in same)
    assert sum(weight for name, weight in cross.items() if "spine" in name) == pytest.approx(2)
    assert ceiling(found, [(0, 8)]) == pytest.approx(48 * GB)
    assert found.latency[0, [1, 8, 9]] == pytest.approx(np.array([0.413, 1.85, 3.2]) * 1e-6)


def test_one_rack_of_several_is_nvl72_and_the_next_is_behind_the_nics() -> None:
    pod = fabrics.load({"name": "gb200-nvl72-racks", "hosts": 20})
    found = routes(pod, place(pod, 80), "store")
    assert np.bincount(found.domain).tolist() == [72, 8]
    alone = fabrics.load("gb200-nvl72")
    rack = routes(alone, place(alone, 72), "store")
    assert found.latency[:72, :72] == pytest.approx(rack.latency)
    assert ceiling(found, [(0, 71)]) == pytest.approx(ceiling(rack, [(0, 71)]))
    # Each GPU has a NIC of its own.
    assert ceiling(found, [(src, 72 + src % 8) for src in range(8)]) == pytest.approx(48 * GB)
    assert found.latency[0, 72] == pytest.approx(3.2e-6)


def test_nic_message_rate_is_a_resource_of_the_sender() -> None:
    fabric = {"kind": "rails", "hosts": 2, "devices_per_host": 2, "source": "example", "grade": "spec"}
    fabric["scale_up"] = {"kind": "mesh", "capacity": "100GB/s"}
    fabric["nic"] = {"capacity": "50GB/s", "message_rate": "200M/s"}
    fabric["spine"] = {"chips": 1}
    pod = fabrics.load({"fabric": fabric})
    found = routes(pod, place(pod, 4), "write")
    used = found.message_resource[0, 2]
    assert found.names[used] == "host0/nic0 messages"
    assert (found.kinds[used], found.capacity[used]) == ("messages", 1.0)
    assert found.message_cost[0, 2] == pytest.approx(5e-9)
    assert found.message_resource[2, 0] != used
    assert found.message_resource[0, 1] == -1


def test_without_message_rates_nothing_is_limited(two_hosts: Routes) -> None:
    assert (two_hosts.message_resource == -1).all()
    assert "messages" not in two_hosts.kinds


def test_rows_picks_in_the_order_asked(two_hosts: Routes) -> None:
    pairs = np.array([20, 1, 20])
    indptr, index, weight = two_hosts.rows(pairs)
    for i, pair in enumerate(pairs):
        at = slice(two_hosts.indptr[pair], two_hosts.indptr[pair + 1])
        assert np.array_equal(index[indptr[i] : indptr[i + 1]], two_hosts.index[at])
        assert np.array_equal(weight[indptr[i] : indptr[i + 1]], two_hosts.weight[at])


def test_unknown_access_is_refused(cm384: Topology) -> None:
    with pytest.raises(InputError, match="unknown access 'stroe'"):
        routes(cm384, place(cm384, 2), "stroe")


def test_names_are_unique(cm384: Topology) -> None:
    faulty = cm384.with_faults([{"chip": "plane2/l2.3"}, {"link": "die3--host0/l1.5", "capacity": "50%"}])
    for pod in (cm384, faulty, fabrics.load("h100-ib"), fabrics.load("gb200-nvl576")):
        found = routes(pod, place(pod, 64), "write")
        assert len(set(found.names)) == len(found.names)


BETWEEN = [(s, 16 + d) for s in range(16) for d in range(16)]
"""All pairs from the first host of CloudMatrix384 to the second."""


class TestFaults:
    def test_one_failed_second_tier_chip(self, cm384: Topology) -> None:
        faulty = cm384.with_faults([{"chip": "plane2/l2.3"}])
        found = routes(faulty, place(faulty, 32), "write")
        total = ceiling(found, BETWEEN, "trunk") * len(BETWEEN)
        assert total == pytest.approx(3136 * GB * 111 / 112)
        # Equal shares by path: the slow plane keeps 15 of 111 of the bytes, the others 16 of 111.
        assert ceiling(found, [(0, 16)], "lane") == pytest.approx(28 * GB * 111 / 16)
        shares = sorted(w for name, w in row(found, 0, 16).items() if name.startswith("die0 lane"))
        assert shares == pytest.approx([15 / 111, 96 / 111])

    def test_a_fault_splits_only_what_it_must(self, cm384: Topology) -> None:
        healthy = routes(cm384, place(cm384, 32), "write")
        faulty = routes(cm384.with_faults([{"chip": "plane2/l2.3"}]), place(cm384, 32), "write")
        # Lanes of 32 dies and trunks of 2 hosts, up and down, part into the slow plane and the rest.
        assert len(faulty.names) - len(healthy.names) == 2 * (32 + 2)

    def test_a_fault_elsewhere_changes_nothing(self, cm384: Topology) -> None:
        healthy = routes(cm384, place(cm384, 16), "write")
        faulty = routes(cm384.with_faults([{"chip": "host9/l1.2"}]), place(cm384, 16), "write")
        assert healthy.names == faulty.names
        assert np.array_equal(healthy.capacity, faulty.capacity)

    def test_one_failed_lane(self, cm384: Topology) -> None:
        faulty = cm384.with_faults([{"link": "die0--host0/l1.4"}])
        found = routes(faulty, place(faulty, 32), "write")
        assert ceiling(found, [(0, 2)], "lane") == pytest.approx(168 * GB)
        assert ceiling(found, [(2, 0)], "lane") == pytest.approx(168 * GB)
        assert ceiling(found, [(0, 16)], "lane") == pytest.approx(168 * GB)
        assert ceiling(found, [(2, 4)], "lane") == pytest.approx(196 * GB)

    def test_one_lost_plane(self, cm384: Topology) -> None:
        faulty = cm384.with_faults([{"plane": 6}])
        found = routes(faulty, place(faulty, 32), "write")
        assert ceiling(found, [(0, 16)], "lane") == pytest.approx(168 * GB)
        assert ceiling(found, BETWEEN, "trunk") * 256 == pytest.approx(3136 * GB * 6 / 7)

    def test_a_degraded_lane_stays_in_the_spray(self, cm384: Topology) -> None:
        faulty = cm384.with_faults([{"link": "die0--host0/l1.4", "capacity": "50%"}])
        found = routes(faulty, place(faulty, 32), "write")
        assert ceiling(found, [(0, 2)], "lane") == pytest.approx(7 * 14 * GB)

    def test_a_failed_nvlink_chip_costs_one_in_eighteen(self) -> None:
        pod = fabrics.load("gb200-nvl72").with_faults([{"chip": 7}])
        found = routes(pod, place(pod, 72), "bulk")
        assert found.capacity == pytest.approx(850 * GB * 256 / 288)

    @pytest.mark.parametrize("fault", [{"rank": 5}, {"nic": "host0/nic5"}])
    def test_what_is_cut_off_is_named_with_the_fault(self, fault: dict[str, object]) -> None:
        pod = fabrics.load("h100-ib")
        devices = place(pod, 16, [0, 1, 2, 3, 4, *range(8, 18), 5])[[*range(5), 15, *range(5, 15)]]
        faulty = pod.with_faults([fault], devices)
        with pytest.raises(InputError) as caught:
            routes(faulty, devices, "store")
        kind, name = next(iter(fault.items()))
        assert "rank 5 (gpu5)" in str(caught.value)
        assert f"{kind} {name} removed" in str(caught.value)

    def test_an_unused_dead_rank_does_not_matter(self, cm384: Topology) -> None:
        faulty = cm384.with_faults([{"rank": 700}])
        assert routes(faulty, place(faulty, 32), "write").ranks == 32
