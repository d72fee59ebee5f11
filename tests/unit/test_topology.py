"""Topology: frozen columns, the networkx view, faults."""

from __future__ import annotations

import numpy as np
import pytest

from moesim import fabrics
from moesim.errors import InputError
from moesim.topology import Device, Tier, Topology

CLOS = {
    "fabric": {
        "kind": "clos",
        "hosts": 2,
        "devices_per_host": 2,
        "port": {"capacity": "10GB/s", "latency": "1us"},
        "uplink": {"capacity": "15GB/s"},
        "source": "example",
        "grade": "assumed",
    }
}


def dead(pod: Topology) -> set[str]:
    """Names of the directed links that carry nothing."""
    return {name for name, c in zip(pod.link_names(), pod.link_capacity, strict=True) if c == 0}


@pytest.fixture
def clos() -> Topology:
    return fabrics.load(CLOS)


def test_columns_cannot_be_written(clos: Topology) -> None:
    with pytest.raises(ValueError, match="read-only"):
        clos.link_capacity[0] = 1.0


def test_the_two_ways_of_a_link_are_neighbours(clos: Topology) -> None:
    assert np.array_equal(clos.link_src[0::2], clos.link_dst[1::2])
    assert np.array_equal(clos.link_dst[0::2], clos.link_src[1::2])


def test_graph_sums_parallel_links() -> None:
    link = {"a": "x", "b": "y", "capacity": "1GB/s", "count": 3}
    other = {"a": "y", "b": "x", "capacity": "2GB/s", "latency": "5us"}
    spec = {
        "kind": "graph",
        "devices": ["x", "y"],
        "links": [link, other],
        "source": "example",
        "grade": "spec",
    }
    graph = fabrics.load({"fabric": spec}).graph()
    assert graph.edges["x", "y"] == {"capacity": 5e9, "latency": 5e-6, "kind": "link", "count": 4}


def test_injection_counts_ports_once(clos: Topology) -> None:
    assert clos.injection() == 4 * 10e9


def test_engine_of_stores_is_the_writing_one() -> None:
    device = Device("x", 1, "core", {}, 1, 1, 1, 1, engines={"write": {Tier.HOST: 5.0}, "read": {}})
    assert device.engine("store") == device.engine("bulk") == device.engine("write") == {Tier.HOST: 5.0}
    assert device.engine("read") == {}


@pytest.mark.parametrize("target", ["d1--host0/switch", "host0/switch--d1", 1])
def test_a_link_fault_takes_both_ways_and_nothing_else(clos: Topology, target: str | int) -> None:
    faulty = clos.with_faults([{"link": target}])
    assert dead(faulty) == {"d1--host0/switch", "host0/switch--d1"}
    assert faulty.graph().number_of_edges() == clos.graph().number_of_edges() - 2


def test_a_degraded_chip_scales_the_links_it_has(clos: Topology) -> None:
    faulty = clos.with_faults([{"chip": "core", "capacity": "40%"}])
    assert dead(faulty) == set()
    assert set(faulty.link_capacity[faulty.links_of("uplink")]) == {6e9}
    assert set(faulty.link_capacity[faulty.links_of("port")]) == {10e9}
    assert faulty.faults == ("chip core at 0.4 of its capacity",)


def test_faults_multiply(clos: Topology) -> None:
    both = [{"chip": "core", "capacity": 0.5}, {"link": "core--host0/switch", "capacity": "50%"}]
    faulty = clos.with_faults(both)
    assert sorted(set(faulty.link_capacity)) == [3.75e9, 7.5e9, 10e9]


def test_a_rank_is_counted_on_its_devices(clos: Topology) -> None:
    faulty = clos.with_faults([{"rank": 0}], np.array([3, 2]))
    assert dead(faulty) == {"d3--host1/switch", "host1/switch--d3"}


def test_faults_one_by_one_are_faults_at_once(clos: Topology) -> None:
    """Numbers count the links of the healthy pod, whatever failed before."""
    faults: list[dict[str, object]] = [{"rank": 2}, {"link": 1}, {"link": 1, "capacity": "10%"}, {"link": 3}]
    step = clos
    for fault in faults:
        step = step.with_faults([fault])
    at_once = clos.with_faults(faults)
    assert np.array_equal(step.link_capacity, at_once.link_capacity)
    assert step.faults == at_once.faults
    assert len(dead(step)) == 6


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"chip": "cores"}, "unknown chip 'cores'"),
        ({"chip": 99}, "unknown chip '99'"),
        ({"link": "d0--d1"}, "unknown link 'd0--d1'"),
        ({"nic": "host0/nic0"}, "this pod has no nic"),
        ({"plane": 0}, "this pod has no plane"),
        ({"rank": 4}, "unknown rank '4'"),
        ({"chip": "core", "capacity": "140%"}, "legal: 0%, or 0.0001% to 100%"),
        ({"chip": "core", "capacity": "1e-9%"}, "legal: 0%, or 0.0001% to 100%"),
        ({"chip": "core", "capacity": "1GB/s"}, "ratio|%"),
        ({"switch": "core"}, "not a fault"),
        ({"chip": "core", "link": "d0--core"}, "not a fault"),
        ({"capacity": "10%"}, "not a fault"),
    ],
)
def test_a_fault_that_names_nothing_is_refused(
    clos: Topology, fault: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        clos.with_faults([fault])


def test_all_wrong_faults_are_named_at_once(clos: Topology) -> None:
    with pytest.raises(InputError) as caught:
        clos.with_faults([{"chip": "croe"}, {"rank": 9}])
    assert len(caught.value.problems) == 2
    assert "did you mean core" in str(caught.value)
