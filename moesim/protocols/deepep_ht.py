"""DeepEP's high-throughput kernels (V1): counts first, then rows through queues that SMs fill and empty.

Within one scale-up domain a token goes once to each destination rank. Half of the SMs send, half receive; a pair of
them is a channel, and each channel takes an equal run of the tokens, own-rank rows included. Across domains a token
goes once to each destination *domain*: over the NIC to the rank of the same index there, which forwards it to the final
ranks while more arrives. Combine runs the other way: the relay adds up what its domain has for a token, and one row
comes back over the NIC. DeepEP itself knows domains of eight GPUs; on larger ones the same rule is applied.
Source: DeepEP, csrc/kernels/{intranode,internode}.cu and csrc/config.hpp.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from moesim import buffers, limits
from moesim.moe import MoEModel
from moesim.plan import After, FloatArray, IntArray, Local, Phase, Transfer, When
from moesim.protocols import PROTOCOLS, Case, Params, Protocol, head, last, sequence
from moesim.protocols.relay import domains, expand, hops, presum, send, split
from moesim.traffic import off_own

INDEX, WEIGHT, SOURCE = 8, 4, 8
"""Bytes that go with each dispatched row: an expert number and a gate weight for each of K, and whence it came."""


MOST_NEARBY = 8
"""Ranks of a domain that DeepEP's own kernels know."""


class DeepEPHTParams(Params):
    """``sms``: communication SMs, half of them send. ``dispatch``, ``combine``: formats of a row."""

    sms: int | None = Field(default=None, ge=2, multiple_of=2, le=limits.CORES)
    dispatch: Literal["fp8", "bf16"] = "fp8"
    combine: Literal["bf16"] = "bf16"


