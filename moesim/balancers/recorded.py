"""A placement from a file, as it was planned for a real deployment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from moesim import resources
from moesim.balancers import BALANCERS, Balancer, BalancerParams, Context
from moesim.balancers import _copies as copies
from moesim.balancers import _placement_files as files
from moesim.errors import InputError, Problem
from moesim.placement import Assignment

IntArray = NDArray[np.int64]


@BALANCERS.register("recorded")
class Recorded(Balancer):
    """The placement in a file, the same at every step; entries are split evenly over copies.

    MoE layer l of the model is layer l of the file. Nothing moves.
    """

    name = "recorded"
    constants: ClassVar[Mapping[str, str]] = {"remap": "time"}
    draws = False

    class Params(BalancerParams):
        """``placement``: the name of a shipped placement, or the path of a file."""

        placement: str

    params: Recorded.Params

    def __init__(self, params: BalancerParams | None = None, base: Path | None = None) -> None:
        super().__init__(params, base)
        self._tables: dict[tuple[int, int], list[IntArray]] = {}

    @cached_property
    def path(self) -> Path:
        """The file; raises :class:`InputError` if there is none."""
        return resources.find("placement", self.params.placement, self.base)

    def files(self) -> tuple[Path, ...]:
        """See :class:`Balancer`."""
        return (self.path,)

    def problems(self, ranks: int, experts: int, top_k: int) -> list[Problem]:
        """See :class:`Balancer`."""
        found = super().problems(ranks, experts, top_k)
        if found:
            return found
        try:
            self._layers(ranks, experts)
        except InputError as error:
            return [_unplaced(problem) for problem in error.problems]
        return []

    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        layers = self._layers(ranks, experts)
        if context.layer >= len(layers):
            message = f"MoE layer {context.layer} is asked for, but the placement has {len(layers)}"
            legal = f"layers 0 to {len(layers) - 1}; or layers: {len(layers)}"
            raise InputError(Problem(message, path=str(self.path), legal=legal))
        return copies.assigned(ids, layers[context.layer].ravel(), ranks, experts)

    def _layers(self, ranks: int, experts: int) -> list[IntArray]:
        if (ranks, experts) not in self._tables:
            self._tables[ranks, experts] = files.load(self.path, ranks, experts)
        return self._tables[ranks, experts]


def _unplaced(problem: Problem) -> Problem:
    """A problem of a whole file is placed where the file is named; one inside it stays there."""
    if problem.line is not None:
        return problem
    return Problem(f"{problem.path}: {problem.message}", legal=problem.legal)
