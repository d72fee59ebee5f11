"""The coarsest equitable partition of a pod as seen from its ranks: vertices and links that are
interchangeable, merged.

Colour refinement: two vertices keep the same colour while they have the same numbers of links of every kind
from and to every colour. Then the number of shortest paths from a rank to a vertex depends on the vertex's
colour only, so equal-share spraying loads all links of one class equally.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesim.topology import FloatArray, IntArray, Topology

_U64 = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Quotient:
    """C classes of vertices (the R ranks first, one each) and E classes of directed links between them.

    ``colour`` (V,): class of each vertex. ``size`` (C,): vertices of a class. ``name`` (C,): the shared
    part of their names. ``level`` (C,): links to the nearest device. ``is_nic`` (C,), ``message_rate`` (C,)
    [1/s] summed. ``src``, ``dst`` (E,): classes; ``count`` (E,): links merged; ``raw``, ``capacity`` (E,)
    [B/s] summed, before and after packet efficiency; ``latency`` (E,) [s] of one; ``kind`` (E,).
    """

    ranks: int
    colour: IntArray
    size: IntArray
    name: tuple[str, ...]
    level: IntArray
    is_nic: NDArray[np.bool_]
    message_rate: FloatArray
    src: IntArray
    dst: IntArray
    count: IntArray
    raw: FloatArray
    capacity: FloatArray
    latency: FloatArray
    kind: tuple[str, ...]


def quotient(
    topology: Topology, devices: IntArray, access: str, idle: NDArray[np.bool_] | None = None
) -> Quotient:
    """Divide ``topology`` by its coarsest equitable partition; ``devices`` (R,) index ``topology.devices``.

    Links of devices that carry no rank, and of CPUs, are left out first: nobody relays through them. So are
    those of the vertices ``idle`` (V,), which the caller knows to be on no shortest path.
    """
    used = topology.devices[devices]
    usable = ~np.isin(topology.vertex_kind, ("device", "cpu"))
    if idle is not None:
        usable &= ~idle
    usable[used] = True
    alive = topology.link_capacity > 0
    keep = np.flatnonzero(alive & usable[topology.link_src] & usable[topology.link_dst])
    src, dst = topology.link_src[keep], topology.link_dst[keep]
    label = _labels(topology, keep, access)
    colour = _initial(topology, used)
    count = -1
    while count != (count := int(colour.max()) + 1):
        colour = _refined(colour, src, dst, label)
    return _merged(topology, keep, access, colour, label, len(devices))


def _labels(topology: Topology, links: IntArray, access: str) -> IntArray:
    """(L',) number of the kind of link: same capacity, share, latency and name."""
    _, kind = np.unique(topology.link_kind, return_inverse=True)
    columns = (topology.link_capacity, topology.share(access), topology.latency(access), kind)
    return _group([column[links] for column in columns])


def _group(columns: list[NDArray[np.generic]]) -> IntArray:
    """Number the distinct rows of ``columns`` in ascending order, the first column being the major one."""
    order = np.lexsort(columns[::-1])
    change = np.zeros(len(order), dtype=bool)
    for column in columns:
        ranked = column[order]
        change[1:] |= ranked[1:] != ranked[:-1]
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.cumsum(change)
    return group


def _initial(topology: Topology, used: IntArray) -> IntArray:
    """(V,) starting colours: ranks get 0..R-1, the rest their kind and message rate."""
    rank = np.full(len(topology.vertices), len(used), dtype=np.int64)
    rank[used] = np.arange(len(used))
    _, kind = np.unique(topology.vertex_kind, return_inverse=True)
    return _group([rank, kind, topology.message_rate])


def _mix(x: _U64) -> _U64:
    """splitmix64: spreads 64-bit keys so that their sums tell multisets apart."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _refined(colour: IntArray, src: IntArray, dst: IntArray, label: IntArray) -> IntArray:
    """Split colours by the multiset of (link label, direction, neighbour's colour); order of colours is
    kept.
    """
    signature = np.zeros(len(colour), dtype=np.uint64)
    width = np.uint64(len(colour) + 1)
    for here, there, way in ((src, dst, 1), (dst, src, 2)):
        key = label.astype(np.uint64) * width + colour[there].astype(np.uint64)
        np.add.at(signature, here, _mix(key * np.uint64(3) + np.uint64(way)))
    return _group([colour, signature])


def _merged(
    topology: Topology, links: IntArray, access: str, colour: IntArray, label: IntArray, ranks: int
) -> Quotient:
    """Sum what is interchangeable. The colours of the ranks are 0..R-1 throughout."""
    size = np.bincount(colour)
    rate = _sums(colour, topology.message_rate)
    src, dst = colour[topology.link_src[links]], colour[topology.link_dst[links]]
    group = _group([src, dst, label])
    _, first = np.unique(group, return_index=True)
    raw = topology.link_capacity[links]
    share = topology.share(access)[links]
    one = links[first]
    level = np.full(len(size), -1, dtype=np.int64)
    level[colour] = _levels(topology)
    nic = np.zeros(len(size), dtype=bool)
    nic[colour] = topology.vertex_kind == "nic"
    return Quotient(
        ranks=ranks,
        colour=colour,
        size=size,
        name=_names(topology.vertices, colour, len(size)),
        level=level,
        is_nic=nic,
        message_rate=rate,
        src=src[first],
        dst=dst[first],
        count=np.bincount(group),
        raw=_sums(group, raw),
        capacity=_sums(group, raw * share),
        latency=topology.latency(access)[one],
        kind=tuple(str(kind) for kind in topology.link_kind[one]),
    )


def _sums(group: IntArray, values: FloatArray) -> FloatArray:
    return np.bincount(group, weights=values).astype(np.float64)


def _levels(topology: Topology) -> IntArray:
    """(V,) number of links to the nearest device (0 for devices, V where there is no way)."""
    far = len(topology.vertices)
    level = np.full(far, far, dtype=np.int64)
    level[topology.devices] = 0
    while True:
        better = level.copy()
        np.minimum.at(better, topology.link_dst, level[topology.link_src] + 1)
        if np.array_equal(better, level):
            return level
        level = better


def _names(vertices: tuple[str, ...], colour: IntArray, count: int) -> tuple[str, ...]:
    """What the names of a class share, up to a "/": its only member, "host3", or else "fabric"."""
    shared: list[list[str] | None] = [None] * count
    for name, c in zip(vertices, colour, strict=True):
        parts, known = name.split("/"), shared[c]
        if known is None:
            shared[c] = parts
            continue
        same = 0
        while same < min(len(parts), len(known)) and parts[same] == known[same]:
            same += 1
        shared[c] = known[:same]
    return tuple("/".join(parts) if parts else "fabric" for parts in shared)
