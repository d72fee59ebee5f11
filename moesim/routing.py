"""Which resources a byte from one rank to another takes, and how much of each.

Policy: traffic is sprayed over all shortest paths (fewest links), in equal shares by path. Devices and CPUs never relay.

The graph is first divided by its coarsest equitable partition (colour refinement) in which every rank is a class of
its own. Vertices of one class are interchangeable as seen from every rank, so spraying loads all links of one class
of links equally, and they can be replaced by one resource with their summed capacity without changing any rate. A healthy
CloudMatrix384 takes a flow over five resources instead of several hundred; a fault splits just the classes that it makes unequal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError, Problem
from moesim.quotient import Quotient, quotient
from moesim.registry import nearest
from moesim.topology import ACCESSES, FloatArray, IntArray, Tier, Topology


@dataclass(frozen=True, eq=False)
class Routes:
    """Routes between R ranks over N resources; row ``src * R + dst`` of the CSR matrix is one ordered pair.

    ``capacity`` (N,): [B/s] of wire bytes after packet headers for links; 1 s/s for engines and message processing.
    ``raw_rate`` (N,) [B/s]: the raw link capacity behind it (0 for the others). ``indptr`` (R*R+1,), ``index``,
    ``weight``: units of a resource that one wire byte takes: the sprayed share on a link, 1/rate seconds of an engine.
    ``latency`` (R, R) [s]: of the slowest path of the spray. ``tier`` (R, R). ``message_resource`` (R, R): the resource
    that each message takes ``message_cost`` seconds of, -1 if messages are free.
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
