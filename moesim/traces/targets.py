"""Tunes the spread of a popularity until the demand has a wanted imbalance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError, Problem
from moesim.traces.source import Batch

Floats = NDArray[np.float64]

NARROWEST, WIDEST = 1e-5, 10.0
STEPS = 60


@dataclass(frozen=True)
class Target:
    """A wanted imbalance: ``level`` "expert" (max/mean of experts, which is maxvio + 1) or "rank"
    (max/mean).
    """

    level: str
    max_over_mean: float
    key: str
    value: float

    @staticmethod
    def of(maxvio: float | None, rank_imbalance: float | None) -> Target | None:
        """The target that is given, if any."""
        if maxvio is not None:
            return Target("expert", maxvio + 1, "maxvio", maxvio)
        if rank_imbalance is not None:
            return Target("rank", rank_imbalance, "rank_imbalance", rank_imbalance)
        return None

    def reach(
        self,
        batch: Batch,
        layer: int,
        expected: Callable[[float], Floats],
        drawn: Callable[[float], NDArray[np.uint16]],
    ) -> float:
        """The spread at which the entries drawn have this imbalance, within max(2 % of maxvio or ratio,
        0.005).

        Bisection of the logarithm of the spread in [1e-5, 10], at most 60 draws, as MoonEP's benchmarks do;
        it starts where the ``expected`` shares (steps, experts) have it. Raises :class:`InputError` if no
        spread has.
        """
        self._possible(batch)
        lowest, highest = NARROWEST, WIDEST
        spread = self._guess(batch, expected)
        nearest = np.inf
        for _ in range(STEPS):
            got = self.measure(batch, _counts(drawn(spread), batch.model.experts))
            offset = got - self.max_over_mean
            if abs(offset) <= max(0.02 * self.value, 0.005):
                return spread
            nearest = got if abs(offset) < abs(nearest - self.max_over_mean) else nearest
            lowest, highest = (spread, highest) if offset < 0 else (lowest, spread)
            if highest / lowest < 1 + 1e-6:
                break
            # Small steps until both sides are known: the start is near, the ends are far.
            if highest == WIDEST and spread < WIDEST / 1.3:
                spread *= 1.3
            elif lowest == NARROWEST and spread > NARROWEST * 1.3:
                spread /= 1.3 if spread > 0.05 else 10
            else:
                spread = float(np.sqrt(lowest * highest))
        raise self._refusal(f"the nearest in layer {layer} is {nearest - self._shift():.3f}")

    def measure(self, batch: Batch, counts: Floats) -> float:
        """Mean over steps of max/mean of ``counts`` (steps, experts), by expert or by rank."""
        if self.level == "rank":
            counts = counts.reshape(len(counts), batch.ep, -1).sum(axis=-1)
        return float((counts.max(axis=-1) / counts.mean(axis=-1)).mean())

    def _guess(self, batch: Batch, expected: Callable[[float], Floats]) -> float:
        low, high = NARROWEST, WIDEST
        for _ in range(30):
            middle = float(np.sqrt(low * high))
            below = self.measure(batch, expected(middle)) < self.max_over_mean
            low, high = (middle, high) if below else (low, middle)
        return float(np.clip(np.sqrt(low * high), 0.01, WIDEST))

    def _possible(self, batch: Batch) -> None:
        model, ep = batch.model, batch.ep
        if batch.tokens == 0:
            raise self._refusal("there are no tokens")
        if self.level == "expert":
            most = model.experts / model.top_k
        elif model.experts % ep:
            raise self._refusal(f"ep {ep} does not divide {model.experts} experts")
        else:
            most = min(ep, ep * (model.experts // ep) / model.top_k)
        if self.max_over_mean > most:
            raise self._refusal(f"at most {most - self._shift():.3f} is possible with distinct experts")

    def _shift(self) -> float:
        return self.max_over_mean - self.value

    def _refusal(self, why: str) -> InputError:
        return InputError(Problem(f"routing.{self.key} {self.value:g} cannot be reached: {why}"))


def _counts(ids: NDArray[np.uint16], experts: int) -> Floats:
    return np.array([np.bincount(step.ravel(), minlength=experts) for step in ids], dtype=np.float64)
