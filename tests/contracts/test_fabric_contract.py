"""What every shipped pod and every fabric family must satisfy."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moesim import fabrics, resources, yamlio
from moesim.errors import InputError
from moesim.fabrics import FABRICS
from moesim.ranks import place
from moesim.routing import routes
from moesim.sources import GRADES, bibliography
from moesim.topology import Topology

PODS = resources.names("topology")
EXPECTED = {
    "a2-cluster",
    "b200-hgx",
    "b300-hgx",
    "cloudmatrix384",
    "gb200-nvl576",
    "gb200-nvl72",
    "gb200-nvl72-racks",
    "gb300-nvl72",
    "h100-ib",
    "h200-hgx",
    "h800-ib",
    "vr-nvl72",
}
LINK = {"capacity": "10GB/s", "latency": "1us"}
EXAMPLES: dict[str, dict[str, Any]] = {
    "crossbar": {"devices": 4, "port": LINK},
    "clos": {"hosts": 2, "devices_per_host": 2, "port": LINK, "uplink": LINK},
    "planes": {"hosts": 2, "devices_per_host": 2, "planes": 2, "lane": {"capacity": "10GB/s"}},
    "rails": {
        "hosts": 2,
        "devices_per_host": 2,
        "scale_up": {"kind": "mesh", **LINK},
        "nic": LINK,
        "spine": {"chips": 1},
    },
    "graph": {"devices": ["a", "b"], "links": [{"a": "a", "b": "b", **LINK}]},
}
"""The smallest pod of each family; a new family adds its own."""


@pytest.fixture(scope="module", params=PODS)
def pod(request: pytest.FixtureRequest) -> Topology:
    return fabrics.load(request.param)


def several_hosts(pod: Topology) -> Topology:
    return fabrics.load(pod.name, {"hosts": 3}) if "hosts" in pod.parameters else pod


def test_the_promised_pods_are_shipped() -> None:
    assert set(PODS) >= EXPECTED


def test_links_are_duplex_and_positive(pod: Topology) -> None:
    assert np.array_equal(pod.link_src[0::2], pod.link_dst[1::2])
    assert np.array_equal(pod.link_dst[0::2], pod.link_src[1::2])
    assert np.array_equal(pod.link_capacity[0::2], pod.link_capacity[1::2])
    assert (pod.link_capacity > 0).all()
    assert (pod.link_latency >= 0).all()
    assert (pod.link_src != pod.link_dst).all()
    for share in pod.efficiency.values():
        assert ((share > 0) & (share <= 1)).all()


def test_every_vertex_is_connected(pod: Topology) -> None:
    import networkx as nx

    graph = pod.graph()
    assert nx.is_strongly_connected(graph)
    assert graph.number_of_nodes() == len(pod.vertices) == len(set(pod.vertices))


def test_memberships_nest(pod: Topology) -> None:
    """A package lies in one host, a host in one domain."""
    at = pod.devices
    for inner, outer in ((pod.package, pod.host), (pod.host, pod.domain)):
        assert (inner[at] >= 0).all()
        pairs = {(int(i), int(o)) for i, o in zip(inner[at], outer[at], strict=True)}
        assert len(pairs) == len({i for i, _ in pairs})


def test_bisection_is_at_most_injection(pod: Topology) -> None:
    """Max-flow from the first half of the devices to the second, against their links."""
    import networkx as nx

    pod = several_hosts(pod)
    graph = pod.graph()
    names = pod.device_names()
    half = len(names) // 2
    for name in names[:half]:
        graph.add_edge("source", name)
    for name in names[half:]:
        graph.add_edge(name, "sink")
    # Siblings never relay.
    if pod.family == "planes":
        graph.remove_edges_from([(a, b) for a in names for b in list(graph[a]) if b in set(names)])
    flow = nx.maximum_flow_value(graph, "source", "sink")
    out = np.isin(pod.link_src, pod.devices[:half]) & (pod.link_kind != "sibling")
    assert 0 < flow <= pod.link_capacity[out].sum() * (1 + 1e-9)


def numbers(part: Any, loc: yamlio.Loc = ()) -> Iterator[yamlio.Loc]:
    """Every place of a topology document that holds a number or a quantity."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key not in ("note", "source", "grade", "moesim", "name", "parameters"):
                yield from numbers(value, (*loc, key))
    elif isinstance(part, list):
        for i, value in enumerate(part):
            yield from numbers(value, (*loc, i))
    elif not isinstance(part, bool) and (isinstance(part, (int, float)) or str(part)[:1].isdigit()):
        yield loc


@pytest.mark.parametrize("name", PODS)
def test_every_number_names_a_known_source_and_a_grade(name: str) -> None:
    document = yamlio.load(resources.find("topology", name))
    known = bibliography()
    places = list(numbers(document.data))
    assert len(places) > 10
    for loc in places:
        holders = [document.get(loc[:depth]) for depth in range(len(loc) - 1, -1, -1)]
        sources = [h["source"] for h in holders if isinstance(h, dict) and "source" in h]
        grades = [h["grade"] for h in holders if isinstance(h, dict) and "grade" in h]
        assert sources[0] in known, loc
        assert grades[0] in GRADES, loc


