"""Max-min fair rates: how flows share the resources that they cross. Pure functions on arrays.

A flow of rate v [B/s] takes ``weight * v`` of each resource on its row. The allocation is the max-min fair
one of ``sum_f weight[f, r] * v[f] <= capacity[r]``: all flows rise together, and a flow stops when a resource
that it crosses is full. So every resource has a *level*, and a flow's rate is the least level on its row (the
fluid model of Velho, Schnorr, Casanova and Legrand, ACM TOMACS 23(4), 2013, with unit priorities).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Levels closer than this (relative) are one level: it only saves passes, and is far below what is promised.
TIE = 1e-13


def columns(
    indptr: IntArray, index: IntArray, weight: FloatArray, resources: int
) -> tuple[IntArray, FloatArray]:
    """The rows of a CSR matrix as padded columns ``(path, taken)``, both (H, F), H the longest row.

    Padding, and entries of weight 0, point at a dummy resource numbered ``resources``.
    """
    indptr = np.asarray(indptr, dtype=np.int64)
    length = np.diff(indptr)
    width = max(1, int(length.max(initial=0)))
    path = np.full((width, len(length)), resources, dtype=np.int64)
    taken = np.zeros((width, len(length)))
    flow = np.repeat(np.arange(len(length)), length)
    slot = np.arange(len(index)) - indptr[:-1].repeat(length)
    used = np.asarray(weight) > 0
    path[slot[used], flow[used]] = np.asarray(index)[used]
    taken[slot[used], flow[used]] = np.asarray(weight)[used]
    return path, taken


def allocate(indptr: IntArray, index: IntArray, weight: FloatArray, capacity: FloatArray) -> FloatArray:
    """Weighted max-min fair rates (F,) [B/s] of flows that all are active.

    ``indptr`` (F+1,), ``index``, ``weight``: CSR, the amount of each resource that a unit of each flow takes.
    ``capacity`` (N,) [units/s]. A flow that uses nothing gets ``inf``.

    >>> allocate(np.array([0, 1, 2]), np.array([0, 0]), np.array([1.0, 1.0]), np.array([10.0])).tolist()
    [5.0, 5.0]
    """
    path, taken = columns(indptr, index, weight, len(capacity))
    return fill(path, taken, np.append(capacity, np.inf))[0]


def fill(
    path: IntArray, taken: FloatArray, capacity: FloatArray, limit: FloatArray | None = None
) -> tuple[FloatArray, int]:
    """Rates (F,) and the number of passes, by progressive filling of all locally tightest resources at once.

    ``path``, ``taken``: (H, F) as from `columns`; ``capacity`` (N+1,), the dummy's last and infinite;
    ``limit`` (F,): an upper bound of each rate.

    The tentative level of a resource, (what is left) / (weight of its flows that have no rate yet), never
    falls as flows are given rates. So a resource whose level is the least on the row of each of its flows has
    its final level, and all such resources, wherever they are, can be closed in one pass.
    """
    width, flows = path.shape
    nodes = len(capacity)
    rate = np.full(flows, np.inf)
    limit = np.full(flows, np.inf) if limit is None else limit
    open_flow = np.arange(flows)
    left = capacity.copy()
    level = np.zeros(nodes)
    passes = 0
    while len(open_flow):
        passes += 1
        need = np.bincount(path.ravel(), taken.ravel(), nodes)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Rounding aside levels only rise: what is left after large flows may be noise.
            level = np.where(need > 0, np.maximum(left / need, level), np.inf)
        on_row = level[path]
        least = on_row.min(axis=0)
        bounded = np.minimum(least, limit)
        blocked = np.zeros(nodes, dtype=bool)
        above = on_row > bounded * (1 + TIE)
        blocked[path[above]] = True
        closed = ~blocked[path[0]]
        for row in range(1, width):
            closed |= ~blocked[path[row]]
        closed |= limit <= least
        closed |= np.isinf(bounded)
        rate[open_flow[closed]] = bounded[closed]
        used = taken[:, closed] * np.where(np.isinf(bounded), 0.0, bounded)[closed]
        left = left - np.bincount(path[:, closed].ravel(), used.ravel(), nodes)
        keep = ~closed
        path, taken, open_flow, limit = path[:, keep], taken[:, keep], open_flow[keep], limit[keep]
    return rate, passes
