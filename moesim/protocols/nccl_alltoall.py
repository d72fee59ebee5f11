"""Plain all-to-all through a collective library: nothing fused, sizes known to the host.

Exact: an all-to-all of counts, a host round trip because the sizes of the next one depend on them, then the rows, one
copy an entry. Padded: every pair carries the same number of rows, used or not, and nothing has to be exchanged first.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from moesim import cores
from moesim.errors import InputError, Problem
from moesim.moe import MoEModel
from moesim.plan import After, IntArray, Local, Phase, Transfer, When
from moesim.protocols import PROTOCOLS, Case, Params, Protocol, flows, last, sequence

COUNT = 8
"""Bytes of a count in the metadata exchange (int64)."""


class NcclParams(Params):
    """``sizes``: exact, or padded to ``capacity_factor`` x the mean. ``dispatch``, ``combine``: formats of a row."""

    sizes: Literal["exact", "padded"] = "exact"
    capacity_factor: float | None = Field(default=None, gt=0)
    dispatch: Literal["bf16", "fp8", "int8"] = "bf16"
    combine: Literal["bf16"] = "bf16"


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

    def __init__(self, params: NcclParams) -> None:
        super().__init__(params)
        if params.capacity_factor is not None and params.sizes == "exact":
            raise InputError(
                Problem("protocol.capacity_factor has no effect with exact sizes", legal="sizes: padded")
            )

    def dispatch_row(self, model: MoEModel) -> float:
        return model.row_bytes(self.params.dispatch)

    def combine_row(self, model: MoEModel) -> float:
        return model.row_bytes(self.params.combine)

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

    def warnings(self, case: Case) -> list[str]:
        if self.params.sizes == "exact":
            return []
        lost = np.maximum(case.traffic.entries_to - self._padded(case), 0).sum()
        share = lost / max(1, case.traffic.entries_to.sum())
        return [f"padded all-to-all drops {share:.1%} of the entries: raise capacity_factor"] if lost else []

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.dispatch_row(case.model)
        entries = case.sent * row * ("memory" not in case.off)
        pack = Local("dispatch.pack", "reorder", case.copy_s(entries, entries))
        before: list[Phase] = sequence([pack], after)
        if self.params.sizes == "exact":
            before += self._metadata(case, last(before, after))
        send = self._exchange(
            case, "dispatch", self._carried(case), row, last(before, after), self.rows(case)
        )
        moved = case.received * row * ("memory" not in case.off)
        unpack = Local(
            "dispatch.sort",
            "reorder",
            case.copy_s(moved, moved),
            (After(send[-1].name), After(send[-1].name, When.INBOUND)),
        )
        return (*before, *send, unpack)

    def _metadata(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        """Counts to every peer, then the host reads what came."""
        if "sync" in case.off:
            return []
        others = ~np.eye(case.ranks, dtype=bool)
        records = others.astype(np.int64)
        counts = self._exchange(case, "dispatch.counts", records, float(COUNT * case.local), after, records)
        host = Local(
            "dispatch.host round trip",
            "metadata",
            case.each(case.calibration["host_round_trip"]),
            (After(counts[-1].name, When.INBOUND), After(counts[-1].name)),
        )
        return [*counts, host]

    def _exchange(
        self, case: Case, name: str, rows: IntArray, row: float, after: tuple[After, ...], asked: IntArray
    ) -> list[Phase]:
        """One collective call: launch, set-up of each peer, then all rows; a peer's rows are spread over the channels.

        ``asked`` (R, R): of ``rows`` (R, R), those that are not padding.
        """
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
        dealt = cores.slices(rows, cores.in_order(case.ranks), int(c["cores"]))
        sent = flows(
            case,
            dealt,
            dealt.slot,
            payload=row,
            wire=row,
            issue=0.0,
            bound_to_cores="imbalance" not in case.off,
        )
        useful = asked[sent.src, sent.dst] / rows[sent.src, sent.dst]
        sent = replace(sent, payload=sent.wire * useful)
        label = "metadata" if name.endswith("counts") else "send"
        return [*start, Transfer(f"{name}.send", label, sent, last(start, after))]

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.combine_row(case.model)
        send = self._exchange(case, "combine", self._carried(case).T, row, after, self.rows(case).T)
        kept = "memory" not in case.off
        read = case.sent * row * kept
        reduce = Local(
            "combine.reduce",
            "reduce",
            case.copy_s(read, case.tokens * case.model.hidden * 2.0 * kept),
            (After(send[-1].name), After(send[-1].name, When.INBOUND)),
        )
        return (*send, reduce)

    def buffers(self, case: Case) -> dict[str, float]:
        """Send and receive buffer of the larger of the two calls, as many rows as really come or as are padded."""
        row = max(self.dispatch_row(case.model), self.combine_row(case.model))
        rows = self._carried(case)
        return {
            "send": float(rows.sum(axis=1).max()) * row,
            "receive": float(rows.sum(axis=0).max()) * row,
            "metadata": 2.0 * COUNT * case.slots,
        }
