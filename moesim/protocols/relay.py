"""Two hops between scale-up domains: over the NIC to the rank of the same index there, then on to the final ranks.

A token goes once to each destination domain, whose relay forwards it once to each destination rank while more arrives.
Combine runs the other way. Shared by the protocols that do so; :class:`Relayed` is one whose rows go straight to their
place, with no queue to be emptied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from moesim import limits
from moesim.moe import MoEModel
from moesim.plan import After, FloatArray, FlowSet, IntArray, Local, Phase, Transfer, When
from moesim.protocols import Case, Params, Protocol, head, last, pool, sequence
from moesim.traffic import off_own


def domains(case: Case) -> int:
    """Scale-up domains that the ranks span."""
    return int(case.traffic.domain.max()) + 1


def hops(case: Case) -> tuple[IntArray, IntArray]:
    """Rows on the NIC (R, R) from a source to its relays, and from relays to final ranks (R, R), in dispatch.

    The relay in a domain is the rank of the source's own index there, so at home the source itself.
    """
    domain, ranks = case.traffic.domain, np.arange(case.ranks)
    members = [np.flatnonzero(domain == d) for d in range(domains(case))]
    index = np.empty(case.ranks, dtype=np.int64)
    for those in members:
        index[those] = np.arange(len(those))
    relay = np.stack([those[index % len(those)] for those in members], axis=1)
    over = np.zeros((case.ranks, case.ranks), dtype=np.int64)
    np.add.at(over, (ranks[:, None], relay), case.traffic.rows_domain)
    over[ranks, ranks] = 0
    forwarded = np.zeros_like(over)
    np.add.at(forwarded, (relay[:, domain], ranks[None, :]), case.traffic.rows)
    return over, forwarded


def split(whole: Transfer, chunks: float, waits: tuple[After, ...]) -> tuple[Transfer, Transfer]:
    """``whole`` without its last chunk, and that chunk, which ``waits``."""
    rest = Transfer(f"{whole.name} last chunk", whole.label, _part(whole.flows, 1 / chunks), waits)
    return replace(whole, flows=_part(whole.flows, 1 - 1 / chunks)), rest


def _part(flows: FlowSet, share: float) -> FlowSet:
    """The same flows with ``share`` of what they carry; none if that is nothing."""
    if share <= 0:
        none = np.zeros(0, dtype=np.int64)
        return FlowSet.of(none, none, np.zeros(0))
    names = ("payload", "wire", "messages", "core_s")
    return replace(flows, **{name: getattr(flows, name) * share for name in names})


def send(
    case: Case,
    name: str,
    rows: IntArray,
    row: float,
    payload: float,
    after: tuple[After, ...],
    engine_s: FloatArray | None = None,
) -> Transfer:
    """Send ``rows`` (R, R); ``engine_s`` (R,), own-rank rows included, is spread over those that leave the rank.

    Without it no SM counts, as on a NIC, which is fed faster than it sends.
    """
    each = np.zeros(case.ranks) if engine_s is None else engine_s / np.maximum(off_own(rows).sum(axis=1), 1)
    return pool.send(case, name, rows, after, payload=payload, wire=row, seconds=each[:, None])


def expand(case: Case, row: float, after: tuple[After, ...]) -> Local:
    """The rows that a rank received, copied to each of their experts there; ``row`` [B]."""
    row *= case.copies
    seconds = case.copy_s(case.traffic.rows.sum(axis=0) * row, case.received * row)
    return Local("dispatch.expand", "reorder", seconds, after)


def presum(case: Case, row: float, after: tuple[After, ...]) -> list[Phase]:
    """What the experts of a rank made of a token, added up before it travels; ``row`` [B]."""
    row *= case.copies
    seconds = case.copy_s(case.received * row, case.traffic.rows.sum(axis=0) * row)
    return sequence([Local("combine.presum", "reduce", seconds)], after)


class RelayedParams(Params):
    """``sms``: communication SMs. ``dispatch``, ``combine``: formats of a row."""

    sms: int | None = Field(default=None, ge=1, le=limits.CORES)
    dispatch: Literal["bf16", "fp8"] = "bf16"
    combine: Literal["bf16"] = "bf16"


class Relayed(Protocol):
    """Rows once a rank in a domain, written to their place by bulk copies; once a domain on the NIC."""

    constants = {
        "launch": "time",
        "preprocess": "time",
        "dispatch_at_8": "time",
        "dispatch_per_doubling": "time",
        "combine_at_8": "time",
        "combine_per_doubling": "time",
        "cores": "ratio",
        "core_rate": "bandwidth",
        "port_rate": "bandwidth",
        "chunk": "ratio",
    }
    fittable = ("dispatch_at_8", "combine_at_8", "core_rate", "port_rate")
    Params = RelayedParams
    params: RelayedParams

    @property
    def formats(self) -> tuple[str, str]:
        return self.params.dispatch, self.params.combine

    def rows(self, case: Case) -> IntArray:
        """Distinct tokens from rank to rank."""
        return case.traffic.rows

    def counted_row(self, model: MoEModel, operation: str) -> float:
        """Bytes of a row in the library's own definition of bandwidth: data and scales by default."""
        return model.row_bytes(self.formats[operation == "combine"])

    def logical_bytes(self, case: Case, operation: str = "dispatch") -> float:
        """Rows by rank in one domain, else by domain; own ones counted."""
        counted = case.traffic.rows_domain if domains(case) > 1 else case.traffic.rows
        return float(counted.sum(axis=1).max(initial=0)) * self.counted_row(case.model, operation)

    def operation(self, name: str, case: Case) -> tuple[Phase, ...] | None:
        """The kernels alone: preprocessing, expansion to experts and their sum are apart."""
        kernels = {"dispatch": self._dispatch, "combine": self._combine}
        return tuple(kernels[name](case, ())) if name in kernels else None

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        before: list[Phase] = []
        if "sync" not in case.off:
            waits = tuple(After(dep.phase, When.ALL) for dep in after)
            work = Local("dispatch.preprocess", "metadata", case.each(case.calibration["preprocess"]))
            before = sequence([work], waits)
        kernel = self._dispatch(case, last(before, after))
        row = self.dispatch_row(case.model)
        return (*before, *kernel, expand(case, row, (After(kernel[-1].name),)))

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        before = presum(case, self.combine_row(case.model), after)
        return (*before, *self._combine(case, last(before, after)))

    def _dispatch(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        start = head(case, "dispatch", after)
        after = last(start, after)
        row, payload = self.dispatch_row(case.model), case.model.payload_bytes(self.formats[0])
        if domains(case) == 1:
            return [*start, *self._push(case, "dispatch", case.traffic.rows, row, payload, after)]
        over, relayed = hops(case)
        nic = send(case, "dispatch.nic", over, row, payload, after)
        stream = (*after, After(nic.name, When.STREAM))
        engine = self._engine_s(case, relayed, row)
        whole = send(case, "dispatch.send", relayed, row, payload, stream, engine)
        # What the NIC brings last is forwarded when it is there.
        waits = (After(whole.name), After(nic.name), After(nic.name, When.INBOUND))
        forward, rest = split(whole, self._chunks(case), waits)
        return [*start, nic, forward, rest, _end(case, "dispatch", forward, rest)]

    def _combine(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        start = head(case, "combine", after)
        after = last(start, after)
        row, payload = self.combine_row(case.model), case.model.payload_bytes(self.formats[1])
        if domains(case) == 1:
            return [*start, *self._push(case, "combine", case.traffic.rows.T, row, payload, after)]
        over, relayed = (hop.T for hop in hops(case))
        gather = send(case, "combine.send", relayed, row, payload, after, self._engine_s(case, relayed, row))
        stream = (After(gather.name, When.STREAM),)
        whole = send(case, "combine.nic", over, row, payload, stream)
        waits = (After(whole.name), After(gather.name), After(gather.name, When.INBOUND))
        nic, rest = split(whole, self._chunks(case), waits)
        return [*start, gather, nic, rest, _end(case, "combine", nic, rest)]

    def _push(
        self,
        case: Case,
        operation: str,
        rows: IntArray,
        row: float,
        payload: float,
        after: tuple[After, ...],
    ) -> list[Phase]:
        """Within one domain."""
        one = send(case, f"{operation}.send", rows, row, payload, after, self._engine_s(case, rows, row))
        return [one, _end(case, operation, one)]

    def _engine_s(self, case: Case, rows: IntArray, row: float) -> FloatArray:
        """(R,) [s] that the SMs of each rank work on ``rows`` (R, R), or that those leaving it take at its port."""
        c = case.calibration
        all_s = rows.sum(axis=1) * (row / (c["cores"] * c["core_rate"]))
        seconds: FloatArray = np.maximum(all_s, off_own(rows).sum(axis=1) * (row / c["port_rate"]))
        return seconds

    def _chunks(self, case: Case) -> float:
        """Pieces in which tokens pass from one hop to the next."""
        return max(1.0, float(case.traffic.tokens.max(initial=0)) / case.calibration["chunk"])

    def buffers(self, case: Case) -> dict[str, float]:
        """Room for every token of every rank in both directions, and of every other domain on the NIC."""
        row = self.dispatch_row(case.model) + self.combine_row(case.model)
        held = {"rows": float(case.ranks * case.capacity) * row}
        return held | {"rdma": float((domains(case) - 1) * case.capacity) * row}


def _end(case: Case, operation: str, *sent: Transfer) -> Local:
    """A kernel ends when its own rows are out and those of the others are in."""
    waits = tuple(After(one.name, when) for one in sent for when in (When.MINE, When.INBOUND))
    return Local(f"{operation}.end", "wait", case.each(0.0), waits)
