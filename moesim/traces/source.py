"""What a kind of routing is: parameters, and how demand is drawn from the seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from moesim.moe import MoEModel
from moesim.registry import Registry
from moesim.traces.trace import Ids

Phase = Literal["decode", "prefill", "train"]


class TraceParams(BaseModel):
    """Parameters of a kind of routing: closed and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Batch:
    """How much demand is wanted, and for which model.

    ``layers``: MoE layers counted from 0. ``base``: the folder that relative file names start from.
    """

    model: MoEModel
    ep: int
    tokens_per_rank: int
    phase: Phase
    layers: tuple[int, ...]
    steps: int
    seed: int
    base: Path | None = None

    @property
    def tokens(self) -> int:
        """Tokens a step over all ranks."""
        return self.ep * self.tokens_per_rank

    def stream(self, purpose: str, *key: int) -> np.random.Generator:
        """An independent stream of random numbers for one purpose, layer, step ...

        Every array is drawn from its own stream with tokens (or requests) on the slowest axis, so a smaller
        ep sees a prefix of what a larger one sees, and one layer does not depend on which others are asked
        for.
        """
        words = [self.seed, *purpose.encode(), 0, *key]
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words)))


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a source hands back: see :class:`~moesim.traces.trace.Trace`."""

    ids: Ids
    requests: NDArray[np.int32]
    origin: str
    notes: tuple[str, ...] = ()


class TraceSource(ABC):
    """One kind of routing. A subclass declares ``Params`` and draws.

    ``draws``: whether anything is left to chance, so that seed and step matter.
    """

    Params: ClassVar[type[TraceParams]] = TraceParams
    draws: ClassVar[bool] = True

    def __init__(self, params: TraceParams, base: Path | None = None) -> None:
        self.params: TraceParams = params

    @abstractmethod
    def draw(self, batch: Batch) -> Drawn:
        """The demand of ``batch``; raises :class:`~moesim.errors.InputError` if these parameters cannot give
        it.
        """

    def memory(self, batch: Batch) -> float:
        """Bytes [B] that drawing ``batch`` takes at most: two an entry, and what is kept of each token."""
        return float(batch.steps) * batch.tokens * (2 * len(batch.layers) * batch.model.top_k + 64)

    def fingerprint(self, batch: Batch) -> str:
        """What the demand depends on beside the parameters and ``batch``: the content of a file."""
        return ""


KINDS: Registry[type[TraceSource]] = Registry("routing kind", "moesim.traces", "moesim.traces")
"""Every kind of routing by name."""
