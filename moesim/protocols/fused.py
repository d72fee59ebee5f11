"""What the fused protocols of an accelerator die share: row sizes, core constants, windows, the weighted sum."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from moesim import buffers
from moesim.calibration import Calibration
from moesim.cores import Dealt
from moesim.errors import InputError, Problem
from moesim.moe import MoEModel
from moesim.plan import FlowSet, IntArray
from moesim.protocols import Case, Params, Protocol, flows

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
CROSSINGS = {"dispatch": 3, "combine": 1}
"""Latencies among the stated terms of cann-ep: fence, flags and the last row in dispatch, the last row in combine."""

VECTOR = 64
"""Count records that one vector step of the prefix sum takes."""


class FusedParams(Params):
    """``dispatch``, ``combine``: formats of a row. ``cores``: send cores to use, all of the calibration by default."""

    dispatch: Literal["int8", "fp8", "bf16"] = "int8"
    combine: Literal["bf16"] = "bf16"
    cores: int | None = Field(default=None, ge=2)


class Fused(Protocol):
    """What the fused protocols of an accelerator die share: row sizes, cores, prefix sums."""

    params: FusedParams

    def calibrate(self, pod: str) -> Calibration:
        calibration = super().calibrate(pod)
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
    sizes = buffers.cann_fullmesh(
        case.ranks, case.capacity, k, case.local, model.dispatch_width, flags_in_block=window == "fullmesh_v2"
    )
    return sizes | records
