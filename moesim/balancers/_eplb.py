"""The planner of DeepSeek's EPLB: which experts get copies, and which copies share a GPU.

After deepseek-ai/EPLB ``eplb.py``; arithmetic in float32 as there. Words of the original: ``phy`` a physical slot,
``log`` a logical expert, nodes and GPUs for hosts and ranks.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesim.balancers import _copies as copies
from moesim.errors import InputError, Problem

IntArray = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class EPLBPlan:
    """Of L layers: ``phy2log`` (L, P): expert in each slot, GPU after GPU; ``log2phy`` (L, E, X): slots of each
    expert in the order of its copies, padded with -1; ``logcnt`` (L, E): copies of each.
    """

    phy2log: IntArray
    log2phy: IntArray
    logcnt: IntArray


def problems(
    experts: int, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int
) -> list[Problem]:
    """What the original asserts: every reason why it cannot plan for these sizes; empty if it can."""
    found = copies.indivisible("num_redundant_experts", num_replicas, num_gpus, experts)
    if num_replicas < experts:
        message = f"num_replicas {num_replicas}: {experts} experts need a slot each"
        found.append(Problem(message, legal=f"at least {experts}"))
    if num_groups % num_nodes:
        return found  # planned as one group on one node
    for what, whole, by, part in (
        ("experts", experts, "num_groups", num_groups),
        ("ranks", num_gpus, "num_nodes", num_nodes),
    ):
        if whole % part:
            legal = ", ".join(str(n) for n in range(1, whole + 1) if whole % n == 0)
            found.append(Problem(f"{by} {part} does not divide {whole} {what}", legal=f"{by} of {legal}"))
    return found


def rebalance(
    weight: NDArray[np.floating | np.integer],
    num_replicas: int,
    num_groups: int,
    num_nodes: int,
    num_gpus: int,
) -> EPLBPlan:
    """The plan for ``weight`` (L, E), the load of each expert; ``num_replicas``: P, copies included.

    Hierarchical where ``num_nodes`` divides ``num_groups``: whole groups of experts are packed on nodes, and what
    follows stays within them. Else global: one node. Raises :class:`InputError` as :func:`problems` says.

    >>> rebalance(np.array([[10, 10, 40]]), 4, 1, 1, 2).phy2log.tolist()
    [[2, 0, 2, 1]]
    """
    loads = np.asarray(weight, dtype=np.float32)
    layers, experts = loads.shape
    found = problems(experts, num_replicas, num_groups, num_nodes, num_gpus)
    if found:
        raise InputError(found)
    if num_groups % num_nodes:
        num_groups = num_nodes = 1
    plans = [_layer(load, num_replicas, num_groups, num_nodes, num_gpus) for load in loads]
    phy2log = np.array([plan for plan, _ in plans]).reshape(layers, num_replicas)
    number = np.array([copy for _, copy in plans]).reshape(layers, num_replicas)
    logcnt = np.array([np.bincount(row, minlength=experts) for row in phy2log]).reshape(layers, experts)
    log2phy = np.full((layers, experts, logcnt.max(initial=0)), -1, dtype=np.int64)
    log2phy[np.arange(layers)[:, None], phy2log, number] = np.arange(num_replicas)
    return EPLBPlan(phy2log, log2phy, logcnt)


def pack(weight: Floats, packs: int) -> tuple[IntArray, IntArray]:
    """Longest processing time first: pack of each of the n items, and its place there; n/packs items to a pack.

    The heaviest item goes to the lightest pack with room, the lowest on ties; with one item to a pack they stay as
    they are, unsorted.
    """
    items, room = len(weight), len(weight) // packs
    if room == 1:
        return np.arange(items), np.zeros(items, dtype=np.int64)
    pack_of, place = np.empty(items, dtype=np.int64), np.empty(items, dtype=np.int64)
    filled = [0] * packs
    # Loads keep float32 precision, and so do ties.
    lightest = [(np.float32(0), number) for number in range(packs)]
    for item in np.argsort(-weight, kind="stable").tolist():
        load, number = heapq.heappop(lightest)
        pack_of[item], place[item] = number, filled[number]
        filled[number] += 1
        if filled[number] < room:
            heapq.heappush(lightest, (load + weight[item], number))
    return pack_of, place


def replicate(weight: Floats, slots: int) -> tuple[IntArray, IntArray]:
    """Expert of each of ``slots`` copies, and its number among the copies of that expert.

    One copy each; every further one to the expert with the largest load a copy, the first on ties.
    """
    experts = len(weight)
    expert, number = np.arange(slots), np.zeros(slots, dtype=np.int64)
    count, share = np.ones(experts, dtype=np.int64), weight.copy()
    for slot in range(experts, slots):
        wanted = int(share.argmax())
        expert[slot], number[slot] = wanted, count[wanted]
        count[wanted] += 1
        share[wanted] = weight[wanted] / np.float32(count[wanted])
    return expert, number


def _layer(
    weight: Floats, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int
) -> tuple[IntArray, IntArray]:
    """Expert of each slot of one layer, and the number of the copy."""
    group = np.arange(len(weight)).reshape(num_groups, -1)
    node, place = pack(weight.reshape(num_groups, -1).sum(axis=1), num_nodes)
    expert, number = [], []
    for here in range(num_nodes):
        members = np.flatnonzero(node == here)
        mine = group[members[np.argsort(place[members])]].ravel()
        copied, copy = replicate(weight[mine], num_replicas // num_nodes)
        share = np.divide(weight[mine], np.bincount(copied, minlength=len(mine)), dtype=np.float32)
        gpu, position = pack(share[copied], num_gpus // num_nodes)
        order = np.lexsort((position, gpu))
        expert.append(mine[copied[order]])
        number.append(copy[order])
    return np.concatenate(expert), np.concatenate(number)
