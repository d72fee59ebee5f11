"""Invariant 12: zero tokens cost only fixed terms: nothing that depends on sizes, and nothing without fixed terms."""

from __future__ import annotations

import numpy as np
import pytest
from small_cases import SOME_PODS, layer, pod

from moesim.balancers import BALANCERS
from moesim.plan import Local, Transfer
from moesim.protocols import PROTOCOLS


@pytest.mark.parametrize("protocol", PROTOCOLS.names())
@pytest.mark.parametrize("balancer", BALANCERS.names())
@pytest.mark.parametrize("where", SOME_PODS)
def test_zero_tokens(protocol, balancer, where):
    one = layer(protocol, balancer, pod_name=where, tokens=0)
    sent = [phase for phase in one.plan.phases if isinstance(phase, Transfer)]
    rows = [phase for phase in sent if phase.label not in ("metadata", "planning")]
    assert all(len(phase.flows) == 0 for phase in rows)
    ran = one.fluid()
    fixed = sum(phase.duration.max() for phase in one.plan.phases if isinstance(phase, Local))
    # All that remains is latencies of records and flags, and of counts and plans, which are of a few kB.
    latency = one.resources.routes.latency.max()
    planned = sum(phase.label == "planning" for phase in sent)
    assert ran.end("combine").max() <= fixed + (4 + planned) * latency + planned * 0.1e-6
    # Records that meet on the way are all that can contend.
    assert ran.end("combine") == pytest.approx(one.bound().end("combine"), rel=1e-4)
    for name, value in (("hidden", 8192), ("intermediate", 4096), ("top_k", 8)):
        changed = layer(protocol, balancer, pod_name=where, tokens=0, **{name: value})
        assert changed.fluid().end("combine").tolist() == ran.end("combine").tolist()


def test_gemms_of_no_rows_read_no_weights():
    one = layer("cann-ep", pod_name="cloudmatrix384", tokens=0, intermediate=100_000)
    assert np.isfinite(pod("cloudmatrix384").device.hbm_rate)
    assert not next(phase for phase in one.plan.phases if phase.name == "expert.gemm").duration.any()
