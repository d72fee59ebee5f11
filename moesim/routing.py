"""Which resources a byte from one rank to another takes, and how much of each.

Policy: traffic is sprayed over all shortest paths (fewest links), in equal shares by path. Devices and CPUs
never relay.

The graph is first divided by its coarsest equitable partition (colour refinement) in which every rank is a
class of its own. Vertices of one class are interchangeable as seen from every rank, so spraying loads all
links of one class of links equally, and they can be replaced by one resource with their summed capacity
without changing any rate. A healthy CloudMatrix384 takes a flow over five resources instead of several
hundred; a fault splits just the classes that it makes unequal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError, Problem
from moesim.paths import FAR, Paths
from moesim.quotient import Quotient, quotient
from moesim.registry import nearest
from moesim.topology import ACCESSES, FloatArray, IntArray, Tier, Topology


@dataclass(frozen=True, eq=False)
class Routes:
    """Routes between R ranks over N resources; row ``src * R + dst`` of the CSR matrix is one ordered pair.

    ``capacity`` (N,): [B/s] of wire bytes after packet headers for links; 1 s/s for engines and message
    processing. ``raw_rate`` (N,) [B/s]: the raw link capacity behind it (0 for the others). ``indptr``
    (R*R+1,), ``index``, ``weight``: units of a resource that one wire byte takes: the sprayed share on a
    link, 1/rate seconds of an engine. ``latency`` (R, R) [s]: of the slowest path of the spray. ``tier``
    (R, R). ``message_resource`` (R, R): the resource that each message takes ``message_cost`` seconds of,
    -1 if messages are free.
    """

    ranks: int
    access: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    capacity: FloatArray
    raw_rate: FloatArray
    indptr: IntArray
    index: IntArray
    weight: FloatArray
    latency: FloatArray
    tier: NDArray[np.int8]
    host: IntArray
    domain: IntArray
    package: IntArray
    message_resource: IntArray
    message_cost: FloatArray

    def rows(self, pairs: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
        """The CSR rows of ``pairs`` (F,), each ``src * R + dst``: (indptr (F+1,), index, weight)."""
        start = self.indptr[pairs]
        length = self.indptr[pairs + 1] - start
        indptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
        take = np.arange(indptr[-1]) + np.repeat(start - indptr[:-1], length)
        return indptr, self.index[take], self.weight[take]


def routes(topology: Topology, devices: IntArray, access: str) -> Routes:
    """Routes between the ranks on ``devices`` (R,), which index ``topology.devices``.

    ``access`` is one of :data:`moesim.topology.ACCESSES`. Raises :class:`InputError` for another access,
    and when two ranks cannot reach each other (naming them and the faults).
    """
    if access not in ACCESSES:
        raise InputError(Problem(f"unknown access {access!r}", legal=nearest(access, list(ACCESSES))))
    devices = np.asarray(devices, dtype=np.int64)
    if access == "rdma":
        topology = _by_nic_alone(topology)
    merged = quotient(topology, devices, access)
    paths = Paths(merged)
    _check_reach(topology, devices, paths.distance)
    if (idle := paths.idle()).any():
        # What no path crosses must not keep apart what is alike for every path.
        merged = quotient(topology, devices, access, idle[merged.colour])
        paths = Paths(merged)
    pair, edge, weight = paths.loads()
    used, edge = np.unique(edge, return_inverse=True)
    names, kinds = _link_names(merged, used)
    tier = _tiers(topology, devices)
    engine = _engines(topology, devices, tier, access, len(used))
    resource, cost, message_names = _messages(merged, used, pair, edge, weight)
    offset = len(names) + len(engine.names)
    pair = np.concatenate([pair, engine.pair])
    order = np.argsort(pair, kind="stable")
    ranks = len(devices)
    vertex = topology.devices[devices]
    ones = np.ones(len(engine.names) + len(message_names))
    return Routes(
        ranks=ranks,
        access=access,
        names=(*names, *engine.names, *message_names),
        kinds=(*kinds, *("engine" for _ in engine.names), *("messages" for _ in message_names)),
        capacity=np.concatenate([merged.capacity[used], ones]),
        raw_rate=np.concatenate([merged.raw[used], 0 * ones]),
        indptr=np.concatenate([[0], np.cumsum(np.bincount(pair, minlength=ranks**2))]).astype(np.int64),
        index=np.concatenate([edge, engine.resource])[order],
        weight=np.concatenate([weight, engine.weight])[order],
        latency=paths.latency,
        tier=tier,
        host=topology.host[vertex],
        domain=topology.domain[vertex],
        package=topology.package[vertex],
        message_resource=np.where(resource >= 0, resource + offset, -1),
        message_cost=cost,
    )


def same_ways(one: Routes, other: Routes) -> bool:
    """Whether each pair of the same ranks takes the same shares of equal capacities, and as long, in both."""
    if not np.array_equal(one.indptr, other.indptr):
        return False
    pair = np.repeat(np.arange(one.ranks**2), np.diff(one.indptr))

    def numbers(ways: Routes) -> list[FloatArray]:
        seconds = ways.weight / ways.capacity[ways.index]
        by_pair = [each[np.lexsort((each, pair))] for each in (ways.weight, seconds)]
        return [*by_pair, ways.latency, ways.message_cost]

    both = zip(numbers(one), numbers(other), strict=True)
    return all(np.allclose(mine, theirs, rtol=1e-9, atol=0.0) for mine, theirs in both)


def _by_nic_alone(topology: Topology) -> Topology:
    """The pod without the links of its devices that do not lead to a NIC."""
    kind = topology.vertex_kind
    if not (kind == "nic").any():
        raise InputError(
            Problem("access rdma: the pod has no NICs", legal="a pod with a NIC for each device")
        )
    ends = kind[topology.link_src], kind[topology.link_dst]
    of_device = (ends[0] == "device") | (ends[1] == "device")
    gone = of_device & (ends[0] != "nic") & (ends[1] != "nic")
    return replace(topology, link_capacity=np.where(gone, 0.0, topology.link_capacity))


def _check_reach(topology: Topology, devices: IntArray, distance: NDArray[np.int32]) -> None:
    """Name the ranks that others cannot reach, the worst off first, and the faults."""
    lost = distance >= FAR
    if not lost.any():
        return
    names = [f"rank {r} ({topology.vertices[topology.devices[d]]})" for r, d in enumerate(devices)]
    missing = lost.sum(axis=1) + lost.sum(axis=0)
    cut_off = [names[r] for r in np.flatnonzero(missing >= len(devices) - 1)]
    src, dst = (int(i) for i in np.argwhere(lost)[0])
    message = f"{int(lost.sum())} pairs of ranks are unreachable, the first {names[src]} -> {names[dst]}"
    if cut_off and len(cut_off) < len(devices):
        message += f"; cut off: {', '.join(cut_off[:8])}{' ...' if len(cut_off) > 8 else ''}"
    why = (
        f"; faults: {'; '.join(topology.faults)}" if topology.faults else "; the pod has no path between them"
    )
    raise InputError(Problem(message + why, legal="faults or a placement that leave every rank a path"))


def _link_names(q: Quotient, used: IntArray) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names like "die12 lane up": the lower end, the kind of link, the direction; told apart where they
    repeat.
    """
    names: list[str] = []
    taken: dict[str, int] = {}
    for e in used:
        src, dst = int(q.src[e]), int(q.dst[e])
        rise = int(q.level[dst] - q.level[src])
        lower, upper = (src, dst) if rise >= 0 else (dst, src)
        way = "up" if rise > 0 else "down" if rise < 0 else f"to {q.name[dst]}"
        name = f"{q.name[lower]} {q.kind[e]} {way}"
        if name in taken:
            name = f"{name} ({q.name[upper]})"
        taken[name] = repeats = taken.get(name, 0) + 1
        names.append(name if repeats == 1 else f"{name} #{repeats}")
    return tuple(names), tuple(q.kind[e] for e in used)


