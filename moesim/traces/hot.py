"""A few hot experts, the rest alike: the stress of published ablations."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from moesim import limits
from moesim.errors import InputError, Problem
from moesim.traces.popularity import Floats, PopularParams, PopularSource
from moesim.traces.source import KINDS


class HotParams(PopularParams):
    """``hot`` experts are ``heat`` times as popular as the others; ``at``: which ones, by chance if absent."""

    own: ClassVar[str] = "heat"
    hot: Annotated[PositiveInt, Field(le=limits.EXPERTS)]
    heat: Annotated[float, Field(ge=1, le=limits.FACTOR)] | None = None
    at: tuple[Annotated[NonNegativeInt, Field(lt=limits.EXPERTS)], ...] | None = None

    @model_validator(mode="after")
    def _places(self) -> HotParams:
        if self.at is not None and len(set(self.at)) != self.hot:
            raise ValueError(f"at names {len(set(self.at))} experts, hot is {self.hot}")
        return self


@KINDS.register("hot")
class Hot(PopularSource):
    """p is the spread for the hot experts and 1 for the others."""

    Params = HotParams
    params: HotParams

    def popularity(self, z: Floats, spread: float) -> Floats:
        """(..., E): ``spread`` at the chosen experts, or at those with the largest z."""
        experts = z.shape[-1]
        if self.params.hot > experts or max(self.params.at or (0,)) >= experts:
            raise InputError(Problem(f"routing: hot experts beyond the {experts} of the model"))
        place = np.argsort(np.argsort(-z, axis=-1), axis=-1) < self.params.hot
        if self.params.at is not None:
            place = np.broadcast_to(np.isin(np.arange(z.shape[-1]), self.params.at), z.shape)
        return np.where(place, spread, 1.0)
