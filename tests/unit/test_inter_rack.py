"""Expert parallelism over several NVLink domains: direct protocols send every row over NICs, hierarchical ones few."""

from __future__ import annotations

import numpy as np
import pytest
from small_cases import layer

from moesim.plan import Transfer

RACKS, RANKS, TOKENS, TOP_K = "gb200-nvl72-racks", 144, 16, 8
SHAPE = {"pod_name": RACKS, "ep": RANKS, "experts": 2 * RANKS, "top_k": TOP_K, "tokens": TOKENS, "skew": 0.0}


def between_racks(one, operation):
    """(messages, wire [B]) that cross the NICs in one operation."""
    domain = one.case.traffic.domain
    messages = wire = 0.0
    for phase in one.plan.phases:
        if isinstance(phase, Transfer) and phase.name.startswith(operation) and phase.label == "send":
            beyond = domain[phase.flows.src] != domain[phase.flows.dst]
            messages += phase.flows.messages[beyond].sum()
            wire += phase.flows.wire[beyond].sum()
    return messages, wire


def test_two_racks_are_two_domains():
    one = layer("deepep-ll", **SHAPE)
    assert np.bincount(one.case.traffic.domain).tolist() == [72, 72]
    assert len(np.unique(one.case.traffic.host)) == 36


@pytest.mark.parametrize("protocol", ["deepep-ll", "nccl-alltoall"])
def test_a_direct_protocol_sends_every_entry_beyond_the_rack_over_a_nic(protocol):
    one = layer(protocol, **SHAPE)
    traffic = one.case.traffic
    beyond = int(traffic.entries_to[traffic.domain[:, None] != traffic.domain].sum())
    row = one.strategy.protocol.dispatch_row(one.case.model)
    assert between_racks(one, "dispatch") == pytest.approx((beyond, beyond * row))
    busiest = np.where(traffic.domain[:, None] != traffic.domain, traffic.entries_to, 0).sum(axis=1).max()
    # One port of 50 GB/s a GPU, 96 % of it payload.
    assert one.bound().end("dispatch").max() > busiest * row / 48e9


@pytest.mark.parametrize("protocol", ["deepep-ht", "hybrid-ep"])
def test_a_hierarchical_protocol_sends_each_token_once_to_the_other_rack(protocol):
    one = layer(protocol, **SHAPE)
    traffic = one.case.traffic
    crossing = sum(int(traffic.rows_domain[traffic.domain == d, 1 - d].sum()) for d in (0, 1))
    # Nearly every token has an expert in the other rack, and its other experts there cost no NIC.
    assert 0.95 * RANKS * TOKENS < crossing <= RANKS * TOKENS
    _, direct = between_racks(layer("deepep-ll", **SHAPE), "combine")
    for operation, row in (("dispatch", one.strategy.protocol.dispatch_row), ("combine", None)):
        _, wire = between_racks(one, operation)
        size = (row or one.strategy.protocol.combine_row)(one.case.model)
        assert wire == pytest.approx(crossing * size, rel=0.01)
        assert wire < direct / 3.5


def test_a_gather_takes_each_rank_over_its_own_nic_once():
    one = layer("allgather-reducescatter", **SHAPE)
    flows = next(phase for phase in one.plan.phases if phase.name == "dispatch.send").flows
    domain = one.case.traffic.domain
    beyond = domain[flows.src] != domain[flows.dst]
    assert flows.src[beyond].tolist() == list(range(RANKS))
    assert flows.messages[beyond].tolist() == [TOKENS] * RANKS
    received = np.bincount(flows.dst, flows.messages, RANKS)
    assert received.tolist() == [(RANKS - 1) * TOKENS] * RANKS
