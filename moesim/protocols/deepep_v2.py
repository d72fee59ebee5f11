"""DeepEP V2 (elastic): the same rows as high-throughput V1, written straight to their place by bulk copies.

Each row carries K expert numbers (8 B) and weights (4 B), which its bandwidths count ("SU" by rank, "SO" by domain).
Source: DeepEP, main branch of 2026, README and tests/test_ep.py.
"""

from __future__ import annotations

from typing import Literal

from moesim.moe import MoEModel
from moesim.protocols import PROTOCOLS
from moesim.protocols.relay import Relayed, RelayedParams

INDEX, WEIGHT = 8, 4
"""Bytes of an expert number and of a gate weight."""


class DeepEPV2Params(RelayedParams):
    """As of the others, but FP8 by default."""

    dispatch: Literal["fp8", "bf16"] = "fp8"


@PROTOCOLS.register("deepep-v2")
class DeepEPV2(Relayed):
    """Bulk copies, rows once a rank in a domain, once a domain on the NIC."""

    kind = "deepep-v2"
    summary = "DeepEP V2 (elastic): bulk copies straight to their place; one row a (token, domain) on the NIC"
    bandwidth_name = (
        "rows by rank (SU), across domains by domain (SO), with K x 12 B, own one included (DeepEP V2)"
    )
    Params = DeepEPV2Params
    params: DeepEPV2Params

    def dispatch_row(self, model: MoEModel) -> float:
        return super().dispatch_row(model) + model.top_k * (INDEX + WEIGHT)

    def counted_row(self, model: MoEModel, operation: str) -> float:
        return self.combine_row(model) if operation == "combine" else self.dispatch_row(model)
