"""EPLB with its plan at hand: copies of the experts that its statistics call hot, placed beforehand at no cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from moesim import limits
from moesim.balancers import BALANCERS, Balancer, BalancerParams, Context
from moesim.balancers import _copies as copies
from moesim.balancers import _eplb as planner
from moesim.errors import Problem
from moesim.placement import Assignment


@BALANCERS.register("eplb")
class EPLB(Balancer):
    """DeepSeek's EPLB, planned beforehand: from the counts of this very batch, or of the steps before it.

    No weights move in the step, whatever the plan was the step before: it says how good a placement with an even
    split can be. ``eplb-periodic`` has the costs.
    """

    name = "eplb"
    constants: ClassVar[Mapping[str, str]] = {"remap": "time"}
    draws = False

    class Params(BalancerParams):
        """``num_redundant_experts``: copies beside the E experts; ``num_groups``, ``num_nodes``: groups of experts
        that stay together on a node where the second divides the first (hierarchical), else global.
        ``window_size``: steps before this one that are counted; 0: this batch itself (perfect information).
        """

        num_redundant_experts: int = Field(default=0, ge=0, le=limits.EXPERTS)
        num_groups: int = Field(default=1, ge=1, le=limits.EXPERTS)
        num_nodes: int = Field(default=1, ge=1, le=limits.EXPERTS)
        window_size: int = Field(default=0, ge=0, le=limits.STEPS)

    params: EPLB.Params

    def problems(self, ranks: int, experts: int, top_k: int) -> list[Problem]:
        """See :class:`Balancer`."""
        found = super().problems(ranks, experts, top_k)
        one = self.params
        slots = experts + one.num_redundant_experts
        return found or planner.problems(experts, slots, one.num_groups, one.num_nodes, ranks)

    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        asked = self.params
        slots = experts + asked.num_redundant_experts
        if asked.window_size == 0:
            load = np.bincount(ids.ravel(), minlength=experts)
        elif context.step == 0:
            return copies.assigned(ids, copies.round_robin(experts, slots), ranks, experts)
        else:
            load = copies.window(context, asked.window_size, context.step)
        plan = planner.rebalance(load[None], slots, asked.num_groups, asked.num_nodes, ranks)
        return copies.assigned(ids, plan.phy2log[0], ranks, experts)
