"""What the fused protocols of an accelerator die share: row sizes, core constants, windows, reads."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from moesim import buffers, cores, limits
from moesim.calibration import Calibration
from moesim.cores import Dealt
from moesim.errors import InputError, Problem
from moesim.moe import MoEModel
from moesim.plan import After, FloatArray, FlowSet, IntArray, Local, Phase, Transfer, When
from moesim.protocols import Case, Params, Protocol, flows, sequence, weighted_sum
from moesim.topology import Tier

CONSTANTS = {
    "launch": "time",
    "dispatch_at_8": "time",
    "dispatch_per_doubling": "time",
    "combine_at_8": "time",
    "combine_per_doubling": "time",
    "barrier": "time",
    "dispatch_barriers": "ratio",
    "combine_barriers": "ratio",
    "issue": "time",
    "vector_step": "time",
    "cores": "ratio",
    "core_rate": "bandwidth",
    "copies_in_flight": "ratio",
}
FITTABLE = ("dispatch_at_8", "dispatch_per_doubling", "combine_at_8", "combine_per_doubling")
"""What the stated terms leave open is fitted where the protocol has been measured."""

CROSSINGS = {"dispatch": 3, "combine": 1}
"""Latencies among the stated terms of cann-ep: fence, flags and the last row in dispatch, the last row in combine."""

VECTOR = 64
"""Count records that one vector step of the prefix sum takes."""


class FusedParams(Params):
    """``dispatch``, ``combine``: formats of a row. ``cores``: send cores to use, all of the calibration by default."""

    dispatch: Literal["int8", "fp8", "bf16"] = "int8"
    combine: Literal["bf16"] = "bf16"
    cores: int | None = Field(default=None, ge=2, le=limits.CORES)


class Fused(Protocol):
    """What the fused protocols of an accelerator die share: row sizes, cores, prefix sums."""

    Params = FusedParams
    params: FusedParams

    def calibrate(self, pod: str, file: Path | None = None) -> Calibration:
        calibration = super().calibrate(pod, file)
        most = int(calibration["cores"])
        if self.params.cores is not None and self.params.cores > most:
            raise InputError(
                Problem(f"{self.kind}: {self.params.cores} send cores", legal=f"cores from 2 to {most}")
            )
        return (
            calibration if self.params.cores is None else calibration.with_value("cores", self.params.cores)
        )

    def dispatch_row(self, model: MoEModel) -> float:
        """A row and its scale, padded to the 512 B that the fabric writes at once (7.5 KiB for INT8 at 7168)."""
        return model.row_bytes(self.params.dispatch, pad=512)

    def logical_bytes(self, case: Case, operation: str = "dispatch") -> float:
        """Messages of all entries of a rank, own rank counted: what CloudMatrix384's table divides by latencies, less
        5 % that nothing explains.
        """
        row = self.combine_row(case.model) if operation == "combine" else self.dispatch_row(case.model)
        return float(case.sent.max()) * row

    @property
    def formats(self) -> tuple[str, str]:
        return self.params.dispatch, self.params.combine

    def flows(
        self, case: Case, dealt: Dealt, to: IntArray, *, form: str, wire: float, writes: int = 1
    ) -> FlowSet:
        """Flows of dealt copies, each ``writes`` remote writes; not bound to cores if the imbalance term is off."""
        c = case.calibration
        return flows(
            case,
            dealt,
            to,
            payload=case.model.payload_bytes(form),
            wire=wire,
            issue=writes * c["issue"],
            in_flight=c["copies_in_flight"],
            bound_to_cores="imbalance" not in case.off,
        )

    def prefix_sum(self, case: Case) -> float:
        """[s] of the prefix sum over R x local experts count records, on one core."""
        return float(np.ceil(case.ranks * case.local / VECTOR)) * case.calibration["vector_step"]


def share_of_unexplained(protocol: Fused, case: Case) -> str:
    """For ``explain``: how far the answer moves with ``dispatch_shared``, which nobody has published."""
    whole = float(case.unexplained("dispatch", CROSSINGS["dispatch"]).max()) * 1e6
    share = case.calibration["dispatch_shared"]
    return (
        f"of the {whole:.1f} us that the stated terms of a bulk-synchronous dispatch leave unexplained at "
        f"EP{case.ranks}, {protocol.kind} pays {share:.0%} (dispatch_shared): with 0 % its dispatch is "
        f"{share * whole:.1f} us shorter, with 100 % {(1 - share) * whole:.1f} us longer"
    )


def static_windows(protocol: Fused, case: Case, window: str) -> dict[str, float]:
    """Windows by the named formula, plus count records; what really comes if the memory term is switched off."""
    k, model = case.model.top_k, case.model
    rows = protocol.dispatch_row(model), protocol.combine_row(model)
    if "memory" in case.off:
        return buffers.on_demand(
            case.received.max() * rows[0], case.sent.max() * rows[1], case.ranks, case.local
        )
    records = {"metadata": 32.0 * case.slots}
    if window == "cm384":
        return buffers.cloudmatrix(case.ranks, case.capacity, k, case.local, *rows) | records
    if window == "a2_fullmesh":
        whole = buffers.cann_a2_fullmesh(case.ranks, case.capacity, k, case.local, model.dispatch_width)
        return {"window": whole} | records
    sizes = buffers.cann_fullmesh(
        case.ranks, case.capacity, k, case.local, model.dispatch_width, flags_in_block=window == "fullmesh_v2"
    )
    return sizes | records


def writing(case: Case, send: Transfer) -> list[Phase]:
    """What a die needs at least to write the flows of ``send``, where the routes are those of reads: bytes of a tier
    at the rate at which it writes to that tier, and the latency.
    """
    if "imbalance" in case.off:
        return []
    cost, sent = np.zeros(len(Tier)), send.flows
    for tier, rate in case.device.engine("write").items():
        cost[tier] = 1.0 / rate
    seconds = sent.wire * cost[case.routes.tier[sent.src, sent.dst]]
    taken = np.bincount(sent.src, seconds, case.ranks)
    last_off = np.where(taken > 0, taken + case.farthest, 0.0)
    operation = send.name.partition(".")[0]
    return sequence([Local(f"{operation}.write engine", "send", last_off)], send.after)


def pull(
    case: Case, operation: str, form: str, rows: IntArray, row: float, after: tuple[After, ...]
) -> list[Phase]:
    """Reads of ``rows`` (R, R) from source to reader, ``row`` [B] each, and beside them what the reader's cores do.

    The cores are the reader's, so they cannot be those of the flows, which belong to the source: a reader is done when
    both the bytes are here and its slowest core is.
    """
    away = rows * ~np.eye(case.ranks, dtype=bool)
    src, dst = np.nonzero(away)
    copies = away[src, dst].astype(np.float64)
    payload = case.model.payload_bytes(form)
    read = FlowSet.of(src, dst, copies * payload, wire=copies * row, messages=copies)
    transfer = Transfer(f"{operation}.send", "send", read, after)
    if "imbalance" in case.off:
        return [transfer]
    busy = Local(f"{operation}.read cores", "send", _reading(case, away, row))
    return [transfer, *sequence([busy], after)]


def _reading(case: Case, rows: IntArray, row: float) -> FloatArray:
    """(R,) [s] of each reader's slowest core: it keeps a few reads under way, each of which takes a round trip."""
    c = case.calibration
    n = int(c["cores"])
    dealt = cores.slices(rows.T, cores.in_order(case.ranks), n)
    trip = case.routes.latency[dealt.slot, dealt.rank] / c["copies_in_flight"]
    each = np.maximum(c["issue"] + row / c["core_rate"], trip)
    spent = np.bincount(dealt.rank * n + dealt.core, dealt.copies * each, case.ranks * n)
    slowest: FloatArray = spent.reshape(case.ranks, n).max(axis=1)
    return slowest


def known(records: list[Phase], after: tuple[After, ...]) -> tuple[After, ...]:
    """A flow starts with its source, but it is the reader that must know the records: all ranks wait for all."""
    return tuple(After(phase.name, When.ALL) for phase in records[-1:]) or after


def pulled(phases: list[Phase], when: When = When.INBOUND) -> tuple[After, ...]:
    """All bytes of a :func:`pull` are here, or stream in, and the cores that asked for them are done."""
    return (After(phases[0].name, when), *(After(phase.name) for phase in phases[1:]))


def read_sum(case: Case, row: float, after: tuple[After, ...]) -> Local:
    """The weighted sum of rows that cores read where they lie: of own memory only those of the own rank."""
    own = case.traffic.entries_to.diagonal().astype(np.float64)
    return weighted_sum(case, own * row, after)
