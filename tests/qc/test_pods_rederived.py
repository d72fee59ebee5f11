"""Each pod's numbers, derived a second time from the published texts by someone who had not read its file.

One row a number: pod, what, value, relative tolerance, and what the texts say. Rates are raw and per direction;
GB = 1e9 bytes. The second table bounds the grades: no number may claim to be better known than the texts allow.
What the texts leave open (how many hosts, what 910B's mesh reaches, the second tier of NVL576) is not in the tables.
Two differences have no row: a CPU is read in 1.0 and 1.7 us (table 1), 0.05 us less than the links add up to, but no
rank is a CPU; and a read over NVLink takes the round trip (1.730 us), where the pods take the one way of a write.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from moesim import fabrics, resources
from moesim.ranks import place
from moesim.routing import Routes, routes
from moesim.sources import GRADES
from moesim.topology import Tier, Topology

CM384, A2, NVL72, NVL576 = "cloudmatrix384", "a2-cluster", "gb200-nvl72", "gb200-nvl576"
RACKS = "gb200-nvl72-racks"
EXACT = 1e-9
GB, T, US = 1e9, 1e12, 1e-6
MIB = 2**20 / GB
Mask = NDArray[np.bool_]


@lru_cache(maxsize=32)
def pod_of(name: str, latency: str | None = None) -> Topology:
    return fabrics.load({"name": name} | ({"latency": latency} if latency else {}))


def hosts(pod: Topology) -> NDArray[np.int64]:
    return pod.host[pod.devices]


def port(pod: Topology, kinds: tuple[str, ...], access: str | None = None) -> float:
    """GB/s of the first device's links of these kinds; what is left for payload if an access is named."""
    mine = (pod.link_src == pod.devices[0]) & np.isin(pod.link_kind, kinds)
    share = 1.0 if access is None else pod.share(access)[mine]
    return float((pod.link_capacity[mine] * share).sum()) / GB


SCALE_UP, SCALE_OUT = ("nvlink", "mesh", "lane"), ("bus",)


def only(values: NDArray[np.float64]) -> float:
    """The one value that all links of a kind have."""
    assert len(values) > 0
    assert np.ptp(values) == 0
    return float(values[0])


def link(kind: str, column: str, unit: float) -> Callable[[Topology], float]:
    return lambda pod: only(getattr(pod, column)[pod.links_of(kind)]) / unit


def duplex(kind: str) -> Callable[[Topology], float]:
    return lambda pod: len(pod.links_of(kind)) / 2


def total(kind: str) -> Callable[[Topology], float]:
    return lambda pod: float(pod.link_capacity[pod.links_of(kind)].sum()) / 2 / GB


def efficiency(kind: str, access: str) -> Callable[[Topology], float]:
    return lambda pod: only(pod.share(access)[pod.links_of(kind)])


def degree(first: bool) -> Callable[[Topology], float]:
    """Duplex links of a chip of the first tier (it has lanes), or of the second."""

    def measure(pod: Topology) -> float:
        lanes = np.isin(np.arange(len(pod.vertices)), pod.link_dst[pod.links_of("lane")])
        chips = np.flatnonzero((pod.vertex_kind == "switch") & (lanes if first else ~lanes))
        return only(np.bincount(pod.link_src, minlength=len(pod.vertices))[chips].astype(float))

    return measure


def far(pod: Topology) -> int:
    return len(pod.devices) - 1


def neighbour(pod: Topology) -> int:
    """The next device of the same host that is not of the same package."""
    same = pod.package[pod.devices] == pod.package[pod.devices[0]]
    return int(np.flatnonzero(~same)[0]) if same[0] and same.sum() > 1 else 1


def latency(peer: Callable[[Topology], int], access: str = "write") -> Callable[[Topology], float]:
    return lambda pod: float(routes(pod, np.array([0, peer(pod)]), access).latency[0, 1]) / US


def flow(pod: Topology, sources: Mask, sinks: Mask) -> float:
    """Largest flow [GB/s] between two sets of devices: no other device nor CPU relays, siblings help nobody,
    and what shares a scale-up domain leaves the NICs alone.
    """
    shared = np.intersect1d(pod.domain[sources], pod.domain[sinks]).size > 0
    relay = np.isin(pod.vertex_kind, ("switch",) if shared else ("switch", "nic"))
    a, b = pod.link_src, pod.link_dst
    keep = (relay | sources)[a] & (relay | sinks)[b] & (pod.link_kind != "sibling")
    many, v = 2**30, len(pod.vertices)
    src, dst = np.flatnonzero(sources), np.flatnonzero(sinks)
    row = np.concatenate([a[keep], np.full(len(src), v), dst])
    column = np.concatenate([b[keep], src, np.full(len(dst), v + 1)])
    size = np.concatenate([pod.link_capacity[keep] / 1e6, np.full(len(src) + len(dst), many)])
    graph = csr_array((np.round(size).astype(np.int32), (row, column)), shape=(v + 2, v + 2))
    return float(maximum_flow(graph, v, v + 1).flow_value) / 1e3


def between(left: list[int], right: list[int]) -> Callable[[Topology], float]:
    """Flow from some hosts to others; -1 is the last host."""

    def measure(pod: Topology) -> float:
        device = pod.vertex_kind == "device"
        last = int(pod.host.max())
        chosen = [np.isin(pod.host, [h % (last + 1) for h in group]) & device for group in (left, right)]
        return flow(pod, chosen[0], chosen[1])

    return measure


def racks(left: list[int], right: list[int]) -> Callable[[Topology], float]:
    """Flow from some scale-up domains to others."""

    def measure(pod: Topology) -> float:
        device = pod.vertex_kind == "device"
        return flow(pod, np.isin(pod.domain, left) & device, np.isin(pod.domain, right) & device)

    return measure


def pair(peer: Callable[[Topology], int], first: int = 0) -> Callable[[Topology], float]:
    def measure(pod: Topology) -> float:
        ends = np.zeros((2, len(pod.vertices)), dtype=bool)
        ends[0, pod.devices[first]] = ends[1, pod.devices[peer(pod)]] = True
        return flow(pod, ends[0], ends[1])

    return measure


def paths(peer: Callable[[Topology], int], links: int) -> Callable[[Topology], float]:
    """Walks of that many links between two devices that pass through switches only."""

    def measure(pod: Topology) -> float:
        ways = np.zeros(len(pod.vertices))
        ways[pod.devices[0]] = 1
        for step in range(links):
            ways[:] = np.bincount(pod.link_dst, ways[pod.link_src], len(ways))
            if step < links - 1:
                ways[pod.vertex_kind != "switch"] = 0
        return float(ways[pod.devices[peer(pod)]])

    return measure


def devices_below(pod: Topology) -> float:
    """Lanes that come from devices, of each chip that has any."""
    lanes = np.isin(pod.link_src, pod.devices) & (pod.link_kind == "lane")
    return only(np.unique(pod.link_dst[lanes], return_counts=True)[1].astype(float))


