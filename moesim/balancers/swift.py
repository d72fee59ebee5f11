"""Swift, the balancer of vLLM Ascend: a few copies and swaps at a time, layer after layer in the background.

After vllm-project/vllm-ascend at 182b75ea, ``policy_swift_balancer.py`` (policy 2) and its worker. Where the original
leaves a choice to the order of a Python set, the lowest expert goes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from moesim import limits
from moesim.balancers import BALANCERS, Balancer, BalancerParams, Context
from moesim.balancers import _copies as copies
from moesim.errors import Problem
from moesim.placement import Assignment

IntArray = NDArray[np.int64]
Floats = NDArray[np.float64]

WORTH_PLANNING = 1.01
"""Largest over mean load below which a layer is left alone."""
SWAPS, GAIN = 100, 0.01
"""Most swaps of a layer; what each must take off the heaviest rank, in mean loads of the first layer."""
CHANGE = 0.95
TIE = 1e-12


@dataclass(frozen=True, eq=False)
class SwiftPlan:
    """``placement`` (L, R, slots): expert in each slot. ``change``: the sum of the largest loads falls below 0.95 of
    what it was; ``layer_priority`` (L,): layers by what they gain, the most first. The worker ignores both.
    """

    placement: IntArray
    change: bool
    layer_priority: IntArray


@BALANCERS.register("swift")
class Swift(Balancer):
    """vLLM Ascend's Swift: counts for some steps, plans for some, then changes one layer a step in the background.

    A cycle has heat + algorithm + L steps (L layers): the plan is made from the counts of its first ``heat``
    steps; layer l moves its weights during step heat + algorithm + l and uses them from the next step on. A new copy is
    sent by the lowest rank that gives the expert up or, where none does, the lowest that holds it. The planner is a
    process of its own and taken to be done in time: in reality the step before the first layer moves waits for it.
    """

    name = "swift"
    constants: ClassVar[Mapping[str, str]] = {"launch": "time", "remap": "time"}
    draws = False
    weights = "background"

    class Params(BalancerParams):
        """``num_redundant_experts``: copies beside the E experts; ``expert_heat_collection_interval``: steps that are
        counted; ``algorithm_execution_interval``: steps that the planner has; ``intra_host_redundancy``: every host by
        itself.
        """

        num_redundant_experts: int = Field(default=0, ge=0, le=limits.EXPERTS)
        expert_heat_collection_interval: int = Field(default=600, ge=1, le=limits.STEPS)
        algorithm_execution_interval: int = Field(default=50, ge=1, le=limits.STEPS)
        intra_host_redundancy: bool = False

    params: Swift.Params

    def __init__(self, params: BalancerParams | None = None, base: Path | None = None) -> None:
        super().__init__(params, base)
        # A plan depends on the placement before it and on what was counted alone.
        self._plans: dict[tuple[bytes, ...], IntArray] = {}

    def problems(self, ranks: int, experts: int, top_k: int) -> list[Problem]:
        """See :class:`Balancer`."""
        found = super().problems(ranks, experts, top_k)
        slots = experts + self.params.num_redundant_experts
        return found or copies.indivisible("num_redundant_experts", slots, ranks, experts)

    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        heat = self.params.expert_heat_collection_interval
        delay = heat + self.params.algorithm_execution_interval
        cycle, turn = delay + context.layers, context.step - delay - context.layer
        old = start(ranks, experts, self.params.num_redundant_experts)
        in_force = max(0, -(-turn // cycle))  # plans whose step of moving lies behind
        for number in range(in_force):
            old = self._next(old, context.past[number * cycle : number * cycle + heat], context)
        moves = None
        if turn >= 0 and turn % cycle == 0:
            begin = turn // cycle * cycle
            new = self._next(old, context.past[begin : begin + heat], context)
            moves = senders(old, new)
        return copies.assigned(ids, old.ravel(), ranks, experts, moves, {"plan": in_force})

    def _next(self, old: IntArray, counted: IntArray, context: Context) -> IntArray:
        """(R, slots) that follows ``old`` after ``counted`` (steps, E)."""
        load = counted.sum(axis=0)
        host = context.host if self.params.intra_host_redundancy else np.zeros_like(context.host)
        key = (old.tobytes(), bytes(str(old.shape), "ascii"), load.tobytes(), host.tobytes())
        if key not in self._plans:
            self._plans[key] = plan(old[None], load[None].astype(np.float64), host).placement[0]
        return self._plans[key]


def start(ranks: int, experts: int, redundant: int) -> IntArray:
    """(R, slots): experts in order and, on each rank in turn, a copy of the one after its last.

    >>> start(4, 8, 4).tolist()
    [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 0]]
    """
    own = np.arange(experts).reshape(ranks, -1)
    extra = own[:, -1:] + 1 + np.arange(redundant // ranks)
    return np.concatenate([own, extra % experts], axis=1)


def senders(old: IntArray, new: IntArray) -> IntArray:
    """``moves`` (M, 2) [slot, sender] from one placement (R, slots) to another."""
    slots = copies.arrivals(old.ravel(), new.ravel(), len(old))
    found = np.empty((len(slots), 2), dtype=np.int64)
    for number, expert in enumerate(new.ravel()[slots].tolist()):
        had, has = (old == expert).any(axis=1), (new == expert).any(axis=1)
        giving = np.flatnonzero(had & ~has)
        found[number] = slots[number], (giving if len(giving) else np.flatnonzero(had))[0]
    return found


def plan(placement: IntArray, expert_load: Floats, host: IntArray) -> SwiftPlan:
    """What follows ``placement`` (L, R, slots) for ``expert_load`` (L, E), entries of each expert.

    ``host`` (R,): ranks of one host share their copies among themselves; all zero: all ranks do.

    >>> loads = np.array([[400.0, 80, 0, 40, 20, 0, 20, 0]])
    >>> plan(start(4, 8, 4)[None], loads, np.zeros(4)).placement.tolist()
    [[[0, 1, 3], [2, 3, 0], [4, 5, 0], [6, 7, 0]]]
    """
    layers, ranks, _ = placement.shape
    found, reference = placement.copy(), 0.0
    before, after = np.zeros(layers), np.zeros(layers)
    for layer, (old, load) in enumerate(zip(placement, expert_load, strict=True)):
        share = (load / np.bincount(old.ravel(), minlength=len(load)))[old]
        mean = share.sum() / ranks
        reference = reference if layer else mean
        before[layer] = after[layer] = share.sum(axis=1).max()
        if mean == 0 or before[layer] / mean < WORTH_PLANNING:
            continue
        tables = [_Layer(old[host == one], share[host == one], len(load)) for one in np.unique(host)]
        largest = max(table.balance(reference) for table in tables)
        new = np.empty_like(old)
        for one, table in zip(np.unique(host), tables, strict=True):
            new[host == one] = table.slots
        if largest * mean < before[layer] * reference * (1 - TIE) and _may_be(new, old):
            found[layer], after[layer] = new, largest
    gained = np.divide(after, before, out=np.ones(layers), where=before > 0)
    change = bool(after.sum() < CHANGE * before.sum())
    return SwiftPlan(found, change, np.argsort(gained, kind="stable"))


def _may_be(new: IntArray, old: IntArray) -> bool:
    """The worker's checks: no expert is lost, none is twice on a rank. (Nor moved between slots: see ``_keep``.)"""
    twice = any(len(np.unique(row)) < len(row) for row in new)
    return not twice and np.array_equal(np.unique(new), np.unique(old))


