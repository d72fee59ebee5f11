"""The limit: every rank computes exactly the mean, and neither planning nor weights cost anything."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesim.balancers import BALANCERS, Balancer, Context
from moesim.balancers import _copies as copies
from moesim.balancers._dealing import counts_by_source
from moesim.placement import Assignment, Placement, experts_per_rank

IntArray = NDArray[np.int64]


@BALANCERS.register("oracle")
class Oracle(Balancer):
    """Perfect balance at no cost: the limit of every other balancer. Any expert is wherever it is needed.

    A rank with less than the mean takes entries of its own tokens back from ranks with more, as many as both allow, and
    then any others, in the order of the ranks. All other entries go to the home of their expert. So rows are those of
    the real routing, a little fewer; not those of a uniform gate. GEMMs read the weights of what is here besides home
    as of any other expert.
    """

    name = "oracle"
    draws = False
    weights = "free"

    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        counts = counts_by_source(ids, ranks, experts)
        local = experts_per_rank(experts, ranks)
        goes = destinations(ids, counts, local)
        pairs = goes * experts + ids.astype(np.int64)
        # A slot for every expert at home, and one for every pair of rank and expert that meets elsewhere.
        home = np.arange(experts) // local
        needed = np.zeros(ranks * experts, dtype=bool)
        needed[home * experts + np.arange(experts)] = True
        needed[pairs] = True
        known = np.flatnonzero(needed)
        slot = (needed.cumsum() - 1)[pairs]
        placement = Placement(known % experts, known // experts, experts, ranks, home)
        return Assignment(
            placement=placement,
            slot=slot,
            moves=np.empty((0, 2), dtype=np.int64),
            gemm_rows=np.bincount(slot.ravel(), minlength=len(known)),
        )


def destinations(ids: NDArray[np.integer], counts: IntArray, local: int) -> IntArray:
    """(T*R, K) rank that computes each entry; ``counts`` (R, E) from each source, ``local`` experts on a rank."""
    ranks, experts = counts.shape
    by_home = counts.reshape(ranks, ranks, local).sum(axis=2)  # source, home
    mean = int(counts.sum()) // ranks
    back = _taken_back(by_home, mean)
    source = np.arange(ranks).repeat(len(ids) // ranks)[:, None]
    home = np.arange(experts) // local
    # What a source takes back from a home are the first entries there, by expert: few experts are split.
    blocks = counts.reshape(ranks, ranks, local)
    first = (blocks.cumsum(axis=2) - blocks).reshape(ranks, experts) - (counts.cumsum(axis=0) - counts)
    wide = ids.astype(np.int64)
    returns = copies.ordinals(ids) + first[source, wide] < back[:, home][source, wide]
    goes = np.where(returns, source, home[wide])
    # Of the others the first ones of a home are too many; the k-th of all these goes to the k-th place left free.
    stay = by_home.sum(axis=0) - back.sum(axis=0)
    load = stay + back.sum(axis=1)
    order = copies.by_expert(ids)
    left = order[~returns.ravel()[order]]
    position = np.arange(len(left)) - (stay.cumsum() - stay).repeat(stay)
    moved = left[position < np.maximum(load - mean, 0).repeat(stay)]
    goes.ravel()[moved] = np.arange(ranks).repeat(np.maximum(mean - load, 0))
    return goes


def _taken_back(by_home: IntArray, mean: int) -> IntArray:
    """(source, home) entries that their source computes itself: it stays below the mean, and they above."""
    surplus, room = np.maximum(by_home.sum(axis=0) - mean, 0), np.maximum(mean - by_home.sum(axis=0), 0)
    back = np.zeros_like(by_home)
    for home in np.flatnonzero(surplus):
        wanted = np.minimum(by_home[:, home], room)
        upto = np.minimum(wanted.cumsum(), surplus[home])
        back[:, home] = np.diff(upto, prepend=0)
        room -= back[:, home]
    return back
