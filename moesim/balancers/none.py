"""No balancing: experts in order, the same number on each rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesim.balancers import BALANCERS, Balancer, Context, static_assignment
from moesim.placement import Assignment, Placement


@BALANCERS.register("none")
class Contiguous(Balancer):
    """Expert e lives on rank e // (E/R), in slot e, and gets all of its entries."""

    name = "none"
    draws = False

    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        return static_assignment(Placement.contiguous(experts, ranks), ids)
