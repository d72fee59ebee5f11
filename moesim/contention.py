"""What each flow of a transfer takes of each shared resource: fabric, send engines, message rates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from moesim.plan import FloatArray, FlowSet, IntArray
from moesim.routing import Routes


@dataclass(frozen=True, eq=False)
class Resources:
    """Everything flows can share: the routes' resources, then the cores of each rank.

    Index ``fabric + rank * cores + core`` is a core; its capacity is 1 s/s. ``names`` and ``kinds`` cover the fabric
    part; cores are named on demand because there are thousands.
    """

    routes: Routes
    cores: int

    @property
    def fabric(self) -> int:
        """How many resources belong to the fabric."""
        return len(self.routes.capacity)

    @cached_property
    def capacity(self) -> FloatArray:
        """(N,) capacities: B/s of a link, s/s of an engine or a core."""
        cores = np.ones(self.routes.ranks * self.cores)
        return np.concatenate([self.routes.capacity, cores])

    @cached_property
    def costs(self) -> PairCosts:
        """What pairs of ranks take of the fabric."""
        return pair_costs(self.routes)

    def name(self, index: int) -> str:
        """The name of one resource, as a person would say it."""
        if index < self.fabric:
            return self.routes.names[index]
        rank, core = divmod(index - self.fabric, self.cores)
        return f"rank {rank} send core {core}"

    def is_link(self, index: int) -> bool:
        """Whether a resource carries bytes (a link or port), not seconds (an engine, a NIC's messages, a core)."""
        return index < self.fabric and self.routes.raw_rate[index] > 0

    def kind(self, index: int) -> str:
        """The kind of one resource: the link's kind, ``engine`` or ``core``."""
        return self.routes.kinds[index] if index < self.fabric else "core"


@dataclass(frozen=True, eq=False)
class Demand:
    """CSR of flows over resources: flow f takes ``weight`` units of ``index`` for each unit of its ``size``.

    ``indptr`` (F+1,), ``index`` and ``weight`` (nnz,); ``size`` (F,); ``latency`` (F,) [s]. The size of a flow is all
    that its rank sends in the transfer [B of wire], and its weights are so much smaller: the cores of a rank post
    their writes into one queue, so it is the rank that gets a fair share of the fabric, and each of its flows gets of
    that in proportion to what it has to send. A rank that contends with nobody is done when its busiest resource is.
    """

    indptr: IntArray
    index: IntArray
    weight: FloatArray
    size: FloatArray
    latency: FloatArray

    @cached_property
    def flow(self) -> IntArray:
        """(nnz,) the flow of each entry."""
        return np.repeat(np.arange(len(self.size)), np.diff(self.indptr))

    @cached_property
    def amount(self) -> FloatArray:
        """(nnz,) units of the resource that the whole flow takes."""
        return self.weight * self.size[self.flow]

    def load(self, resources: int) -> FloatArray:
        """(N,) units that all flows together take of each of N resources."""
        return np.bincount(self.index, weights=self.amount, minlength=resources).astype(np.float64)

    def rows(self, chosen: IntArray) -> Demand:
        """The same for some of the flows, in the order given."""
        lengths = np.diff(self.indptr)[chosen]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        take = np.repeat(self.indptr[:-1][chosen] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return Demand(indptr, self.index[take], self.weight[take], self.size[chosen], self.latency[chosen])


def demand(flows: FlowSet, resources: Resources) -> Demand:
    """Lay ``flows`` over ``resources``.

    A flow takes of the fabric what its route says, of its core ``core_s`` seconds in all, and of a NIC with a message
    rate ``messages`` times the cost of one.
    """
    routes = resources.routes
    row, source, share = routes.rows(flows.src * routes.ranks + flows.dst)
    length = np.diff(row)
    has_core = flows.core >= 0
    nic = routes.message_resource[flows.src, flows.dst]
    has_nic = nic >= 0
    total = length + has_core + has_nic
    indptr = np.concatenate([[0], np.cumsum(total)]).astype(np.int64)
    index = np.empty(indptr[-1], dtype=np.int64)
    weight = np.empty(indptr[-1])
    to = np.arange(row[-1]) + np.repeat(indptr[:-1] - row[:-1], length)
    index[to], weight[to] = source, share
    wire = np.where(flows.wire > 0, flows.wire, np.inf)  # what carries nothing takes nothing
    at = (indptr[:-1] + length)[has_core]
    index[at] = resources.fabric + flows.src[has_core] * resources.cores + flows.core[has_core]
    weight[at] = (flows.core_s / wire)[has_core]
    at = (indptr[:-1] + length + has_core)[has_nic]
    index[at] = nic[has_nic]
    cost = flows.messages * routes.message_cost[flows.src, flows.dst]
    weight[at] = (cost / wire)[has_nic]
    sent = np.bincount(flows.src, weights=flows.wire, minlength=routes.ranks)[flows.src]
    size = np.where(flows.wire > 0, sent, 0.0)
    weight *= np.repeat(flows.wire / np.where(size > 0, size, 1.0), total)
    return Demand(indptr, index, weight, size, routes.latency[flows.src, flows.dst])


@dataclass(frozen=True, eq=False)
class PairCosts:
    """Seconds of the fabric's N resources for what R^2 pairs of ranks, numbered ``src * R + dst``, carry.

    Each entry: one unit of ``unit`` takes ``seconds`` of a resource (nnz,); unit p is a byte of wire of pair p, unit
    R^2 + p a message of it. ``by_source``, ``by_destination`` (nnz,): rank * N + resource. ``longest``: most seconds
    that a unit takes of any resource, (2, R^2), or (1, R^2) where no NIC limits messages. ``onward``, ``before``
    (R, N) [s]: least latency of a pair from, and to, a rank that takes the resource.
    """

    unit: IntArray
    seconds: FloatArray
    by_source: IntArray
    by_destination: IntArray
    longest: FloatArray
    onward: FloatArray
    before: FloatArray


def pair_costs(routes: Routes) -> PairCosts:
    """Of a byte what its route says, of a message what the sender's NIC takes for it."""
    ranks, pairs = routes.ranks, routes.ranks**2
    nic = routes.message_resource.ravel()
    limited = np.flatnonzero(nic >= 0)
    pair = np.concatenate([np.repeat(np.arange(pairs), np.diff(routes.indptr)), limited])
    unit = pair.copy()
    unit[len(routes.index) :] += pairs
    resource = np.concatenate([routes.index, nic[limited]])
    taken = np.concatenate([routes.weight, routes.message_cost.ravel()[limited]])
    seconds = taken / routes.capacity[resource]
    longest = np.zeros(pairs * (2 if len(limited) else 1))
    np.maximum.at(longest, unit, seconds)
    source, destination = (rank * len(routes.capacity) + resource for rank in np.divmod(pair, ranks))
    latency, shape = routes.latency.ravel()[pair], (ranks, len(routes.capacity))
    onward, before = (_least(place, latency, shape) for place in (source, destination))
    return PairCosts(unit, seconds, source, destination, longest.reshape(-1, pairs), onward, before)


def _least(place: IntArray, values: FloatArray, shape: tuple[int, int]) -> FloatArray:
    """Smallest of ``values`` (n,) by ``place`` (n,) in a matrix of ``shape``; 0 where there is none."""
    least = np.full(shape[0] * shape[1], np.inf)
    np.minimum.at(least, place, values)
    return np.where(np.isfinite(least), least, 0.0).reshape(shape)


@dataclass(frozen=True, eq=False)
class OwnDemand:
    """What a transfer takes by rank and pair of ranks, where no flow is looked at by itself.

    ``outward``, ``inward`` (R, N) [s] of each resource of the fabric for the flows from, and to, a rank; ``core``
    (R, C) [s] of each send core. ``release`` (R, R) [s]: first release of a flow of the pair, infinite where none
    is. ``alone`` (R, R) [s]: largest sum of release and the time that a flow takes with nobody else there.
    """

    outward: FloatArray
    inward: FloatArray
    core: FloatArray
    release: FloatArray
    alone: FloatArray

    def load(self, resources: Resources) -> FloatArray:
        """(N + R C,) units that all flows together take of each of ``resources``."""
        fabric = self.outward.sum(axis=0) * resources.routes.capacity
        return np.concatenate([fabric, self.core.ravel()])


def own_demand(flows: FlowSet, resources: Resources) -> OwnDemand:
    """The same demand as :func:`demand`, added up: much less to do where a pair has many flows."""
    costs, ranks, cores = resources.costs, resources.routes.ranks, resources.cores
    pair = flows.src * ranks + flows.dst
    carries = flows.wire > 0  # what carries nothing takes nothing
    amounts = [flows.wire]
    if len(costs.longest) > 1:
        amounts.append(np.where(carries, flows.messages, 0.0))
    core_s = np.where(carries & (flows.core >= 0), flows.core_s, 0.0)
    core = flows.src * cores + np.maximum(flows.core, 0)
    units = np.concatenate([np.bincount(pair, each, ranks**2) for each in amounts])
    taken = costs.seconds * units.take(costs.unit)
    busy = core_s
    for each, most in zip(amounts, costs.longest, strict=True):
        busy = np.maximum(busy, each * most.take(pair))
    release, alone = np.full(ranks**2, np.inf), np.zeros(ranks**2)
    np.minimum.at(release, pair, flows.release)
    np.maximum.at(alone, pair, flows.release + busy)
    return OwnDemand(
        _sums(costs.by_source, taken, (ranks, resources.fabric)),
        _sums(costs.by_destination, taken, (ranks, resources.fabric)),
        _sums(core, core_s, (ranks, cores)),
        release.reshape(ranks, ranks),
        alone.reshape(ranks, ranks),
    )


def _sums(place: IntArray, values: FloatArray, shape: tuple[int, int]) -> FloatArray:
    """Sums of ``values`` (n,) by ``place`` (n,) in a matrix of ``shape``."""
    sums = np.bincount(place, weights=values, minlength=shape[0] * shape[1])
    return sums.astype(np.float64, copy=False).reshape(shape)
