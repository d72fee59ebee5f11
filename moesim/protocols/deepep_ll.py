"""DeepEP's low-latency kernels: a message a (token, expert), straight into the expert's slot, a flag a (peer, expert).

Ranks of one scale-up domain are reached by stores, others by RDMA that the GPU posts itself. The receiver waits for the
flags of all peers and packs the rows by expert. Source: DeepEP, csrc/kernels and docs/legacy.md.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from moesim import buffers
from moesim.moe import MoEModel
from moesim.plan import After, IntArray, Local, Phase, When
from moesim.protocols import (
    PROTOCOLS,
    Case,
    Params,
    Protocol,
    head,
    last,
    send_evenly,
    sequence,
    weighted_sum,
    window_copy,
)

HEADER = 16
"""Bytes in front of each dispatched row: the source token's number, padded."""


class DeepEPParams(Params):
    """``dispatch``, ``combine``: formats of a row."""

    dispatch: Literal["fp8", "bf16"] = "fp8"
    combine: Literal["bf16"] = "bf16"


@PROTOCOLS.register("deepep-ll")
class DeepEPLowLatency(Protocol):
    """One message an entry, no de-duplication, static slots for the worst case."""

    kind = "deepep-ll"
    summary = "DeepEP low-latency: one message a (token, expert), RDMA or stores, static worst-case slots"
    constants = {
        "launch": "time",
        "dispatch_at_8": "time",
        "dispatch_per_doubling": "time",
        "combine_at_8": "time",
        "combine_per_doubling": "time",
        "issue": "time",
        "cores": "ratio",
        "core_rate": "bandwidth",
    }
    bandwidth_name = "all selections, own rank included, over kernel time (DeepEP low-latency tables)"
    Params = DeepEPParams
    params: DeepEPParams

    def dispatch_row(self, model: MoEModel) -> float:
        return super().dispatch_row(model) + HEADER

    @property
    def formats(self) -> tuple[str, str]:
        return self.params.dispatch, self.params.combine

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.dispatch_row(case.model)
        phases, waits = self._send(case, "dispatch", case.traffic.entries_to, row, after)
        return (*phases, window_copy(case, "dispatch.pack", row, waits))

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.combine_row(case.model)
        phases, waits = self._send(case, "combine", case.traffic.entries_to.T, row, after)
        return (*phases, weighted_sum(case, case.sent * row, waits))

    def _send(
        self, case: Case, operation: str, entries: IntArray, row: float, after: tuple[After, ...]
    ) -> tuple[list[Phase], tuple[After, ...]]:
        """Launch, every row as a message of its own, flags; and what the receiver waits for."""
        start = head(case, operation, after)
        payload = case.model.payload_bytes(self.formats[operation == "combine"])
        send = send_evenly(
            case, operation, entries, row, payload, last(start, after), case.calibration["issue"]
        )
        flags = self._flags(case, operation, last(start, after))
        arrival = When.STREAM if "serialisation" in case.off else When.INBOUND
        return [*start, send, *flags], (*last(flags, ()), After(send.name, arrival))

    def _flags(self, case: Case, operation: str, after: tuple[After, ...]) -> list[Phase]:
        """A flag from every peer, also where nothing is sent; behind rows it comes with the last of them."""
        if "sync" in case.off:
            return []
        issue = float(np.ceil(case.slots / case.calibration["cores"])) * case.calibration["issue"]
        flags = sequence([Local(f"{operation}.flags", "sync", case.each(issue))], after)
        waits = tuple(After(dep.phase, When.ALL) for dep in last(flags, after))
        return [*flags, Local(f"{operation}.flag flight", "sync", case.farthest, waits)]

    def buffers(self, case: Case) -> dict[str, float]:
        if "memory" in case.off:
            rows = self.dispatch_row(case.model), self.combine_row(case.model)
            dispatch, combine = case.received.max() * rows[0], case.sent.max() * rows[1]
            return buffers.on_demand(dispatch, combine, case.ranks, case.local)
        return buffers.deepep_low_latency(case.capacity, case.model.dispatch_width, case.slots)
