"""All-gather and reduce-scatter instead of an all-to-all: vLLM's AG-RS, and its naive form.

Every rank gathers the tokens of all ranks with their expert numbers and weights, computes what its experts have to do,
and a reduce-scatter adds the partial outputs and leaves each token at its owner. No counts, no packing; but each rank
sends and receives all tokens of all others, however few need its experts: (R - 1) x tokens x row either way.

A ring takes R - 1 steps. It enters a scale-up domain once, each rank's rows over the NIC of the same index, and goes
on inside. Its words carry flags (LL, half of the wire) or its chunks a handshake (Simple), whichever the library's
model finds faster. With multicast (NVLS) the steps are saved; the port that takes in, or gives out, the rows of all
others stays as busy. Source: NCCL, tuning.cc; vLLM's all2all backends.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from moesim.moe import MoEModel
from moesim.plan import After, FloatArray, IntArray, Local, Phase
from moesim.protocols import PROTOCOLS, Case, Params, Protocol, last, pool, sequence

ROUTING = 8
"""Bytes that are gathered with a row for each expert of the token: its number and its weight, 4 B each."""


class GatherParams(Params):
    """``algorithm``: a ring, or multicast by the switches. ``dispatch``, ``combine``: formats of a row."""

    algorithm: Literal["ring", "nvls"] = "ring"
    dispatch: Literal["bf16", "fp8", "nvfp4"] = "bf16"
    combine: Literal["bf16"] = "bf16"


@PROTOCOLS.register("allgather-reducescatter")
class AllGatherReduceScatter(Protocol):
    """All tokens to all ranks, sums back."""

    kind = "allgather-reducescatter"
    summary = "all-gather of all tokens, reduce-scatter of the partial outputs (vLLM), by ring or multicast"
    constants = {
        "launch": "time",
        "cores": "ratio",
        "core_rate": "bandwidth",
        "ring_rate": "bandwidth",
        "hop": "time",
        "hop_flagged": "time",
        "nic_hop": "time",
        "nic_hop_flagged": "time",
        "nvls_rate": "bandwidth",
        "nvls": "time",
    }
    bandwidth_name = "bus bandwidth: gathered buffer x (n-1)/n over time (nccl-tests)"
    Params = GatherParams
    params: GatherParams

    def needs(self) -> frozenset[str]:
        return frozenset({"multicast"} if self.params.algorithm == "nvls" else ())

    @property
    def formats(self) -> tuple[str, str]:
        return self.params.dispatch, self.params.combine

    def dispatch_row(self, model: MoEModel) -> float:
        return super().dispatch_row(model) + ROUTING * model.top_k

    def rows(self, case: Case) -> IntArray:
        """Distinct tokens that the experts of each rank need; all others travel as well."""
        return case.traffic.rows

    def logical_bytes(self, case: Case, operation: str = "dispatch") -> float:
        """Gathered (or scattered) buffer x (R - 1) / R, as nccl-tests counts."""
        row = self.combine_row(case.model) if operation == "combine" else self.dispatch_row(case.model)
        return float(case.tokens.sum()) * row * (case.ranks - 1) / case.ranks

    def dispatch(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        return tuple(self._collective(case, "dispatch", self.dispatch_row(case.model), after))

    def combine(self, case: Case, after: tuple[After, ...]) -> tuple[Phase, ...]:
        row = self.combine_row(case.model)
        read = case.received * row * case.copies
        written = case.each(case.tokens.sum() * row * case.copies)
        partial: list[Phase] = sequence(
            [Local("combine.partial sums", "reduce", case.copy_s(read, written))], after
        )
        return (*partial, *self._collective(case, "combine", row, last(partial, after)))

    def _collective(self, case: Case, operation: str, row: float, after: tuple[After, ...]) -> list[Phase]:
        """One call: launch, the steps, all rows."""
        c, back = case.calibration, operation == "combine"
        carried, asked = _carried(case)
        if back:
            carried, asked = carried.T, asked.T
        steps, flagged = self._steps(case, carried.astype(np.float64) * row)
        start = []
        if "serialisation" not in case.off:
            start.append(Local(f"{operation}.launch", "launch", case.each(c["launch"])))
        if "sync" not in case.off:
            start.append(Local(f"{operation}.steps", "sync", case.each(steps)))
        phases = sequence(start, after)
        share = np.divide(asked, carried, out=np.zeros(asked.shape), where=carried > 0)
        wire = row * (2 if flagged else 1)
        sent = pool.send(
            case,
            f"{operation}.send",
            carried,
            last(phases, after),
            payload=share * case.model.payload_bytes(self.formats[back]),
            wire=wire,
            seconds=wire / self._rate(case),
        )
        return [*phases, sent, Local(f"{operation}.here", "sync", case.each(0.0), pool.done(sent))]

    def _rate(self, case: Case) -> float:
        """[B/s] of a rank: its channels, or what the library reaches on the port."""
        c = case.calibration
        return min(c["cores"] * c["core_rate"], c[f"{self.params.algorithm}_rate"])

    def _steps(self, case: Case, size: FloatArray) -> tuple[float, bool]:
        """[s] of the steps, and whether words carry flags: the faster of the two for ``size`` (R, R) [B]."""
        c = case.calibration
        if self.params.algorithm == "nvls":
            return c["nvls"], False
        if "sync" in case.off:
            return 0.0, False
        domains = len(np.unique(case.traffic.domain))
        hops, nic_hops = case.ranks - domains, domains - 1
        plain = hops * c["hop"] + nic_hops * c["nic_hop"]
        flagged = hops * c["hop_flagged"] + nic_hops * c["nic_hop_flagged"]
        # Flags double the bytes.
        more = max(float(size.sum(axis=1).max()) / self._rate(case), _outside(case, size))
        return (flagged, True) if flagged + more < plain else (plain, False)

    def buffers(self, case: Case) -> dict[str, float]:
        """The tokens of all ranks, and a partial output for each."""
        rows = case.tokens.sum() if "memory" in case.off else float(case.ranks * case.capacity)
        return {
            "gathered": float(rows) * self.dispatch_row(case.model),
            "partial": float(rows) * self.combine_row(case.model),
        }


def _carried(case: Case) -> tuple[IntArray, IntArray]:
    """(R, R) rows that a ring carries from rank to rank in an all-gather, and those of them that are needed behind.

    The rows of a rank go to all others of its domain, and to one rank of each other domain, that of the same index
    (counted round where the domain is smaller), which passes them on like its own.
    """
    domain, tokens, needed = case.traffic.domain, case.traffic.tokens, case.traffic.rows
    carried, asked = np.zeros_like(needed), np.zeros_like(needed)
    members = [np.flatnonzero(domain == d) for d in np.unique(domain)]
    for home in members:
        for other in members:
            # The rank of ``other`` that passes on what each rank of ``home`` has.
            entry = home if other is home else other[np.arange(len(home)) % len(other)]
            np.add.at(carried, (entry[:, None], other), tokens[home, None])
            np.add.at(asked, (entry[:, None], other), needed[np.ix_(home, other)])
            if other is not home:
                carried[home, entry] = tokens[home]
                asked[home, entry] = case.traffic.rows_domain[home, domain[other[0]]]
    return carried, asked


def _outside(case: Case, size: FloatArray) -> float:
    """[s] that the busiest rank's bytes ``size`` (R, R) beyond its domain take at the rate of one such route."""
    beyond = case.traffic.domain[:, None] != case.traffic.domain
    if not beyond.any():
        return 0.0
    pair = np.flatnonzero(beyond)[:1]
    _, index, weight = case.routes.rows(pair)
    rate = float((case.routes.capacity[index] / weight).min())
    return float(np.where(beyond, size, 0.0).sum(axis=1).max()) / rate
