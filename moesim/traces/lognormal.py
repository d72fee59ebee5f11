"""Lognormal popularity: what real gates come close to."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from moesim.traces.popularity import Floats, PopularParams, PopularSource
from moesim.traces.source import KINDS


class LognormalParams(PopularParams):
    """``sigma``: standard deviation of the logarithm of popularity; .2 for mixed chat, .7 for DeepSeek-R1
    serving.
    """

    own: ClassVar[str] = "sigma"
    sigma: Annotated[float, Field(ge=0, le=10)] | None = None


@KINDS.register("lognormal")
class Lognormal(PopularSource):
    """p = exp(sigma z): MoonEP's benchmark generator, with the shares corrected for distinct picks."""

    Params = LognormalParams

    def popularity(self, z: Floats, spread: float) -> Floats:
        """exp(spread z)."""
        return np.exp(spread * z)
