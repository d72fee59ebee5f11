"""MoonEP's own protocol: each token once to each destination rank, pushed straight to its final row.

A fixed number of communication SMs write the rows; the destination expands them to its experts. Three barriers in
planning, one at the end of dispatch, one at the beginning of combine. Needs a domain with multicast for its metadata,
and at most 128 ranks. Source: MoonEP, planning.py and dispatch.py.
"""

from __future__ import annotations

import numpy as np

from moesim import cores
from moesim.errors import InputError, Problem
from moesim.moe import MoEModel
from moesim.plan import After, IntArray, Local, Phase, Transfer, When
from moesim.protocols import PROTOCOLS, Case, Protocol, flows, last, sequence

MOST_RANKS = 128


@PROTOCOLS.register("rank-dedup-push")
class RankDedupPush(Protocol):
    """Rows de-duplicated by rank, expanded at their destination."""

    kind = "rank-dedup-push"
    summary = (
        "MoonEP's push: one row a (token, destination rank), expanded there; planning with three barriers"
    )
    constants = {
        "launch": "time",
        "plan": "time",
        "plan_barriers": "ratio",
        "barrier": "time",
        "cores": "ratio",
        "core_rate": "bandwidth",
    }
    bandwidth_name = "logical: tokens x top_k x hidden x 2 B over time (MoonEP benches)"

    def needs(self) -> frozenset[str]:
        return frozenset({"multicast"})

    def check(self, model: MoEModel, ranks: int) -> None:
        if ranks > MOST_RANKS:
            raise InputError(Problem(f"rank-dedup-push: EP{ranks}", legal=f"at most {MOST_RANKS} ranks"))

    def dispatch_row(self, model: MoEModel) -> float:
        return model.row_bytes("bf16")

    def combine_row(self, model: MoEModel) -> float:
        return model.row_bytes("bf16")

    def rows(self, case: Case) -> IntArray:
        """Distinct tokens from rank to rank."""
        return case.traffic.rows

    def logical_bytes(self, case: Case) -> float:
        return float(case.traffic.tokens.max(initial=0)) * case.model.top_k * case.model.hidden * 2.0

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        c = case.calibration
        plan: list[Phase] = []
        if case.assignment.static_rows is None and "serialisation" not in case.off:
            # A balancer that plans has laid out the rows already.
            planning = c["plan"] + c["plan_barriers"] * c["barrier"]
            work = Local("dispatch.plan", "planning", case.each(planning))
            plan = sequence([work], after)
            after = tuple(After(dep.phase, When.ALL) for dep in last(plan, after))
        head, send = self._push(case, "dispatch", case.traffic.rows, after)
        barrier = self._barrier(case, "dispatch.exit barrier", (After(send.name),))
        kept = "memory" not in case.off
        rows = case.traffic.rows.sum(axis=0) * self.dispatch_row(case.model) * kept
        entries = case.received * self.dispatch_row(case.model) * kept
        expand = Local(
            "dispatch.expand",
            "reorder",
            case.copy_s(rows, np.maximum(entries - rows, 0.0)) * (entries > rows),
            (*last(barrier, ()), After(send.name, When.INBOUND)),
        )
        return (*plan, *head, send, *barrier, expand)

    def _push(
        self, case: Case, operation: str, rows: IntArray, after: tuple[After, ...]
    ) -> tuple[list[Phase], Transfer]:
        c = case.calibration
        head: list[Phase] = []
        if "serialisation" not in case.off:
            head = sequence([Local(f"{operation}.launch", "launch", case.each(c["launch"]))], after)
        dealt = cores.slices(rows, cores.in_order(case.ranks), int(c["cores"]))
        row = self.dispatch_row(case.model)
        sent = flows(
            case,
            dealt,
            dealt.slot,
            payload=row,
            wire=row,
            issue=0.0,
            bound_to_cores="imbalance" not in case.off,
        )
        return head, Transfer(f"{operation}.send", "send", sent, last(head, after))

    def _barrier(self, case: Case, name: str, after: tuple[After, ...]) -> list[Phase]:
        """All ranks meet: the slowest counts, then one crossing of the fabric."""
        if "sync" in case.off:
            return []
        waits = tuple(After(dep.phase, When.ALL) for dep in after)
        return [Local(name, "sync", case.each(case.calibration["barrier"]), waits)]

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        kept = "memory" not in case.off
        row = self.combine_row(case.model)
        rows = case.traffic.rows.sum(axis=0) * row * kept
        entries = case.received * row * kept
        before = sequence(
            [Local("combine.presum", "reduce", case.copy_s(entries, rows) * (entries > rows))], after
        )
        barrier = self._barrier(case, "combine.entry barrier", last(before, after))
        head, send = self._push(case, "combine", case.traffic.rows.T, last(barrier, last(before, after)))
        read = case.traffic.rows.sum(axis=1) * row * kept
        written = case.tokens * row * kept
        reduce = Local(
            "combine.reduce",
            "reduce",
            case.copy_s(read, written),
            (After(send.name), After(send.name, When.INBOUND)),
        )
        return (*before, *barrier, *head, send, reduce)

    def buffers(self, case: Case) -> dict[str, float]:
        """One static token buffer, for the rows that the balancer fixed, else for the worst case."""
        worst = case.ranks * case.capacity * min(case.model.top_k, case.local)
        rows = case.assignment.static_rows if case.assignment.static_rows is not None else worst
        return {"tokens": float(rows) * self.dispatch_row(case.model), "metadata": 4.0 * 3 * case.slots}
