"""LPLB: a linear programme a layer and batch decides how much of an expert stays and how much goes to its one copy.

After deepseek-ai/LPLB at 0490f79. The original makes five interior-point steps, and takes one half for every share if
they have not come close enough; here the programme is solved to its optimum, which the steps reach within a few
percent. Words of the original: ``r2o`` (n, D), in a group of n ranks: the rank whose experts are copied to rank i in
direction d.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from moesim import limits
from moesim.balancers import BALANCERS, Balancer, BalancerParams, Context
from moesim.balancers import _copies as copies
from moesim.balancers import _eplb as planner
from moesim.balancers._dealing import counts_by_source
from moesim.errors import Problem
from moesim.placement import Assignment, Placement, experts_per_rank

IntArray = NDArray[np.int64]
Floats = NDArray[np.float64]

CUBE = ((3, 0, 1, 2, 7, 4, 5, 6), (6, 7, 4, 5, 0, 1, 2, 3))
HYPERCUBE = (
    (3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14),
    (12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
)
TOPOLOGIES = r"cube|hypercube|ring-[1-9]\d{0,3}|torus-[1-9]\d{0,2}x[1-9]\d{0,2}"


def _known(topology: str) -> str:
    if not re.fullmatch(TOPOLOGIES, topology):
        legal = {"legal": "cube, hypercube, ring-N or torus-MxN"}
        raise PydanticCustomError("topology", "not a topology of LPLB", legal)
    return topology


@dataclass(frozen=True, eq=False)
class LPLBPlan:
    """``keep`` (R, D): share of the replicated entries of each rank that stays with the original, by direction.

    ``largest`` (G,): largest load of a rank in each group, at the optimum.
    """

    keep: Floats
    largest: Floats


@BALANCERS.register("lplb")
class LPLB(Balancer):
    """Experts reordered now and then without copies; the first ones of each rank have one at a fixed neighbour.

    Every batch the programme splits their entries from the exact counts; weights move only with a reorder, which goes
    layer after layer in the background as in ``eplb-periodic``. Until then experts lie in order.
    """

    name = "lplb"
    constants: ClassVar[Mapping[str, str]] = {"plan": "time", "remap": "time"}
    draws = False
    weights = "background"
    counts = "all"

    class Params(BalancerParams):
        """``topology``: cube (groups of 8 ranks), hypercube (16), ring-N or torus-MxN. ``redundant_per_rank``: copies
        on a rank, one for each direction if absent; of several the j-th expert of a rank goes in direction j mod D.
        ``window_size``, ``step_interval``: steps that a reorder is made from, and between reorders.
        """

        topology: Annotated[str, AfterValidator(_known)] = Field(
            default="cube", json_schema_extra={"pattern": f"^({TOPOLOGIES})$"}
        )
        redundant_per_rank: int | None = Field(default=None, ge=1, le=limits.EXPERTS)
        window_size: int = Field(default=1000, ge=1, le=limits.STEPS)
        step_interval: int = Field(default=3000, ge=1, le=limits.STEPS)

    params: LPLB.Params

    def problems(self, ranks: int, experts: int, top_k: int) -> list[Problem]:
        """See :class:`Balancer`."""
        found = super().problems(ranks, experts, top_k)
        if found:
            return found
        (group, directions), local = neighbours(self.params.topology).shape, experts_per_rank(experts, ranks)
        redundant = self.params.redundant_per_rank or directions
        if ranks % group:
            message = f"{self.params.topology} needs groups of {group} ranks, not {ranks}"
            legal = f"a multiple of {group} ranks, or a topology like ring-{ranks}"
            found.append(Problem(message, legal=legal))
        if redundant % directions or redundant > local:
            message = f"{redundant} copies a rank in {directions} directions, of {local} experts a rank"
            possible = ", ".join(str(n) for n in range(directions, local + 1, directions))
            legal = (
                f"redundant_per_rank of {possible}"
                if possible
                else "a topology of one direction, like ring-8"
            )
            found.append(Problem(message, legal=legal))
        return found

    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        one = self.params
        r2o = neighbours(one.topology)
        redundant = one.redundant_per_rank or r2o.shape[1]
        begun, moving = copies.schedule(context, one.step_interval)
        # What moves during this step is of use in the next.
        old, new = (
            reorder(copies.window(context, one.window_size, number * one.step_interval), ranks)
            for number in (begun - moving, begun)
        )
        counts = counts_by_source(ids, ranks, experts)
        load = counts.sum(axis=0)[old]
        decided = plan(load, r2o, redundant)
        placement = place(old, r2o, redundant)
        moves = np.empty((0, 2), dtype=np.int64)
        if moving:
            after = place(new, r2o, redundant).slot_expert
            moves = copies.shared_out(placement.slot_expert, after, ranks)
        slot = _mapped(ids, counts, placement, decided.keep)
        return Assignment(
            placement=placement,
            slot=slot,
            moves=moves,
            gemm_rows=np.bincount(slot.ravel(), minlength=len(placement.slot_rank)),
            details={"plan": begun - moving, "keep": decided.keep, "largest": decided.largest},
        )


def neighbours(topology: str) -> IntArray:
    """``r2o`` (n, D) of the topology called so.

    >>> neighbours("torus-2x3")[:, 0].tolist(), neighbours("ring-3").ravel().tolist()
    ([3, 4, 5, 0, 1, 2], [1, 2, 0])
    """
    if topology in ("cube", "hypercube"):
        return np.array(CUBE if topology == "cube" else HYPERCUBE).T
    size = [int(number) for number in re.findall(r"\d+", topology)]
    rank = np.arange(np.prod(size))
    if topology.startswith("ring"):
        return (rank[:, None] + 1) % size[0]
    columns = size[1]
    along = rank // columns * columns + (rank + 1) % columns
    return np.stack([(rank + columns) % len(rank), along], axis=1)


def reorder(load: IntArray, ranks: int) -> IntArray:
    """The slow half: (R, epn) experts of each rank by ``load`` (E,), the heaviest first; in order if it is all zero."""
    if not load.any():
        return np.arange(len(load)).reshape(ranks, -1)
    rank, position = planner.pack(load.astype(np.float32), ranks)
    return np.lexsort((position, rank)).reshape(ranks, -1)


def place(order: IntArray, r2o: IntArray, redundant: int) -> Placement:
    """Slots of each rank: its own experts (``order`` (R, epn)), then the copies of its neighbours' first ones."""
    ranks, local = order.shape
    group, directions = r2o.shape
    own = np.arange(ranks)
    number = np.arange(redundant)
    # The original of each copy: of the rank that the direction of the copy names, in the same group.
    rank = own[:, None] // group * group + r2o[own % group][:, number % directions]
    slots = np.concatenate([order, order[rank, number]], axis=1)
    home = np.empty(order.size, dtype=np.int64)
    home[order.ravel()] = own.repeat(local)
    return Placement(slots.ravel(), own.repeat(local + redundant), order.size, ranks, home)


