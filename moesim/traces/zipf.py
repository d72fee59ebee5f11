"""Zipf popularity: a power law of the rank. Overshoots the maximum of real gates; a stress case."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from moesim.traces.popularity import Floats, PopularParams, PopularSource
from moesim.traces.source import KINDS


class ZipfParams(PopularParams):
    """``exponent``: the expert of rank i (from 1, ranks in random order) has popularity i^-exponent."""

    own: ClassVar[str] = "exponent"
    exponent: Annotated[float, Field(ge=0, le=10)] | None = None


@KINDS.register("zipf")
class Zipf(PopularSource):
    """p = rank^-exponent, ranks by z."""

    Params = ZipfParams

    def popularity(self, z: Floats, spread: float) -> Floats:
        """(rank of z)^-spread."""
        rank = 1 + np.argsort(np.argsort(-z, axis=-1), axis=-1)
        return np.power(rank.astype(np.float64), -spread)
