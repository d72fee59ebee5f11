"""Where experts live, and which copy each routed entry goes to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError, InvariantError, Problem

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Placement:
    """Physical slots that hold logical experts.

    ``slot_expert`` (P,): logical expert in each slot, -1 for an empty one. ``slot_rank`` (P,): rank that owns
    the slot. ``home`` (E,): rank on which the weights of a logical expert live when nothing is moved.
    ``experts``: E; ``ranks``: R. Raises :class:`InvariantError` if a logical expert has no slot.

    >>> Placement.contiguous(experts=4, ranks=2).slot_rank.tolist()
    [0, 0, 1, 1]
    """

    slot_expert: IntArray
    slot_rank: IntArray
    experts: int
    ranks: int
    home: IntArray

    def __post_init__(self) -> None:
        copies = np.bincount(self.slot_expert[self.slot_expert >= 0], minlength=self.experts)
        if len(copies) != self.experts or not copies.all():
            homeless = np.flatnonzero(copies[: self.experts] == 0).tolist()
            raise InvariantError(f"placement of {self.experts} experts: {homeless} have no slot")

    @staticmethod
    def contiguous(experts: int, ranks: int) -> Placement:
        """Expert e on rank e // (E/R), slot e: the usual place of experts, with no copy."""
        home = np.arange(experts) // experts_per_rank(experts, ranks)
        return Placement(np.arange(experts), home, experts, ranks, home)


@dataclass(frozen=True, eq=False)
class Assignment:
    """A placement, and the slot that each entry of a batch goes to.

    ``slot`` (T*R, K): slot of each entry; rows are tokens, rank-major (rank r holds rows r*T to (r+1)*T).
    ``moves`` (M, 2): [slot, rank that sends it its weights] for the weights that must travel for this batch;
    empty when every expert is already where it is used. ``relayed`` (M,): the sender itself only receives the
    weights in this batch and sends them on chunk by chunk; None: every sender has them. ``stall``: nothing else
    runs while they move. ``gemm_rows`` (P,): rows of the grouped GEMM of each slot, padding included.
    ``static_rows``: rows of the static receive buffer of a rank where the balancer fixes it, else None.
    ``details``: what else the balancer decided, by its own names.
    """

    placement: Placement
    slot: IntArray
    moves: IntArray
    gemm_rows: IntArray
    static_rows: int | None = None
    details: dict[str, object] = field(default_factory=dict)
    relayed: NDArray[np.bool_] | None = None
    stall: bool = False


def experts_per_rank(experts: int, ranks: int) -> int:
    """E / R, whole; raises :class:`InputError` with the legal R otherwise.

    >>> experts_per_rank(256, 64)
    4
    """
    if ranks >= 1 and experts >= ranks and experts % ranks == 0:
        return experts // ranks
    legal = ", ".join(str(r) for r in range(1, experts + 1) if experts % r == 0)
    raise InputError(
        Problem(f"{experts} experts cannot be divided evenly over {ranks} ranks", legal=f"ep of {legal}")
    )