class _Layer:
    """The slots of one layer on the ranks of one host (or on all), while they are planned."""

    def __init__(self, slots: IntArray, share: Floats, experts: int) -> None:
        self.old, self.slots = slots, slots.copy()
        ranks = len(slots)
        self.full = np.bincount(slots.ravel(), share.ravel(), minlength=experts)
        self.weight = self.full.copy()  # what a copy is taken to carry
        self.here = np.zeros((ranks, experts), dtype=bool)
        self.received = np.zeros((ranks, experts), dtype=bool)
        self.sent = np.zeros((ranks, ranks), dtype=bool)
        self.origin = np.full(experts, -1)
        self.free: list[list[int]] = [[] for _ in range(ranks)]
        for slot, rank in np.ndindex(slots.shape[::-1]):
            expert = slots[rank, slot]
            if self.origin[expert] >= 0:
                self.free[rank].append(slot)
            else:
                self.origin[expert] = rank
                self.here[rank, expert] = True
        self.load = np.zeros(ranks)

    def balance(self, reference: float) -> float:
        """Choose copies anew, place them, swap; the largest load of a rank that the planner expects then."""
        for expert, extra in self._chosen():
            for _ in range(extra):
                if not self._place(expert):
                    break
        if any(self.free):
            self._fill()
        for _ in range(SWAPS):
            if not self._swap(reference):
                break
        self._keep()
        return float(self.load.max())

    def _chosen(self) -> list[tuple[int, int]]:
        """(expert, further copies), the heaviest first; the working weight after n of them is 2 w / (n + 2)."""
        ranks, experts = self.here.shape
        extra = np.zeros(experts, dtype=np.int64)
        for _ in range(sum(map(len, self.free))):
            wanted = np.where((self.origin >= 0) & (extra < ranks - 1), self.weight, -1.0)
            expert = experts - 1 - int(wanted[::-1].argmax())
            if wanted[expert] < 0:
                break
            extra[expert] += 1
            self.weight[expert] = 2 * self.full[expert] / (extra[expert] + 2)
        self.load = self.here @ self.weight
        by_weight = np.argsort(-self.weight, kind="stable")
        return [(int(expert), int(extra[expert])) for expert in by_weight if extra[expert]]

    def _place(self, expert: int) -> bool:
        """On the lightest rank with room that has no copy and nothing from this expert's origin yet."""
        room = np.array([bool(left) for left in self.free])
        may = room & ~self.here[:, expert] & ~self.sent[self.origin[expert]]
        if not may.any():
            return False
        self._put(expert, int(np.where(may, _level(self.load), np.inf).argmin()))
        return True

    def _put(self, expert: int, rank: int) -> None:
        self.slots[rank, self.free[rank].pop()] = expert
        self.here[rank, expert] = self.received[rank, expert] = True
        self.sent[self.origin[expert], rank] = True
        self.load[rank] += self.weight[expert]

    def _fill(self) -> None:
        """Slots left over take the heaviest expert that is not on their rank, by what a copy really carries."""
        self._share()
        for rank, left in enumerate(self.free):
            while left:
                wanted = np.where((self.origin >= 0) & ~self.here[rank], self.weight, -1.0)
                expert = int(wanted.argmax())
                if wanted[expert] < 0:
                    left.clear()  # all are there: what the slots held stays
                    break
                self._put(expert, rank)
                self.weight[expert] = self.full[expert] / self.here[:, expert].sum()
        self._share()
        self.load = self.here @ self.weight

    def _share(self) -> None:
        self.weight = self.full / np.maximum(self.here.sum(axis=0), 1)

    def _swap(self, reference: float) -> bool:
        """One swap of two experts between the heaviest rank and the lightest with which it helps enough."""
        heavy = int(_level(self.load).argmax())
        for light in np.argsort(_level(self.load), kind="stable").tolist():
            if light == heavy or self.sent[heavy, light] or self.sent[light, heavy]:
                continue
            give = np.flatnonzero(self.here[heavy] & ~self.here[light] & ~self.received[heavy])
            take = np.flatnonzero(self.here[light] & ~self.here[heavy] & ~self.received[light])
            if not len(give) or not len(take):
                continue
            change = self.weight[give][:, None] - self.weight[take]
            larger = np.maximum(self.load[heavy] - change, self.load[light] + change)
            best = int((larger <= larger.min() * (1 + TIE)).argmax())
            if self.load[heavy] - larger.flat[best] >= GAIN * reference:
                row, column = divmod(best, len(take))
                self._exchange(heavy, int(give[row]), light, int(take[column]))
                return True
        return False

    def _exchange(self, heavy: int, given: int, light: int, taken: int) -> None:
        for rank, goes, comes in ((heavy, given, taken), (light, taken, given)):
            self.slots[rank, self.slots[rank] == goes] = comes
            self.here[rank, goes], self.here[rank, comes] = False, True
            self.received[rank, comes] = True
            self.load[rank] += self.weight[comes] - self.weight[goes]
        self.sent[heavy, light] = self.sent[light, heavy] = True

    def _keep(self) -> None:
        """What a rank had before stays in its old slot."""
        for old, new in zip(self.old, self.slots, strict=True):
            stays = np.isin(old, new)
            came = new[~np.isin(new, old)]
            if stays.sum() + len(came) == len(new):
                new[stays], new[~stays] = old[stays], came


def _level(load: Floats) -> Floats:
    """Loads that only rounding tells apart are one, so that ties go to the lowest rank whatever was added up first."""
    return np.round(load, 6)
