"""Balancers: where experts live and which copy each entry goes to; one file each, found by name.

A balancer answers for one batch of one layer. It does not know the pod: whether the pod has what it
``needs``, what planning costs and how fast weights travel are asked elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from moesim.errors import InputError, Problem
from moesim.placement import Assignment, Placement, experts_per_rank
from moesim.registry import Registry

__all__ = [
    "BALANCERS",
    "Assignment",
    "Balancer",
    "BalancerParams",
    "Context",
    "Placement",
    "static_assignment",
]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Context:
    """Where and when a batch is balanced.

    ``step``: S, from 0; ``layer``: MoE layer, of the model's ``layers``. ``past`` (S, E): entries of each logical
    expert of this layer in every earlier step. ``host``, ``domain`` (R,): numbers from 0 of the host and scale-up
    domain of each rank.
    """

    step: int
    layer: int
    layers: int
    past: IntArray
    host: IntArray
    domain: IntArray

    @staticmethod
    def first(ranks: int, experts: int) -> Context:
        """The first step of the only layer on one host: nothing is known."""
        one = np.zeros(ranks, dtype=np.int64)
        return Context(0, 0, 1, np.empty((0, experts), dtype=np.int64), one, one)


class BalancerParams(BaseModel):
    """Base of the parameters of a balancer: closed and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Balancer(ABC):
    """Base of all balancers. ``name`` is the name it is registered under.

    ``needs``: properties the pod must have ('multicast' ...). ``max_ranks`` and ``max_top_k``: limits of the
    real system, None where it has none. ``constants``: name -> dimension of what planning and moving weights cost
    on a pod; empty for a placement that is made beforehand. ``draws``: whether the seed matters to it.
    ``weights``: when moved weights travel: ``before`` dispatch, ``after`` it and before the GEMMs, or in the
    ``background`` of the step; ``free``: copies take no time and no memory, and return no gradients. ``counts``: who
    needs the counts of all ranks before it can plan: ``all`` ranks, or the ``first``, which sends the plan to all.
    """

    name: ClassVar[str]
    constants: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[frozenset[str]] = frozenset()
    max_ranks: ClassVar[int | None] = None
    max_top_k: ClassVar[int | None] = None
    draws: ClassVar[bool] = True
    weights: ClassVar[Literal["none", "before", "after", "background", "free"]] = "none"
    counts: ClassVar[Literal["none", "all", "first"]] = "none"

    class Params(BalancerParams):
        """No parameters."""

    def __init__(self, params: BalancerParams | None = None, base: Path | None = None) -> None:
        """``base``: the folder that relative paths in ``params`` start from (after the current one)."""
        self.params = self.Params() if params is None else params
        self.base = base

    def files(self) -> tuple[Path, ...]:
        """What it reads: the answer stands on these files."""
        return ()

    def problems(self, ranks: int, experts: int, top_k: int) -> list[Problem]:
        """Every reason why it cannot place E experts on R ranks with K experts a token; empty if it can."""
        found: list[Problem] = []
        try:
            experts_per_rank(experts, ranks)
        except InputError as error:
            found.extend(error.problems)
        for what, value, limit in (
            ("ranks", ranks, self.max_ranks),
            ("experts a token", top_k, self.max_top_k),
        ):
            if limit is not None and value > limit:
                found.append(
                    Problem(f"balancer {self.name!r} cannot serve {value} {what}", legal=f"at most {limit}")
                )
        return found

    def balance(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context | None = None,
    ) -> Assignment:
        """Place the experts of one layer and send each entry of one batch to a slot.

        ``ids`` (T*R, K): logical experts of each token, rank-major, T tokens on every rank. ``rng`` draws
        what the balancer leaves to chance: a static placement is the same for the same state of ``rng``, so
        seed one generator a layer to keep experts where they are from step to step. ``context``: by default the
        first step on one host. Raises :class:`InputError` if the sizes are not legal or an id is not an expert.
        """
        if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
            raise InputError(
                f"expert ids must be a (tokens, top_k) array of integers, not {ids.dtype} {ids.shape}"
            )
        found = self.problems(ranks, experts, ids.shape[1])
        if ranks >= 1 and len(ids) % ranks:
            found.append(Problem(f"{len(ids)} tokens do not make the same number on each of {ranks} ranks"))
        if ids.size and not 0 <= ids.min() <= ids.max() < experts:
            found.append(
                Problem(
                    f"expert ids run from {ids.min()} to {ids.max()}",
                    legal=f"0 to {experts - 1}: {experts} experts",
                )
            )
        if found:
            raise InputError(found)
        return self.assign(ids, ranks, experts, rng, context or Context.first(ranks, experts))

    @abstractmethod
    def assign(
        self,
        ids: NDArray[np.integer],
        ranks: int,
        experts: int,
        rng: np.random.Generator,
        context: Context,
    ) -> Assignment:
        """What :meth:`balance` does once its arguments have been checked."""


def static_assignment(placement: Placement, slot: NDArray[np.integer]) -> Assignment:
    """An assignment that moves no weights and pads nothing; ``slot`` (T*R, K)."""
    return Assignment(
        placement=placement,
        slot=slot.astype(np.int64, copy=False),
        moves=np.empty((0, 2), dtype=np.int64),
        gemm_rows=np.bincount(slot.ravel(), minlength=len(placement.slot_rank)),
    )


BALANCERS: Registry[type[Balancer]] = Registry("balancer", "moesim.balancers", "moesim.balancers")