def count(kind: str) -> Callable[[Topology], float]:
    return lambda pod: int((pod.vertex_kind == kind).sum())


def peak(dtype: str) -> Callable[[Topology], float]:
    return lambda pod: pod.device.compute[dtype] / T


def engine(access: str, tier: Tier) -> Callable[[Topology], float]:
    return lambda pod: pod.device.engines[access][tier] / GB


def less_one_chip(pod: Topology) -> float:
    """Host to host with one second-tier chip gone, as a share of the whole."""
    return between([0], [-1])(pod.with_faults([{"chip": "plane0/l2.0"}])) / between([0], [-1])(pod)


def at(number: int) -> Callable[[Topology], int]:
    return lambda pod: number


def faulty(measure: Callable[[Topology], float], **fault: str) -> Callable[[Topology], float]:
    return lambda pod: measure(pod.with_faults([fault]))


def alone(peer: int) -> Callable[[Topology], float]:
    """GB/s of payload that stores of the first device bring to another, nothing else under way."""

    def measure(pod: Topology) -> float:
        ways = routes(pod, np.array([0, peer]), "store")
        row = slice(ways.indptr[1], ways.indptr[2])
        return float((ways.capacity[ways.index[row]] / ways.weight[row]).min()) / GB

    return measure


@lru_cache(maxsize=4)
def packed(pod: Topology, ep: int) -> Routes:
    return routes(pod, place(pod, ep), "store")


def nics_taken(ep: int) -> Callable[[Topology], float]:
    """Ways into and out of NICs that the pairs of a packed group cross."""
    return lambda pod: packed(pod, ep).kinds.count("nic")


def busiest(pod: Topology, ep: int, kind: str) -> float:
    """Seconds for which the most loaded resource of a kind is busy when each rank stores 1 B to each other."""
    ways = packed(pod, ep)
    seconds = np.bincount(ways.index, ways.weight, len(ways.names)) / ways.capacity
    return float(seconds[np.array(ways.kinds) == kind].max())


def beyond_64_ports(pod: Topology) -> float:
    """Ports of a NIC's rate that the fullest leaf or spine has over the 64 of a QM9700."""
    used = np.bincount(pod.link_src, pod.link_capacity, len(pod.vertices))
    network = np.unique(pod.link_dst[np.isin(pod.link_kind, ("nic", "spine"))])
    switches = network[pod.vertex_kind[network] == "switch"]
    return max(0.0, float(used[switches].max()) / only(pod.link_capacity[pod.links_of("nic")]) - 64)


def links_of_an_nvswitch(pod: Topology) -> float:
    chips = np.unique(pod.link_dst[pod.links_of("nvlink")])
    chips = chips[pod.vertex_kind[chips] == "switch"]
    return only(np.bincount(pod.link_src, minlength=len(pod.vertices))[chips].astype(float))


CHIP, NIC = {"chip": "domain0/nvswitch3"}, {"nic": "host0/nic0", "capacity": "50%"}

MEASURES: dict[str, Callable[[Topology], float]] = {
    "devices": lambda pod: len(pod.devices),
    "hosts": lambda pod: len(np.unique(hosts(pod))),
    "packages": lambda pod: len(np.unique(pod.package[pod.devices])),
    "devices a host": lambda pod: only(np.bincount(hosts(pod)).astype(float)),
    "devices a domain": lambda pod: only(np.bincount(pod.domain[pod.devices]).astype(float)),
    "vertices": lambda pod: len(pod.vertices),
    "switches": count("switch"),
    "cpus": count("cpu"),
    "NICs a device": lambda pod: count("nic")(pod) / len(pod.devices),
    "NVSwitch chips a host": lambda pod: (
        sum("nvswitch" in name for name in pod.vertices) / MEASURES["hosts"](pod)
    ),
    "duplex links": lambda pod: len(pod.link_src) / 2,
    "lanes": duplex("lane"),
    "trunks": duplex("trunk"),
    "CPU links": duplex("cpu"),
    "sibling links": duplex("sibling"),
    "mesh links a host": lambda pod: duplex("mesh")(pod) / MEASURES["hosts"](pod),
    "lane GB/s": link("lane", "link_capacity", GB),
    "trunk GB/s": link("trunk", "link_capacity", GB),
    "CPU link GB/s": link("cpu", "link_capacity", GB),
    "sibling GB/s": link("sibling", "link_capacity", GB),
    "mesh GB/s": link("mesh", "link_capacity", GB),
    "all lanes GB/s": total("lane"),
    "all trunks GB/s": total("trunk"),
    "links of a first-tier chip": degree(first=True),
    "links of a second-tier chip": degree(first=False),
    "devices below a first-tier chip": devices_below,
    "scale-up GB/s": lambda pod: port(pod, SCALE_UP),
    "scale-out GB/s": lambda pod: port(pod, SCALE_OUT),
    "store GB/s": lambda pod: port(pod, SCALE_UP, "store"),
    "bulk GB/s": lambda pod: port(pod, SCALE_UP, "bulk"),
    "NIC efficiency": efficiency("nic", "write"),
    "paths in a host": paths(neighbour, 2),
    "paths to another host": paths(far, 4),
    "flow device to device, same host": pair(neighbour),
    "flow device to device, far": pair(far),
    "flow host to host": between([0], [-1]),
    "flow half to half": between(list(range(24)), list(range(24, 48))),
    "left without a second-tier chip": less_one_chip,
    "latency us, sibling": latency(lambda pod: 1),
    "latency us, same host": latency(neighbour),
    "latency us, far": latency(far),
    "latency us, same rail and leaf": latency(lambda pod: int(np.flatnonzero(hosts(pod) == 1)[0])),
    "read latency us, sibling": latency(at(1), "read"),
    "read latency us, same host": latency(neighbour, "read"),
    "read latency us, far": latency(far, "read"),
    "latency us, other tray": latency(at(71)),
    "latency us, next rack, same rail": latency(at(72)),
    "latency us, next rack, other rail": latency(at(73)),
    "NVLinks": duplex("nvlink"),
    "NVLink GB/s": link("nvlink", "link_capacity", GB),
    "links of an NVSwitch chip": links_of_an_nvswitch,
    "rails": lambda pod: len(np.unique(pod.plane[pod.vertex_kind == "nic"])),
    "ports beyond a switch": beyond_64_ports,
    "stores alone GB/s, same tray": alone(1),
    "stores alone GB/s, other tray": alone(71),
    "stores alone GB/s, next rack": alone(73),
    "NIC ways of EP72": nics_taken(72),
    "NIC ways of EP144": nics_taken(144),
    "EP144, NIC over NVLink": lambda pod: busiest(pod, 144, "nic") / busiest(pod, 144, "nvlink"),
    "flow to another tray": pair(at(71)),
    "flow rack to rack": racks([0], [1]),
    "flow half of the racks to half": racks([0, 1, 2, 3], [4, 5, 6, 7]),
    "flow half a rack to half": between(list(range(9)), list(range(9, 18))),
    "chip lost: flow in its rack": faulty(pair(at(71)), **CHIP),
    "chip lost: flow in the next rack": faulty(pair(at(73), first=72), **CHIP),
    "chip lost: flow rack to rack": faulty(racks([0], [1]), **CHIP),
    "NIC at half: flow to the next rack": faulty(pair(at(72)), **NIC),
    "NIC at half: flow from the next rack": faulty(pair(at(0), first=72), **NIC),
    "NIC at half: flow in its rack": faulty(pair(at(71)), **NIC),
    "NIC at half: flow rack to rack": faulty(racks([0], [1]), **NIC),
    "latency us, CPU of the host": lambda pod: (
        link("lane", "link_latency", US)(pod) + link("cpu", "link_latency", US)(pod)
    ),
    "latency us, CPU of another host": lambda pod: (
        MEASURES["latency us, CPU of the host"](pod) + 2 * link("trunk", "link_latency", US)(pod)
    ),
    "write sibling GB/s": engine("write", Tier.DEVICE),
    "write host GB/s": engine("write", Tier.HOST),
    "write domain GB/s": engine("write", Tier.DOMAIN),
    "read host GB/s": engine("read", Tier.HOST),
    "read domain GB/s": engine("read", Tier.DOMAIN),
    "bf16 TFLOP/s": peak("bf16"),
    "fp8 TFLOP/s": peak("fp8"),
    "fp4 TFLOP/s": peak("fp4"),
    "int8 TOP/s": peak("int8"),
    "achieved bf16 TFLOP/s": lambda pod: peak("bf16")(pod) * pod.device.compute_efficiency,
    "HBM TB/s": lambda pod: pod.device.hbm_rate / T,
    "achieved HBM TB/s": lambda pod: pod.device.hbm_rate * pod.device.hbm_efficiency / T,
    "HBM efficiency": lambda pod: pod.device.hbm_efficiency,
    "memory GB": lambda pod: pod.device.memory / GB,
    "cores": lambda pod: pod.device.cores,
}

