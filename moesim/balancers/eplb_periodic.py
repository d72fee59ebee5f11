"""EPLB as it is deployed: planned every so often from a window of past steps, and then held."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
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

IntArray = NDArray[np.int64]


@BALANCERS.register("eplb-periodic")
class PeriodicEPLB(Balancer):
    """EPLB from a window of past steps, every so many steps, in one go or layer after layer in the background.

    Before steps I, 2I, ... (I the interval) a plan is made from the window of steps that has just ended. Synchronous:
    all layers move their weights then, and the step waits for them. Asynchronous: layer number l moves them during step
    l of the interval and uses them from the next step on. Until the first plan experts lie in order, the first ones
    with the copies. Weights are sent by the ranks that hold them, receivers shared out evenly.
    """

    name = "eplb-periodic"
    constants: ClassVar[Mapping[str, str]] = {"plan": "time", "launch": "time", "remap": "time"}
    draws = False
    weights = "background"

    class Params(BalancerParams):
        """``num_redundant_experts``: copies beside the E experts; ``num_groups``, ``num_nodes``: groups of experts
        that stay together on a node where the second divides the first (hierarchical), else global.
        ``window_size``: steps that a plan is made from; ``step_interval``: steps between plans; ``use_async``: layer
        after layer in the background.
        """

        num_redundant_experts: int = Field(default=0, ge=0, le=limits.EXPERTS)
        num_groups: int = Field(default=1, ge=1, le=limits.EXPERTS)
        num_nodes: int = Field(default=1, ge=1, le=limits.EXPERTS)
        window_size: int = Field(default=1000, ge=1, le=limits.STEPS)
        step_interval: int = Field(default=3000, ge=1, le=limits.STEPS)
        use_async: bool = True

    params: PeriodicEPLB.Params

    def __init__(self, params: BalancerParams | None = None, base: Path | None = None) -> None:
        super().__init__(params, base)
        # A plan depends on what was counted alone: one for all steps that it is in force.
        self._plans: dict[bytes, IntArray] = {}

    def problems(self, ranks: int, experts: int, top_k: int) -> list[Problem]:
        """See :class:`Balancer`."""
        one = self.params
        slots = experts + one.num_redundant_experts
        found = super().problems(ranks, experts, top_k)
        return found or planner.problems(experts, slots, one.num_groups, one.num_nodes, ranks)

    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        one = self.params
        begun, moving = copies.schedule(context, one.step_interval, one.use_async)
        old, new = (self._placement(number, ranks, experts, context) for number in (begun - moving, begun))
        late = moving and one.use_async  # what arrives during this step is of use in the next
        return copies.assigned(
            ids,
            old if late else new,
            ranks,
            experts,
            moves=copies.shared_out(old, new, ranks) if moving else None,
            details={"plan": begun - late},
            stall=moving and not one.use_async,
        )

    def _placement(self, number: int, ranks: int, experts: int, context: Context) -> IntArray:
        """(P,) of plan ``number``; of 0, where it all starts."""
        one = self.params
        slots = experts + one.num_redundant_experts
        if number == 0:
            return copies.round_robin(experts, slots)
        load = copies.window(context, one.window_size, number * one.step_interval)
        key = load.tobytes() + bytes(f"{ranks}", "ascii")
        if key not in self._plans:
            plan = planner.rebalance(load[None], slots, one.num_groups, one.num_nodes, ranks)
            self._plans[key] = plan.phy2log[0]
        return self._plans[key]
