"""The graphs of the shipped pods: counts, degrees, cuts and path counts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from moesim import fabrics
from moesim.errors import InputError
from moesim.ranks import place
from moesim.routing import routes
from moesim.topology import Topology

if TYPE_CHECKING:
    import networkx as nx

GB = 1e9


@pytest.fixture(scope="module")
def cm384() -> Topology:
    return fabrics.load("cloudmatrix384")


@pytest.fixture(scope="module")
def switched(cm384: Topology) -> nx.DiGraph[str]:
    """CloudMatrix384 without sibling links: nobody relays through the other die."""
    graph = cm384.graph()
    siblings = [(a, b) for a, b, kind in graph.edges(data="kind") if kind == "sibling"]
    assert len(siblings) == 2 * 384
    graph.remove_edges_from(siblings)
    return graph


def max_flow(graph: nx.DiGraph[str], sources: list[str], sinks: list[str]) -> float:
    """[B/s] from all of ``sources`` to all of ``sinks``."""
    import networkx as nx

    graph = graph.copy()
    graph.add_edges_from(("source", name) for name in sources)
    graph.add_edges_from((name, "sink") for name in sinks)
    return float(nx.maximum_flow_value(graph, "source", "sink"))


def dies(*hosts: int) -> list[str]:
    return [f"die{16 * host + i}" for host in hosts for i in range(16)]


class TestCloudMatrix384:
    def test_vertices_and_links(self, cm384: Topology) -> None:
        assert Counter(cm384.vertex_kind.tolist()) == {"device": 768, "cpu": 192, "switch": 448}
        assert len(cm384.vertices) == 1408
        assert len(cm384.link_src) == 2 * 12_480
        kinds = Counter(cm384.link_kind[::2].tolist())
        assert kinds == {"lane": 5376, "trunk": 5376, "cpu": 1344, "sibling": 384}

    def test_degrees(self, cm384: Topology) -> None:
        degree = Counter(cm384.vertices[v] for v in cm384.link_src)
        first = [n for name, n in degree.items() if "/l1." in name]
        second = [n for name, n in degree.items() if "/l2." in name]
        assert (len(first), set(first)) == (336, {36})
        assert (len(second), set(second)) == (112, {48})

    def test_planes_never_meet_above_the_dies(self, cm384: Topology) -> None:
        trunks = cm384.links_of("trunk")
        assert np.array_equal(cm384.plane[cm384.link_src[trunks]], cm384.plane[cm384.link_dst[trunks]])

    @pytest.mark.parametrize("target", ["die1", "die2", "die767"])
    def test_die_to_die(self, switched: nx.DiGraph[str], target: str) -> None:
        assert max_flow(switched, ["die0"], [target]) == pytest.approx(196 * GB)

    def test_host_to_host(self, switched: nx.DiGraph[str]) -> None:
        assert max_flow(switched, dies(0), dies(31)) == pytest.approx(3136 * GB)

    def test_host_to_the_rest(self, switched: nx.DiGraph[str]) -> None:
        cpus = [f"host0/cpu{c}" for c in range(4)]
        assert max_flow(switched, dies(0) + cpus, dies(*range(1, 48))) == pytest.approx(3136 * GB)

    def test_half_to_half(self, switched: nx.DiGraph[str]) -> None:
        flow = max_flow(switched, dies(*range(24)), dies(*range(24, 48)))
        assert flow == pytest.approx(75_264 * GB)

    @pytest.mark.parametrize(
        ("target", "paths", "links"), [("die2", 7, 2), ("die16", 112, 4), ("die767", 112, 4)]
    )
    def test_equal_shortest_paths(self, cm384: Topology, target: str, paths: int, links: int) -> None:
        import networkx as nx

        found = list(nx.all_shortest_paths(cm384.graph(), "die0", target))
        assert (len(found), {len(path) - 1 for path in found}) == (paths, {links})

    def test_uniform_all_to_all_is_bound_by_the_lanes(self, cm384: Topology) -> None:
        """With ideal spray S bytes a die that leave the package take S / 196 GB/s on the wire."""
        found = routes(cm384, place(cm384, 64), "write")
        demand = np.where(found.tier.ravel() >= 2, 1.0, 0.0)
        load = np.zeros(len(found.names))
        np.add.at(load, found.index, found.weight * np.repeat(demand, np.diff(found.indptr)))
        wires = np.array([kind in ("lane", "trunk") for kind in found.kinds])
        assert (load / found.capacity)[wires].max() == pytest.approx(62 / (196 * GB))

    def test_unknown_profile(self) -> None:
        with pytest.raises(InputError, match="unknown latency 'ubeb'") as caught:
            fabrics.load({"name": "cloudmatrix384", "latency": "ubeb"})
        assert "did you mean 'ubep'" in str(caught.value)

    def test_profiles_that_are_not_used_are_not_cited(self, cm384: Topology) -> None:
        cited = [c.where for c in cm384.cited if "profiles" in c.where]
        assert len(cited) == 6  # three of writes, three of reads
        assert all("profiles.cm384." in where for where in cited)


class TestNvl72:
    @pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72"])
    def test_one_link_from_every_gpu_to_every_chip(self, name: str) -> None:
        pod = fabrics.load(name)
        pairs = Counter(pod.link_names())
        assert len(pairs) == 2 * 1296
        assert set(pairs.values()) == {1}
        ports = Counter(pod.vertices[v] for v in pod.link_src)
        assert [ports[f"switch/chip{c}"] for c in range(18)] == [72] * 18
        assert all(ports[name] == 18 for name in pod.device_names())

    def test_no_short_cut_inside_a_tray(self) -> None:
        pod = fabrics.load("gb200-nvl72")
        found = routes(pod, place(pod, 72), "store")
        off = ~np.eye(72, dtype=bool)
        assert len(np.unique(found.latency[off])) == 1
        assert set(np.diff(found.indptr)) == {0, 2}


class TestNvl576:
    def test_counts(self) -> None:
        pod = fabrics.load("gb200-nvl576")
        ports = Counter(pod.vertices[v] for v in pod.link_src)
        first = [name for name in ports if "/l1." in name]
        second = [name for name in ports if "/l2." in name]
        assert (len(first), len(second)) == (288, 144)
        assert len(pod.links_of("lane")) == 2 * 10_368
        # 36 GPUs down; up as much again, over eight chips of the plane.
        assert {ports[name] for name in first} == {36 + 8}
        assert pod.link_capacity[pod.links_of("trunk")].sum() == pod.link_capacity[pod.links_of("lane")].sum()

    @pytest.mark.parametrize("taper", [1, 2, 4])
    def test_taper_divides_the_trunk(self, taper: int) -> None:
        pod = fabrics.load({"name": "gb200-nvl576", "taper": taper})
        assert pod.parameters["taper"] == taper
        lanes, trunks = (pod.link_capacity[pod.links_of(kind)].sum() for kind in ("lane", "trunk"))
        assert trunks == pytest.approx(lanes / taper)
        assert any(c.where.endswith("trunk.taper") and c.source == "user" for c in pod.cited)

    def test_half_a_rack_is_near_and_the_rest_is_far(self) -> None:
        pod = fabrics.load("gb200-nvl576")
        found = routes(pod, place(pod, 72), "store")
        assert found.latency[0, 35] == pytest.approx(0.865e-6)
        assert found.latency[0, 36] == pytest.approx(1.73e-6)


class TestRails:
    @pytest.mark.parametrize("hosts", [1, 2, 32, 40])
    def test_hosts_are_a_parameter(self, hosts: int) -> None:
        pod = fabrics.load({"name": "h100-ib", "hosts": hosts})
        assert len(pod.devices) == 8 * hosts
        leaves = [name for name in pod.vertices if "/leaf" in name]
        assert len(leaves) == 8 * -(-hosts // 32)

    def test_gpu_i_of_every_host_is_on_rail_i(self) -> None:
        pod = fabrics.load("h800-ib")
        graph = pod.graph()
        for host in range(8):
            for i in range(8):
                nic = next(name for name in graph[f"gpu{8 * host + i}"] if "nic" in name)
                assert f"unit0/leaf{i}" in graph[nic]

    def test_spines_do_not_limit_without_a_taper(self) -> None:
        pod = fabrics.load({"name": "h100-ib", "hosts": 40})
        nics, spines = (pod.link_capacity[pod.links_of(kind)].sum() for kind in ("nic", "spine"))
        assert spines == pytest.approx(nics)
        tapered = fabrics.load({"name": "h100-ib", "hosts": 40, "taper": 2})
        assert tapered.link_capacity[tapered.links_of("spine")].sum() == pytest.approx(nics / 2)

    def test_a2_is_a_full_mesh_without_relay(self) -> None:
        pod = fabrics.load("a2-cluster")
        found = routes(pod, place(pod, 8), "write")
        assert set(np.diff(found.indptr)) == {0, 1}
        # What a die writes of its 196 GB/s, on each of the seven links.
        assert found.capacity == pytest.approx(np.full(56, 28 * 137 / 196 * GB), rel=1e-3)
