"""Plain all-to-all through a collective library: nothing fused, sizes known to the host.

Exact: an all-to-all of counts, a host round trip because the sizes of the next one depend on them, then the rows, one
copy an entry. Padded: every pair carries the same number of rows, used or not, and nothing has to be exchanged first.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from moesim.plan import After, IntArray, Local, Phase, Transfer, When
from moesim.protocols import (
    PROTOCOLS,
    Case,
    Params,
    Protocol,
    last,
    send_evenly,
    sequence,
    weighted_sum,
    window_copy,
)

COUNT = 8
"""Bytes of a count in the metadata exchange (int64)."""


class NcclParams(Params):
    """``sizes``: exact, or padded to ``capacity_factor`` x the mean. ``dispatch``, ``combine``: formats of a row."""

    sizes: Literal["exact", "padded"] = "exact"
    capacity_factor: float | None = Field(default=None, gt=0)
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
    }
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

    def logical_bytes(self, case: Case) -> float:
        """Send buffer x (R - 1) / R, as nccl-tests counts an all-to-all."""
        buffer = float(self._carried(case).sum(axis=1).max()) * self.dispatch_row(case.model)
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

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.dispatch_row(case.model)
        entries = case.sent * row * case.copies
        pack = Local("dispatch.pack", "reorder", case.copy_s(entries, entries))
        before: list[Phase] = sequence([pack], after)
        if self.params.sizes == "exact":
            before += self._metadata(case, last(before, after))
        send = self._exchange(case, "dispatch", self._carried(case), row, last(before, after))
        send[-1] = self._without_padding(case, send[-1], self.formats[0], self.rows(case))
        return (*before, *send, window_copy(case, "dispatch.sort", row, _done(send)))

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.combine_row(case.model)
        send = self._exchange(case, "combine", self._carried(case).T, row, after)
        send[-1] = self._without_padding(case, send[-1], self.formats[1], self.rows(case).T)
        return (*send, weighted_sum(case, case.sent * row, _done(send)))

    def _metadata(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        """Counts to every peer, then the host reads what came."""
        if "sync" in case.off:
            return []
        others = (~np.eye(case.ranks, dtype=bool)).astype(np.int64)
        counts = self._exchange(case, "dispatch.counts", others, float(COUNT * case.local), after, "metadata")
        trip = case.each(case.calibration["host_round_trip"])
        return [*counts, Local("dispatch.host round trip", "metadata", trip, _done(counts))]

    def _exchange(
        self, case: Case, name: str, rows: IntArray, row: float, after: tuple[After, ...], label: str = "send"
    ) -> list[Phase]:
        """One collective call: launch, set-up of each peer, then all rows, a peer's rows spread over the channels."""
        c = case.calibration
        start: list[Phase] = []
        if "serialisation" not in case.off:
            start = sequence(
                [
                    Local(f"{name}.launch", "launch", case.each(c["launch"])),
                    Local(f"{name}.peers", "launch", case.each(c["peer"] * (case.ranks - 1))),
                ],
                after,
            )
        send = send_evenly(case, name, rows, row, row, last(start, after))
        return [*start, replace(send, label=label)]

    def _without_padding(self, case: Case, send: Phase, form: str, asked: IntArray) -> Phase:
        """The same transfer with the payload of the ``asked`` (R, R) rows only: padding is wire, not payload."""
        assert isinstance(send, Transfer)
        flows = send.flows
        pairs = np.zeros((case.ranks, case.ranks))
        np.add.at(pairs, (flows.src, flows.dst), flows.messages)
        share = (asked / np.maximum(pairs, 1.0))[flows.src, flows.dst]
        payload = flows.messages * share * case.model.payload_bytes(form)
        return replace(send, flows=replace(flows, payload=payload))

    def buffers(self, case: Case) -> dict[str, float]:
        """Send and receive buffer of the larger of the two calls, as many rows as really come or as are padded."""
        row = max(self.dispatch_row(case.model), self.combine_row(case.model))
        rows = self._carried(case)
        return {
            "send": float(rows.sum(axis=1).max()) * row,
            "receive": float(rows.sum(axis=0).max()) * row,
            "metadata": 2.0 * COUNT * case.slots,
        }


def _done(call: list[Phase]) -> tuple[After, ...]:
    """A call returns when its own rows are out and those of the others are in."""
    return (After(call[-1].name), After(call[-1].name, When.INBOUND))
