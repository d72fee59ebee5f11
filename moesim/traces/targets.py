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
DRAWS = 60


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
    ) -> NDArray[np.uint16]:
        """Draws of a spread at which they have this imbalance, within max(2 %, 0.005).

        Bracketed search over the logarithm of the spread in [1e-5, 10], at most 60 draws (the range and the
        tolerance of MoonEP's benchmarks), from where the ``expected`` shares (steps, experts) have it. Raises
        :class:`InputError` if no spread has.
        """
        self._possible(batch)
        low = high = None
        spread, nearest = self._guess(batch, expected), np.inf
        for _ in range(DRAWS):
            ids = drawn(spread)
            got = self.measure(batch, _counts(ids, batch.model.experts))
            offset = got - self.max_over_mean
            if abs(offset) <= max(0.02 * self.value, 0.005):
                return ids
            nearest = got if abs(offset) < abs(nearest - self.max_over_mean) else nearest
            low, high = ((spread, offset), high) if offset < 0 else (low, (spread, offset))
            if spread <= NARROWEST or (spread >= WIDEST and offset < 0):
                break
            spread = _between(low, high) if low and high else self._further(spread, got)
        raise self._refusal(f"the nearest in layer {layer} is {nearest - self._shift():.3f}")

    def _further(self, spread: float, got: float) -> float:
        """Towards the target, where only one side of it is known."""
        factor = (self.max_over_mean - 1) / max(got - 1, 1e-3)
        step = np.clip(factor, 0.7, 1.4) if spread > 0.05 else (10 if factor > 1 else 0.1)
        return float(np.clip(spread * step, NARROWEST, WIDEST))

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


def _between(low: tuple[float, float], high: tuple[float, float]) -> float:
    """Where a straight line through two (spread, offset) of unlike sign crosses zero, kept off both ends."""
    share = np.clip(-low[1] / (high[1] - low[1]), 0.1, 0.9)
    return float(low[0] * (high[0] / low[0]) ** share)
