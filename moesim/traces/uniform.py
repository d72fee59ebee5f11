"""Every expert equally popular; tokens choose independently."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from moesim.traces.popularity import Floats, Grouped, PopularSource
from moesim.traces.source import KINDS, Batch


class UniformParams(Grouped):
    """No parameters but the groups: there is nothing to drift or to tune."""

    drift: ClassVar[None] = None

    def spread(self) -> float:
        """No spread."""
        return 0.0

    def target(self) -> None:
        """No target."""


@KINDS.register("uniform")
class Uniform(PopularSource):
    """k distinct experts, all sets equally likely within the best groups."""

    Params = UniformParams

    def popularity(self, z: Floats, spread: float) -> Floats:
        """One for each expert."""
        return np.ones_like(z)

    def notes(self, batch: Batch) -> tuple[str, ...]:
        """None."""
        return ()
