"""Protocols: how rows travel. One file each says dispatch and combine as phases, and what buffers they take."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from moesim import compute
from moesim.calibration import Calibration, load, read
from moesim.cores import Dealt, in_order, slices
from moesim.errors import InputError, Problem
from moesim.moe import MoEModel
from moesim.placement import Assignment
from moesim.plan import After, FloatArray, FlowSet, IntArray, Local, Phase, Transfer
from moesim.registry import Registry
from moesim.routing import Routes
from moesim.topology import Device
from moesim.traffic import Traffic

TERMS = ("serialisation", "sync", "imbalance", "memory")
"""The four costs that a scenario can switch off: each protocol says which phases and dependencies a term names."""


class Params(BaseModel):
    """Parameters of a protocol in a scenario: closed and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, eq=False)
class Case:
    """What a protocol is asked about: one batch of one MoE layer on a placed group of ranks.

    ``capacity``: most tokens a rank can have, for static buffers. ``off``: cost terms that are switched off.
    """

    model: MoEModel
    device: Device
    routes: Routes
    traffic: Traffic
    assignment: Assignment
    calibration: Calibration
    capacity: int
    off: frozenset[str] = frozenset()

    @property
    def ranks(self) -> int:
        """R, the size of the EP group."""
        return self.routes.ranks

    @property
    def slots(self) -> int:
        """P, physical experts over all ranks."""
        return len(self.assignment.placement.slot_rank)

    @property
    def local(self) -> int:
        """Most physical experts on one rank."""
        return int(np.bincount(self.assignment.placement.slot_rank, minlength=self.ranks).max())

    @cached_property
    def received(self) -> FloatArray:
        """(R,) entries that each rank receives in dispatch, its own included."""
        return self.traffic.load.astype(np.float64)

    @cached_property
    def sent(self) -> FloatArray:
        """(R,) entries that each rank sends in dispatch and gets back in combine, its own included."""
        sent: FloatArray = self.traffic.entries.sum(axis=1).astype(np.float64)
        return sent

    @cached_property
    def tokens(self) -> FloatArray:
        """(R,) tokens of each rank."""
        return self.traffic.tokens.astype(np.float64)

    @cached_property
    def farthest(self) -> FloatArray:
        """(R,) [s] latency to the farthest rank."""
        farthest: FloatArray = self.routes.latency.max(axis=1)
        return farthest

    def each(self, seconds: float) -> FloatArray:
        """(R,) the same time on every rank."""
        return np.full(self.ranks, seconds)

    def unexplained(self, operation: str, crossings: int = 0) -> FloatArray:
        """(R,) [s] what the stated terms of an operation leave open: at_8 + per_doubling x log2(R / 8), not below 0.

        ``crossings``: latencies that are stated terms themselves and inside the fitted line, so they are taken out.
        """
        c = self.calibration
        line = c[f"{operation}_at_8"] + c[f"{operation}_per_doubling"] * float(np.log2(self.ranks / 8))
        return np.maximum(0.0, line - crossings * self.farthest)

    @property
    def copies(self) -> float:
        """1, or 0 where the memory term is switched off and nothing is copied between buffers."""
        return float("memory" not in self.off)

    def chunks(self, rows: FloatArray) -> int:
        """Pieces in which the cores work on ``rows`` (R,) as they arrive: one row a core each."""
        return max(1, int(rows.max(initial=0) // self.calibration["cores"]))

    def copy_s(self, read: FloatArray, written: FloatArray) -> FloatArray:
        """(R,) [s] of a copy in device memory."""
        return compute.copy(self.device, read, written)


class Protocol(ABC):
    """A protocol with its parameters.

    ``constants``: name -> dimension of each constant that its calibration must give; ``fittable``: those that
    ``moesim calibrate`` fits to measurements. ``needs`` properties of the pod; a scenario may assume one that the pod
    is not known to have.
    """

    kind: ClassVar[str]
    summary: ClassVar[str]
    constants: ClassVar[Mapping[str, str]]
    bandwidth_name: ClassVar[str]
    fittable: ClassVar[tuple[str, ...]] = ()
    Params: ClassVar[type[Params]] = Params

    def __init__(self, params: BaseModel) -> None:
        self.params = params

    def needs(self) -> frozenset[str]:
        """Properties that the pod must have, or the scenario assume."""
        return frozenset()

    def calibrate(self, pod: str, file: Path | None = None) -> Calibration:
        """The constants of this protocol on ``pod``, or those in ``file``.

        A parameter ``sms`` takes the place of the number of cores.
        """
        needed = self.kind, self.constants
        found = load(pod, *needed) if file is None else read(file, pod, *needed)
        sms = getattr(self.params, "sms", None)
        return found if sms is None else found.with_value("cores", float(sms))

    def for_gradients(self) -> Protocol:
        """The same protocol in a backward pass, where rows travel in ``bf16`` both ways."""
        if getattr(self.params, "dispatch", "bf16") == "bf16":
            return self
        return type(self)(self.params.model_copy(update={"dispatch": "bf16"}))

    def dropped(self, case: Case) -> float:
        """Share of the entries that the protocol does not deliver."""
        return 0.0

    def gemm_rows(self, case: Case) -> IntArray:
        """(P,) rows of the grouped GEMM of each slot."""
        return case.assignment.gemm_rows

    def check(self, model: MoEModel, ranks: int) -> None:  # noqa: B027 - most protocols run anything
        """Raise :class:`InputError` if the protocol cannot run this model on so many ranks."""

    @property
    @abstractmethod
    def formats(self) -> tuple[str, str]:
        """Number formats of a row in dispatch and in combine."""

    def dispatch_row(self, model: MoEModel) -> float:
        """Bytes of one row in dispatch with all that travels along: scales, headers, padding."""
        return model.row_bytes(self.formats[0])

    def combine_row(self, model: MoEModel) -> float:
        """The same of one row in combine."""
        return model.row_bytes(self.formats[1])

    @abstractmethod
    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        """Phases from launch to complete expert input; the last one closes the dispatch."""

    @abstractmethod
    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        """Phases from expert output to complete tokens; the last one closes the combine."""

    def operation(self, name: str, case: Case) -> tuple[Phase, ...] | None:
        """Phases that the library times as ``name`` in its own benchmark, where all ranks start together.

        ``dispatch`` and ``combine`` as in a layer by default, except for what a library's timer leaves out; None for
        an operation that the library has not.
        """
        if name == "dispatch":
            return self.dispatch(case, ())
        return self.combine(case, ()) if name == "combine" else None

    @abstractmethod
    def buffers(self, case: Case) -> dict[str, float]:
        """Bytes per rank by kind."""

    def rows(self, case: Case) -> IntArray:
        """(R, R) rows that dispatch sends from rank to rank, own rank included: one an entry by default."""
        return case.traffic.entries_to

    def logical_bytes(self, case: Case, operation: str = "dispatch") -> float:
        """Bytes of one operation of one rank in the library's own definition of bandwidth, own rank counted."""
        row = (self.dispatch_row if operation == "dispatch" else self.combine_row)(case.model)
        return float(self.rows(case).sum(axis=1).max(initial=0)) * row

    def payload_bytes(self, case: Case, operation: str = "dispatch") -> float:
        """Payload of one operation of the rank that sends most, own rank included: rows without scales and headers."""
        form = self.formats[operation == "combine"]
        return float(self.rows(case).sum(axis=1).max(initial=0)) * case.model.payload_bytes(form)

    def describe(self, case: Case) -> list[str]:
        """Sentences for ``explain``: what the answer hangs on."""
        return []


PROTOCOLS: Registry[type[Protocol]] = Registry("protocol", "moesim.protocols", "moesim.protocols")


def build(spec: str | Mapping[str, object]) -> Protocol:
    """A protocol from its name, or a mapping with ``kind`` and its parameters.

    Raises :class:`InputError` for an unknown kind or parameter.
    """
    from moesim.fields import check

    given = {"kind": spec} if isinstance(spec, str) else dict(spec)
    kind = given.pop("kind", None)
    if not isinstance(kind, str):
        raise InputError(Problem("protocol: the key `kind` is missing", legal=", ".join(PROTOCOLS.names())))
    chosen = PROTOCOLS.get(kind)
    return chosen(check(chosen.Params, given, "protocol"))


def check_sms(sms: int | None, device: Device) -> None:
    """Raise :class:`InputError` if ``device`` has not so many SMs; None is the calibration's own number.

    A pod that describes no device says nothing of their number.
    """
    if sms is not None and device.compute and sms > device.cores:
        raise InputError(Problem(f"{sms} SMs of {device.cores}", legal=f"at most {device.cores}"))


def sequence(phases: list[Local], after: tuple[After, ...]) -> list[Phase]:
    """Chain local phases one behind the other, each on its own rank; those that take no time are left out."""
    chained: list[Phase] = []
    for phase in phases:
        if not phase.duration.any():
            continue
        chained.append(Local(phase.name, phase.label, phase.duration, (*after, *phase.after), phase.chunks))
        after = (After(phase.name),)
    return chained


def last(phases: list[Phase], after: tuple[After, ...]) -> tuple[After, ...]:
    """What the next phase waits for: the last of ``phases``, or ``after`` if there is none."""
    return (After(phases[-1].name),) if phases else after


def flows(
    case: Case,
    dealt: Dealt,
    to: IntArray,
    *,
    payload: float,
    wire: float,
    issue: float,
    in_flight: float = math.inf,
    bound_to_cores: bool = True,
) -> FlowSet:
    """Flows of dealt work, merged by (rank, core, destination); a rank's copies to itself stay off the fabric.

    ``to`` (rows of ``dealt``,): destination rank. ``payload``, ``wire`` [B] of a copy; ``issue`` [s] of core time a
    copy, to which come its bytes at the core's own rate. A core keeps ``in_flight`` copies under way, so it cannot send
    one more often than that many in a round trip.
    """
    ranks, cores = case.ranks, int(case.calibration["cores"])
    key = (dealt.rank * cores + (dealt.core if bound_to_cores else 0)) * ranks + to
    away = np.flatnonzero(dealt.rank != to)
    # Work is dealt rank by rank and nearly core by core, which a stable sort turns to its profit.
    away = away.take(np.argsort(key.take(away), kind="stable"))
    first = np.flatnonzero(np.diff(key.take(away), prepend=-1))
    copies = np.add.reduceat(dealt.copies.take(away), first).astype(np.float64)
    away = away.take(first)
    src, dst = dealt.rank.take(away), to.take(away)
    core, core_s = None, None
    if bound_to_cores:
        window = 2.0 * case.routes.latency / in_flight
        copy_s = np.maximum(issue + wire / case.calibration["core_rate"], window)
        core, core_s = dealt.core.take(away), copies * copy_s.take(src * ranks + dst)
    return FlowSet.of(
        src, dst, copies * payload, wire=copies * wire, messages=copies, core=core, core_s=core_s
    )


def send_evenly(
    case: Case,
    name: str,
    rows: IntArray,
    row: float,
    payload: float,
    after: tuple[After, ...],
    issue: float = 0.0,
) -> Transfer:
    """Send ``rows`` (R, R), dealt one by one to the cores of a rank: ``row``, ``payload`` [B], ``issue`` [s] each."""
    dealt = slices(rows, in_order(case.ranks), int(case.calibration["cores"]))
    bound = "imbalance" not in case.off
    sent = flows(case, dealt, dealt.slot, payload=payload, wire=row, issue=issue, bound_to_cores=bound)
    return Transfer(f"{name}.send", "send", sent, after)


def weighted_sum(case: Case, read: FloatArray, after: tuple[After, ...], rewritten: float = 0.0) -> Local:
    """The sum of each token's results at its owner: reads ``read`` (R,) [B] from a buffer and writes the tokens.

    ``rewritten``: how much of what was read is written over again behind the read.
    """
    written = case.tokens * case.model.payload_bytes("bf16") + read * rewritten
    seconds = case.copy_s(read * case.copies, written * case.copies)
    return Local("combine.reduce", "reduce", seconds, after, chunks=case.chunks(case.tokens))


def head(
    case: Case,
    operation: str,
    after: tuple[After, ...],
    share: float = 1.0,
    crossings: int = 0,
    scheduler: float = 0.0,
) -> list[Phase]:
    """What comes before the first write of a fused kernel: launch, the ``share`` of the unexplained, a schedule [s].

    Nothing if the serialisation term is switched off. ``crossings``: see :meth:`Case.unexplained`.
    """
    if "serialisation" in case.off:
        return []
    return sequence(
        [
            Local(f"{operation}.launch", "launch", case.each(case.calibration["launch"])),
            Local(f"{operation}.unexplained", "unexplained", share * case.unexplained(operation, crossings)),
            Local(f"{operation}.scheduler", "planning", case.each(scheduler)),
        ],
        after,
    )


def window_copy(case: Case, name: str, row: float, after: tuple[After, ...], writes: int = 1) -> Local:
    """Copy what a rank received, ``row`` [B] an entry, from its window to the expert input; ``writes`` times."""
    moved = case.received * row * case.copies
    return Local(
        name, "reorder", case.copy_s(moved, moved * writes), after, chunks=case.chunks(case.received)
    )
