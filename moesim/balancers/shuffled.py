"""Random placement: experts dealt out by the seed, the same number on each rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesim.balancers import BALANCERS, Balancer, Context, static_assignment
from moesim.placement import Assignment, Placement, experts_per_rank


@BALANCERS.register("random")
class Shuffled(Balancer):
    """A random permutation of the experts over the slots of the ranks; no copies, no moves.

    It breaks up hot experts that are neighbours, which a contiguous placement keeps on one rank.
    """

    name = "random"

    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        slot_expert = rng.permutation(experts)
        slot_rank = np.arange(experts) // experts_per_rank(experts, ranks)
        slot_of = np.argsort(slot_expert)
        placement = Placement(slot_expert, slot_rank, experts, ranks, home=slot_rank[slot_of])
        return static_assignment(placement, slot_of[ids])
