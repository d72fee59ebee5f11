"""UBEP: asynchronous, core-level, hop-aware, data-as-flag (arXiv 2607.06202, through a public reading note).

Most cores send equal slices of the copies in a hop-mixed order; a few send counts and compute the output offsets
beside them; each core copies a token to its place once the offsets are published and the token's own blocks show
that they have come. No barrier. Data as flag needs 512 B writes to be atomic, in three variants: ``tff`` (flag in each
block), ``sp`` (sentinel polled and written back), ``dc`` (one checksum behind the batch). What it is measured against
is ``stop-and-wait``, the fallback without atomic writes: a core sends one block of 512 B, waits until it is
acknowledged, then the next, and flags the copy behind the last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from moesim import cores
from moesim.buffers import up
from moesim.moe import MoEModel, dtype
from moesim.plan import After, FloatArray, FlowSet, Local, Phase, Transfer, When
from moesim.protocols import PROTOCOLS, Case, head, last, sequence, weighted_sum, window_copy
from moesim.protocols.fused import (
    CONSTANTS,
    CROSSINGS,
    Fused,
    FusedParams,
    share_of_unexplained,
    static_windows,
)

BLOCK = 512
"""Bytes of the largest write that the fabric makes atomic."""


class UbepParams(FusedParams):
    """``sync``: data-as-flag variant, or stop-and-wait. ``hop_mix``: deal experts to cores in the hop-mixed order."""

    sync: Literal["tff", "dc", "sp", "stop-and-wait"] = "sp"
    hop_mix: bool = True


@PROTOCOLS.register("ubep")
class Ubep(Fused):
    """Role-split cores, equal slices, no barrier."""

    kind = "ubep"
    summary = "UBEP: asynchronous, role-split cores, hop-mixed equal slices, data as flag (tff, dc or sp)"
    constants = CONSTANTS | {
        "scheduler": "time",
        "publish": "time",
        "checksum_rate": "bandwidth",
        "dispatch_shared": "share",
        "combine_shared": "share",
    }
    fittable = ("dispatch_shared", "combine_shared")
    bandwidth_name = "payload of all copies, own rank included, over time (as for cann-ep)"
    Params = UbepParams
    params: UbepParams

    def needs(self) -> frozenset[str]:
        return frozenset({"atomic-512B"}) if self.params.sync in ("tff", "sp") else frozenset()

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        c = case.calibration
        counting = count_cores(case.slots, int(c["cores"]))
        sending = int(c["cores"]) - counting
        row = self.dispatch_row(case.model)
        start = head(
            case, "dispatch", after, c["dispatch_shared"], CROSSINGS["dispatch"], scheduler=c["scheduler"]
        )
        order = cores.hop_mixed(case.slots, sending) if self.params.hop_mix else cores.in_order(case.slots)
        dealt = cores.slices(case.traffic.entries, order, sending)
        to = case.assignment.placement.slot_rank[dealt.slot]
        wire = self._wire(case.model, self.params.dispatch, row)
        sent = self._acknowledged(case, self.flows(case, dealt, to, form=self.params.dispatch, wire=wire))
        send = Transfer("dispatch.send", "send", sent, last(start, after))
        offsets = self._offsets(case, counting, last(start, after))
        checks, arrival = self._visible(case, send, row, case.received)
        waits = (*last(offsets, ()), *last(checks, ()), arrival)
        # With sentinels the receiver writes a copy to its place and the sentinels back over the window.
        reorder = window_copy(case, "dispatch.reorder", row, waits, writes=1 + self._sentinels)
        return (*start, send, *offsets, *checks, reorder)

    @property
    def _sentinels(self) -> bool:
        """Whether the receiver polls sentinels and writes them back."""
        return self.params.sync == "sp"

    def _wire(self, model: MoEModel, form: str, row: float) -> float:
        """Bytes of one copy on the wire: with ``tff``, blocks of 512 B that hold 480 B of data and a 32 B flag."""
        if self.params.sync != "tff":
            return row
        values = int(model.dispatch_width * dtype(form).element)
        return float(-(-(up(values, 32) + 64) // 480) * BLOCK)

    def _acknowledged(self, case: Case, sent: FlowSet) -> FlowSet:
        """With stop-and-wait each block takes its core issue, its bytes and a round trip of its tier."""
        if self.params.sync != "stop-and-wait" or {"sync", "imbalance"} & case.off:
            return sent
        c = case.calibration
        blocks = np.ceil(sent.wire / sent.messages / BLOCK) * sent.messages
        trip = c["issue"] + 2.0 * case.routes.latency[sent.src, sent.dst]
        return replace(sent, messages=blocks, core_s=blocks * trip + sent.wire / c["core_rate"])

    def _offsets(self, case: Case, counting: int, after: tuple[After, ...]) -> list[Phase]:
        """Beside the sending: counts go to all ranks, the prefix sum gives the offsets, the offsets are published."""
        if "sync" in case.off:
            return []
        c = case.calibration
        issue = float(np.ceil(case.slots / counting)) * c["issue"]
        counts = sequence([Local("dispatch.counts", "sync", case.each(issue))], after)
        waits = tuple(After(dep.phase, When.ALL) for dep in last(counts, after))
        flight = Local("dispatch.count flight", "sync", case.farthest, waits)
        end = self.prefix_sum(case) + c["publish"]
        return [
            *counts,
            flight,
            *sequence([Local("dispatch.offsets", "sync", case.each(end))], (After(flight.name),)),
        ]

    def _visible(
        self, case: Case, send: Transfer, row: float, received: FloatArray
    ) -> tuple[list[Phase], After]:
        """How the receiver knows that data has come: token by token, or a checksum behind the whole batch."""
        if self.params.sync != "dc" or "sync" in case.off:
            return [], After(send.name, When.STREAM)
        operation = send.name.partition(".")[0]
        rate = case.calibration["checksum_rate"]
        out = np.bincount(send.flows.src, weights=send.flows.wire, minlength=case.ranks)
        checksum = Local(f"{operation}.checksum", "sync", out / rate + case.farthest, (After(send.name),))
        verify = Local(
            f"{operation}.verify",
            "sync",
            case.farthest + received * row / rate,
            (After(checksum.name, When.ALL), After(send.name, When.INBOUND)),
        )
        return [checksum, verify], After(send.name, When.INBOUND)

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        """The same towards the tokens' owners. Not published: no counts, since every slot is known beforehand."""
        c = case.calibration
        n = int(c["cores"])
        row = self.combine_row(case.model)
        start = head(case, "combine", after, c["combine_shared"], CROSSINGS["combine"])
        order = cores.hop_mixed(case.ranks, n) if self.params.hop_mix else cores.in_order(case.ranks)
        dealt = cores.slices(case.traffic.entries_to.T, order, n)
        wire = self._wire(case.model, self.params.combine, row)
        sent = self._acknowledged(
            case, self.flows(case, dealt, dealt.slot, form=self.params.combine, wire=wire)
        )
        send = Transfer("combine.send", "send", sent, last(start, after))
        checks, arrival = self._visible(case, send, row, case.sent)
        waits = (*last(checks, ()), arrival)
        return (*start, send, *checks, weighted_sum(case, case.sent * row, waits, rewritten=self._sentinels))

    def buffers(self, case: Case) -> dict[str, float]:
        return static_windows(self, case, "fullmesh_v2" if self.params.sync == "tff" else "fullmesh_v1")

    def describe(self, case: Case) -> list[str]:
        return [share_of_unexplained(self, case)]


def count_cores(slots: int, total: int) -> int:
    """Cores that count: floor(P / 32), at least 1, at most half. Source: CANN fullmesh_v2."""
    return min(max(slots // 32, 1), max(total // 2, 1))