def _tiers(topology: Topology, devices: IntArray) -> NDArray[np.int8]:
    """(R, R) :class:`Tier` of each pair: the first membership that both share."""
    vertex = topology.devices[devices]
    tier = np.full((len(devices), len(devices)), Tier.SCALE_OUT, dtype=np.int8)
    for level, group in (
        (Tier.DOMAIN, topology.domain),
        (Tier.HOST, topology.host),
        (Tier.DEVICE, topology.package),
    ):
        member = group[vertex]
        tier[(member[:, None] == member[None, :]) & (member >= 0)[:, None]] = level
    np.fill_diagonal(tier, Tier.SELF)
    return tier


@dataclass(frozen=True, eq=False)
class _Engines:
    """One resource a rank, numbered from ``offset``; entries (pair, resource, seconds of it per byte)."""

    names: tuple[str, ...]
    pair: IntArray
    resource: IntArray
    weight: FloatArray


def _engines(
    topology: Topology, devices: IntArray, tier: NDArray[np.int8], access: str, offset: int
) -> _Engines:
    """A device that writes limits what leaves it, one that reads limits what comes to it."""
    rates = topology.device.engine(access)
    if not rates:
        return _Engines((), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    cost = np.zeros(len(Tier))
    for level, rate in rates.items():
        cost[level] = 1.0 / rate
    src, dst = np.nonzero(cost[tier] > 0)
    way, owner = ("read", dst) if access == "read" else ("write", src)
    names = tuple(f"{topology.vertices[v]} {way} engine" for v in topology.devices[devices])
    return _Engines(names, src * len(devices) + dst, owner + offset, cost[tier[src, dst]])


def _messages(
    q: Quotient, used: IntArray, pair: IntArray, edge: IntArray, weight: FloatArray
) -> tuple[IntArray, FloatArray, tuple[str, ...]]:
    """The sender's NIC of each pair, if it has a message rate: (R, R) number from 0 or -1, (R, R) [s],
    names.
    """
    resource = np.full(q.ranks**2, -1, dtype=np.int64)
    cost = np.zeros(q.ranks**2)
    first = q.dst[used]
    limited = (q.src[used] < q.ranks) & q.is_nic[first] & np.isfinite(q.message_rate[first])
    nics = np.unique(first[limited])
    at = np.flatnonzero(limited[edge])
    nic = first[edge[at]]
    resource[pair[at]] = np.searchsorted(nics, nic)
    cost[pair[at]] = weight[at] / q.message_rate[nic]
    shape = (q.ranks, q.ranks)
    return resource.reshape(shape), cost.reshape(shape), tuple(f"{q.name[c]} messages" for c in nics)
