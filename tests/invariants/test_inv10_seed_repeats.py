"""Invariant 10: the same scenario and seed give the same bytes, whatever ran before and in between."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_cases import layer

from moesim import scenario, simulate
from moesim.balancers import BALANCERS
from moesim.protocols import PROTOCOLS

TEXT = """\
moesim: 1
topology: gb200-nvl72
ranks: {ep: 8}
model: {hidden: 512, layers: 2, moe_layers: 2, experts: 16, top_k: 4, intermediate: 256}
workload: {phase: decode, tokens_per_rank: 16}
routing: {kind: lognormal, sigma: 1}
strategies:
  - {name: a, protocol: deepep-ll, balancer: random}
  - {name: b, protocol: rank-dedup-push, balancer: moonep}
"""


@pytest.mark.parametrize("fidelity", ["fluid", "bound"])
def test_a_scenario_repeats_to_the_byte(tmp_path, monkeypatch, fidelity):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "s.yaml"
    path.write_text(TEXT)
    texts = []
    for _ in range(2):
        np.random.default_rng().random()
        result = simulate.run(scenario.load(str(path), [], fidelity=fidelity))
        texts.append(json.dumps(result.to_json(), sort_keys=True))
    assert texts[0] == texts[1]
    other = simulate.run(scenario.load(str(path), [], seed=1, fidelity=fidelity))
    assert json.dumps(other.to_json(), sort_keys=True) != texts[0]


@pytest.mark.parametrize("protocol", PROTOCOLS.names())
@pytest.mark.parametrize("balancer", BALANCERS.names())
def test_a_run_repeats(protocol, balancer):
    ends = [layer(protocol, balancer, pod_name="clos").fluid(0.003).end("combine").tolist() for _ in range(2)]
    assert ends[0] == ends[1]
