"""Placement of ranks on devices."""

from __future__ import annotations

import numpy as np
import pytest

from moesim import fabrics
from moesim.errors import InputError
from moesim.ranks import place
from moesim.topology import Topology


@pytest.fixture(scope="module")
def pod() -> Topology:
    return fabrics.load("cloudmatrix384")


def test_packed_fills_hosts(pod: Topology) -> None:
    devices = place(pod, 32, "packed")
    assert set(pod.host[pod.devices[devices]]) == {0, 1}


def test_spread_uses_every_host_evenly(pod: Topology) -> None:
    devices = place(pod, 96, "spread")
    assert np.bincount(pod.host[pod.devices[devices]]).tolist() == [2] * 48


def test_spread_of_fewer_ranks_than_hosts_keeps_distance(pod: Topology) -> None:
    devices = place(pod, 4, "spread")
    assert pod.host[pod.devices[devices]].tolist() == [0, 12, 24, 36]


@pytest.mark.parametrize("ep", [1, 5, 47, 48, 49, 100, 767, 768])
@pytest.mark.parametrize("rule", ["packed", "spread"])
def test_every_rule_places_each_rank_once(pod: Topology, ep: int, rule: str) -> None:
    devices = place(pod, ep, rule)
    assert len(devices) == ep == len(set(devices.tolist()))
    assert np.array_equal(devices, np.sort(devices))
    if rule == "spread":
        used = np.bincount(pod.host[pod.devices[devices]], minlength=48)
        assert used.max() - used.min() <= 1


def test_spread_over_unlike_hosts_fills_the_large_one() -> None:
    devices = [{"name": f"d{i}", "host": 0 if i == 0 else 1} for i in range(5)]
    links = [{"a": f"d{i}", "b": "s", "capacity": "1GB/s"} for i in range(5)]
    spec = {
        "kind": "graph",
        "devices": devices,
        "switches": ["s"],
        "links": links,
        "source": "example",
        "grade": "spec",
    }
    pod = fabrics.load({"fabric": spec})
    assert place(pod, 4, "spread").tolist() == [0, 1, 2, 3]


def test_a_list_gives_the_order(pod: Topology) -> None:
    assert place(pod, 3, [700, "die5", 0]).tolist() == [700, 5, 0]


@pytest.mark.parametrize(
    ("ep", "rule", "message"),
    [
        (769, "packed", "ep 769 does not fit the 768 devices of cloudmatrix384"),
        (0, "packed", "ep from 1 to 768"),
        (8, "spred", "did you mean 'spread'"),
        (2, [0, 768], "no device 768"),
        (2, [0, True], "no device True"),
        (2, [0, "dye1"], "no device 'dye1'"),
        (2, [4, "die4"], "devices listed twice: die4"),
        (3, [0, 1], "2 devices are listed for ep 3"),
    ],
)
def test_what_cannot_be_placed_is_refused(
    pod: Topology, ep: int, rule: str | list[int | str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        place(pod, ep, rule)
