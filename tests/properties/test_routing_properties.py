"""Routing on the quotient equals spraying over every shortest path of the whole graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim import fabrics
from moesim.errors import InputError
from moesim.routing import Routes, routes
from moesim.topology import Topology


def shortest_paths(pod: Topology, src: int, dst: int) -> Iterator[list[int]]:
    """All shortest paths as lists of directed links, parallel links apart; by exhaustive search."""
    out: dict[int, list[int]] = defaultdict(list)
    for link in np.flatnonzero(pod.link_capacity > 0).tolist():
        out[int(pod.link_src[link])].append(link)
    walks: list[list[int]] = [[link] for link in out[src]]
    passed = {src}
    while walks:
        done = [walk for walk in walks if pod.link_dst[walk[-1]] == dst]
        if done:
            yield from done
            return
        passed |= {int(pod.link_dst[walk[-1]]) for walk in walks}
        relays = [walk for walk in walks if pod.vertex_kind[pod.link_dst[walk[-1]]] in ("switch", "nic")]
        longer = [[*walk, link] for walk in relays for link in out[int(pod.link_dst[walk[-1]])]]
        walks = [walk for walk in longer if int(pod.link_dst[walk[-1]]) not in passed]


def brute_force(pod: Topology, devices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(R, R, L) share of each link, (R, R) latency of the slowest path; NaN where there is no path."""
    ranks = len(devices)
    share = np.zeros((ranks, ranks, len(pod.link_src)))
    latency = np.zeros((ranks, ranks))
    for s in range(ranks):
        for d in range(ranks):
            if s == d:
                continue
            ends = pod.devices[devices[[s, d]]]
            paths = list(shortest_paths(pod, int(ends[0]), int(ends[1])))
            for path in paths:
                np.add.at(share[s, d], path, 1 / len(paths))
            latency[s, d] = max((pod.link_latency[path].sum() for path in paths), default=np.nan)
    return share, latency


def check(pod: Topology, devices: np.ndarray, access: str, demand: np.ndarray) -> None:
    share, latency = brute_force(pod, devices)
    if np.isnan(latency).any():
        with pytest.raises(InputError, match="unreachable"):
            routes(pod, devices, access)
        return
    found = routes(pod, devices, access)
    assert np.allclose(found.latency, latency)
    full = pod.link_capacity * pod.share(access)
    # Any demand: the largest utilisation and the bytes that cross links of each kind.
    alive = full > 0
    load = np.einsum("sd,sdl->l", demand, share)
    ours = np.zeros(len(found.names))
    np.add.at(ours, found.index, found.weight * np.repeat(demand.ravel(), np.diff(found.indptr)))
    assert ours.sum() == pytest.approx(load.sum())
    assert (ours / found.capacity).max(initial=0) == pytest.approx((load[alive] / full[alive]).max(initial=0))
    check_each_pair(found, share, full, pod)


def check_each_pair(found: Routes, share: np.ndarray, full: np.ndarray, pod: Topology) -> None:
    """Each flow's set of (capacity it could have alone) is that of the links it crosses."""
    for pair in range(found.ranks**2):
        _, index, weight = found.rows(np.array([pair]))
        own = share.reshape(-1, share.shape[-1])[pair]
        links = own > 0
        ours = np.unique(np.round(found.capacity[index] / weight, 4))
        theirs = np.unique(np.round(full[links] / own[links], 4))
        assert ours == pytest.approx(theirs)
        assert set(np.array(found.kinds)[index]) == set(pod.link_kind[links])


@st.composite
def pods(draw: st.DrawFn) -> Topology:
    """Small graphs: few capacities, so that some links are alike; parallel links; some without a path."""
    devices = [f"d{i}" for i in range(draw(st.integers(2, 4)))]
    switches = [f"s{i}" for i in range(draw(st.integers(1, 5)))]
    names = devices + switches
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names)).filter(lambda p: p[0] != p[1])
    joined = draw(st.lists(pairs, min_size=2, max_size=14))
    links = [
        {
            "a": a,
            "b": b,
            "capacity": draw(st.sampled_from(["1GB/s", "2GB/s"])),
            "latency": draw(st.sampled_from(["0us", "1us"])),
            "count": draw(st.sampled_from([1, 1, 2])),
            "packets": {"header": "32B", "store": "128B", "bulk": draw(st.sampled_from(["128B", "256B"]))},
        }
        for a, b in joined
    ]
    fabric = {"kind": "graph", "devices": devices, "switches": switches, "links": links}
    return fabrics.load({"fabric": {**fabric, "source": "example", "grade": "assumed"}})


