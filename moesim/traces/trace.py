"""`Trace`: which experts each token goes to, by step and layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class Trace:
    """Demand in logical experts, before any placement.

    ``ids`` (steps, layers, tokens, k) uint16: the k distinct experts of each token, in no particular order.
    Tokens are rank-major: rank r of ep holds tokens r*T to (r+1)*T, T = tokens_per_rank. ``layer_ids``
    (layers,): MoE layers, counted from 0. ``requests`` (steps, tokens) int32: the request that a token
    belongs to; equal numbers in one step, or in one slot from step to step, are one request. ``origin`` says
    where the routing is from, ``notes`` what a reader of the result must know about it.
    """

    ids: Ids
    experts: int
    layer_ids: NDArray[np.int64]
    requests: NDArray[np.int32]
    phase: str
    origin: str
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.ids.shape[0])

    @property
    def tokens(self) -> int:
        """Tokens a step, over all ranks."""
        return int(self.ids.shape[2])

    @property
    def top_k(self) -> int:
        """Experts a token goes to."""
        return int(self.ids.shape[3])

    def counts(self) -> NDArray[np.int64]:
        """Entries of each expert, (steps, layers, experts)."""
        steps, layers = self.ids.shape[:2]
        flat = self.ids.reshape(steps * layers, -1)
        found = [np.bincount(row, minlength=self.experts) for row in flat]
        return np.array(found, dtype=np.int64).reshape(steps, layers, self.experts)

    def statistics(self) -> dict[str, object]:
        """What characterises the demand, beside the closest real recording: see :mod:`.statistics`."""
        from moesim.traces.statistics import of

        return of(self)
