"""A pod as a graph: vertices, directed links with raw capacity and latency, one kind of device.

Capacity is per direction and raw. What packets leave of it for payload is kept apart in ``efficiency``;
what a device's own engines can push or pull is kept in ``Device.engines``. Nothing is folded into anything
else.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moesim import units
from moesim.errors import InputError, InvariantError, Problem
from moesim.sources import Cited

if TYPE_CHECKING:
    import networkx as nx

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
StrArray = NDArray[np.str_]

ACCESSES = ("store", "bulk", "write", "read", "rdma")
"""How bytes are moved: small SM stores, bulk copies, a device's own writes, its own reads, writes by its NIC alone."""

FAULTS = ("link", "chip", "nic", "rank", "plane")
"""What a fault can hit."""

LEAST_LEFT = 1e-6
"""Of a part that is not gone at least this share of its capacity is left."""


class Tier(IntEnum):
    """How far two ranks are from each other; the first that holds."""

    SELF = 0
    DEVICE = 1
    """Another die of the same package."""
    HOST = 2
    DOMAIN = 3
    """Another host of the same scale-up fabric."""
    SCALE_OUT = 4


def _known(kind: str, target: object, names: Mapping[str, object]) -> str:
    """``target`` as a key of ``names``; :class:`InputError` with the nearest of them otherwise."""
    text = str(target)
    if text not in names:
        close = difflib.get_close_matches(text, names, n=3, cutoff=0.5)
        guess = f"did you mean {' or '.join(close)}? " if close else ""
        shown = ", ".join(list(names)[-3:])
        legal = (
            f"{guess}{len(names)} names and numbers, such as {shown}" if names else f"this pod has no {kind}"
        )
        raise InputError(Problem(f"a fault names the unknown {kind} {text!r}", legal=legal))
    return text


@dataclass(frozen=True)
class Device:
    """What one rank computes and copies with; peaks are dense and their achieved share is kept apart.

    ``compute``: dtype -> FLOP/s. ``hbm_rate`` [B/s], ``memory`` [B]. ``engines``: "write" or "read" -> tier ->
    B/s at which a device can move bytes to or from peers of that tier, whatever its ports could carry.
    """

    name: str
    cores: int
    core_kind: str
    compute: Mapping[str, float]
    compute_efficiency: float
    hbm_rate: float
    hbm_efficiency: float
    memory: float
    engines: Mapping[str, Mapping[Tier, float]] = field(default_factory=dict)

    @staticmethod
    def ideal() -> Device:
        """A device that computes and copies in no time and never runs out of memory."""
        inf = float("inf")
        return Device("ideal", 1, "core", {}, 1.0, inf, 1.0, inf)

    def engine(self, access: str) -> Mapping[Tier, float]:
        """Engine rates that ``access`` is subject to: stores and bulk copies are writes. Empty if
        unlimited.
        """
        return self.engines.get("read" if access == "read" else "write", {})