def test_what_was_used_is_listed_with_its_citation(pod: Topology) -> None:
    document = yamlio.load(Path(str(pod.path)))
    listed = {cited.where for cited in pod.cited}
    missing = []
    for loc in numbers(document.data):
        steps = loc[:-1] if loc[-1] == "value" else loc
        where = f"{pod.name} {'.'.join(str(step) for step in steps)}"
        unused = steps[1] == "profiles" and steps[2] != pod.parameters["latency"]
        if not unused and where not in listed:
            missing.append(where)
    assert missing == []


def test_our_own_assumptions_are_graded_so(pod: Topology) -> None:
    for cited in pod.cited:
        if cited.source == "moesim":
            assert cited.grade == "assumed", cited


@pytest.mark.parametrize("access", ["store", "bulk", "write", "read"])
def test_routes_share_out_exactly_one_byte_a_byte(pod: Topology, access: str) -> None:
    pod = several_hosts(pod)
    ranks = min(24, len(pod.devices))
    found = routes(pod, place(pod, ranks, "spread"), access)
    assert (found.capacity > 0).all()
    assert (found.weight > 0).all()
    ports = np.array([kind not in ("engine", "messages") for kind in found.kinds])
    # What leaves a rank crosses its own links with weights that sum to one byte.
    pairs = np.arange(ranks**2)
    off = pairs[pairs // ranks != pairs % ranks]
    indptr, index, weight = found.rows(off)
    leaves = np.array([name.split()[0] in pod.device_names() and " down" not in name for name in found.names])
    own = np.where(leaves[index] & ports[index], weight, 0.0)
    assert np.add.reduceat(own, indptr[:-1]) == pytest.approx(1.0)


def test_latency_grows_with_the_tier(pod: Topology) -> None:
    pod = several_hosts(pod)
    ranks = min(24, len(pod.devices))
    found = routes(pod, place(pod, ranks), "write")
    means = [found.latency[found.tier == t].mean() for t in np.unique(found.tier)]
    assert all(far >= near * (1 - 1e-9) for near, far in itertools.pairwise(means))
    assert np.allclose(found.latency, found.latency.T)


def test_the_device_is_complete(pod: Topology) -> None:
    device = pod.device
    assert device.cores > 0
    assert device.memory > 10e9
    assert 1e12 < device.hbm_rate < 1e14
    assert 0.5 < device.compute_efficiency <= 1
    assert 0.5 < device.hbm_efficiency <= 1
    assert "bf16" in device.compute
    assert all(1e14 < rate < 1e17 for rate in device.compute.values())
    for rates in device.engines.values():
        assert sorted(rates.values(), reverse=True) == [rates[tier] for tier in sorted(rates)]


class TestFamilies:
    def test_every_family_has_an_example(self) -> None:
        assert set(EXAMPLES) == set(FABRICS.names())

    @pytest.mark.parametrize("kind", FABRICS.names())
    def test_the_smallest_pod_loads_inline(self, kind: str) -> None:
        found = fabrics.load(self.spec(kind))
        assert found.family == kind
        assert found.path is None
        assert "ideal" in found.properties
        assert len(found.devices) >= 2
        assert routes(found, np.arange(2), "write").latency[0, 1] >= 0

    @pytest.mark.parametrize("kind", FABRICS.names())
    def test_an_unknown_key_is_refused(self, kind: str) -> None:
        with pytest.raises(InputError, match="unknown key 'latencey'"):
            fabrics.load(self.spec(kind, latencey="1us"))

    @pytest.mark.parametrize("kind", FABRICS.names())
    def test_every_key_that_is_missing_is_named(self, kind: str) -> None:
        for key in EXAMPLES[kind]:
            short = self.spec(kind)
            del short["fabric"][key]
            with pytest.raises(InputError, match=key):
                fabrics.load(short)

    @pytest.mark.parametrize("kind", FABRICS.names())
    @pytest.mark.parametrize("value", ["10", "10Gib", 10, None, "0GB/s", "-1GB/s", ["10GB/s"]])
    def test_a_wrong_capacity_is_refused(self, kind: str, value: object) -> None:
        spec = self.spec(kind)
        broken = spec["fabric"]
        parts = [*broken.values(), *broken.get("links", [])]
        links = next(part for part in parts if isinstance(part, dict) and "capacity" in part)
        links["capacity"] = value
        with pytest.raises(InputError):
            fabrics.load(spec)

    @staticmethod
    def spec(kind: str, **extra: object) -> dict[str, Any]:
        fabric = {"kind": kind, **copy.deepcopy(EXAMPLES[kind]), "source": "example", "grade": "assumed"}
        return {"fabric": {**fabric, **extra}}
