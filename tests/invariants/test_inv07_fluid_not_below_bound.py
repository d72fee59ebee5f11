"""Invariant 7: no stage of a fluid run is shorter than its closed-form bound, on any rank or on the slowest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_cases import SOME_PODS, layer, stages

from moesim import bounds
from moesim.balancers import BALANCERS
from moesim.protocols import PROTOCOLS, TERMS


@st.composite
def cases(draw):
    ep = draw(st.sampled_from([1, 2, 3, 5, 8]))
    experts = ep * draw(st.integers(1, 4))
    return {
        "ep": ep,
        "experts": experts,
        "balancer": draw(st.sampled_from(BALANCERS.names())),
        "pod_name": draw(st.sampled_from([*SOME_PODS, "rails"])),
        "top_k": draw(st.integers(1, min(4, experts))),
        "tokens": draw(st.sampled_from([0, 1, 7, 33])),
        "skew": draw(st.sampled_from([0.0, 1.0, 5.0])),
        "hidden": draw(st.sampled_from([64, 7168])),
        "seed": draw(st.integers(0, 999)),
        "off": draw(st.sets(st.sampled_from(TERMS))),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS.names())
@settings(max_examples=25, deadline=None)
@given(case=cases())
def test_fluid_is_not_below_bound(protocol, case):
    one = layer(protocol, **case)
    ran = stages(one.fluid())
    ranked, largest = bounds.stages(one.bound(), one.resources)
    for stage, times in ran.items():
        assert (times >= ranked[stage] - 1e-9 * times.max() - 1e-15).all(), stage
        assert times.max() >= largest[stage] * (1 - 1e-9), stage