@settings(max_examples=100, deadline=None)
@given(pods(), st.sampled_from(["store", "bulk", "read"]), st.integers(0, 2**32 - 1))
def test_random_graphs_equal_brute_force(pod: Topology, access: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(1, len(pod.devices) + 1))
    devices = rng.permutation(len(pod.devices))[:ranks]
    check(pod, devices, access, rng.exponential(size=(ranks, ranks)))


@st.composite
def layered(draw: st.DrawFn) -> tuple[Topology, list[dict[str, object]]]:
    """Small pods of the shipped families, with up to two faults."""
    link = {"capacity": "4GB/s", "latency": "1us"}
    planes = {
        "kind": "planes",
        "hosts": 4,
        "devices_per_host": 2,
        "devices_per_package": 2,
        "hosts_per_group": draw(st.sampled_from([1, 2])),
        "planes": draw(st.integers(1, 3)),
        "lane": {"capacity": "4GB/s"},
        "sibling": {"capacity": "9GB/s"},
        "trunk": {"chips_per_plane": draw(st.integers(1, 3)), "capacity": "3GB/s"},
    }
    rails = {
        "kind": "rails",
        "hosts": 3,
        "devices_per_host": 2,
        "hosts_per_leaf": draw(st.sampled_from([1, 2, 3])),
        "hosts_per_domain": draw(st.sampled_from([1, 2, 3])),
        "scale_up": {"kind": draw(st.sampled_from(["switch", "mesh"])), **link},
        "nic": link,
        "spine": {"chips": draw(st.integers(1, 2)), "taper": 2},
    }
    if rails["scale_up"]["kind"] == "switch":
        rails["scale_up"]["chips"] = draw(st.integers(1, 2))
    fabric = draw(st.sampled_from([planes, rails]))
    pod = fabrics.load({"fabric": {**fabric, "source": "example", "grade": "assumed"}})
    shares = st.sampled_from([0.0, 0.0, 0.5])
    names = st.sampled_from(pod.link_names())
    fault = st.builds(lambda name, share: {"link": name, "capacity": share}, names, shares)
    switches = int((pod.vertex_kind == "switch").sum())
    chip = st.builds(lambda number: {"chip": number}, st.integers(0, switches - 1))
    return pod, draw(st.lists(st.one_of(fault, chip), max_size=2))


@settings(max_examples=60, deadline=None)
@given(layered(), st.integers(0, 2**32 - 1))
def test_faulty_pods_equal_brute_force(case: tuple[Topology, list[dict[str, object]]], seed: int) -> None:
    pod, faults = case
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, len(pod.devices) + 1))
    devices = rng.permutation(len(pod.devices))[:ranks]
    check(pod.with_faults(faults), devices, "write", rng.exponential(size=(ranks, ranks)))


@settings(max_examples=30, deadline=None)
@given(layered(), st.integers(0, 2**32 - 1))
def test_order_of_ranks_only_renames_routes(
    case: tuple[Topology, list[dict[str, object]]], seed: int
) -> None:
    pod, _ = case
    order = np.random.default_rng(seed).permutation(len(pod.devices))
    plain, mixed = (routes(pod, d, "write") for d in (np.arange(len(order)), order))
    assert np.array_equal(mixed.latency, plain.latency[np.ix_(order, order)])
    assert np.array_equal(mixed.tier, plain.tier[np.ix_(order, order)])
    for s in range(len(order)):
        for d in range(len(order)):
            ours, theirs = (
                sorted(
                    (f.capacity[i] / w) for i, w in zip(*f.rows(np.array([a * f.ranks + b]))[1:], strict=True)
                )
                for f, a, b in ((mixed, s, d), (plain, order[s], order[d]))
            )
            assert ours == pytest.approx(theirs)
