"""TensorRT-LLM's one-sided all-to-all (also in FlashInfer): stores straight into the peer's workspace, no counts first.

A block takes a token and writes its row once to each distinct destination rank, one row behind the other, into the
region of the destination's workspace that belongs to the source; a flag to every rank ends the kernel. The experts
read the workspace in place. In combine every rank flags that its results are ready, and the owner of a token reads
its rows from the peers' workspaces and adds them up as they come. Nothing waits for the host. Only ranks that see
each other's memory can do this: one NVLink domain. Sources: the public kernels; the byte counts of its benchmark.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from moesim import buffers
from moesim.plan import After, FloatArray, IntArray, Local, Phase, When
from moesim.protocols import PROTOCOLS, Case, Params, Protocol, last, pool, sequence

ROUTING = 8
"""Bytes that travel with a dispatched row for each expert of the token: its number and its weight, 4 B each."""


class OneSidedParams(Params):
    """``dispatch``, ``combine``: formats of a row."""

    dispatch: Literal["nvfp4", "mxfp8", "fp8", "bf16"] = "nvfp4"
    combine: Literal["bf16"] = "bf16"


@PROTOCOLS.register("trtllm-onesided")
class OneSided(Protocol):
    """One row a (token, destination rank), stored on the way out and read on the way back."""

    kind = "trtllm-onesided"
    summary = (
        "TensorRT-LLM one-sided: one row a (token, destination rank) stored in place, read back in combine"
    )
    constants = {
        "launch": "time",
        "dispatch_unexplained": "time",
        "combine_unexplained": "time",
        "store": "time",
        "flag": "time",
        "cores": "ratio",
        "port_rate": "bandwidth",
    }
    fittable = ("dispatch_unexplained", "combine_unexplained", "store", "port_rate")
    bandwidth_name = (
        "tokens x min(ranks, top_k) x row over time, local copy counted (TensorRT-LLM, FlashInfer)"
    )
    Params = OneSidedParams
    params: OneSidedParams

    def needs(self) -> frozenset[str]:
        return frozenset({pool.REACH})

    @property
    def formats(self) -> tuple[str, str]:
        return self.params.dispatch, self.params.combine

    def rows(self, case: Case) -> IntArray:
        """Distinct tokens from rank to rank."""
        return case.traffic.rows

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        c, rows = case.calibration, case.traffic.rows
        start = pool.start(case, "dispatch", after)
        if "serialisation" not in case.off:
            # The rows of a block's first token, before the stream of rows is dense.
            first = Local("dispatch.first token", "send", c["store"] * pool.a_token(case, rows))
            start += sequence([first], last(start, after))
        row = self.dispatch_row(case.model)
        sent = pool.send(
            case,
            "dispatch.send",
            rows,
            last(start, after),
            payload=case.model.payload_bytes(self.params.dispatch),
            wire=row + ROUTING * case.model.top_k,
            seconds=(row + ROUTING * case.model.top_k) / c["port_rate"],
        )
        flags, flight = self._flags(case, "dispatch", (After(sent.name),))
        return (
            *start,
            sent,
            *flags,
            self._flight(case, "dispatch", (*flight, After(sent.name, When.INBOUND))),
        )

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        rows, row = case.traffic.rows, self.combine_row(case.model)
        start = pool.start(case, "combine", after)
        flags, flight = self._flags(case, "combine", last(start, after))
        ready = self._flight(case, "combine", flight)
        sent = pool.send(
            case,
            "combine.send",
            rows.T,
            (After(ready.name),),
            payload=row,
            wire=row,
            seconds=row / case.calibration["port_rate"],
        )
        own = np.diag(rows).astype(np.float64) * row * case.copies
        summed = case.copy_s(own, case.tokens * row * case.copies)
        reduce = Local(
            "combine.reduce", "reduce", summed, (After(sent.name, When.STREAM),), case.chunks(case.tokens)
        )
        # A block asks for a token's rows one behind the other: the last token's round trips come on top.
        trips = 2 * case.farthest * pool.a_token(case, rows) * ("serialisation" not in case.off)
        waits = (After(reduce.name), *pool.done(sent))
        return (*start, *flags, ready, sent, reduce, Local("combine.last token", "send", trips, waits))

    def _flags(
        self, case: Case, operation: str, after: tuple[After, ...]
    ) -> tuple[list[Phase], tuple[After, ...]]:
        """A flag to every rank; what waits until those of all have left."""
        if "sync" in case.off:
            return [], after
        issue = case.calibration["flag"] * case.ranks
        flags = sequence([Local(f"{operation}.flags", "sync", case.each(issue))], after)
        return flags, tuple(After(dep.phase, When.ALL) for dep in last(flags, after))

    def _flight(self, case: Case, operation: str, after: tuple[After, ...]) -> Local:
        """Until the farthest rank's flag is here."""
        flight: FloatArray = case.farthest * float("sync" not in case.off)
        return Local(f"{operation}.flag flight", "sync", flight, after)

    def buffers(self, case: Case) -> dict[str, float]:
        """A workspace with a region for each source rank, as large as all its tokens, for either direction."""
        model = case.model
        dispatch = self.dispatch_row(model) + ROUTING * model.top_k
        if "memory" in case.off:
            received, back = case.traffic.rows.sum(axis=0).max(), case.traffic.rows.sum(axis=1).max()
            return buffers.on_demand(
                float(received) * dispatch, float(back) * self.combine_row(model), case.ranks, case.local
            )
        most = float(case.ranks * case.capacity)
        return {
            "dispatch": most * dispatch,
            "combine": most * self.combine_row(model),
            "flags": 2 * 4.0 * case.ranks,
        }