def plan(load: IntArray, r2o: IntArray, redundant: int) -> LPLBPlan:
    """The fast half for ``load`` (R, epn): entries of the experts of each rank, those that have a copy first.

    For each group: minimise M, subject to fixed_i + sum_d w_id x_id + sum_d w_jd (1 - x_jd) <= M with j = r2o_id, and
    0 <= x <= 1.

    >>> ring = neighbours("ring-4")
    >>> plan(np.array([[60, 20], [20, 20], [20, 20], [20, 20]]), ring, 1).largest.round(3).tolist()
    [50.0]
    """
    ranks, (group, directions) = len(load), r2o.shape
    most = float(load.max(initial=0))
    if most == 0:
        return LPLBPlan(np.full((ranks, directions), 0.5), np.zeros(ranks // group))
    # Loads as shares of the largest, in single precision as in the original.
    scaled = load.astype(np.float32) / np.float32(most)
    fixed = scaled[:, redundant:].sum(axis=1).astype(np.float64)
    by_direction = scaled[:, :redundant].reshape(ranks, -1, directions)
    keep, largest = solve(by_direction.sum(axis=1).astype(np.float64), fixed, r2o)
    return LPLBPlan(keep, largest * most)


def solve(dup: Floats, fixed: Floats, r2o: IntArray) -> tuple[Floats, Floats]:
    """x (R, D) and M (G,) at the optimum; ``dup`` (R, D) has a copy, ``fixed`` (R,) has none.

    The groups are one programme, whose sum of all M is least where each of them is. Where there is no answer, every x
    is one half, as in the original.
    """
    from scipy.optimize import linprog

    ranks, directions = dup.shape
    group = len(r2o)
    row = np.arange(ranks).repeat(directions)
    own = np.arange(ranks * directions).reshape(ranks, directions)
    other = row.reshape(ranks, directions) // group * group + r2o[np.arange(ranks) % group]
    copied = other * directions + np.arange(directions)
    received = dup.ravel()[copied]
    ceiling = ranks * directions + np.arange(ranks) // group
    groups = ranks // group
    cost = np.concatenate([np.zeros(ranks * directions), np.ones(groups)])
    matrix = np.zeros((ranks, len(cost)))
    np.add.at(matrix, (row, own.ravel()), dup.ravel())
    np.add.at(matrix, (row, copied.ravel()), -received.ravel())
    matrix[np.arange(ranks), ceiling] = -1
    bounds = [(0.0, 1.0)] * (ranks * directions) + [(0.0, None)] * groups
    found = linprog(cost, A_ub=matrix, b_ub=-fixed - received.sum(axis=1), bounds=bounds, method="highs")
    keep = np.full((ranks, directions), 0.5)
    if found.x is not None:
        keep = np.clip(found.x[: ranks * directions], 0.0, 1.0).reshape(ranks, directions)
    load = fixed + (dup * keep).sum(axis=1) + (received * (1 - keep.ravel()[copied])).sum(axis=1)
    return keep, load.reshape(groups, group).max(axis=1)


def _mapped(ids: NDArray[np.integer], counts: IntArray, placement: Placement, keep: Floats) -> IntArray:
    """Slot of each entry. Of the c entries of a source rank for an expert, number j stays with the original if
    (j * 499 + 41) mod c < int(x c); the others go to the copy.
    """
    ranks, experts = counts.shape
    slots = np.arange(len(placement.slot_rank)).reshape(ranks, -1)
    local, directions = experts // ranks, keep.shape[1]
    original = np.empty(experts, dtype=np.int64)
    original[placement.slot_expert[slots[:, :local].ravel()]] = slots[:, :local].ravel()
    copy, share = original.copy(), np.ones(experts)
    held = placement.slot_expert[slots[:, local:]]
    copy[held.ravel()] = slots[:, local:].ravel()
    direction = np.arange(held.shape[1]) % directions
    share[held] = keep[placement.home[held], direction]
    source = np.arange(ranks).repeat(len(ids) // ranks)[:, None]
    wide = ids.astype(np.int64)
    number = copies.ordinals(ids) - (counts.cumsum(axis=0) - counts)[source, wide]
    count = counts[source, wide]
    # x c is whole where it should be: the optimum is not exact to the last bit.
    stays = (number * 499 + 41) % np.maximum(count, 1) < np.floor(share[wide] * count + 1e-9)
    return np.where(stays, original[wide], copy[wide])