ROWS: list[tuple[str, str, float, float, str]] = [
    # CloudMatrix384
    (CM384, "devices", 768, EXACT, "384 packages of two dies"),
    (CM384, "packages", 384, EXACT, "384 NPUs (910C packages)"),
    (CM384, "hosts", 48, EXACT, "48 nodes of 8 NPUs (16 dies), 4 CPUs, 7 first-tier chips"),
    (CM384, "devices a host", 16, EXACT, "48 nodes of 8 NPUs (16 dies), 4 CPUs, 7 first-tier chips"),
    (CM384, "cpus", 192, EXACT, "192 CPUs"),
    (CM384, "switches", 48 * 7 + 7 * 16, EXACT, "7 chips a node; 7 sub-planes of 16 second-tier chips"),
    (CM384, "vertices", 768 + 192 + 336 + 112, EXACT, "768 dies, 192 CPUs, 336 + 112 chips"),
    (CM384, "lanes", 768 * 7, EXACT, "one lane of a die to each of its node's 7 chips (mapping inferred)"),
    (CM384, "trunks", 336 * 16, EXACT, "first-tier chip i to each of the 16 chips of sub-plane i"),
    (CM384, "CPU links", 192 * 7, EXACT, "CPUs share the 7 chips (split inferred)"),
    (CM384, "sibling links", 384, EXACT, "die to sibling die in the package"),
    (CM384, "duplex links", 12480, EXACT, "5376 + 5376 + 1344 + 384"),
    (CM384, "lane GB/s", 224 / 8, EXACT, "a UB lane is 224 Gb/s a direction"),
    (CM384, "trunk GB/s", 28, EXACT, "each second-tier chip has 48 ports of 28 GB/s, one a node"),
    (CM384, "CPU link GB/s", 160 / 7, 1e-3, "160 GB/s a socket over 7 chips"),
    (CM384, "sibling GB/s", 270, EXACT, "die to die 270 GB/s a direction"),
    (CM384, "all lanes GB/s", 150528, EXACT, "150.5 TB/s"),
    (CM384, "all trunks GB/s", 150528, EXACT, "150.5 TB/s: no oversubscription for NPUs"),
    (CM384, "links of a first-tier chip", 16 + 4 + 16, EXACT, "16 dies, 4 CPUs, 16 up"),
    (CM384, "links of a second-tier chip", 48, EXACT, "48 ports, one a node"),
    (CM384, "scale-up GB/s", 196, EXACT, "196 GB/s a die, seven lanes"),
    (CM384, "devices a domain", 768, EXACT, "one UB plane joins all dies"),
    (CM384, "paths in a host", 7, EXACT, "same node: 7 disjoint choices"),
    (CM384, "paths to another host", 7 * 16, EXACT, "another node: 7 x 16 = 112 choices"),
    (CM384, "flow device to device, same host", 196, EXACT, "die to die without sibling relay, any distance"),
    (CM384, "flow device to device, far", 196, EXACT, "die to die without sibling relay, any distance"),
    (CM384, "flow host to host", 3136, EXACT, "7 x 448 = 8 x 392 GB/s a node"),
    (CM384, "flow half to half", 75264, EXACT, "24 nodes to the other 24: 75.3 TB/s"),
    (CM384, "left without a second-tier chip", 111 / 112, 1e-6, "one failed chip: 111/112 in total"),
    (CM384, "latency us, same host", 1.3, 1e-6, "table 1: NPU-NPU write of 512 B, same node"),
    (CM384, "latency us, far", 2.1, 1e-6, "table 1: NPU-NPU write of 512 B, other node"),
    (CM384, "latency us, sibling", 0.2, 1e-6, "StrataCL: die to die 0.2 us"),
    (CM384, "latency us, CPU of the host", 1.1, 1e-6, "table 1: NPU-CPU write, same node"),
    (CM384, "latency us, CPU of another host", 1.9, 1e-6, "table 1: NPU-CPU write, other node"),
    (CM384, "read latency us, same host", 1.2, 1e-6, "table 1: NPU-NPU read of 512 B, same node"),
    (CM384, "read latency us, far", 1.9, 1e-6, "table 1: NPU-NPU read of 512 B, other node"),
    (CM384, "read latency us, sibling", 0.2, 1e-6, "StrataCL: 0.2 us, not said of which way"),
    (f"{CM384}, ubep", "read latency us, same host", 0.929, 1e-6, "UBEP says access, one number for both"),
    (f"{CM384}, ubep", "read latency us, far", 2.5, 1e-6, "UBEP says access, one number for both"),
    (f"{CM384}, strata", "read latency us, same host", 0.7, 1e-6, "StrataCL has one number for both"),
    (f"{CM384}, strata", "read latency us, far", 2.1, 1e-6, "StrataCL has one number for both"),
    (
        f"{CM384}, ubep",
        "latency us, sibling",
        0.218,
        1e-6,
        "UBEP, insight 3: other die of the package 218 ns",
    ),
    (f"{CM384}, ubep", "latency us, same host", 0.929, 1e-6, "UBEP, insight 3: one switch tier 929 ns"),
    (f"{CM384}, ubep", "latency us, far", 2.5, 1e-6, "UBEP, insight 3: two tiers 2500 ns"),
    (f"{CM384}, strata", "latency us, sibling", 0.2, 1e-6, "StrataCL: 0.2 / 0.7 / 2.1 us"),
    (f"{CM384}, strata", "latency us, same host", 0.7, 1e-6, "StrataCL: 0.2 / 0.7 / 2.1 us"),
    (f"{CM384}, strata", "latency us, far", 2.1, 1e-6, "StrataCL: 0.2 / 0.7 / 2.1 us"),
    (CM384, "write sibling GB/s", 210, EXACT, "StrataCL: 210 GB/s measured die to die"),
    (CM384, "write host GB/s", 137, EXACT, "table 1: NPU-NPU write, same node"),
    (CM384, "write domain GB/s", 135, EXACT, "table 1: NPU-NPU write, other node"),
    (CM384, "read host GB/s", 167, EXACT, "table 1: NPU-NPU read, same node"),
    (CM384, "read domain GB/s", 164, EXACT, "table 1: NPU-NPU read, other node"),
    (CM384, "int8 TOP/s", 1943 / 1.29 / 2, 2e-3, "1943 tokens/s a package at 1.29 tokens/s per TOP/s"),
    (CM384, "bf16 TFLOP/s", 1943 / 1.29 / 4, 2e-3, "half of INT8"),
    (CM384, "HBM TB/s", 1.6, EXACT, "a die has 64 GB at 1.6 TB/s"),
    (CM384, "memory GB", 64, EXACT, "a die has 64 GB at 1.6 TB/s"),
    (CM384, "cores", 48, EXACT, "24 AIC and 48 AIV a die"),
    # Ascend 910B hosts
    (A2, "devices a host", 8, EXACT, "8 NPUs in a full mesh"),
    (A2, "mesh links a host", 28, EXACT, "full mesh of 8: 8 x 7 / 2"),
    (A2, "mesh GB/s", 28, EXACT, "7 HCCS links of 28 GB/s"),
    (A2, "scale-up GB/s", 196, EXACT, "7 HCCS links of 28 GB/s = 196 GB/s an NPU"),
    (A2, "scale-out GB/s", 25, EXACT, "200 Gb/s RoCE"),
    (A2, "NICs a device", 1, EXACT, "25 GB/s RoCE an NPU"),
    (A2, "devices a domain", 8, EXACT, "a baseline without a superpod"),
    (A2, "flow device to device, same host", 28, EXACT, "28 GB/s a pair, NPUs do not relay"),
    (A2, "flow device to device, far", 25, EXACT, "25 GB/s RoCE an NPU"),
    (A2, "flow host to host", 200, EXACT, "8 x 25 GB/s"),
    (A2, "bf16 TFLOP/s", 313, EXACT, "910B: 313 TFLOP/s (assumed)"),
    (A2, "int8 TOP/s", 626, EXACT, "910B: twice that (assumed)"),
    (A2, "HBM TB/s", 1.6, EXACT, "910B: 64 GB at 1.6 TB/s (assumed)"),
    (A2, "memory GB", 64, EXACT, "910B: 64 GB at 1.6 TB/s (assumed)"),
    # GB200 NVL72
    (NVL72, "devices", 72, EXACT, "18 trays x 4 GPUs"),
    (NVL72, "hosts", 18, EXACT, "18 compute trays; a node is a tray"),
    (NVL72, "switches", 18, EXACT, "9 switch trays x 2 chips"),
    (NVL72, "lanes", 72 * 18, EXACT, "72 x 18 = 18 chips x 72 ports"),
    (NVL72, "links of a first-tier chip", 72, EXACT, "each chip 72 ports"),
    (NVL72, "lane GB/s", 50, EXACT, "50 GB/s a direction a link"),
    (NVL72, "scale-up GB/s", 900, EXACT, "900 GB/s a direction a GPU"),
    (NVL72, "all lanes GB/s", 64800, EXACT, "72 x 1.8 TB/s both ways = 130 TB/s"),
    (NVL72, "store GB/s", 720, EXACT, "32 B of header on 128 B by SM stores"),
    (NVL72, "bulk GB/s", 800, EXACT, "32 B of header on 256 B by copy engines"),
    (NVL72, "devices a domain", 72, EXACT, "one NVLink domain of 72"),
    (NVL72, "paths in a host", 18, EXACT, "sprayed over all 18 chips, no shortcut in a tray"),
    (NVL72, "flow device to device, same host", 900, EXACT, "one hop between any two GPUs"),
    (NVL72, "flow device to device, far", 900, EXACT, "one hop between any two GPUs"),
    (NVL72, "flow host to host", 3600, EXACT, "4 x 900 GB/s"),
    (NVL72, "latency us, same host", 1.730 / 2, 1e-3, "pointer chase 1.730 us round trip"),
    (NVL72, "latency us, far", 1.730 / 2, 1e-3, "pointer chase 1.730 us round trip; one tier"),
    (NVL72, "bf16 TFLOP/s", 2500, EXACT, "GB200 dense peak"),
    (NVL72, "fp8 TFLOP/s", 5000, EXACT, "GB200 dense peak"),
    (NVL72, "fp4 TFLOP/s", 10000, EXACT, "GB200 dense peak"),
    (NVL72, "achieved bf16 TFLOP/s", 1822, 2e-3, "largest achieved product, GB200 1822"),
    (NVL72, "HBM TB/s", 8, EXACT, "GB200 8.0 TB/s"),
    (NVL72, "HBM efficiency", 0.8, EXACT, "aiconfigurator derates HBM to 0.8 (not official)"),
    (NVL72, "memory GB", 189471 * MIB, 1e-6, "189,471 MiB usable"),
    (NVL72, "cores", 152, EXACT, "152 as the whole grid"),
    # GB200 NVL576
    (NVL576, "devices", 576, EXACT, "up to 576 GPUs in a single NVLink domain"),
    (NVL576, "hosts", 144, EXACT, "trays of 4 GPUs"),
    (NVL576, "devices a domain", 576, EXACT, "up to 576 GPUs in a single NVLink domain"),
    (NVL576, "switches", 288 + 144, EXACT, "288 first-tier and 144 second-tier chips"),
    (NVL576, "lanes", 10368, EXACT, "576 x 18 access links"),
    (NVL576, "devices below a first-tier chip", 36, EXACT, "chips split 36 down / 36 up"),
    (NVL576, "all trunks GB/s", 10368 * 50, EXACT, "36 of 72 ports up, 1:1"),
    (NVL576, "scale-up GB/s", 900, EXACT, "900 GB/s a direction a GPU"),
    (NVL576, "store GB/s", 720, EXACT, "as NVL72"),
    (NVL576, "bulk GB/s", 800, EXACT, "as NVL72"),
    (NVL576, "flow device to device, far", 900, EXACT, "non-blocking"),
    (NVL576, "flow host to host", 3600, EXACT, "non-blocking, 4 x 900 GB/s"),
    (NVL576, "latency us, same host", 1.730 / 2, 1e-3, "one tier as NVL72"),
    (NVL576, "bf16 TFLOP/s", 2500, EXACT, "GB200 dense peak"),
    (NVL576, "fp8 TFLOP/s", 5000, EXACT, "GB200 dense peak"),
    (NVL576, "HBM TB/s", 8, EXACT, "GB200 8.0 TB/s"),
    (NVL576, "memory GB", 189471 * MIB, 1e-6, "189,471 MiB usable"),
    (NVL576, "cores", 152, EXACT, "152 as the whole grid"),
    # Racks of GB200 NVL72 over NICs
    (RACKS, "devices", 8 * 72, EXACT, "SU = 8 racks = 576 GPUs"),
    (RACKS, "hosts", 8 * 18, EXACT, "18 trays a rack"),
    (RACKS, "devices a host", 4, EXACT, "a tray has four GPUs"),
    (RACKS, "devices a domain", 72, EXACT, "one NVLink domain of 72"),
    (RACKS, "NICs a device", 1, EXACT, "four 400G ports a tray, one per GPU"),
    (RACKS, "NVSwitch chips a host", 1, EXACT, "18 chips for 18 trays"),
    (RACKS, "scale-up GB/s", 900, EXACT, "as NVL72"),
    (RACKS, "store GB/s", 720, EXACT, "as NVL72"),
    (RACKS, "bulk GB/s", 800, EXACT, "as NVL72"),
    (RACKS, "scale-out GB/s", 50, EXACT, "400 Gb/s, ratio 900:50 = 18"),
    (RACKS, "NIC efficiency", 0.96, 0.011, "NDR port 48-49 of 50 GB/s"),
    (RACKS, "flow device to device, same host", 900, EXACT, "18 chips, one link each"),
    (RACKS, "flow device to device, far", 50, EXACT, "beyond the rack only the NIC is left"),
    (RACKS, "flow host to host", 200, EXACT, "four NICs a tray"),
    (RACKS, "latency us, same host", 1.730 / 2, 1e-3, "pointer chase 1.730 us round trip"),
    (RACKS, "latency us, far", 3.2, 1e-6, "ib_write, across racks: 3.15-3.25 us"),
    (RACKS, "bf16 TFLOP/s", 2500, EXACT, "GB200 dense peak"),
    (RACKS, "HBM TB/s", 8, EXACT, "GB200 8.0 TB/s"),
    (RACKS, "memory GB", 189471 * MIB, 1e-6, "189,471 MiB usable"),
    (RACKS, "cores", 152, EXACT, "152 as the whole grid"),
    (RACKS, "fp8 TFLOP/s", 5000, EXACT, "GB200 dense peak"),
    (RACKS, "fp4 TFLOP/s", 10000, EXACT, "GB200 dense peak"),
    (RACKS, "achieved bf16 TFLOP/s", 1822, 1e-3, "largest achieved product, GB200 1822"),
    (RACKS, "NVLinks", 8 * 72 * 18, EXACT, "one link from every GPU to every chip of its rack: 10,368"),
    (RACKS, "NVLink GB/s", 50, EXACT, "each chip has 72 ports of 50 per direction"),
    (RACKS, "links of an NVSwitch chip", 72, EXACT, "each chip has 72 ports of 50 per direction"),
    (RACKS, "rails", 4, EXACT, "GPU i of every node to leaf i, and a node is a tray of four"),
    (RACKS, "ports beyond a switch", 0, EXACT, "QM9700 = 64 x 400G"),
    (RACKS, "latency us, other tray", 1.730 / 2, 1e-3, "one hop between any two GPUs, also inside a tray"),
    (RACKS, "latency us, next rack, same rail", 3.2, 1e-6, "ib_write, across racks: 3.15-3.25 us"),
    (RACKS, "latency us, next rack, other rail", 3.2, 1e-6, "leaf, spine, leaf: as across racks"),
    (RACKS, "stores alone GB/s, same tray", 720, EXACT, "no shortcut in a tray; 32 B of header on 128 B"),
    (RACKS, "stores alone GB/s, other tray", 720, EXACT, "one hop; 32 B of header on 128 B"),
    (RACKS, "stores alone GB/s, next rack", 48, 0.011, "NDR port 48-49 of 50 GB/s"),
    (RACKS, "NIC ways of EP72", 0, EXACT, "one NVLink domain of 72: no byte meets a NIC"),
    (RACKS, "NIC ways of EP144", 2 * 144, EXACT, "one NIC a GPU, in and out, half of the group behind it"),
    (RACKS, "EP144, NIC over NVLink", (72 / 48) / (71 / 720), 0.011, "72 peers at 48 GB/s, 71 at 720"),
    (RACKS, "flow to another tray", 900, EXACT, "one hop, 18 x 50 GB/s"),
    (RACKS, "flow rack to rack", 3600, EXACT, "72 x 50 GB/s"),
    (RACKS, "flow half of the racks to half", 14400, EXACT, "288 x 50 GB/s, non-blocking"),
    (RACKS, "flow half a rack to half", 32400, EXACT, "36 x 900 GB/s"),
    (RACKS, "chip lost: flow in its rack", 850, EXACT, "a chip failure costs 1/18 of every GPU's rate"),
    (RACKS, "chip lost: flow in the next rack", 900, EXACT, "its chips are its own"),
    (RACKS, "chip lost: flow rack to rack", 3600, EXACT, "NICs do not hang on NVSwitch"),
    (RACKS, "NIC at half: flow to the next rack", 25, EXACT, "half of one port"),
    (RACKS, "NIC at half: flow from the next rack", 25, EXACT, "half of one port, both ways"),
    (RACKS, "NIC at half: flow in its rack", 900, EXACT, "NVLink carries it"),
    (RACKS, "NIC at half: flow rack to rack", 3575, EXACT, "71.5 x 50 GB/s"),
    # GB300 NVL72
    ("gb300-nvl72", "devices", 72, EXACT, "18 trays x 4 GPUs"),
    ("gb300-nvl72", "lanes", 1296, EXACT, "72 x 18 links"),
    ("gb300-nvl72", "scale-up GB/s", 900, EXACT, "900 GB/s a direction a GPU"),
    ("gb300-nvl72", "store GB/s", 717.2, 0.01, "SM write between two GPUs 717.2 GB/s measured"),
    ("gb300-nvl72", "bulk GB/s", 775.9, 0.05, "copy engine write 775.9 GB/s measured"),
    ("gb300-nvl72", "latency us, far", 1.7185 / 2, 5e-3, "pointer chase 1.710 to 1.727 us round trip"),
    ("gb300-nvl72", "bf16 TFLOP/s", 2500, EXACT, "GB300 dense peak"),
    ("gb300-nvl72", "fp8 TFLOP/s", 5000, EXACT, "GB300 dense peak"),
    ("gb300-nvl72", "fp4 TFLOP/s", 15000, EXACT, "GB300 dense peak"),
    ("gb300-nvl72", "HBM TB/s", 8, EXACT, "GB300 8.0 TB/s"),
    (
        "gb300-nvl72",
        "achieved HBM TB/s",
        2 * 3.312,
        5e-3,
        "device copy 3312 GB/s of payload, twice in traffic",
    ),
    ("gb300-nvl72", "memory GB", 284208 * MIB, 1e-6, "284,208 MiB usable"),
    ("gb300-nvl72", "cores", 152, EXACT, "as GB200 (inferred)"),
    # H100 on InfiniBand
    ("h100-ib", "devices a host", 8, EXACT, "8 GPUs"),
    ("h100-ib", "NVSwitch chips a host", 4, EXACT, "four NVSwitch3 chips"),
    ("h100-ib", "devices a domain", 8, EXACT, "NVLink ends at the host"),
    ("h100-ib", "scale-up GB/s", 18 * 25, EXACT, "18 links a GPU, 25 GB/s a link and direction"),
    ("h100-ib", "store GB/s", 360, EXACT, "32 B of header on 128 B: 360 predicted, 371-393 measured"),
    ("h100-ib", "bulk GB/s", 400, EXACT, "32 B of header on 256 B: 400 predicted, 397.5 measured"),
    ("h100-ib", "scale-out GB/s", 50, EXACT, "one CX7 400 Gb/s port a GPU"),
    ("h100-ib", "NICs a device", 1, EXACT, "one CX7 400 Gb/s port a GPU"),
    ("h100-ib", "NIC efficiency", 0.96, 0.011, "380-385 of 400 Gb/s; NDR port 48-49 of 50 GB/s"),
    ("h100-ib", "flow device to device, same host", 450, EXACT, "every pair sees the full 450 when alone"),
    ("h100-ib", "flow device to device, far", 50, EXACT, "one CX7 400 Gb/s port a GPU"),
    ("h100-ib", "flow host to host", 400, EXACT, "8 x 50 GB/s"),
    ("h100-ib", "latency us, same host", 0.826 / 2, 5e-3, "pointer chase 0.822-0.830 us round trip"),
    ("h100-ib", "latency us, same rail and leaf", 1.85, 1e-6, "ib_write, same rack: 1.8-1.9 us"),
    ("h100-ib", "latency us, far", 3.2, 1e-6, "ib_write, across racks: 3.15-3.25 us"),
    ("h100-ib", "bf16 TFLOP/s", 989, EXACT, "H100 SXM dense peak"),
    ("h100-ib", "fp8 TFLOP/s", 1978, EXACT, "H100 SXM dense peak"),
    ("h100-ib", "achieved bf16 TFLOP/s", 794.5, 2e-3, "largest achieved product, H100 794.5"),
    ("h100-ib", "HBM TB/s", 3.35, EXACT, "H100 3.35 TB/s"),
    ("h100-ib", "achieved HBM TB/s", 2.90, 2e-3, "achieved copy, H100 2.90 TB/s"),
    ("h100-ib", "memory GB", 80, EXACT, "80 GB"),
    ("h100-ib", "cores", 132, EXACT, "132 SMs"),
    # H800 on InfiniBand
    ("h800-ib", "devices a host", 8, EXACT, "the same board as H100"),
    ("h800-ib", "NVSwitch chips a host", 4, EXACT, "the same board as H100"),
    ("h800-ib", "scale-up GB/s", 200, EXACT, "NVLink cut to 200 GB/s a direction"),
    ("h800-ib", "store GB/s", 160, EXACT, "at most about 160 reached"),
    ("h800-ib", "scale-out GB/s", 50, EXACT, "one CX7 400 Gb/s port a GPU"),
    ("h800-ib", "NIC efficiency", 0.96, 0.011, "as H100"),
    ("h800-ib", "flow device to device, same host", 200, EXACT, "NVLink cut to 200 GB/s a direction"),
    ("h800-ib", "flow device to device, far", 50, EXACT, "one CX7 400 Gb/s port a GPU"),
    ("h800-ib", "flow host to host", 400, EXACT, "8 x 50 GB/s"),
    ("h800-ib", "latency us, same rail and leaf", 1.85, 1e-6, "as H100"),
    ("h800-ib", "bf16 TFLOP/s", 989, EXACT, "as H100; recalled, no public source"),
    ("h800-ib", "fp8 TFLOP/s", 1978, EXACT, "as H100; recalled, no public source"),
    ("h800-ib", "HBM TB/s", 3.35, EXACT, "as H100; recalled, no public source"),
    ("h800-ib", "memory GB", 80, EXACT, "80 GB"),
    ("h800-ib", "cores", 132, EXACT, "132 SMs"),
    # HGX H200
    ("h200-hgx", "devices a host", 8, EXACT, "8 GPUs"),
    ("h200-hgx", "scale-up GB/s", 450, EXACT, "450 GB/s a direction a GPU"),
    ("h200-hgx", "scale-out GB/s", 50, EXACT, "one CX7 400 Gb/s port a GPU"),
    ("h200-hgx", "bf16 TFLOP/s", 989, EXACT, "as H100"),
    ("h200-hgx", "fp8 TFLOP/s", 1978, EXACT, "as H100"),
    ("h200-hgx", "HBM TB/s", 4.8, EXACT, "4.8 TB/s"),
    ("h200-hgx", "achieved HBM TB/s", 4.01, 2e-3, "achieved copy, H200 4.01 TB/s"),
    ("h200-hgx", "memory GB", 141, EXACT, "141 GB"),
    ("h200-hgx", "cores", 132, EXACT, "132 SMs"),
    # HGX B200
    ("b200-hgx", "scale-up GB/s", 900, EXACT, "900 GB/s a direction a GPU"),
    ("b200-hgx", "scale-out GB/s", 50, EXACT, "H100 to B200: 400 Gb/s a GPU"),
    ("b200-hgx", "store GB/s", 720, EXACT, "32 B of header on 128 B"),
    ("b200-hgx", "bf16 TFLOP/s", 2250, EXACT, "B200 dense peak"),
    ("b200-hgx", "fp8 TFLOP/s", 4500, EXACT, "B200 dense peak"),
    ("b200-hgx", "fp4 TFLOP/s", 9000, EXACT, "B200 dense peak"),
    ("b200-hgx", "achieved bf16 TFLOP/s", 1745, 2e-3, "largest achieved product, B200 1745"),
    ("b200-hgx", "HBM TB/s", 7.7, EXACT, "7680-bit bus = 7.672 TB/s, quoted 7.7"),
    ("b200-hgx", "memory GB", 180 * 1024 * MIB, 1e-6, "180 GiB"),
    ("b200-hgx", "cores", 148, EXACT, "148 SMs"),
    # HGX B300
    ("b300-hgx", "devices a host", 8, EXACT, "HGX: 8 GPUs"),
    ("b300-hgx", "devices a domain", 8, EXACT, "NVLink ends at the host"),
    ("b300-hgx", "scale-up GB/s", 900, EXACT, "900 GB/s a direction a GPU"),
    ("b300-hgx", "store GB/s", 720, EXACT, "32 B of header on 128 B"),
    ("b300-hgx", "bulk GB/s", 800, EXACT, "32 B of header on 256 B"),
    ("b300-hgx", "scale-out GB/s", 100, EXACT, "B300 and GB300 hosts: 800 Gb/s a GPU (one CX8)"),
    ("b300-hgx", "NICs a device", 1, EXACT, "one CX8 a GPU"),
    ("b300-hgx", "flow device to device, far", 900, EXACT, "one host: every pair sees the full rate"),
    ("b300-hgx, 2 hosts", "flow device to device, far", 100, EXACT, "800 Gb/s a GPU"),
    ("b300-hgx, 2 hosts", "flow host to host", 800, EXACT, "8 x 100 GB/s"),
    ("b300-hgx", "bf16 TFLOP/s", 2250, EXACT, "B300 dense peak"),
    ("b300-hgx", "fp8 TFLOP/s", 4500, EXACT, "B300 dense peak"),
    ("b300-hgx", "fp4 TFLOP/s", 14000, EXACT, "B300 dense peak"),
    ("b300-hgx", "HBM TB/s", 7.75, EXACT, "7.75 TB/s"),
    ("b300-hgx", "memory GB", 275040 * MIB, 1e-6, "275,040 MiB usable"),
    ("b300-hgx", "cores", 148, EXACT, "148 SMs"),
    # Vera Rubin NVL72
    ("vr-nvl72", "devices", 72, EXACT, "72 packages, 18 trays x 4"),
    ("vr-nvl72", "hosts", 18, EXACT, "72 packages, 18 trays x 4"),
    ("vr-nvl72", "switches", 36, EXACT, "36 chips of 72 ports, four a tray (inferred)"),
    ("vr-nvl72", "lanes", 36 * 72, EXACT, "36 x 72 = 2592 links of 50"),
    ("vr-nvl72", "lane GB/s", 50, EXACT, "36 links x 50"),
    ("vr-nvl72", "scale-up GB/s", 1800, EXACT, "3.6 TB/s both directions = 1800"),
    ("vr-nvl72", "all lanes GB/s", 129600, EXACT, "260 TB/s a rack, both directions"),
    ("vr-nvl72", "devices a domain", 72, EXACT, "one NVLink domain of 72"),
    ("vr-nvl72", "flow device to device, far", 1800, EXACT, "1800 a direction"),
    ("vr-nvl72", "flow host to host", 7200, EXACT, "4 x 1800 GB/s"),
    ("vr-nvl72", "bf16 TFLOP/s", 4000, EXACT, "Rubin bf16 4000"),
    ("vr-nvl72", "fp8 TFLOP/s", 17500, EXACT, "Rubin fp8 17500"),
    ("vr-nvl72", "fp4 TFLOP/s", 50000, EXACT, "NVFP4 inference 3.6 EFLOP/s a rack = 50 PFLOP/s a package"),
    ("vr-nvl72", "HBM TB/s", 22, EXACT, "22 TB/s (2026)"),
    ("vr-nvl72", "memory GB", 288, EXACT, "HBM4 288 GB, 20.7 TB a rack"),
    ("vr-nvl72", "cores", 224, EXACT, "224 SMs"),
]

