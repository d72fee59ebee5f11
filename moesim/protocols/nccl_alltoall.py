"""Plain all-to-all through a collective library: nothing fused, sizes known to the host.

A call cuts each peer's bytes over all channels, and so those that a rank sends to itself. Small calls carry a flag in
every word and need no handshake (protocol LL), on one channel a peer; large ones pass through a queue in the
receiver's memory, chunk by chunk, of which the last must be copied out when all has arrived (protocol Simple).
Source: NCCL, enqueue and tuning; the bend of its size sweeps.

Exact: an all-to-all of counts, a host round trip because the sizes of the next one depend on them, then the rows, one
copy an entry. Padded: every pair carries the same number of rows, used or not, and nothing has to be exchanged first.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from moesim import limits
from moesim.plan import After, FloatArray, IntArray, Local, Phase
from moesim.protocols import (
    PROTOCOLS,
    Case,
    Params,
    Protocol,
    last,
    pool,
    sequence,
    weighted_sum,
    window_copy,
)
from moesim.traffic import off_own

BoolArray = NDArray[np.bool_]

COUNT = 8
"""Bytes of a count in the metadata exchange (int64)."""


class NcclParams(Params):
    """``sizes``: exact, or padded to ``capacity_factor`` x the mean. ``dispatch``, ``combine``: formats of a row."""

    sizes: Literal["exact", "padded"] = "exact"
    capacity_factor: float | None = Field(default=None, gt=0, le=limits.FACTOR)
    dispatch: Literal["bf16", "fp8", "int8"] = "bf16"
    combine: Literal["bf16"] = "bf16"

    @model_validator(mode="after")
    def _capacity_is_of_padding(self) -> NcclParams:
        if self.capacity_factor is not None and self.sizes == "exact":
            raise ValueError("capacity_factor has no effect with exact sizes; legal with `sizes: padded`")
        return self


@PROTOCOLS.register("nccl-alltoall")
class NcclAllToAll(Protocol):
    """Unfused all-to-all, exact or padded."""

    kind = "nccl-alltoall"
    summary = "plain all-to-all: counts, host round trip, rows; or padded to capacity"
    constants = {
        "launch": "time",
        "peer": "time",
        "host_round_trip": "time",
        "cores": "ratio",
        "core_rate": "bandwidth",
        "port_rate": "bandwidth",
        "handshake": "time",
        "chunk": "bytes",
        "flagged_most": "bytes",
        "flagged_rate": "bandwidth",
    }
    fittable = ("launch", "peer", "handshake", "core_rate", "port_rate", "flagged_rate")
    bandwidth_name = "bus bandwidth: send buffer x (n-1)/n over time (nccl-tests)"
    Params = NcclParams
    params: NcclParams

    @property
    def formats(self) -> tuple[str, str]:
        return self.params.dispatch, self.params.combine

    def rows(self, case: Case) -> IntArray:
        """Entries; padded, those of each pair that fit."""
        if self.params.sizes == "exact":
            return case.traffic.entries_to
        return np.minimum(case.traffic.entries_to, self._padded(case))

    def _carried(self, case: Case) -> IntArray:
        """(R, R) rows on the wire: padded, the same number for every pair, own rank included."""
        if self.params.sizes == "exact":
            return case.traffic.entries_to
        return np.full((case.ranks, case.ranks), self._padded(case))

    def logical_bytes(self, case: Case, operation: str = "dispatch") -> float:
        """Send buffer x (R - 1) / R, as nccl-tests counts an all-to-all."""
        row = self.combine_row(case.model) if operation == "combine" else self.dispatch_row(case.model)
        axis = 0 if operation == "combine" else 1
        buffer = float(self._carried(case).sum(axis=axis).max()) * row
        return buffer * (case.ranks - 1) / case.ranks

    def _padded(self, case: Case) -> int:
        """ceil(capacity_factor x tokens x top_k / R) rows for each (source, destination)."""
        factor = 1.0 if self.params.capacity_factor is None else self.params.capacity_factor
        return math.ceil(factor * case.capacity * case.model.top_k / case.ranks)

    def dropped(self, case: Case) -> float:
        asked = int(case.traffic.entries_to.sum())
        return 1.0 - int(self.rows(case).sum()) / asked if asked else 0.0

    def gemm_rows(self, case: Case) -> IntArray:
        """What was not dropped; of the entries of a pair each expert loses the same share."""
        if self.params.sizes == "exact":
            return super().gemm_rows(case)
        kept = self.rows(case) / np.maximum(case.traffic.entries_to, 1)
        share = case.traffic.entries * kept[:, case.assignment.placement.slot_rank]
        rows: IntArray = np.ceil(share.sum(axis=0) - 1e-9).astype(np.int64)
        return rows

    def operation(self, name: str, case: Case) -> tuple[Phase, ...] | None:
        """``alltoall`` is the bare collective."""
        if name == "alltoall":
            row = self.dispatch_row(case.model)
            return tuple(self._exchange(case, name, self._carried(case), row, ()))
        return super().operation(name, case)

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.dispatch_row(case.model)
        entries = case.sent * row * case.copies
        pack = Local("dispatch.pack", "reorder", case.copy_s(entries, entries))
        before: list[Phase] = sequence([pack], after)
        if self.params.sizes == "exact":
            before += self._metadata(case, last(before, after))
        payload = self._payload(case, self.rows(case), self.formats[0])
        call = self._exchange(case, "dispatch", self._carried(case), row, last(before, after), payload)
        return (*before, *call, window_copy(case, "dispatch.sort", row, last(call, ())))

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.combine_row(case.model)
        payload = self._payload(case, self.rows(case).T, self.formats[1])
        call = self._exchange(case, "combine", self._carried(case).T, row, after, payload)
        return (*call, weighted_sum(case, case.sent * row, last(call, ())))

    def _payload(self, case: Case, asked: IntArray, form: str) -> float | FloatArray:
        """[B] of payload in a row on the wire, or (R, R) of each pair: padding is no payload."""
        size = case.model.payload_bytes(form)
        return size if self.params.sizes == "exact" else asked / max(self._padded(case), 1) * size

    def _metadata(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        """Counts to every peer, then the host reads what came."""
        if "sync" in case.off:
            return []
        others = (~np.eye(case.ranks, dtype=bool)).astype(np.int64)
        size = float(COUNT * case.local)
        counts = self._exchange(case, "dispatch.counts", others, size, after, label="metadata")
        trip = case.each(case.calibration["host_round_trip"])
        return [*counts, Local("dispatch.host round trip", "metadata", trip, last(counts, ()))]

    def _exchange(
        self,
        case: Case,
        name: str,
        rows: IntArray,
        row: float,
        after: tuple[After, ...],
        payload: float | FloatArray | None = None,
        label: str = "send",
    ) -> list[Phase]:
        """One call for ``rows`` (R, R), ``row`` [B] each; its last phase ends when the call returns on a rank."""
        c = case.calibration
        sent, received = rows.sum(axis=1) * row, rows.sum(axis=0) * row
        small = sent <= c["cores"] * c["flagged_most"]
        phases = self._opening(case, name, sent, small, after)
        # Own rows pass the channels too, but not the port.
        away = np.maximum(off_own(rows).sum(axis=1) * row, 1.0)
        per_byte = np.maximum(sent / away / (c["cores"] * c["core_rate"]), 1 / c["port_rate"])
        call = pool.send(
            case,
            f"{name}.send",
            rows,
            last(phases, after),
            payload=row if payload is None else payload,
            wire=row,
            seconds=row * per_byte[:, None],
            label=label,
        )
        chunk = np.minimum(received, c["cores"] * c["chunk"]) * ~small * case.copies
        closing = Local(f"{name}.copy out", "reorder", case.copy_s(chunk, chunk), pool.done(call))
        return [*phases, call, closing]

    def _opening(
        self, case: Case, name: str, sent: FloatArray, small: BoolArray, after: tuple[After, ...]
    ) -> list[Phase]:
        """Launch, set-up of each peer; small calls take one channel a peer, large ones a handshake."""
        c = case.calibration
        phases = []
        if "serialisation" not in case.off:
            one_channel = sent / case.ranks / c["flagged_rate"] * small
            phases += [
                Local(f"{name}.launch", "launch", case.each(c["launch"])),
                Local(f"{name}.peers", "launch", case.each(c["peer"] * (case.ranks - 1))),
                Local(f"{name}.flagged", "send", one_channel),
            ]
        if "sync" not in case.off:
            phases.append(Local(f"{name}.handshake", "sync", np.where(small, 0.0, case.each(c["handshake"]))))
        return sequence(phases, after)

    def buffers(self, case: Case) -> dict[str, float]:
        """Send and receive buffer of the larger of the two calls, as many rows as really come or as are padded."""
        row = max(self.dispatch_row(case.model), self.combine_row(case.model))
        rows = self._carried(case)
        return {
            "send": float(rows.sum(axis=1).max()) * row,
            "receive": float(rows.sum(axis=0).max()) * row,
            "metadata": 2.0 * COUNT * case.slots,
        }
