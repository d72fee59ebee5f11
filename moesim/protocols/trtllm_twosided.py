"""TensorRT-LLM's two-sided all-to-all: a prepare step, then rows through queues that the receiver empties.

Prepare counts what goes to each rank, exchanges the counts and lists which row goes where. Dispatch and combine push
rows, one a (token, destination rank), through a queue in the peer's memory. Combine sends BF16 rows back and adds
them up, or quantises them to FP4 on the way: the cores read and convert every row, also those that stay, and the
receiver widens them again before the sum. It needs ranks that see each other's memory. Source: the public kernels.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from moesim import buffers
from moesim.plan import After, IntArray, Local, Phase, Transfer
from moesim.protocols import PROTOCOLS, Case, Params, Protocol, last, pool, sequence, weighted_sum

COUNT = 4
"""Bytes of a count."""


class TwoSidedParams(Params):
    """``dispatch``, ``combine``: formats of a row."""

    dispatch: Literal["nvfp4", "mxfp8", "fp8", "bf16"] = "nvfp4"
    combine: Literal["bf16", "nvfp4"] = "bf16"


@PROTOCOLS.register("trtllm-twosided")
class TwoSided(Protocol):
    """Counts first, then one row a (token, destination rank) through queues."""

    kind = "trtllm-twosided"
    summary = "TensorRT-LLM two-sided: prepare (counts, indices), then one row a (token, rank) through queues"
    constants = {
        "launch": "time",
        "prepare_unexplained": "time",
        "dispatch_unexplained": "time",
        "combine_unexplained": "time",
        "index": "time",
        "issue": "time",
        "cores": "ratio",
        "port_rate": "bandwidth",
        "quantise_rate": "bandwidth",
    }
    fittable = (
        "prepare_unexplained",
        "dispatch_unexplained",
        "combine_unexplained",
        "index",
        "issue",
        "port_rate",
        "quantise_rate",
    )
    bandwidth_name = "tokens x min(ranks, top_k) x row over time, local copy counted (TensorRT-LLM)"
    Params = TwoSidedParams
    params: TwoSidedParams

    def needs(self) -> frozenset[str]:
        return frozenset({pool.REACH})

    @property
    def formats(self) -> tuple[str, str]:
        return self.params.dispatch, self.params.combine

    def rows(self, case: Case) -> IntArray:
        """Distinct tokens from rank to rank."""
        return case.traffic.rows

    def operation(self, name: str, case: Case) -> tuple[Phase, ...] | None:
        """Prepare is timed by itself."""
        if name == "prepare":
            return tuple(self._prepare(case, ()))
        return self._dispatch(case, ()) if name == "dispatch" else super().operation(name, case)

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        before = self._prepare(case, after)
        return (*before, *self._dispatch(case, last(before, after)))

    def _prepare(self, case: Case, after: tuple[After, ...]) -> list[Phase]:
        """Count and list own entries; counts of each local expert to every peer."""
        phases = pool.start(case, "prepare", after)
        if "serialisation" not in case.off:
            listed = Local("dispatch.indices", "metadata", case.calibration["index"] * case.sent)
            phases += sequence([listed], last(phases, after))
        if "sync" in case.off:
            return phases
        each = np.ones((case.ranks, case.ranks), dtype=np.int64)
        size = float(COUNT * case.local)
        counts = pool.send(
            case,
            "dispatch.counts",
            each,
            last(phases, after),
            payload=size,
            wire=size,
            seconds=size / case.calibration["port_rate"],
            label="metadata",
        )
        known = Local("dispatch.counts here", "metadata", case.each(0.0), pool.done(counts))
        return [*phases, counts, known]

    def _dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        start = pool.start(case, "dispatch", after)
        sent = self._send(case, "dispatch", self.dispatch_row(case.model), last(start, after))
        here = Local("dispatch.rows here", "sync", case.each(0.0), pool.done(sent))
        return (*start, sent, here)

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        start = pool.start(case, "combine", after)
        bf16 = case.model.row_bytes("bf16")
        if self.params.combine != "bf16" and "serialisation" not in case.off:
            c, back = case.calibration, case.traffic.rows.sum(axis=0)
            quantise = Local("combine.quantise", "quantise", c["launch"] + back * bf16 / c["quantise_rate"])
            start += sequence([quantise], last(start, after))
        sent = self._send(case, "combine", self.combine_row(case.model), last(start, after))
        return (*start, sent, weighted_sum(case, case.traffic.rows.sum(axis=1) * bf16, pool.done(sent)))

    def _send(self, case: Case, operation: str, row: float, after: tuple[After, ...]) -> Transfer:
        c, back = case.calibration, operation == "combine"
        return pool.send(
            case,
            f"{operation}.send",
            case.traffic.rows.T if back else case.traffic.rows,
            after,
            payload=case.model.payload_bytes(self.formats[back]),
            wire=row,
            # One of the cores issues it, all share the port.
            seconds=c["issue"] / c["cores"] + row / c["port_rate"],
        )

    def buffers(self, case: Case) -> dict[str, float]:
        """Rows received in either direction: those that really come, or all that can; and the counts."""
        model = case.model
        dispatch, combine = self.dispatch_row(model), model.row_bytes("bf16")
        if "memory" in case.off:
            received, back = case.traffic.rows.sum(axis=0).max(), case.traffic.rows.sum(axis=1).max()
            return buffers.on_demand(
                float(received) * dispatch, float(back) * combine, case.ranks, case.local
            )
        rows = float(case.capacity * case.ranks)
        own = float(case.capacity * min(model.top_k, case.ranks))
        return {
            "dispatch": rows * dispatch,
            "combine": own * combine,
            "counts": 2.0 * COUNT * case.slots,
        }
