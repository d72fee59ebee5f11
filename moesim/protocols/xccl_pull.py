"""XCCL of xDeepServe on CloudMatrix384: the receiver pulls (arXiv 2508.02520).

A sender writes rows into an area of its own and a 32-byte record (event, offset, count) to each peer; a receiver polls
all records and then reads. Dispatch stages its rows, quantised and grouped by destination, and sorts them by expert
behind the read, because a record counts the rows of a peer and not of an expert. Combine does neither: the expert
output already lies in the memory of its rank, and the owner of a token sums the rows as it reads them. Reads have their
own rates and their own latency, which is that of the round trip.
"""

from __future__ import annotations

import numpy as np

from moesim import buffers
from moesim.plan import After, Local, Phase, When
from moesim.protocols import PROTOCOLS, Case, last, sequence, window_copy
from moesim.protocols.fused import Fused, known, pull, pulled, read_sum
from moesim.protocols.pool import REACH

METADATA = 4.0 * 2**20
"""Bytes of the record area: 384 x 2 dies, 48 cores, two fields of 32 B fit."""


@PROTOCOLS.register("xccl-pull")
class XcclPull(Fused):
    """Rows stay with the sender until the receiver reads them."""

    kind = "xccl-pull"
    summary = "XCCL: rows in the sender's own area, a 32 B record to each peer, the receiver pulls"
    constants = {
        "launch": "time",
        "dispatch_fixed": "time",
        "combine_fixed": "time",
        "issue": "time",
        "vector_step": "time",
        "cores": "ratio",
        "core_rate": "bandwidth",
        "copies_in_flight": "ratio",
    }
    fittable = ("dispatch_fixed", "combine_fixed")
    bandwidth_name = "payload of all copies, own rank included, over time (as for cann-ep)"

    def needs(self) -> frozenset[str]:
        """Ranks read each other's memory."""
        return frozenset({REACH})

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.dispatch_row(case.model)
        start = self._head(case, "dispatch", after)
        tokens = case.tokens * case.model.payload_bytes("bf16") * case.copies
        stage = Local("dispatch.stage", "reorder", case.copy_s(tokens, case.sent * row * case.copies))
        staged = [*start, *sequence([stage], last(start, after))]
        records = self._records(case, "dispatch", last(staged, after))
        ready = known(records, last(staged, after))
        reads = pull(case, "dispatch", self.params.dispatch, case.traffic.entries_to, row, ready)
        return (*staged, *records, *reads, window_copy(case, "dispatch.sort", row, pulled(reads)))

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.combine_row(case.model)
        start = self._head(case, "combine", after)
        records = self._records(case, "combine", last(start, after))
        ready = known(records, last(start, after))
        reads = pull(case, "combine", self.params.combine, case.traffic.entries_to.T, row, ready)
        return (*start, *records, *reads, read_sum(case, row, pulled(reads, When.STREAM)))

    def _head(self, case: Case, operation: str, after: tuple[After, ...]) -> list[Phase]:
        if "serialisation" in case.off:
            return []
        c = case.calibration
        fixed = case.each(c[f"{operation}_fixed"])
        return sequence(
            [
                Local(f"{operation}.launch", "launch", case.each(c["launch"])),
                Local(f"{operation}.unexplained", "unexplained", fixed),
            ],
            after,
        )

    def _records(self, case: Case, operation: str, after: tuple[After, ...]) -> list[Phase]:
        """A record to each peer, all records here, prefix sum over their counts. A record is a write, but is taken to
        fly as long as a read, which differs by a tenth.
        """
        if "sync" in case.off:
            return []
        c = case.calibration
        issue = float(np.ceil(case.ranks / c["cores"])) * c["issue"]
        sent = Local(f"{operation}.records", "sync", case.each(issue), after)
        flight = Local(f"{operation}.record flight", "sync", case.farthest, (After(sent.name, When.ALL),))
        offsets = Local(
            f"{operation}.offsets", "sync", case.each(self.prefix_sum(case)), (After(flight.name),)
        )
        return [sent, flight, offsets]

    def buffers(self, case: Case) -> dict[str, float]:
        """An area of fixed blocks, one a peer, for the most rows it can get; records of all peers and cores."""
        model = case.model
        rows = self.dispatch_row(model), self.combine_row(model)
        if "memory" in case.off:
            return buffers.on_demand(
                case.sent.max() * rows[0], case.received.max() * rows[1], case.ranks, case.local
            )
        areas = buffers.cloudmatrix(case.ranks, case.capacity, model.top_k, case.local, *rows)
        return areas | {"metadata": METADATA}
