"""Slow, readable twins of the fluid engine: one in exact fractions, one in floats for works of some thousand flows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

Row = Mapping[int, Fraction]


def rates(rows: Sequence[Row], capacity: Sequence[Fraction]) -> list[Fraction]:
    """Max-min rates: close the resource with the lowest level, give its flows that rate, repeat."""
    rate: dict[int, Fraction] = {}
    while len(rate) < len(rows):
        levels = {}
        for resource, limit in enumerate(capacity):
            crossing = [f for f, row in enumerate(rows) if resource in row]
            need = sum((rows[f][resource] for f in crossing if f not in rate), Fraction(0))
            spent = sum((rows[f][resource] * rate[f] for f in crossing if f in rate), Fraction(0))
            if need:
                levels[resource] = (limit - spent) / need
        tightest = min(levels, key=levels.__getitem__)
        for f, row in enumerate(rows):
            if f not in rate and tightest in row:
                rate[f] = levels[tightest]
    return [rate[f] for f in range(len(rows))]


def finish_times(
    rows: Sequence[Row], capacity: Sequence[Fraction], size: Sequence[Fraction], start: Sequence[Fraction]
) -> list[Fraction]:
    """When each flow finishes, from one event to the next."""
    left = dict(enumerate(size))
    finish: dict[int, Fraction] = {}
    now = min(start, default=Fraction(0))
    while left:
        for f in [f for f in left if start[f] <= now and left[f] == 0]:
            finish[f] = now
            del left[f]
        active = [f for f in left if start[f] <= now]
        events = [start[f] - now for f in left if start[f] > now]
        speed = dict(zip(active, rates([rows[f] for f in active], capacity), strict=True))
        events += [left[f] / speed[f] for f in active]
        if not events:
            break
        step = min(events)
        now += step
        for f in active:
            left[f] -= step * speed[f]
    return [finish[f] for f in range(len(size))]


def finish_times_in_floats(path: np.ndarray, capacity: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The same for flows that start together, each over the resources in its row of ``path`` (F, H), -1 padding."""
    flows, resources = len(size), len(capacity)
    crosses = np.zeros((flows, resources))
    for column in path.T:
        crosses[np.flatnonzero(column >= 0), column[column >= 0]] = 1.0
    left, finish, now = size.astype(float), np.full(flows, np.nan), 0.0
    active = np.arange(flows)
    while len(active):
        speed = _rates_in_floats(crosses, capacity)
        step = (left / speed).min()
        now += step
        left = left - step * speed
        done = left <= 1e-12 * size[active]
        finish[active[done]] = now
        active, left, crosses = active[~done], left[~done], crosses[~done]
    return finish


def finish_times_of_late_flows(
    takes: np.ndarray, capacity: np.ndarray, size: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """The same for flows that start at any time; ``takes`` (F, N) of each resource for each unit of size."""
    left, finish, now = size.astype(float), np.full(len(size), np.nan), 0.0
    nothing = (size == 0) | ~takes.any(axis=1)
    finish[nothing] = start[nothing]
    while np.isnan(finish).any():
        waiting = np.isnan(finish) & (start > now)
        active = np.flatnonzero(np.isnan(finish) & (start <= now))
        speed = _rates_in_floats(takes[active], capacity)
        soonest = (left[active] / speed).min(initial=np.inf)
        step = min(soonest, start[waiting].min(initial=np.inf) - now)
        left[active] -= step * speed
        now = now + step if step == soonest else float(start[waiting].min())
        done = active[left[active] <= 1e-12 * size[active]]
        finish[done] = now
    return finish


def _rates_in_floats(crosses: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Close the one resource with the lowest level, again and again."""
    speed = np.full(len(crosses), np.nan)
    left, need = capacity.copy(), crosses.sum(axis=0)
    dust = 1e-9 * need
    while (need > dust).any():
        level = np.divide(left, need, out=np.full(len(capacity), np.inf), where=need > dust)
        tightest = level.argmin()
        chosen = np.flatnonzero(np.isnan(speed) & (crosses[:, tightest] > 0))
        speed[chosen] = level[tightest]
        taken = crosses[chosen].sum(axis=0)
        need = need - taken
        left = left - level[tightest] * taken
    return speed
