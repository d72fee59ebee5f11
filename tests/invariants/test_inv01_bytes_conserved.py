"""Invariant 1: bytes are conserved, phase by phase and resource by resource."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_cases import layer

from moesim.contention import demand
from moesim.plan import Transfer
from moesim.protocols import PROTOCOLS


@pytest.mark.parametrize("protocol", PROTOCOLS.names())
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 999), skew=st.sampled_from([0.0, 1.0, 4.0]), pod=st.sampled_from(["clos", "rails"])
)
def test_what_leaves_arrives_and_every_resource_carries_its_share(protocol, seed, skew, pod):
    one = layer(protocol, "moonep", pod_name=pod, skew=skew, seed=seed)
    load = np.zeros(len(one.resources.capacity))
    ports = np.array([name.endswith("port up") for name in one.resources.routes.names])
    for phase in one.plan.phases:
        if not isinstance(phase, Transfer):
            continue
        flows, taken = phase.flows, demand(phase.flows, one.resources)
        left = np.bincount(flows.src, weights=flows.wire, minlength=8)
        assert left.sum() == pytest.approx(np.bincount(flows.dst, weights=flows.wire, minlength=8).sum())
        carried = np.bincount(taken.index, weights=taken.amount, minlength=len(load))
        if pod == "clos":
            assert carried[: one.resources.fabric][ports].sum() == pytest.approx(flows.wire.sum())
        load += carried
    assert _rows(one, "dispatch") == pytest.approx(_rows(one, "combine").T)
    assert one.fluid().load == pytest.approx(load, rel=1e-9)


def _rows(one, operation):
    """(8, 8) rows from rank to rank in ``operation``: all hops with all their chunks, and no counts."""
    asked = one.case.model.payload_bytes(one.strategy.protocol.formats[operation == "combine"])
    rows = np.zeros((8, 8))
    for phase in one.plan.phases:
        if isinstance(phase, Transfer) and phase.label == "send" and phase.name.startswith(operation):
            np.add.at(rows, (phase.flows.src, phase.flows.dst), phase.flows.payload / asked)
    return rows


RELAYED = ("deepep-ht", "deepep-v2", "hybrid-ep")


@pytest.mark.parametrize("protocol", RELAYED)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 999), skew=st.sampled_from([0.0, 1.0, 4.0]), tokens=st.sampled_from([12, 300]))
def test_relayed_rows_cross_two_hops_and_reach_every_rank_that_a_token_asks_for(protocol, seed, skew, tokens):
    """Two hosts of four, one domain each: token by token, over the rank of the same index, unless that is the end."""
    one = layer(protocol, pod_name="rails", skew=skew, seed=seed, tokens=tokens)
    asked = one.case.assignment.placement.slot_rank[one.case.assignment.slot]
    rows = np.zeros((8, 8))
    for source, ranks in zip(np.arange(8).repeat(tokens), asked, strict=True):
        relays = {source if rank // 4 == source // 4 else (source + 4) % 8 for rank in ranks}
        for relay in relays - {source}:
            rows[source, relay] += 1
        for rank in set(ranks):
            relay = source if rank // 4 == source // 4 else (source + 4) % 8
            rows[relay, rank] += rank != relay
    assert _rows(one, "dispatch") == pytest.approx(rows)
    assert _rows(one, "combine") == pytest.approx(rows.T)
