"""MoonEP's own protocol: each token once to each destination rank, pushed straight to its final row.

A fixed number of communication SMs write the rows; the destination expands them to its experts. Three barriers in
planning, one at the end of dispatch, one at the beginning of combine, none at its end. Needs a domain with multicast
for its metadata, and at most 128 ranks. Source: MoonEP, planning.py and dispatch.py.
"""

from __future__ import annotations

from moesim.errors import InputError, Problem
from moesim.moe import MoEModel
from moesim.plan import After, FloatArray, IntArray, Local, Phase, Transfer, When
from moesim.protocols import PROTOCOLS, Case, Protocol, last, send_evenly, sequence, weighted_sum

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

    @property
    def formats(self) -> tuple[str, str]:
        return "bf16", "bf16"

    def rows(self, case: Case) -> IntArray:
        """Distinct tokens from rank to rank."""
        return case.traffic.rows

    def logical_bytes(self, case: Case, operation: str = "dispatch") -> float:
        return float(case.traffic.tokens.max(initial=0)) * case.model.top_k * case.model.hidden * 2.0

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        c = case.calibration
        plan: list[Phase] = []
        if case.assignment.static_rows is None:
            # A balancer that plans has laid out the rows already.
            planning = c["plan"] * ("serialisation" not in case.off)
            planning += c["plan_barriers"] * c["barrier"] * ("sync" not in case.off)
            work = Local("dispatch.plan", "planning", case.each(planning))
            plan = sequence([work], after)
            after = tuple(After(dep.phase, When.ALL) for dep in last(plan, after))
        start, send = self._push(case, "dispatch", case.traffic.rows, after)
        barrier = self._barrier(case, "dispatch.exit barrier", (After(send.name),))
        copies = self._duplicates(case)
        waits = (*last(barrier, ()), After(send.name, When.INBOUND))
        expand = Local("dispatch.expand", "reorder", case.copy_s(copies, copies), waits)
        return (*plan, *start, send, *barrier, expand)

    def _duplicates(self, case: Case) -> FloatArray:
        """(R,) [B] of the entries of each rank that came with a row of another one."""
        more = case.received - case.traffic.rows.sum(axis=0)
        duplicates: FloatArray = more * self.dispatch_row(case.model) * case.copies
        return duplicates

    def _push(
        self, case: Case, operation: str, rows: IntArray, after: tuple[After, ...]
    ) -> tuple[list[Phase], Transfer]:
        start: list[Phase] = []
        if "serialisation" not in case.off:
            launch = Local(f"{operation}.launch", "launch", case.each(case.calibration["launch"]))
            start = sequence([launch], after)
        payload = case.model.payload_bytes("bf16")
        row = self.dispatch_row(case.model)
        return start, send_evenly(case, operation, rows, row, payload, last(start, after))

    def _barrier(self, case: Case, name: str, after: tuple[After, ...]) -> list[Phase]:
        """All ranks meet: the slowest counts, then one crossing of the fabric."""
        if "sync" in case.off:
            return []
        waits = tuple(After(dep.phase, When.ALL) for dep in after)
        return [Local(name, "sync", case.each(case.calibration["barrier"]), waits)]

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        # A duplicate is read with the row it is added to, which is written back.
        copies = self._duplicates(case)
        presum = Local("combine.presum", "reduce", case.copy_s(2 * copies, copies))
        before = sequence([presum], after)
        barrier = self._barrier(case, "combine.entry barrier", last(before, after))
        ready = last(barrier, last(before, after))
        start, send = self._push(case, "combine", case.traffic.rows.T, ready)
        read = case.traffic.rows.sum(axis=1) * self.combine_row(case.model)
        # No barrier ends it: the sums follow the rows as they come.
        reduce = weighted_sum(case, read, (After(send.name, When.STREAM),))
        returned = (After(reduce.name), After(send.name), After(send.name, When.INBOUND))
        return (
            *before,
            *barrier,
            *start,
            send,
            reduce,
            Local("combine.done", "sync", case.each(0.0), returned),
        )

    def buffers(self, case: Case) -> dict[str, float]:
        """One static token buffer, for the rows that the balancer fixed, else for the worst case."""
        worst = case.ranks * case.capacity * min(case.model.top_k, case.local)
        rows = case.assignment.static_rows if case.assignment.static_rows is not None else worst
        return {"tokens": float(rows) * self.dispatch_row(case.model), "metadata": 4.0 * 3 * case.slots}