NVLINK = "packets.header"
BEST_GRADE: list[tuple[str, str, str, str]] = [
    (CM384, "device.compute.bf16", "derived", "from tokens/s and tokens/s per TOP/s"),
    (CM384, "device.compute.int8", "derived", "from tokens/s and tokens/s per TOP/s"),
    (CM384, "device.engines.write.device", "measured", "StrataCL"),
    (CM384, "device.engines.write.host", "measured", "table 1"),
    (CM384, "device.engines.write.domain", "measured", "table 1"),
    (CM384, "device.engines.read.host", "measured", "table 1"),
    (CM384, "device.engines.read.domain", "measured", "table 1"),
    (CM384, "fabric.planes", "derived", "lane mapping inferred"),
    (CM384, "properties.atomic-512B", "assumed", "UBEP relies on it; a derived library doubts it"),
    (CM384, "device.compute_efficiency", "assumed", "not published"),
    (CM384, "device.hbm_efficiency", "assumed", "not published"),
    (CM384, "fabric.cpus.capacity", "derived", "a socket's rate over seven chips; the split is inferred"),
    (CM384, "fabric.cpus.latency", "derived", "NPU-CPU less the lane"),
    (CM384, "fabric.profiles.cm384.one_tier", "measured", "table 1"),
    (CM384, "fabric.profiles.cm384.two_tier", "measured", "table 1"),
    (CM384, "fabric.profiles.cm384.sibling", "measured", "StrataCL"),
    (A2, "device.compute.bf16", "assumed", "910B: assumed"),
    (A2, "device.compute.int8", "assumed", "910B: assumed"),
    (A2, "device.hbm_rate", "assumed", "910B: assumed"),
    (A2, "device.memory", "assumed", "910B: assumed"),
    (A2, "device.cores", "assumed", "not published here"),
    (A2, "device.hbm_efficiency", "assumed", "not published"),
    (A2, "fabric.scale_up.capacity", "assumed", "press"),
    (A2, "fabric.scale_up.efficiency", "assumed", "measured on a 910C die"),
    (A2, "fabric.nic.capacity", "assumed", "press"),
    (A2, "fabric.scale_up.latency", "assumed", "not published"),
    (A2, "fabric.nic.latency", "assumed", "not published"),
    (A2, "fabric.nic.efficiency", "assumed", "not published"),
    (NVL72, "device.cores", "derived", "inferred from the grid"),
    (NVL72, "device.compute_efficiency", "derived", "achieved over peak"),
    (NVL72, "device.hbm_efficiency", "assumed", "not official"),
    (NVL72, "fabric.planes", "derived", "inferred, and the count closes"),
    (NVL72, f"fabric.lane.{NVLINK}", "derived", "inferred from rates"),
    (NVL72, "fabric.latency.one_tier", "derived", "half a round trip"),
    (NVL576, "device.cores", "derived", "inferred from the grid"),
    (NVL576, "fabric.planes", "derived", "sizing inferred"),
    (NVL576, "fabric.hosts_per_group", "derived", "sizing inferred"),
    (NVL576, "fabric.trunk.chips_per_plane", "derived", "sizing inferred"),
    (NVL576, "fabric.trunk.capacity", "derived", "sizing inferred"),
    (NVL576, "fabric.trunk.taper", "assumed", "keep the taper a parameter; 1:1 is generous"),
    (NVL576, "fabric.latency.two_tier", "assumed", "not published"),
    (RACKS, "fabric.scale_up.latency", "derived", "a quarter of a round trip"),
    (RACKS, "fabric.scale_up.chips", "derived", "the count closes"),
    (RACKS, "fabric.hosts_per_leaf", "assumed", "rail-optimised, but no leaf is described"),
    (RACKS, "fabric.spine.chips", "assumed", "not described"),
    (RACKS, "fabric.spine.taper", "assumed", "not described"),
    (RACKS, "fabric.nic.latency", "derived", "half of ib_write"),
    (RACKS, "fabric.nic.efficiency", "measured", "ports measured"),
    (RACKS, "fabric.spine.latency", "derived", "difference of two measurements"),
    (RACKS, f"fabric.scale_up.{NVLINK}", "derived", "inferred from rates"),
    (RACKS, "device.cores", "derived", "inferred from the grid"),
    (RACKS, "device.compute_efficiency", "derived", "achieved over peak"),
    (RACKS, "device.hbm_efficiency", "assumed", "not official"),
    ("gb300-nvl72", "device.cores", "derived", "inferred from GB200"),
    ("gb300-nvl72", "device.hbm_efficiency", "derived", "doubling inferred"),
    ("gb300-nvl72", "fabric.latency.one_tier", "derived", "half a round trip"),
    ("h100-ib", "device.compute_efficiency", "derived", "achieved over peak"),
    ("h100-ib", "device.hbm_efficiency", "derived", "achieved over peak"),
    ("h100-ib", "fabric.scale_up.latency", "derived", "a quarter of a round trip"),
    ("h100-ib", f"fabric.scale_up.{NVLINK}", "derived", "inferred from rates"),
    ("h100-ib", "fabric.nic.latency", "derived", "half of ib_write"),
    ("h100-ib", "fabric.nic.efficiency", "measured", "ports measured"),
    ("h100-ib", "fabric.spine.latency", "derived", "difference of two measurements"),
    ("h800-ib", "device.compute.bf16", "assumed", "recalled, no public source"),
    ("h800-ib", "device.compute.fp8", "assumed", "recalled, no public source"),
    ("h800-ib", "device.hbm_rate", "assumed", "recalled, no public source"),
    ("h800-ib", "device.compute_efficiency", "assumed", "measured on H100"),
    ("h800-ib", "device.hbm_efficiency", "assumed", "measured on H100"),
    ("h800-ib", "fabric.scale_up.latency", "assumed", "measured on H100"),
    ("b200-hgx", "device.compute_efficiency", "derived", "achieved over peak"),
    ("b200-hgx", "device.hbm_efficiency", "assumed", "not official"),
    ("b200-hgx", "fabric.scale_up.latency", "assumed", "measured on H100"),
    ("b200-hgx", "fabric.scale_up.chips", "derived", "not said; by port count"),
    ("b300-hgx", "device.compute_efficiency", "assumed", "measured on B200"),
    ("b300-hgx", "device.hbm_efficiency", "assumed", "not official"),
    ("b300-hgx", "fabric.scale_up.latency", "assumed", "measured on H100"),
    ("b300-hgx", "fabric.scale_up.chips", "derived", "not said; by port count"),
    ("b300-hgx", "fabric.nic.latency", "assumed", "measured on NDR"),
    ("b300-hgx", "fabric.nic.efficiency", "assumed", "measured on a RoCE port"),
    ("b300-hgx", "fabric.spine.latency", "assumed", "measured on NDR"),
    ("b300-hgx", "fabric.spine.taper", "derived", "by switch counts"),
    ("b300-hgx", "device.cores", "measured", "a user's report"),
    ("b200-hgx", "device.cores", "measured", "a user's report"),
    ("h200-hgx", "device.compute_efficiency", "assumed", "measured on H100"),
    ("h200-hgx", "fabric.scale_up.latency", "assumed", "measured on H100"),
    ("h800-ib", "fabric.scale_up.capacity", "derived", "a user's report"),
    ("h100-ib", "fabric.spine.taper", "derived", "by switch counts"),
    ("vr-nvl72", "device.cores", "assumed", "press"),
    ("vr-nvl72", "fabric.hosts", "assumed", "press"),
    ("vr-nvl72", "fabric.planes", "derived", "chip count not established"),
    ("vr-nvl72", f"fabric.lane.{NVLINK}", "assumed", "NVLink6 not measured"),
    ("vr-nvl72", "fabric.latency.one_tier", "assumed", "NVLink6 not measured"),
    ("vr-nvl72", "device.compute_efficiency", "assumed", "not measured"),
    ("vr-nvl72", "device.hbm_efficiency", "assumed", "not measured"),
]


