"""DeepEP's low-latency kernels: a message a (token, expert), straight into the expert's slot, a flag a (peer, expert).

Ranks of one scale-up domain are reached by stores, others by RDMA that the GPU posts itself. The receiver waits for the
flags of all peers and packs the rows by expert. Source: DeepEP, csrc/kernels and docs/legacy.md.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from moesim import buffers, cores
from moesim.moe import MoEModel
from moesim.plan import After, Local, Phase, Transfer, When
from moesim.protocols import PROTOCOLS, Case, Params, Protocol, flows, last, sequence

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
        return model.row_bytes(self.params.dispatch) + HEADER

    def combine_row(self, model: MoEModel) -> float:
        return model.row_bytes(self.params.combine)

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.dispatch_row(case.model)
        send, head = self._send(case, "dispatch", row, after)
        flags = self._flags(case, "dispatch", last(head, after))
        moved = case.received * row * ("memory" not in case.off)
        streaming = "serialisation" in case.off
        pack = Local(
            "dispatch.pack",
            "reorder",
            case.copy_s(moved, moved),
            (*last(flags, ()), After(send.name, When.STREAM if streaming else When.INBOUND)),
            chunks=max(1, int(case.received.max(initial=0) // case.calibration["cores"])),
        )
        return (*head, send, *flags, pack)

    def _send(
        self, case: Case, operation: str, row: float, after: tuple[After, ...]
    ) -> tuple[Transfer, list[Phase]]:
        """Launch, then every row as a message of its own; tokens are dealt to the SMs one by one."""
        c = case.calibration
        head: list[Phase] = []
        if "serialisation" not in case.off:
            head = sequence(
                [
                    Local(f"{operation}.launch", "launch", case.each(c["launch"])),
                    Local(f"{operation}.unexplained", "unexplained", case.unexplained(operation)),
                ],
                after,
            )
        entries = case.traffic.entries_to if operation == "dispatch" else case.traffic.entries_to.T
        dealt = cores.slices(entries, cores.in_order(case.ranks), int(c["cores"]))
        sent = flows(
            case,
            dealt,
            dealt.slot,
            payload=row,
            wire=row,
            issue=c["issue"],
            bound_to_cores="imbalance" not in case.off,
        )
        return Transfer(f"{operation}.send", "send", sent, last(head, after)), head

    def _flags(self, case: Case, operation: str, after: tuple[After, ...]) -> list[Phase]:
        """A flag from every peer, also where nothing is sent; behind rows it comes with the last of them."""
        if "sync" in case.off:
            return []
        issue = float(np.ceil(case.slots / case.calibration["cores"])) * case.calibration["issue"]
        flags = sequence([Local(f"{operation}.flags", "sync", case.each(issue))], after)
        waits = tuple(After(dep.phase, When.ALL) for dep in last(flags, after))
        return [*flags, Local(f"{operation}.flag flight", "sync", case.farthest, waits)]

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.combine_row(case.model)
        send, head = self._send(case, "combine", row, after)
        flags = self._flags(case, "combine", last(head, after))
        kept = "memory" not in case.off
        read = case.sent * row * kept
        written = case.tokens * case.model.hidden * 2.0 * kept
        streaming = "serialisation" in case.off
        reduce = Local(
            "combine.reduce",
            "reduce",
            case.copy_s(read, written),
            (*last(flags, ()), After(send.name, When.STREAM if streaming else When.INBOUND)),
            chunks=max(1, int(case.traffic.tokens.max(initial=0) // case.calibration["cores"])),
        )
        return (*head, send, *flags, reduce)

    def buffers(self, case: Case) -> dict[str, float]:
        if "memory" in case.off:
            rows = self.dispatch_row(case.model), self.combine_row(case.model)
            dispatch, combine = case.received.max() * rows[0], case.sent.max() * rows[1]
            return buffers.on_demand(dispatch, combine, case.ranks, case.local)
        return buffers.deepep_low_latency(case.capacity, case.model.dispatch_width, case.slots)
