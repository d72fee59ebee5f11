"""Access rdma: every message through the sender's NIC, also to a rank of the same host."""

from __future__ import annotations

import numpy as np
import pytest
from small_cases import layer, placed, pod

from moesim.errors import InputError
from moesim.routing import routes
from moesim.topology import Tier

RDMA = {"kind": "deepep-ll", "transport": "rdma"}


def taken(ways, src, dst):
    at = slice(*ways.indptr[src * ways.ranks + dst :][:2])
    return dict(zip((ways.kinds[i] for i in ways.index[at]), ways.weight[at], strict=True))


def test_ranks_of_a_host_meet_at_the_spine_and_others_on_their_rail():
    ways, stores = (placed("rails", 8, "packed", access) for access in ("rdma", "store"))
    assert set(taken(stores, 0, 1)) == {"mesh"}
    assert set(taken(ways, 0, 1)) == {"bus", "nic", "spine"}
    assert set(taken(ways, 0, 4)) == {"bus", "nic"}
    assert ways.latency[0, 4] == stores.latency[0, 4]
    assert ways.latency[0, 1] > stores.latency[0, 1]
    assert ways.tier[0, 1] == Tier.HOST


def test_a_pod_without_nics_is_refused():
    with pytest.raises(InputError, match="no NICs"):
        routes(pod("gb200-nvl72"), np.arange(4), "rdma")


def test_all_rows_but_those_to_itself_leave_by_the_nic():
    """NIC bytes are (P - 1) / P of the messages: section 6.3 of the notes on NVIDIA systems."""
    ids = np.tile(np.arange(16), (8 * 16, 1))
    one = layer(RDMA, pod_name="rails", experts=16, top_k=16, tokens=16, ids=ids)
    operation = one.strategy.protocol.operation("dispatch", one.case)
    flows = next(phase.flows for phase in operation if phase.name == "dispatch.send")
    messages = one.strategy.protocol.logical_bytes(one.case)
    ways = one.resources.routes
    nic = [i for i, name in enumerate(ways.names) if ways.kinds[i] == "bus" and name.endswith("up")]
    load = one.bound().load[nic] / 2  # dispatch and combine
    wire = np.bincount(flows.src, flows.wire)
    assert wire == pytest.approx(messages * 7 / 8)
    row = one.strategy.protocol.combine_row(one.case.model)
    assert load == pytest.approx((wire + 16 * 14 * row) / 2)


def test_a_direct_protocol_uses_stores_where_they_reach():
    direct = layer("deepep-ll", pod_name="rails")
    assert direct.resources.routes.access == "store"
    assert layer(RDMA, pod_name="rails").resources.routes.access == "rdma"
