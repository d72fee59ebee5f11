"""Dirichlet popularity."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from moesim import limits
from moesim.traces.popularity import Floats, PopularParams, PopularSource
from moesim.traces.source import KINDS


class DirichletParams(PopularParams):
    """``alpha``: concentration an expert; 1.1 to 2 fits DeepSeek-R1 serving, a larger one is more even."""

    own: ClassVar[str] = "alpha"
    alpha: Annotated[float, Field(ge=0.1, le=limits.FACTOR)] | None = None

    def spread(self) -> float | None:
        """1 / alpha."""
        return None if self.alpha is None else 1 / self.alpha


@KINDS.register("dirichlet")
class Dirichlet(PopularSource):
    """p ~ symmetric Dirichlet(alpha): normalised Gamma(alpha) numbers, by the quantile of z."""

    Params = DirichletParams

    def popularity(self, z: Floats, spread: float) -> Floats:
        """The Gamma(1 / spread) number at the quantile of z."""
        from scipy.special import gammaincinv, ndtr

        shares = np.asarray(gammaincinv(1 / spread, ndtr(z)), dtype=np.float64)
        # Below this an expert is never drawn anyway; zero would leave too few experts for k.
        return np.asarray(np.maximum(shares, 1e-30 * shares.max(axis=-1, keepdims=True)))
