"""Hybrid-EP: a few SMs drive bulk copies (TMA), one row a (token, rank) in a domain, one a (token, domain) on the NIC.

Preprocessing (the routing map gathered from all ranks and scanned) is a call of its own; the "Torch API" figures of the
library include it and the launches, its "kernel only" figures do not. Source: DeepEP, branch hybrid-ep.
"""

from __future__ import annotations

from moesim.protocols import PROTOCOLS
from moesim.protocols.relay import Relayed


@PROTOCOLS.register("hybrid-ep")
class HybridEP(Relayed):
    """Bulk copies by 16 SMs, pipelined in chunks of 128 tokens across domains."""

    kind = "hybrid-ep"
    summary = "Hybrid-EP: bulk copies by few SMs, one row a (token, rank); one a (token, domain) on the NIC"
    bandwidth_name = (
        "rows by rank (NVL), across domains by domain (IB), own one included, over kernel time (Hybrid-EP)"
    )