def variant(name: str) -> Topology:
    """A pod, or one with a parameter: ``pod, profile`` or ``pod, 2 hosts``."""
    pod, _, setting = name.partition(", ")
    if setting.endswith(" hosts"):
        return fabrics.load({"name": pod, "hosts": int(setting.split()[0])})
    return pod_of(pod, setting or None)


def names(rows: list[Any]) -> list[str]:
    return [f"{row[0]}: {row[1]}" for row in rows]


@pytest.mark.parametrize(("pod", "what", "value", "tolerance", "sentence"), ROWS, ids=names(ROWS))
def test_a_number_derived_again_agrees(
    pod: str, what: str, value: float, tolerance: float, sentence: str
) -> None:
    found = MEASURES[what](variant(pod))
    assert found == pytest.approx(value, rel=tolerance), f"the texts say: {sentence}"


@pytest.mark.parametrize(("pod", "where", "best", "why"), BEST_GRADE, ids=names(BEST_GRADE))
def test_no_number_claims_to_be_better_known_than_the_texts_allow(
    pod: str, where: str, best: str, why: str
) -> None:
    grades = {cited.where: cited.grade.value for cited in pod_of(pod).cited}
    assert GRADES.index(grades[f"{pod} {where}"]) >= GRADES.index(best), why


def test_every_shipped_pod_is_derived_again() -> None:
    assert {row[0].partition(", ")[0] for row in ROWS} == set(resources.names("topology"))


def test_no_row_is_there_twice() -> None:
    for rows in (names(ROWS), names(BEST_GRADE)):
        assert len(rows) == len(set(rows))