@PROTOCOLS.register("deepep-ht")
class DeepEPHighThroughput(Protocol):
    """Rows de-duplicated by rank inside a domain and by domain on the NIC, relayed by the rank of the same index."""

    kind = "deepep-ht"
    summary = (
        "DeepEP high-throughput: counts first; one row a (token, domain) on the NIC, relayed to its ranks"
    )
    constants = {
        "launch": "time",
        "notify": "time",
        "notify_at_2": "time",
        "notify_per_doubling": "time",
        "notify_token": "time",
        "dispatch_at_8": "time",
        "dispatch_per_doubling": "time",
        "combine_at_8": "time",
        "combine_per_doubling": "time",
        "cores": "ratio",
        "dispatch_core_rate": "bandwidth",
        "combine_core_rate": "bandwidth",
        "dispatch_relay_rate": "bandwidth",
        "combine_relay_rate": "bandwidth",
        "shared_rate": "bandwidth",
        "port_rate": "bandwidth",
        "chunk": "ratio",
    }
    fittable = (
        "dispatch_at_8",
        "combine_at_8",
        "dispatch_core_rate",
        "combine_core_rate",
        "dispatch_relay_rate",
        "combine_relay_rate",
        "shared_rate",
        "port_rate",
        "chunk",
    )
    bandwidth_name = (
        "rows de-duplicated by rank, across domains by domain, own one included, over kernel time (DeepEP)"
    )
    Params = DeepEPHTParams
    params: DeepEPHTParams

    @property
    def formats(self) -> tuple[str, str]:
        return self.params.dispatch, self.params.combine

    def dispatch_row(self, model: MoEModel) -> float:
        return super().dispatch_row(model) + model.top_k * (INDEX + WEIGHT) + SOURCE

    def rows(self, case: Case) -> IntArray:
        """Distinct tokens from rank to rank."""
        return case.traffic.rows

    def logical_bytes(self, case: Case, operation: str = "dispatch") -> float:
        """Rows with their scales: by rank in one domain, else by domain (its RDMA bandwidth); own ones counted."""
        counted = case.traffic.rows_domain if domains(case) > 1 else case.traffic.rows
        row = case.model.row_bytes(self.formats[operation == "combine"])
        return float(counted.sum(axis=1).max(initial=0)) * row

    def operation(self, name: str, case: Case) -> tuple[Phase, ...] | None:
        """The kernels alone: counts, expansion to experts and their sum are not in its benchmark."""
        kernels = {"dispatch": self._dispatch, "combine": self._combine}
        return tuple(kernels[name](case, ())) if name in kernels else None

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        counts = self._notify(case, "dispatch", 0.0, after)
        kernel = self._dispatch(case, last(counts, after))
        row = self.dispatch_row(case.model)
        return (*counts, *kernel, expand(case, row, (After(kernel[-1].name),)))

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        before = presum(case, self.combine_row(case.model), after)
        if domains(case) > 1:
            # The counts of the dispatch are turned round, token by token of a channel.
            tokens = self._busiest(case) * case.traffic.tokens.max(initial=0)
            before += self._notify(
                case, "combine", tokens * case.calibration["notify_token"], last(before, after)
            )
        return (*before, *self._combine(case, last(before, after)))

    def _notify(self, case: Case, operation: str, more: float, after: tuple[After, ...]) -> list[Phase]:
        """Counts from all ranks to all; in dispatch the host waits for them, to allocate what comes. ``more`` [s]."""
        if "sync" in case.off:
            return []
        c, many = case.calibration, domains(case)
        seconds = c["notify"]
        if many > 1:
            seconds = c["notify_at_2"] + c["notify_per_doubling"] * float(np.log2(many / 2))
        waits = tuple(After(dep.phase, When.ALL) for dep in after)
        return sequence([Local(f"{operation}.notify", "metadata", case.each(seconds + more))], waits)

    def _dispatch(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        start = head(case, "dispatch", after)
        after = last(start, after)
        row, rate = self.dispatch_row(case.model), case.calibration["dispatch_core_rate"]
        if domains(case) == 1:
            return [*start, *self._push(case, "dispatch", "reorder", case.traffic.rows, row, after)]
        over, relayed = hops(case)
        nic = self._send(case, "dispatch.nic", over, row, after)
        engine = self._senders_s(case, relayed, row, case.calibration["dispatch_relay_rate"])
        chunks = self._chunks(case, relayed)
        stream = (*after, After(nic.name, When.STREAM))
        whole = self._send(case, "dispatch.send", relayed, row, stream, engine)
        # What the NIC brings last is forwarded when it is there.
        waits = (After(whole.name), After(nic.name), After(nic.name, When.INBOUND))
        forward, rest = split(whole, chunks, waits)
        seconds = self._engine_s(case, case.traffic.rows.sum(axis=0), row, rate)
        taken = _drain(case, "dispatch.receive", "reorder", seconds, chunks, after, rest)
        return [*start, nic, forward, rest, *taken]

    def _combine(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        start = head(case, "combine", after)
        after = last(start, after)
        row, rate = self.combine_row(case.model), case.calibration["combine_core_rate"]
        if domains(case) == 1:
            return [*start, *self._push(case, "combine", "reduce", case.traffic.rows.T, row, after)]
        over, relayed = (hop.T for hop in hops(case))
        engine = self._senders_s(case, relayed, row, rate)
        gather = self._send(case, "combine.send", relayed, row, after, engine)
        chunks = self._chunks(case, relayed.T)
        seconds = self._engine_s(case, relayed.sum(axis=0), row, case.calibration["combine_relay_rate"])
        relay = _drain(case, "combine.relay", "reduce", seconds, chunks, after, gather)
        whole = self._send(case, "combine.nic", over, row, (After(gather.name, When.STREAM),))
        nic, rest = split(whole, chunks, (After(whole.name), After(relay[-1].name)))
        # The sum of one row a domain has less to do than the relays, which pace it: what is left is a chunk.
        seconds = self._engine_s(case, case.traffic.rows_domain.sum(axis=1), row, rate) / chunks
        closing = (After(rest.name), After(nic.name, When.INBOUND), After(rest.name, When.INBOUND))
        reduce = Local("combine.reduce", "reduce", seconds * case.copies, closing)
        return [*start, gather, *relay, nic, rest, reduce]

    def _push(
        self, case: Case, operation: str, label: str, rows: IntArray, row: float, after: tuple[After, ...]
    ) -> list[Phase]:
        """Within one domain: senders fill the queues of the destinations, whose receivers empty them."""
        rate = case.calibration[f"{operation}_core_rate"]
        engine = self._senders_s(case, rows, row, rate)
        one = self._send(case, f"{operation}.send", rows, row, after, engine)
        seconds = self._engine_s(case, rows.sum(axis=0), row, rate)
        chunks = self._chunks(case, rows)
        return [one, *_drain(case, f"{operation}.receive", label, seconds, chunks, after, one)]

    def _senders_s(self, case: Case, rows: IntArray, row: float, rate: float) -> FloatArray:
        """(R,) [s] to send ``rows`` (R, R): of the channels, own-rank rows included, or of the port without them."""
        port: FloatArray = off_own(rows).sum(axis=1) * (row / case.calibration["port_rate"])
        return np.maximum(self._engine_s(case, rows.sum(axis=1), row, rate), port)

    def _engine_s(self, case: Case, rows: IntArray, row: float, rate: float) -> FloatArray:
        """(R,) [s] that the busiest channel works on ``rows`` (R,) of each rank, ``row`` [B] each.

        A channel moves what its tokens need at ``rate`` [B/s]; all rows of the rank also pass what its SMs share.
        """
        each = self._busiest(case) / rate + 1 / case.calibration["shared_rate"]
        return rows.astype(np.float64) * (row * each)

    def _busiest(self, case: Case) -> float:
        """Share of a rank's tokens that the channel with most of them has."""
        tokens, channels = float(case.traffic.tokens.max(initial=0)), case.calibration["cores"] // 2
        return float(np.ceil(tokens / channels)) / max(tokens, 1.0)

    def _chunks(self, case: Case, rows: IntArray) -> float:
        """Pieces in which a channel sends to each destination; ``rows`` (R, R)."""
        channels, nearby = case.calibration["cores"] // 2, int(np.bincount(case.traffic.domain).max())
        pieces = float(rows.sum(axis=1).max(initial=0)) / (channels * nearby * case.calibration["chunk"])
        return max(1.0, pieces)

    def _send(
        self,
        case: Case,
        name: str,
        rows: IntArray,
        row: float,
        after: tuple[After, ...],
        engine_s: FloatArray | None = None,
    ) -> Transfer:
        payload = case.model.payload_bytes(self.formats[name.startswith("combine")])
        return send(case, name, rows, row, payload, after, engine_s)

    def describe(self, case: Case) -> list[str]:
        nearby = int(np.bincount(case.traffic.domain).max())
        if nearby <= MOST_NEARBY:
            return []
        return [
            f"DeepEP's kernels reach at most {MOST_NEARBY} ranks by stores: {nearby} in a domain are extrapolated"
        ]

    def buffers(self, case: Case) -> dict[str, float]:
        """Queues, which do not grow with the batch, and the rows that a rank receives: counted, then allocated."""
        received = float(case.traffic.rows.sum(axis=0).max(initial=0)) * self.dispatch_row(case.model)
        nearby = int(np.bincount(case.traffic.domain).max())
        sizes = buffers.deepep_queues(
            int(case.calibration["cores"]), 2 * case.model.hidden, nearby, domains(case)
        )
        return {**sizes, "rows": received}


def _drain(
    case: Case,
    name: str,
    label: str,
    seconds: FloatArray,
    chunks: float,
    after: tuple[After, ...],
    source: Transfer,
) -> list[Phase]:
    """Empty the queues in ``seconds`` (R,) beside ``source``; when that has ended, a chunk is left.

    A rank waits for its own sends too: what they sent last is in its peers' queues as theirs is in its own.
    """
    last_s = case.copies * seconds / chunks
    beside = Local(name, label, case.copies * seconds - last_s, after)
    waits = (After(beside.name), After(source.name), After(source.name, When.INBOUND))
    return [beside, Local(f"{name} last chunk", label, last_s, waits)]
