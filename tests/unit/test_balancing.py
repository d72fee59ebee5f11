"""What a balancer cost, counted from a layer that has run and printed by ``moesim run``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from small_cases import layer

from moesim import balancing
from moesim.comparison import compare
from moesim.console import run_report
from moesim.errors import InputError
from moesim.outcome import BACKWARD, COSTS, StrategyOutcome
from moesim.result import Result
from moesim.timing import breakdown

Make = Callable[..., Result]
MakeOutcome = Callable[..., StrategyOutcome]


def test_costs_of_a_layer_that_has_run():
    one = layer("rank-dedup-push", "moonep", pod_name="gb200-nvl72", skew=2.0, train=True)
    ran = one.fluid()
    parts = breakdown(ran)
    found = balancing.costs(one.case, ran, parts)
    moves, placement = one.case.assignment.moves, one.case.assignment.placement
    assert tuple(found) == COSTS
    assert found["copies_total"] == len(moves) > 0
    assert found["copies_most_sent"] == np.unique(moves[:, 1], return_counts=True)[1].max()
    received = np.unique(placement.slot_rank[moves[:, 0]], return_counts=True)[1]
    assert found["copies_most_received"] == received.max()
    assert found["planning_s"] == ran.spans["plan.multicast"].last_end
    assert found["weights_exposed_s"] == parts["weights"]
    pull = ran.spans["gradients.pull"]
    assert found["gradients_exposed_s"] == 0.0
    assert found["gradients_hidden_s"] == pytest.approx(pull.last_end - pull.start.min())


def test_nothing_costs_nothing():
    one = layer("deepep-ll", train=True)
    ran = one.fluid()
    assert balancing.costs(one.case, ran, breakdown(ran)) == dict.fromkeys(COSTS, 0.0)


def section(lines: list[str], title: str) -> list[list[str]]:
    """The cells under a heading, up to the next blank line."""
    start = next(number for number, line in enumerate(lines) if line.startswith(title))
    end = lines.index("", start) if "" in lines[start:] else None
    return [re.split(r" {2,}", line.strip()) for line in lines[start + 1 : end]]


def test_run_shows_copies_bytes_times_and_the_oracle(make_result: Make, make_outcome: MakeOutcome) -> None:
    """Half the oracle's speed; times that nobody has are left out."""
    costs = dict(zip(COSTS, (62.66666, 8.0, 1.0, 58.86e-6, 444.2e-6, 0.0, 0.0, 518.8e-6), strict=True))
    none, oracle = make_outcome("baseline"), make_outcome("oracle", 0.5, balancer="oracle")
    moved = make_outcome("moonep", balancer="moonep", weights_B=2.0**30, balancing=costs)
    held = {"weight_slots": 2.0**20, "gradient_slots": 2.0**21}
    moved = replace(moved, buffers_B={**moved.buffers_B, **held})
    document = make_result(strategies=(none, moved, oracle)).to_json()
    assert section(run_report(document, 120), "balancing in one layer") == [
        ["baseline", "moonep", "oracle"],
        ["copies: all / sent / received", "-", "62.7 / 8 / 1", "-"],
        ["weights sent [MiB]", "-", "1024", "-"],
        ["slots and rows [MiB]", "-", "3.00", "-"],
        ["planning [us]", "-", "58.86", "-"],
        ["weights exposed [us]", "-", "444.2", "-"],
        ["gradients hidden [us]", "-", "518.8", "-"],
        ["layer against the oracle's", "2.00x", "2.00x", "1.00x"],
    ]
    document = make_result(strategies=(none,)).to_json()
    assert "balancing in one layer" not in run_report(document, 120)


def test_run_shows_the_backward_pass(make_result: Make, make_outcome: MakeOutcome) -> None:
    one = make_outcome("baseline")
    times = dict.fromkeys(BACKWARD, one.stages["dispatch"])
    least = dict.fromkeys(BACKWARD, one.bound["dispatch"])
    trained = replace(one, stages={**one.stages, **times}, bound={**one.bound, **least})
    result = make_result(strategies=(trained,))
    lines = run_report(result.to_json(), 140)
    assert "backward" in section(lines, "critical time of one MoE layer")[0]
    shown = [row[0] for row in section(lines, "times over all layers")[1:8]]
    names = ["dispatch", "expert", "combine", *(stage.replace("_", " ") for stage in BACKWARD)]
    assert shown == names


def test_a_saved_result_of_training_is_equal(make_result: Make, make_outcome: MakeOutcome, tmp_path) -> None:
    one = make_outcome("baseline")
    times = dict.fromkeys(BACKWARD, one.stages["dispatch"])
    least = dict.fromkeys(BACKWARD, one.bound["dispatch"])
    loads = {"home": np.arange(one.stages["layer"].size).reshape(one.stages["layer"].shape)}
    loads["placed"] = loads["home"][:, ::-1].copy()
    trained = replace(one, stages={**one.stages, **times}, bound={**one.bound, **least}, entries=loads)
    result = make_result(strategies=(trained,))
    assert Result.load(result.save(tmp_path / "out")) == result


def test_comparison_has_the_backward_pass_where_both_have_it(
    make_result: Make, make_outcome: MakeOutcome
) -> None:
    one = make_outcome("baseline")
    times = dict.fromkeys(BACKWARD, one.stages["dispatch"])
    least = dict.fromkeys(BACKWARD, one.bound["dispatch"])
    trained = make_result(
        strategies=(replace(one, stages={**one.stages, **times}, bound={**one.bound, **least}),)
    ).to_json()
    plain = make_result(strategies=(one,)).to_json()
    assert "backward_expert_s" in {row.metric for row in compare(trained, trained).rows}
    assert not [row for row in compare(trained, plain).rows if row.metric.startswith("backward")]
    del trained["strategies"][0]["metrics"]["backward_expert_s"]
    with pytest.raises(InputError):
        compare(trained, trained)
