"""CANN's fused dispatch and combine on CloudMatrix384: bulk-synchronous, static windows.

Dispatch: every core sends, barrier, own writes complete, one flag and count record per (peer, expert), wait for all
records, prefix sum, barrier, copy from the window to the expert input, and a last barrier where a rank has more than
one expert. Combine: every core writes results to the slot of their token and adds to the token's flag; the owner waits
for all and sums. Sources: arXiv 2506.12708 v2; CANN ops-transformer (dispatch and combine V2).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from moesim import cores
from moesim.plan import After, Local, Phase, Transfer, When
from moesim.protocols import PROTOCOLS, Case, head, last, sequence, weighted_sum, window_copy
from moesim.protocols.fused import CONSTANTS, CROSSINGS, FITTABLE, Fused, FusedParams, static_windows


class CannParams(FusedParams):
    """``window``: which published size formula the static windows follow; ``a2_fullmesh`` is that of A2 hosts."""

    window: Literal["cm384", "fullmesh_v1", "fullmesh_v2", "a2_fullmesh"] = "cm384"


@PROTOCOLS.register("cann-ep")
class CannEP(Fused):
    """The bulk-synchronous baseline."""

    kind = "cann-ep"
    summary = (
        "CANN fused dispatch and combine: bulk-synchronous, static windows, experts dealt to cores in runs"
    )
    constants = CONSTANTS
    fittable = FITTABLE
    bandwidth_name = "payload of all copies, own rank included, over time (CloudMatrix384 table)"
    Params = CannParams
    params: CannParams

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        c = case.calibration
        serial = "serialisation" not in case.off
        row = self.dispatch_row(case.model)
        start = head(case, "dispatch", after, crossings=CROSSINGS["dispatch"])
        dealt = cores.runs(case.traffic.entries, int(c["cores"]))
        to = case.assignment.placement.slot_rank[dealt.slot]
        sent = self.flows(case, dealt, to, form=self.params.dispatch, wire=row)
        send = Transfer("dispatch.send", "send", sent, last(start, after))
        sent_all = (After(send.name),) if serial else ()
        flags = self._flags(case, sent_all or last(start, after))
        arrival = After(send.name, When.INBOUND if serial else When.STREAM)
        reorder = window_copy(case, "dispatch.reorder", row, (*last(flags, sent_all), arrival))
        return (*start, send, *flags, reorder, *self._closing(case, (After(reorder.name),)))

    def _closing(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        """Barrier behind the copy where a rank has several experts: the fourth of the kernel's four places."""
        if "sync" in case.off or case.local < 2:
            return []
        return sequence(
            [Local("dispatch.last barrier", "sync", case.each(case.calibration["barrier"]))], after
        )

    def _flags(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        """Own writes complete, a record to each (peer, expert), all records here, prefix sum; barriers around.

        A record is 32 B: its bytes are nothing beside the rows, so it costs issue time and one latency.
        """
        if "sync" in case.off:
            return []
        c = case.calibration
        barrier, sent = c["barrier"], max(0.0, c["dispatch_barriers"] - 1)
        issue = float(np.ceil(case.slots / c["cores"])) * c["issue"]
        before = sequence(
            [
                Local("dispatch.core barriers", "sync", case.each(sent * barrier)),
                Local("dispatch.fence", "sync", case.farthest),
                Local("dispatch.flags", "sync", case.each(issue)),
            ],
            after,
        )
        end = self.prefix_sum(case) + min(1.0, c["dispatch_barriers"]) * barrier
        flight = Local(
            "dispatch.flag flight",
            "sync",
            case.farthest,
            tuple(After(d.phase, When.ALL) for d in last(before, after)),
        )
        return [
            *before,
            flight,
            *sequence([Local("dispatch.prefix sum", "sync", case.each(end))], (After(flight.name),)),
        ]

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        c = case.calibration
        serial = "serialisation" not in case.off
        row = self.combine_row(case.model)
        start = head(case, "combine", after, crossings=CROSSINGS["combine"])
        dealt = cores.slices(case.traffic.entries_to.T, cores.in_order(case.ranks), int(c["cores"]))
        # Each copy is followed by an atomic add to the flag of its token.
        sent = self.flows(case, dealt, dealt.slot, form=self.params.combine, wire=row, writes=2)
        send = Transfer("combine.send", "send", sent, last(start, after))
        sent_all = (After(send.name),) if serial else ()
        barriers: list[Phase] = []
        if "sync" not in case.off:
            wait = Local("combine.core barriers", "sync", case.each(c["combine_barriers"] * c["barrier"]))
            barriers = sequence([wait], sent_all or last(start, after))
        arrival = After(send.name, When.INBOUND if serial else When.STREAM)
        return (
            *start,
            send,
            *barriers,
            weighted_sum(case, case.sent * row, (*last(barriers, sent_all), arrival)),
        )

    def buffers(self, case: Case) -> dict[str, float]:
        return static_windows(self, case, self.params.window)
