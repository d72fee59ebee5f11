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
    # Combine brings back the rows that dispatch has taken away, and no others.
    there, back = (
        next(p.flows for p in one.plan.phases if p.name == name) for name in ("dispatch.send", "combine.send")
    )
    rows = [np.zeros((8, 8)) for _ in range(2)]
    asked = [one.case.model.payload_bytes(form) for form in one.strategy.protocol.formats]
    np.add.at(rows[0], (there.src, there.dst), there.payload / asked[0])
    np.add.at(rows[1], (back.dst, back.src), back.payload / asked[1])
    assert rows[0] == pytest.approx(rows[1])
    assert one.fluid().load == pytest.approx(load, rel=1e-9)
