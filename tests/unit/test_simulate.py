"""Scenarios run end to end: fidelities, seeds, terms, background, what has no effect."""

from __future__ import annotations

import numpy as np
import pytest

from moesim import explain, scenario, simulate
from moesim.balancers.shuffled import Shuffled
from moesim.errors import InputError

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


def test_a_balancer_is_told_where_and_when_it_is_and_what_came_before(run, monkeypatch):
    seen, assign = [], Shuffled.assign

    def watched(self, ids, ranks, experts, rng, context):
        seen.append((context, np.bincount(ids.ravel(), minlength=experts)))
        return assign(self, ids, ranks, experts, rng, context)

    monkeypatch.setattr(Shuffled, "assign", watched)
    run("strategies.base.balancer=random", "workload.steps=3", "workload.layers=[2,0]", "ranks.ep=32")
    assert [(one.step, one.layer) for one, _ in seen] == [(s, n) for s in range(3) for n in (0, 2)]
    for context, _ in seen:
        before = [counts.tolist() for one, counts in seen if one.layer == context.layer]
        assert context.layers == 3
        assert context.past.tolist() == before[: context.step]
        assert context.host.tolist() == [rank // 16 for rank in range(32)]
        assert not context.domain.any()


def test_explain_tells_a_balancer_the_same_ranks(tmp_path, monkeypatch):
    seen, assign = [], Shuffled.assign
    monkeypatch.setattr(Shuffled, "assign", lambda *args: seen.append(args[-1]) or assign(*args))
    (tmp_path / "s.yaml").write_text(TEXT)
    sets = ["strategies.base.balancer=random", "ranks.ep=32"]
    explain.explain(scenario.load(tmp_path / "s.yaml", sets))
    assert [one.host.tolist() for one in seen] == [[rank // 16 for rank in range(32)]]
    assert seen[0].past.shape == (0, 32)


def test_the_same_seed_gives_the_same_answer_and_another_another(run):
    assert critical(run()) == critical(run())
    assert critical(run()) != critical(run(seed=1))


def test_a_bound_is_below_fluid_and_solves_nothing(run):
    fluid, bound = run(), run(fidelity="bound")
    assert (np.array(critical(bound)) <= np.array(critical(fluid)) * (1 + 1e-9)).all()
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


@pytest.mark.parametrize("fidelity", ["fluid", "bound"])
def test_a_term_that_changes_costs_and_no_answer_is_named(run, fidelity):
    """Copies are dealt to cores, but so few of them keep no core longer than the NIC."""
    few = ("topology=h100-ib", "strategies=[{name: n, protocol: deepep-ll}]")
    named = "switch_off: imbalance has no effect on these strategies"
    for others, idle in ((few, True), ((), False)):
        off, on = (
            run(f"switch_off=[{terms}]", "workload.layers=1", *others, fidelity=fidelity)
            for terms in ("imbalance", "")
        )
        same = [
            np.allclose(first.stages["layer"], second.stages["layer"], rtol=0.003)
            for first, second in zip(off.strategies, on.strategies, strict=True)
        ]
        assert (named in off.warnings) == all(same) == idle


def test_background_slows_fluid_and_is_idle_in_a_bound(run):
    busy = ("workload.tokens_per_rank=64", "model.hidden=7168", "workload.layers=1")
    others = "background=[{src: 1, dst: 9, size: 1GB}]"
    assert critical(run(others, *busy))[0] > critical(run(*busy))[0] * 1.005
    result = run(others, "fidelity=bound")
    assert any("background has no effect" in warning for warning in result.warnings)


def told(result, what):
    return [warning for warning in result.warnings if warning.startswith(what) and "has no effect" in warning]


def test_background_that_comes_too_late_is_named_and_changes_nothing(run):
    plain = run()
    late = run("background=[{src: 1, dst: 9, size: 1GB, start: 0s}, {src: 1, dst: 9, size: 1GB, start: 1s}]")
    assert told(late, "background.0") == []
    assert len(told(late, "background.1")) == 1
    only_late = run("background=[{src: 1, dst: 9, size: 1GB, start: 1s}]")
    assert critical(only_late) == critical(plain)
    links = (row for one in only_late.strategies for row in one.links)
    assert not any(row["background_B"] > 0 for row in links)


def test_background_that_starts_while_the_layer_runs_slows_what_comes_after(run):
    busy = (
        "workload.tokens_per_rank=64",
        "model.hidden=7168",
        "workload.layers=1",
        "routing={kind: balanced}",
    )
    plain = run(*busy)
    begun = plain.strategies[0].stages["dispatch"].max()
    later = run(f"background=[{{src: 1, dst: 9, size: 1GB, start: {begun * 1e6}us}}]", *busy)
    assert told(later, "background") == []
    assert critical(later, "dispatch_s")[0] == pytest.approx(critical(plain, "dispatch_s")[0], rel=1e-3)
    assert critical(later, "combine_s")[0] > critical(plain, "combine_s")[0] * 1.005


def test_the_background_s_load_is_on_the_links_and_makes_the_bottleneck(run):
    result = run("background=[{src: 1, dst: 9, size: 1GB}]")
    for one in result.strategies:
        shared = [row for row in one.links if row["background_B"] > 0]
        assert {row["resource"] for row in shared} >= {"die1 lane up", "die9 lane down"}
        assert all(row["load_B"] < row["background_B"] for row in shared)
        assert one.bottleneck[0] == "die1 write engine"
        assert 0.5 < one.bottleneck[1] <= 1 + 1e-9


def test_background_that_nobody_shares_with_is_named(run):
    nothing_sent = ("workload.tokens_per_rank=0", "strategies=[{name: n, protocol: cann-ep}]")
    apart = run("background=[{src: 1, dst: 9, size: 1MB}, {src: 2, dst: 4, size: 1MB}]", *nothing_sent)
    assert len(told(apart, "background")) == 2
    together = run("background=[{src: 1, dst: 9, size: 1MB}, {src: 1, dst: 4, size: 1MB}]", *nothing_sent)
    assert told(together, "background") == []


@pytest.mark.parametrize("kept", ["0%", "50%"])
@pytest.mark.parametrize("fidelity", ["fluid", "bound"])
def test_a_fault_that_no_flow_meets_is_named(run, kept, fidelity):
    faults = f"faults=[{{chip: 0, capacity: {kept}}}, {{chip: 300, capacity: {kept}}}]"
    result = run(faults, "workload.layers=1", fidelity=fidelity)
    assert told(result, "faults.0") == []
    assert len(told(result, "faults.1")) == 1


@pytest.mark.parametrize("fault", ["rank: 3", "plane: 0", "chip: 0", "link: die3--host0/l1.0"])
def test_a_fault_of_each_kind_makes_no_transfer_faster(run, fault):
    hit = run(f"faults=[{{{fault}, capacity: 50%}}]", "workload.layers=1")
    assert told(hit, "faults") == []
    plain = run("workload.layers=1")
    assert critical(hit, "dispatch_s")[0] >= critical(plain, "dispatch_s")[0] * (1 - 1e-9)


def test_a_fault_that_cuts_a_rank_off_is_shown_where_it_is_written(run):
    with pytest.raises(InputError, match=r"--set:1:9: .*cut off: rank 3"):
        run("faults=[{rank: 3}]")


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


@pytest.mark.parametrize("call", [simulate.run, simulate.bound])
def test_only_a_scenario_is_simulated(call):
    with pytest.raises(TypeError, match=r"as moesim\.load gives it, not a int"):
        call(3)
