"""Scenarios run end to end: fidelities, seeds, terms, background, what has no effect."""

from __future__ import annotations

import numpy as np
import pytest

from moesim import scenario, simulate

TEXT = """\
moesim: 1
topology: cloudmatrix384
ranks: {ep: 16}
model: {hidden: 1024, layers: 3, moe_layers: 3, experts: 32, top_k: 4, intermediate: 256, expert_dtype: int8}
workload: {phase: decode, tokens_per_rank: 8, layers: 2}
routing: {kind: lognormal, sigma: 1}
strategies:
  - {name: base, protocol: cann-ep}
  - {name: better, protocol: ubep, balancer: moonep, assume: [multicast]}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "s.yaml"
    path.write_text(TEXT)

    def go(*sets, progress=None, **options):
        return simulate.run(scenario.load(str(path), list(sets), **options), progress)

    return go


def critical(result, stage="layer_s"):
    return [one.metrics()[stage]["critical"] for one in result.strategies]


def test_every_strategy_on_every_step_and_layer(run):
    seen = []
    result = run("workload.steps=2", progress=lambda done, of, what: seen.append((done, of, what)))
    assert [one.name for one in result.strategies] == ["base", "better"]
    assert all(len(one.cases) == 4 for one in result.strategies)
    assert [entry[:2] for entry in seen] == [(n, 8) for n in range(8)]
    assert seen[0][2] == "base: step 0, layer 0"
    assert result.strategies[1].assumed == ("multicast",)


def test_the_same_seed_gives_the_same_answer_and_another_another(run):
    assert critical(run()) == critical(run())
    assert critical(run()) != critical(run(seed=1))


def test_a_bound_is_below_fluid_and_solves_nothing(run):
    fluid, bound = run(), run(fidelity="bound")
    assert (np.array(critical(bound)) <= np.array(critical(fluid)) * 1.003).all()
    assert [one.solves for one in bound.strategies] == [0, 0]
    assert bound.tolerance == 0.0
    for one, other in zip(fluid.strategies, bound.strategies, strict=True):
        assert all(np.array_equal(one.bound[stage], other.bound[stage]) for stage in one.bound)


def test_bound_overrides_the_scenario_s_fidelity(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(TEXT)
    assert simulate.bound(scenario.load(str(path))).fidelity == "bound"


def test_sources_of_everything_that_entered(run):
    result = run()
    keys = {source.key for source in result.sources}
    assert keys >= {"cm384", "ubep-note", "hpm", "moonep"}
    assert any(name.endswith("cloudmatrix384.yaml") for name in result.inputs)
    assert any(name.endswith("cann-ep.yaml") for name in result.inputs)
    assert all(len(digest) == 64 for digest in result.inputs.values())


@pytest.mark.parametrize("term", ["serialisation", "sync", "imbalance", "memory"])
def test_each_term_has_an_effect_and_is_not_called_idle(run, term):
    result = run(f"switch_off=[{term}]", "workload.layers=1", fidelity="bound")
    assert not [warning for warning in result.warnings if "switch_off" in warning]


def test_a_term_without_effect_is_named(run):
    result = run(
        "switch_off=[imbalance]",
        "workload.tokens_per_rank=0",
        "strategies=[{name: n, protocol: cann-ep}]",
        "fidelity=bound",
    )
    assert "switch_off: imbalance has no effect on these strategies" in result.warnings


def test_background_slows_fluid_and_is_idle_in_a_bound(run):
    busy = ("workload.tokens_per_rank=64", "model.hidden=7168", "workload.layers=1")
    others = "background=[{src: 1, dst: 9, size: 1GB}]"
    assert critical(run(others, *busy))[0] > critical(run(*busy))[0] * 1.005
    result = run(others, "fidelity=bound")
    assert any("background has no effect" in warning for warning in result.warnings)


def test_tolerance_is_idle_in_a_bound(run):
    assert any("tolerance" in warning for warning in run("tolerance=1%", fidelity="bound").warnings)
    assert not any("tolerance" in warning for warning in run("tolerance=1%").warnings)


def test_buffers_hold_the_largest_case(run):
    sets = ("strategies=[{name: n, protocol: nccl-alltoall}]", "fidelity=bound")
    both = run(*sets).strategies[0].buffers_B
    each = [run(*sets, f"workload.layers=[{layer}]").strategies[0].buffers_B for layer in (0, 1)]
    assert both == {kind: max(one[kind] for one in each) for kind in both}
    assert each[0] != each[1]


@pytest.mark.parametrize(
    "sets", [("ranks.ep=1",), ("workload.tokens_per_rank=0",), ("ranks.place=spread", "ranks.ep=32")]
)
def test_edges(run, sets):
    for fidelity in ("fluid", "bound"):
        result = run(*sets, "workload.layers=1", fidelity=fidelity)
        assert all(np.isfinite(critical(result))), fidelity


def test_a_fault_slows_what_crosses_it(run):
    hit = run("faults=[{rank: 3, capacity: 10%}]")
    assert critical(hit)[0] > critical(run())[0]
