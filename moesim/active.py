"""The flows that are under way, in arrays that are made anew only now and then; and when they end in a merged step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from moesim.feasible import feasible
from moesim.levels import Triangle
from moesim.lowrank import LowRank
from moesim.rates import FloatArray, IntArray, tally

Columns = TypeVar("Columns", IntArray, FloatArray)


@dataclass(eq=False)
class Active:
    """The active flows (A,) over the n resources that they can fill; the dummy resource is number n.

    ``path``, ``taken`` (H, A), in shares of the capacity, which is 1; ``left`` (A,) [B]; ``capacity`` and
    ``level`` (n+1,); ``resources`` (n,): their numbers in the fabric. ``before``: the levels of the last step, which
    took ``before_span`` seconds; ``uneven``: whether rates are too far apart for an ``exact`` solver. Flows that have
    ended stay in the arrays for a while; only those that are ``here`` (A,) are under way. Others have nothing left,
    or, with an ``exact`` solver, infinitely much.
    """

    flows: IntArray
    path: IntArray
    taken: FloatArray
    left: FloatArray
    capacity: FloatArray
    resources: IntArray
    level: FloatArray

    def __post_init__(self) -> None:
        self.built = self.alive = len(self.flows)
        self.here = np.ones(self.built, dtype=bool)
        self.rate = np.zeros(self.built)
        self.own = np.zeros(len(self.resources))
        self.before, self.before_span = self.level, 0.0
        self.triangle = Triangle()
        self.merged = False
        self.oldest, self.scale = np.inf, np.inf
        self.exact: LowRank | None = None
        self.gone = np.zeros(0, dtype=np.int64)
        self.uneven = False

    @staticmethod
    def none(nodes: int) -> Active:
        empty, nobody = np.zeros(0), np.zeros(0, dtype=np.int64)
        return Active(
            nobody,
            np.zeros((1, 0), dtype=np.int64),
            np.zeros((1, 0)),
            empty,
            empty,
            nobody,
            np.full(1, np.inf),
        )

    def drop(self, done: IntArray, span: float) -> None:
        """``done`` have ended, in a step of ``span`` seconds."""
        if span > 0:
            self.own = np.zeros(len(self.resources))
        self.before, self.before_span = self.level, span
        self.alive -= len(done)
        self.here[done] = False
        if self.exact is not None:
            self.left[done] = np.inf
            self.gone = np.append(self.gone, done)
        else:
            # With nothing left, nothing holds them.
            self.left[done] = 0.0

    def compact(self) -> None:
        """Forget flows that have ended."""
        if self.alive < len(self.flows):
            self._take(np.flatnonzero(self.here))

    def _take(self, keep: IntArray) -> None:
        self.triangle.keep(self.path, self.taken, keep)
        self.flows, self.left, self.rate = self.flows[keep], self.left[keep], self.rate[keep]
        self.path, self.taken = self.path.take(keep, axis=1), self.taken.take(keep, axis=1)
        self.here = np.ones(len(keep), dtype=bool)

    def append(self, flows: IntArray, left: FloatArray, path: IntArray, taken: FloatArray) -> None:
        """Let ``flows`` (B,) in, whose rows (H, B) are over resources that are there."""
        new, dummy = len(flows), len(self.resources)
        width = max(len(path), len(self.path))
        self.path = np.hstack([_widen(self.path, width, dummy), _widen(path, width, dummy)])
        self.taken = np.hstack([_widen(self.taken, width, 0), _widen(taken, width, 0)])
        self.flows, self.left = np.append(self.flows, flows), np.append(self.left, left)
        self.rate, self.here = (
            np.append(self.rate, np.zeros(new)),
            np.append(self.here, np.ones(new, dtype=bool)),
        )
        self.triangle.wait(new)
        self.alive += new


def _widen(columns: Columns, width: int, padding: int) -> Columns:
    """Columns (H, A) with more rows of padding."""
    return np.pad(columns, ((0, width - len(columns)), (0, 0)), constant_values=padding)


def place(active: Active, done: IntArray, span: float) -> FloatArray:
    """When in a step of ``span`` seconds each of the flows ``done`` ends (K,) [s], not beyond the step.

    The flows that one resource holds progress alike, so they end in order of what they have left; in between, what
    they get together is taken as constant. A flow that no resource held is given its equal share. None ends sooner
    than it would alone.
    """
    weight = active.before_span / (active.before_span + span)
    with np.errstate(invalid="ignore"):
        start = active.level * weight + active.before * (1 - weight)
    start = np.where(
        np.isinf(active.level), active.before, np.where(np.isinf(active.before), active.level, start)
    )
    path = active.path[:, done]
    heights = start.take(path)
    lost = np.isinf(heights.min(axis=0))
    if lost.any():
        everybody = tally(active.path, active.taken, len(active.capacity))
        with np.errstate(divide="ignore"):
            heights[:, lost] = (active.capacity / everybody).take(path[:, lost])
    slot, flow = heights.argmin(axis=0), np.arange(len(done))
    holder, taken = path[slot, flow], active.taken[:, done][slot, flow]
    nodes = len(active.capacity)
    staying = np.append(active.own, 0.0)
    first = heights[slot, flow]
    shared = staying * np.where(staying > 0, active.level, 0.0)
    shared += np.bincount(holder, taken * np.where(staying[holder] > 0, active.rate[done], first), nodes)
    order = np.lexsort((active.left[done], holder))
    at = done[order]
    left, place_of, own = active.left[at], holder[order], taken[order]
    begin = np.append(True, place_of[1:] != place_of[:-1])
    segment = np.cumsum(begin) - 1
    more = np.where(begin, left, left - np.append(0.0, left[:-1]))
    behind = np.cumsum(own) - own
    ahead = np.bincount(segment, own)[segment] - (behind - behind[begin][segment]) + staying[place_of]
    with np.errstate(divide="ignore", invalid="ignore"):
        wait = np.where(more > 0, more * ahead / shared[place_of], 0.0)
    total = np.cumsum(np.minimum(wait, span))
    total -= (total - np.minimum(wait, span))[begin][segment]
    ends: FloatArray = np.empty(len(done))
    ends[order] = total
    work = active.taken[:, done] * active.left[done]
    # No flow ends sooner than alone, and no flows together sooner than any resource lets them.
    return np.minimum(feasible(path, work, np.maximum(ends, work.max(axis=0))), span)
