"""DeepEP's low-latency kernels: a message a (token, expert), straight into the expert's slot, a flag a (peer, expert).

Ranks of one scale-up domain are reached by stores, others by RDMA that the GPU posts itself; the first version sent
every message through the NIC, to ranks of the same host too. The receiver waits for the flags of all peers and packs
the rows by expert. Source: DeepEP, csrc/kernels and docs/legacy.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from moesim import buffers
from moesim.calibration import Calibration
from moesim.moe import MoEModel
from moesim.plan import After, IntArray, Local, Phase, When
from moesim.protocols import (
    PROTOCOLS,
    Case,
    Params,
    Protocol,
    head,
    last,
    pool,
    sequence,
    weighted_sum,
    window_copy,
)
from moesim.topology import Tier

HEADER = 16
"""Bytes in front of each dispatched row: the source token's number, padded."""


class DeepEPParams(Params):
    """``dispatch``, ``combine``: formats of a row. ``transport``: stores where they reach, or ``rdma`` for all."""

    transport: Literal["direct", "rdma"] = "direct"
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
        "dispatch_post": "time",
        "combine_post": "time",
        "cores": "ratio",
        "dispatch_port_rate": "bandwidth",
        "combine_port_rate": "bandwidth",
    }
    fittable = (
        "dispatch_at_8",
        "dispatch_per_doubling",
        "combine_at_8",
        "combine_per_doubling",
        "dispatch_post",
        "combine_post",
        "dispatch_port_rate",
        "combine_port_rate",
    )
    bandwidth_name = "all selections, own rank included, over kernel time (DeepEP low-latency tables)"
    Params = DeepEPParams
    params: DeepEPParams

    def calibrate(self, pod: str, file: Path | None = None) -> Calibration:
        found = super().calibrate(pod, file)
        return replace(found, access="rdma") if self.params.transport == "rdma" else found

    def dispatch_row(self, model: MoEModel) -> float:
        return super().dispatch_row(model) + HEADER

    @property
    def formats(self) -> tuple[str, str]:
        return self.params.dispatch, self.params.combine

    def logical_bytes(self, case: Case, operation: str = "dispatch") -> float:
        """Messages of one rank, those to itself included."""
        row = self.combine_row(case.model) if operation == "combine" else self.dispatch_row(case.model)
        return float(case.sent.max(initial=0.0)) * row

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
        start += self._post(case, operation, last(start, after))
        payload = case.model.payload_bytes(self.formats[operation == "combine"])
        each = row / case.calibration[f"{operation}_port_rate"]
        send = pool.send(
            case, f"{operation}.send", entries, last(start, after), payload=payload, wire=row, seconds=each
        )
        flags = self._flags(case, operation, last(start, after))
        arrival = When.STREAM if "serialisation" in case.off else When.INBOUND
        return [*start, send, *flags], (*last(flags, ()), After(send.name, arrival))

    def _post(self, case: Case, operation: str, after: tuple[After, ...]) -> list[Phase]:
        """What a rank that sends through its NIC takes longer, besides the links: posting, doorbell, completion."""
        if "serialisation" in case.off:
            return []
        far = (case.routes.tier == Tier.SCALE_OUT).any(axis=1)
        if case.routes.access == "rdma":
            far[:] = case.ranks > 1
        return sequence(
            [Local(f"{operation}.post", "launch", far * case.calibration[f"{operation}_post"])], after
        )

    def _flags(self, case: Case, operation: str, after: tuple[After, ...]) -> list[Phase]:
        """A flag from every peer, also where nothing is sent; behind rows it comes with the last of them."""
        if "sync" in case.off:
            return []
        waits = tuple(After(dep.phase, When.ALL) for dep in after)
        return [Local(f"{operation}.flag flight", "sync", case.farthest, waits)]

    def buffers(self, case: Case) -> dict[str, float]:
        if "memory" in case.off:
            rows = self.dispatch_row(case.model), self.combine_row(case.model)
            dispatch, combine = case.received.max() * rows[0], case.sent.max() * rows[1]
            return buffers.on_demand(dispatch, combine, case.ranks, case.local)
        return buffers.deepep_low_latency(case.capacity, case.model.dispatch_width, case.slots)
