"""Lognormal popularity: what real gates come close to."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from moesim.traces.popularity import Floats, PopularParams, PopularSource, only_one
from moesim.traces.source import KINDS


class LognormalParams(PopularParams):
    """``sigma``: standard deviation of the logarithm of popularity; .2 for mixed chat, .7 for DeepSeek-R1 serving."""

    sigma: Annotated[float, Field(ge=0, le=10)] | None = None

    @model_validator(mode="after")
    def _one_spread(self) -> LognormalParams:
        only_one(self, "sigma", self.sigma)
        return self

    def spread(self) -> float | None:
        """sigma."""
        return self.sigma


@KINDS.register("lognormal")
class Lognormal(PopularSource):
    """p = exp(sigma z): MoonEP's benchmark generator, with the shares corrected for distinct picks."""

    Params = LognormalParams

    def popularity(self, z: Floats, spread: float) -> Floats:
        """exp(spread z)."""
        return np.exp(spread * z)