@dataclass(frozen=True, eq=False)
class Topology:
    """A pod. V vertices, D devices in rank order, L directed links; link 2i and 2i+1 are the two ways of
    duplex link i.

    ``package``, ``host``, ``domain``, ``plane`` (V,): membership, -1 for none. ``efficiency``: access ->
    (L,) payload share of the raw capacity, "default" for accesses that are not listed. ``message_rate``
    (V,) [1/s]: most messages a NIC can send. ``faults``: what :meth:`with_faults` removed or degraded, in
    words. ``read_latency`` (L,) [s]: of reads, round trip and all, where it differs.
    """

    name: str
    family: str
    path: str | None
    vertices: tuple[str, ...]
    vertex_kind: StrArray
    package: IntArray
    host: IntArray
    domain: IntArray
    plane: IntArray
    devices: IntArray
    link_src: IntArray
    link_dst: IntArray
    link_capacity: FloatArray
    link_latency: FloatArray
    link_kind: StrArray
    efficiency: Mapping[str, FloatArray]
    message_rate: FloatArray
    device: Device
    properties: frozenset[str] = frozenset()
    cited: tuple[Cited, ...] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    read_latency: FloatArray | None = None

    def __post_init__(self) -> None:
        links, vertices = len(self.link_src), len(self.vertices)
        for name in ("vertex_kind", "package", "host", "domain", "plane", "message_rate"):
            self._freeze(getattr(self, name), vertices, name)
        for name in ("link_src", "link_dst", "link_capacity", "link_latency", "link_kind"):
            self._freeze(getattr(self, name), links, name)
        for access, share in self.efficiency.items():
            self._freeze(share, links, f"efficiency[{access}]")
        if self.read_latency is not None:
            self._freeze(self.read_latency, links, "read_latency")
        self._freeze(self.devices, len(self.devices), "devices")
        if "default" not in self.efficiency:
            raise InvariantError("a topology needs a default efficiency")

    @staticmethod
    def _freeze(array: NDArray[np.generic], length: int, name: str) -> None:
        if array.shape != (length,):
            raise InvariantError(f"topology column {name} has shape {array.shape}, not ({length},)")
        array.flags.writeable = False

    def share(self, access: str) -> FloatArray:
        """(L,) payload share of the raw capacity under ``access``."""
        return self.efficiency.get(access, self.efficiency["default"])

    def latency(self, access: str) -> FloatArray:
        """(L,) [s] of what is moved by ``access``."""
        if access == "read" and self.read_latency is not None:
            return self.read_latency
        return self.link_latency

    def device_names(self) -> tuple[str, ...]:
        """Names of the D devices in rank order."""
        return tuple(self.vertices[v] for v in self.devices)

    def links_of(self, kind: str) -> IntArray:
        """Directed links of one kind ("lane", "trunk", "nic" ...)."""
        return np.flatnonzero(self.link_kind == kind)

    def injection(self) -> float:
        """Raw capacity [B/s] that all devices together offer to the fabric, one direction."""
        is_device = self.vertex_kind == "device"
        out = is_device[self.link_src] & ~is_device[self.link_dst]
        direct = is_device[self.link_src] & is_device[self.link_dst]
        return float(self.link_capacity[out | direct].sum())

    def link_names(self) -> tuple[str, ...]:
        """(L,) names "a--b" of directed links; a duplex link answers to either direction's."""
        return tuple(
            f"{self.vertices[a]}--{self.vertices[b]}"
            for a, b in zip(self.link_src, self.link_dst, strict=True)
        )

    def with_faults(
        self, faults: Sequence[Mapping[str, object]], devices: IntArray | None = None
    ) -> Topology:
        """A copy in which links are removed or keep only a share of their capacity; vertices and numbers
        stay.

        Each fault is ``{link|chip|nic|rank|plane: name or number, capacity: share that is left}``, the
        share a ratio ("50%", 0.5) and 0 by default. ``link``: "a--b", both ways. ``rank`` needs ``devices``
        (R,). Raises :class:`InputError` with all problems, and near names for an unknown one.
        """
        capacity = self.link_capacity.copy()
        said: list[str] = []
        problems: list[Problem] = []
        for fault in faults:
            try:
                hit, share, words = self._fault(fault, devices)
            except InputError as error:
                problems.extend(error.problems)
                continue
            capacity[hit] *= share
            said.append(words)
        if problems:
            raise InputError(problems)
        return replace(self, link_capacity=capacity, faults=(*self.faults, *said))

    def _fault(
        self, fault: Mapping[str, object], devices: IntArray | None
    ) -> tuple[NDArray[np.bool_], float, str]:
        """Links (L,) that a fault touches, the share of capacity left, the fault in words."""
        kind, target = self._target(fault)
        left = fault.get("capacity", 0.0)
        share = left if isinstance(left, float) else units.parse(left, "share")  # type: ignore[arg-type]
        if share != 0 and not LEAST_LEFT <= share <= 1:
            legal = f"0%, or {LEAST_LEFT * 100:g}% to 100%"
            raise InputError(Problem(f"a fault cannot leave {share * 100:g}% of the capacity", legal=legal))
        words = f"{kind} {target} " + (f"at {share:.4g} of its capacity" if share else "removed")
        mask = self._mask(kind, target, devices)
        if kind != "link":
            mask = mask[self.link_src] | mask[self.link_dst]
        return mask, share, words

    def part(self, fault: Mapping[str, object], devices: IntArray | None = None) -> tuple[str, bytes]:
        """What ``fault`` names, whatever it calls it: two faults of one part give the same."""
        kind, target = self._target(fault)
        return kind, self._mask(kind, target, devices).tobytes()

    @staticmethod
    def _target(fault: Mapping[str, object]) -> tuple[str, object]:
        """The kind of part and which one."""
        kinds = [key for key in fault if key != "capacity"]
        if len(kinds) != 1 or kinds[0] not in FAULTS:
            legal = f"{{one of {', '.join(FAULTS)}: name or number, capacity: 0%..100%}}"
            raise InputError(Problem(f"not a fault: {dict(fault)}", legal=legal))
        return kinds[0], fault[kinds[0]]

    def _mask(self, kind: str, target: object, devices: IntArray | None) -> NDArray[np.bool_]:
        """Links (L,) of a link, vertices (V,) of any other part."""
        return self._duplex(target) if kind == "link" else self._members(kind, target, devices)

    def _duplex(self, target: object) -> NDArray[np.bool_]:
        """(L,) mask of both directions of the link(s) "a--b", or of duplex link number ``target``."""
        names = self.link_names()
        where = {str(i // 2): name for i, name in enumerate(names) if i % 2 == 0}
        where |= {name: name for name in names}
        ends = sorted(where[_known("link", target, where)].split("--"))
        return np.array([sorted(name.split("--")) == ends for name in names])

    def _members(self, kind: str, target: object, devices: IntArray | None) -> NDArray[np.bool_]:
        """(V,) mask of what ``target`` names: a name, or a number counted within its kind."""
        if kind == "plane":
            planes = {str(plane): plane for plane in sorted(set(self.plane[self.plane >= 0].tolist()))}
            return np.asarray(self.plane == planes[_known(kind, target, planes)])
        if kind == "rank":
            chosen = self.devices if devices is None else self.devices[devices]
        else:
            chosen = np.flatnonzero(self.vertex_kind == ("nic" if kind == "nic" else "switch"))
        where = {str(i): int(v) for i, v in enumerate(chosen)}
        where |= {self.vertices[v]: int(v) for v in chosen}
        mask = np.zeros(len(self.vertices), dtype=bool)
        mask[where[_known(kind, target, where)]] = True
        return mask

    def graph(self) -> nx.DiGraph[str]:
        """The networkx view: vertices by name with kind, host, domain, package, plane; parallel links
        summed.

        Edge attributes: ``capacity`` [B/s], ``latency`` [s] (the largest), ``kind``, ``count`` of parallel
        links.
        """
        import networkx as nx

        graph: nx.DiGraph[str] = nx.DiGraph(name=self.name)
        for v, name in enumerate(self.vertices):
            graph.add_node(
                name,
                kind=str(self.vertex_kind[v]),
                host=int(self.host[v]),
                domain=int(self.domain[v]),
                package=int(self.package[v]),
                plane=int(self.plane[v]),
            )
        for i in np.flatnonzero(self.link_capacity > 0):
            a, b = self.vertices[self.link_src[i]], self.vertices[self.link_dst[i]]
            capacity, latency = float(self.link_capacity[i]), float(self.link_latency[i])
            if graph.has_edge(a, b):
                edge = graph.edges[a, b]
                edge["capacity"] += capacity
                edge["latency"] = max(edge["latency"], latency)
                edge["count"] += 1
            else:
                graph.add_edge(a, b, capacity=capacity, latency=latency, kind=str(self.link_kind[i]), count=1)
        return graph
