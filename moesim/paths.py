"""Shortest paths between the ranks of a :class:`~moesim.quotient.Quotient`, and the load that equal-share
spraying puts on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesim.quotient import Quotient
from moesim.topology import FloatArray, IntArray

FAR = 1 << 28
"""Distance of what cannot be reached."""

_Dist = NDArray[np.int32]


def _combine(
    ufunc: np.ufunc, target: NDArray[np.generic], column: IntArray, values: NDArray[np.generic]
) -> None:
    """``target[:, column[e]] = ufunc(target[:, column[e]], values[:, e])`` for every e, repeats included."""
    if len(column) == 0:
        return
    order = np.argsort(column, kind="stable")
    ranked = column[order]
    start = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    at = ranked[start]
    target[:, at] = ufunc(target[:, at], ufunc.reduceat(values[:, order], start, axis=1))


def _spread(start: FloatArray, step: FloatArray) -> tuple[_Dist, FloatArray]:
    """Breadth first from all ranks at once: distance and number of shortest paths (R, S); ``step`` (S, S)."""
    distance = np.full(start.shape, FAR, dtype=np.int32)
    ways = np.zeros_like(start)
    frontier, hops = start, 1
    while frontier.any():
        distance[frontier > 0] = hops
        ways += frontier
        frontier = np.where(distance == FAR, frontier @ step, 0.0)
        hops += 1
    return distance, ways


@dataclass(frozen=True, eq=False)
class _Side:
    """Distances, path counts (R, S) between every rank and every relaying class."""

    distance: _Dist
    ways: FloatArray


class Paths:
    """All shortest paths between the R ranks. ``distance`` (R, R) links, ``latency`` (R, R) [s] of the
    slowest of them.

    Classes split into ranks and the S *relaying* classes; links into the first of a path (rank to relay),
    the last, core ones (relay to relay) and direct ones (rank to rank).
    """

    def __init__(self, quotient: Quotient) -> None:
        q = self._q = quotient
        ranks = q.ranks
        from_rank, to_rank = q.src < ranks, q.dst < ranks
        self._first = np.flatnonzero(from_rank & ~to_rank)
        self._last = np.flatnonzero(~from_rank & to_rank)
        self._core = np.flatnonzero(~from_rank & ~to_rank)
        self._direct = np.flatnonzero(from_rank & to_rank)
        self._ahead = self._forward()
        self._behind = self._backward()
        self.distance, self._total = self._pairs()
        self.latency = self._latencies()

    def _matrix(self, rows: IntArray, columns: IntArray, values: FloatArray, height: int) -> FloatArray:
        relays = len(self._q.size) - self._q.ranks
        matrix = np.zeros((height, relays))
        np.add.at(matrix, (rows, columns), values)
        return matrix

    def _forward(self) -> _Side:
        """From each rank: links into one vertex of a class count as ways."""
        q, first, core = self._q, self._first, self._core
        relays = len(q.size) - q.ranks
        into = q.count / q.size[q.dst]
        start = self._matrix(q.src[first], q.dst[first] - q.ranks, into[first], q.ranks)
        step = self._matrix(q.src[core] - q.ranks, q.dst[core] - q.ranks, into[core], relays)
        return _Side(*_spread(start, step))

    def _backward(self) -> _Side:
        """To each rank: links out of one vertex of a class count as ways."""
        q, last, core = self._q, self._last, self._core
        relays = len(q.size) - q.ranks
        out = q.count / q.size[q.src]
        start = self._matrix(q.dst[last], q.src[last] - q.ranks, out[last], q.ranks)
        step = self._matrix(q.dst[core] - q.ranks, q.src[core] - q.ranks, out[core], relays)
        return _Side(*_spread(start, step))

    def _pairs(self) -> tuple[_Dist, FloatArray]:
        """Links and number of shortest paths between ranks (R, R)."""
        q, last, direct = self._q, self._last, self._direct
        distance = np.full((q.ranks, q.ranks), FAR, dtype=np.int32)
        total = np.zeros((q.ranks, q.ranks))
        before = q.src[last] - q.ranks
        via = self._ahead.distance[:, before] + 1
        _combine(np.minimum, distance, q.dst[last], via)
        distance[q.src[direct], q.dst[direct]] = 1
        np.fill_diagonal(distance, 0)
        on = via == distance[:, q.dst[last]]
        _combine(np.add, total, q.dst[last], np.where(on, self._ahead.ways[:, before] * q.count[last], 0.0))
        np.add.at(total, (q.src[direct], q.dst[direct]), q.count[direct])
        return distance, total

    def _latencies(self) -> FloatArray:
        q, first, core, last, direct = self._q, self._first, self._core, self._last, self._direct
        hops = self._ahead.distance
        reached = np.full(hops.shape, -np.inf)
        np.maximum.at(reached, (q.src[first], q.dst[first] - q.ranks), q.latency[first])
        tail, head = q.src[core] - q.ranks, q.dst[core] - q.ranks
        step = np.where(hops[:, head] == hops[:, tail] + 1, hops[:, head], FAR)
        for level in range(2, int(hops[hops < FAR].max(initial=0)) + 1):
            on = np.flatnonzero((step == level).any(axis=0))
            values = np.where(step[:, on] == level, reached[:, tail[on]] + q.latency[core[on]], -np.inf)
            _combine(np.maximum, reached, head[on], values)
        latency = np.full(self.distance.shape, -np.inf)
        before = q.src[last] - q.ranks
        on_path = hops[:, before] + 1 == self.distance[:, q.dst[last]]
        values = np.where(on_path, reached[:, before] + q.latency[last], -np.inf)
        _combine(np.maximum, latency, q.dst[last], values)
        np.maximum.at(latency, (q.src[direct], q.dst[direct]), q.latency[direct])
        np.fill_diagonal(latency, 0.0)
        return latency

    def idle(self) -> NDArray[np.bool_]:
        """(C,) relaying classes that no shortest path crosses; those beside a rank are never counted idle."""
        q = self._q
        idle = np.zeros(len(q.size), dtype=bool)
        relays = np.arange(q.ranks, len(q.size))
        beside = np.concatenate([q.dst[self._first], q.src[self._last]])
        for relay in np.setdiff1d(relays, beside):
            ahead = self._ahead.distance[:, relay - q.ranks]
            behind = self._behind.distance[:, relay - q.ranks]
            idle[relay] = not (ahead[:, None] + behind[None, :] == self.distance).any()
        return idle

    def loads(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Entries (pair ``src * R + dst``, link class, share of the pair's bytes that crosses it).

        The share of link class A -> B is count * ways(src -> A) * ways(B -> dst) / ways(src -> dst) if a
        shortest path crosses it.
        """
        parts = [*self._ends(), *(self._crossing(source) for source in range(self._q.ranks))]
        pair, edge, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
        return pair, edge, weight

    def _ends(self) -> list[tuple[IntArray, IntArray, FloatArray]]:
        """Loads of first, last and direct links."""
        q, first, last, direct = self._q, self._first, self._last, self._direct
        after = q.dst[first] - q.ranks
        source = q.src[first]
        i, t = np.nonzero(self.distance[source] == self._behind.distance[:, after].T + 1)
        share = q.count[first[i]] * self._behind.ways[t, after[i]] / self._total[source[i], t]
        parts = [(source[i] * q.ranks + t, first[i], share)]
        before = q.src[last] - q.ranks
        target = q.dst[last]
        s, i = np.nonzero(self.distance[:, target] == self._ahead.distance[:, before] + 1)
        share = q.count[last[i]] * self._ahead.ways[s, before[i]] / self._total[s, target[i]]
        parts.append((s * q.ranks + target[i], last[i], share))
        share = q.count[direct] / self._total[q.src[direct], q.dst[direct]]
        parts.append((q.src[direct] * q.ranks + q.dst[direct], direct, share))
        return parts

    def _crossing(self, source: int) -> tuple[IntArray, IntArray, FloatArray]:
        """Loads of the core links by the flows of one source."""
        q, core = self._q, self._core
        hops = self._ahead.distance[source]
        # Only links that lead away from the source can be on its shortest paths.
        away = hops[q.dst[core] - q.ranks] == hops[q.src[core] - q.ranks] + 1
        core = core[away]
        tail, head = q.src[core] - q.ranks, q.dst[core] - q.ranks
        there = hops[tail] + 1 + self._behind.distance[:, head]
        t, i = np.nonzero(there == self.distance[source][:, None])
        share = q.count[core[i]] * self._ahead.ways[source, tail[i]]
        share = share * self._behind.ways[t, head[i]] / self._total[source, t]
        return source * q.ranks + t, core[i], share
