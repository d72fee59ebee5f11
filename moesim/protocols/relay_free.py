"""Relay-buffer-free expert parallelism on a pod with one address space: no windows (arXiv 2605.06055, second hand).

Dispatch: counts go to every rank first, the prefix sum gives each (source, expert) its offset, the offsets go back, and
then every row is written straight to its final, expert-grouped place: nothing is copied. Combine has no window either:
a flag says that an expert output is complete, and the owner of a token reads its rows where they lie and sums them in
its cores. What it saves are the copies, the barrier before the one of dispatch and R x B_max slots; what it pays is
the round of addresses before the payload: t_counts + 2 latencies + t_prefix_sum. That combine reads is our reading of
"pooled HBM" and "no relay buffer"; no public text says so. Its routes are those of reads, so what many ranks write to
one is limited as if that one read it.
"""

from __future__ import annotations

import numpy as np

from moesim import buffers, cores
from moesim.plan import After, Local, Phase, Transfer, When
from moesim.protocols import PROTOCOLS, Case, head, last, sequence
from moesim.protocols.fused import (
    CONSTANTS,
    CROSSINGS,
    Fused,
    known,
    pull,
    pulled,
    read_sum,
    share_of_unexplained,
    writing,
)
from moesim.protocols.pool import REACH


@PROTOCOLS.register("relay-free")
class RelayFree(Fused):
    """Counts first, rows straight to their place."""

    kind = "relay-free"
    summary = (
        "relay-buffer-free: counts and offsets first, rows straight to their final place, no window, no copy"
    )
    constants = CONSTANTS | {"dispatch_shared": "ratio", "combine_shared": "ratio"}
    fittable = ("dispatch_shared", "combine_shared")
    bandwidth_name = "payload of all copies, own rank included, over time (as for cann-ep)"

    def needs(self) -> frozenset[str]:
        """Ranks read each other's memory."""
        return frozenset({REACH})

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        c = case.calibration
        start = head(case, "dispatch", after, c["dispatch_shared"], CROSSINGS["dispatch"])
        placed = self._addresses(case, last(start, after))
        dealt = cores.runs(case.traffic.entries, int(c["cores"]))
        to = case.assignment.placement.slot_rank[dealt.slot]
        row = self.dispatch_row(case.model)
        sent = self.flows(case, dealt, to, form=self.params.dispatch, wire=row)
        send = Transfer("dispatch.send", "send", sent, last(placed, last(start, after)))
        written = writing(case, send)
        own = (After(send.name), *last(written, ()))
        flags = self._flags(case, own)
        arrival = (*last(flags, ()), *own, After(send.name, When.INBOUND))
        complete = Local("dispatch.complete", "sync", case.each(0.0), arrival)
        return (*start, *placed, send, *written, *flags, complete)

    def _addresses(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        """Counts to all ranks, offsets back to all, then a barrier so that every core has them."""
        if "sync" in case.off:
            return []
        c = case.calibration
        out, back = (
            float(np.ceil(n / c["cores"])) * c["issue"] for n in (case.slots, case.ranks * case.local)
        )
        counts = Local("dispatch.counts", "metadata", case.each(out), after)
        there = Local("dispatch.count flight", "metadata", case.farthest, (After(counts.name, When.ALL),))
        placing = self.prefix_sum(case) + back
        offsets = Local("dispatch.offsets", "metadata", case.each(placing), (After(there.name),))
        home = Local("dispatch.offset flight", "metadata", case.farthest, (After(offsets.name, When.ALL),))
        known = Local("dispatch.offset barrier", "sync", case.each(c["barrier"]), (After(home.name),))
        return [counts, there, offsets, home, known]

    def _flags(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        """Barrier, own writes complete, one flag to each peer; the expert input is complete when all flags are in."""
        if "sync" in case.off:
            return []
        c = case.calibration
        issue = float(np.ceil(case.ranks / c["cores"])) * c["issue"]
        before = sequence(
            [
                Local("dispatch.core barrier", "sync", case.each(c["barrier"])),
                Local("dispatch.fence", "sync", case.farthest),
                Local("dispatch.flags", "sync", case.each(issue)),
            ],
            after,
        )
        sent = tuple(After(dep.phase, When.ALL) for dep in last(before, ()))
        return [*before, Local("dispatch.flag flight", "sync", case.farthest, sent)]

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        c = case.calibration
        row = self.combine_row(case.model)
        start = head(case, "combine", after, c["combine_shared"], CROSSINGS["combine"])
        flags = self._output_flags(case, last(start, after))
        ready = known(flags, last(start, after))
        reads = pull(case, "combine", self.params.combine, case.traffic.entries_to.T, row, ready)
        return (*start, *flags, *reads, read_sum(case, row, pulled(reads, When.STREAM)))

    def _output_flags(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        """One flag to each peer: the expert output is complete."""
        if "sync" in case.off:
            return []
        c = case.calibration
        issue = float(np.ceil(case.ranks / c["cores"])) * c["issue"]
        sent = Local("combine.flags", "sync", case.each(issue), after)
        return [sent, Local("combine.flag flight", "sync", case.farthest, (After(sent.name, When.ALL),))]

    def buffers(self, case: Case) -> dict[str, float]:
        """The expert input and output that really come, and the records: nothing is sized for the most that could."""
        rows = self.dispatch_row(case.model), self.combine_row(case.model)
        most = case.received.max()
        return buffers.on_demand(most * rows[0], most * rows[1], case.ranks, case.local)

    def describe(self, case: Case) -> list[str]:
        return [
            share_of_unexplained(self, case),
            "the owner of a token is taken to read its rows in combine where they lie: no public text says how a "
            "combine without buffers moves them",
        ]
