"""Times whole plans: layers of a large EP group in one run at fidelity fluid. Counts are asserted, seconds printed.

    pytest tests/benchmarks/test_plans.py -m benchmark_works -s

A small group always runs, so that this file keeps working.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from moesim import scenario, simulate
from moesim.build import build
from moesim.result import Result

TEXT = """\
moesim: 1
topology: cloudmatrix384
ranks: {{ep: {ep}}}
model: deepseek-v3
workload: {{phase: decode, tokens_per_rank: 128, layers: {layers}}}
routing: {{kind: {routing}}}
strategies: [{{name: one, protocol: {protocol}, balancer: none}}]
fidelity: fluid
seed: 1
"""
TOLERANCE = 0.003


def _timed(folder: Path, ep: int, layers: int, routing: str, protocol: str) -> Result:
    path = folder / "layers.yaml"
    path.write_text(TEXT.format(ep=ep, layers=layers, routing=routing, protocol=protocol))
    one = scenario.load(path)
    began = time.process_time()
    assert build(one).trace.steps == 1
    routed = time.process_time()
    result = simulate.run(one)
    ended = time.process_time()
    print(
        f"\n{protocol:>8} {routing:<9} EP{ep} {layers} layers: {ended - routed:6.2f} s CPU, and before it"
        f" {routed - began:.2f} s for pod and routing, {result.strategies[0].solves} solves,"
        f" estimated error of a finish {result.strategies[0].error_estimate * 1e6:.3f} us",
        end="",
    )
    return result


def _check(result: Result, ep: int, layers: int, routing: str) -> None:
    (one,) = result.strategies
    assert one.stages["layer"].shape == (layers, ep)
    for stage, least in one.bound.items():
        assert (one.stages[stage].max(axis=1) >= least * (1 - 1e-9)).all(), stage
    # All that begin a transfer together are one start; a start and a merged step cost one solve each.
    starts = 1 if routing == "balanced" else ep
    assert one.solves <= 2 * layers * (starts + 2 / TOLERANCE)
    if routing == "balanced":
        assert one.solves == 2 * layers


@pytest.mark.parametrize("protocol", ["cann-ep", "ubep"])
@pytest.mark.parametrize("routing", ["balanced", "realistic"])
def test_small_groups_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, routing: str, protocol: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _check(_timed(tmp_path, 16, 1, routing, protocol), 16, 1, routing)


@pytest.mark.benchmark_works
@pytest.mark.parametrize("protocol", ["cann-ep", "ubep"])
@pytest.mark.parametrize("routing", ["balanced", "realistic"])
def test_eight_layers_of_ep256(tmp_path: Path, routing: str, protocol: str) -> None:
    """Dispatch and combine of 65,280 pairs of ranks, eight times."""
    _check(_timed(tmp_path, 256, 8, routing, protocol), 256, 8, routing)
