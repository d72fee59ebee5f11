"""Invariant 8: more capacity of anything never raises a bound. (It can slow a max-min fluid.)"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_cases import SOME_PODS, layer

from moesim import bounds
from moesim.contention import Resources
from moesim.protocols import PROTOCOLS


@pytest.mark.parametrize("protocol", PROTOCOLS.names())
@settings(max_examples=10, deadline=None)
@given(st.sampled_from(SOME_PODS), st.integers(0, 99), st.floats(0, 1, exclude_max=True), st.floats(1, 50))
def test_more_capacity(protocol, pod, seed, which, more):
    one = layer(protocol, pod_name=pod, seed=seed)
    routes = one.resources.routes
    capacity = routes.capacity.copy()
    capacity[int(which * len(capacity))] *= more
    wider = Resources(replace(routes, capacity=capacity), one.resources.cores)
    before = bounds.stages(one.bound(), one.resources)[1]
    after = bounds.stages(bounds.run(one.plan, wider), wider)[1]
    for stage in ("dispatch", "layer"):
        assert after[stage] <= before[stage] * (1 + 1e-12)


def test_twice_the_capacity_of_everything_helps():
    one = layer("deepep-ll", pod_name="clos", ep=16, tokens=64, hidden=7168, off=["imbalance"])
    routes = one.resources.routes
    wider = Resources(replace(routes, capacity=routes.capacity * 2), one.resources.cores)
    assert bounds.run(one.plan, wider).end("combine").max() < one.bound().end("combine").max()
