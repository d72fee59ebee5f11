"""Inputs that have no effect on the answer, as far as that can be told before anything is drawn or simulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from moesim import ranks
from moesim.strategy import Strategy
from moesim.topology import IntArray, Topology

if TYPE_CHECKING:
    from moesim.scenario import Scenario


def inputs(
    scenario: Scenario, pod: Topology, devices: IntArray, strategies: tuple[Strategy, ...]
) -> Iterator[str]:
    """One line for each input of ``scenario`` without effect; what is as it would be by default is not named.

    ``devices`` (R,): those of the ranks. ``strategies``: with their constants.
    """
    for override, by in scenario.superseded:
        yield f"the override {override} has no effect: {by} replaces it"
    yield from _demand(scenario, strategies)
    place = scenario.ranks.place
    if place != "packed" and np.array_equal(devices, ranks.place(pod, scenario.ranks.ep)):
        yield "ranks.place has no effect: these are the devices of `packed`"
    for one, spec in zip(strategies, scenario.strategies, strict=True):
        for name in spec.assume:
            if name in pod.properties:
                yield f"{one.name}: `assume: {name}` has no effect, {pod.name} has it"
            elif name not in one.protocol.needs() | one.balancer.needs:
                yield f"{one.name}: `assume: {name}` has no effect, nothing in the strategy needs it"
    for number, fault in enumerate(scenario.faults):
        if fault.capacity == 1:
            yield f"faults.{number} has no effect, it leaves the whole capacity"
    for number, flow in enumerate(scenario.background):
        if flow.size == 0:
            yield f"background.{number} has no effect, it carries nothing"


def _demand(scenario: Scenario, strategies: tuple[Strategy, ...]) -> Iterator[str]:
    from moesim.traces import KINDS

    work, kind = scenario.workload, scenario.routing.kind
    drawn = KINDS.get(kind).draws
    if work.tokens_per_rank == 0:
        yield "workload.tokens_per_rank is 0: nothing is routed, so `routing` has no effect"
    if not drawn and work.steps > 1:
        yield f"workload.steps has no effect: {kind} routing is the same at every step"
    if scenario.seed != 0 and not any(one.balancer.draws for one in strategies):
        if work.tokens_per_rank == 0:
            yield "seed has no effect: there is nothing to draw"
        elif not drawn:
            yield f"seed has no effect: {kind} routing draws nothing, nor does a balancer"
