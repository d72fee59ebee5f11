from __future__ import annotations

from collections.abc import Callable

import pytest

from moesim.comparison import Row, compare
from moesim.errors import InputError
from moesim.outcome import StrategyOutcome
from moesim.result import Result

Make = Callable[..., Result]
MakeOutcome = Callable[..., StrategyOutcome]


def test_ratios_of_every_metric(make_result: Make, make_outcome: MakeOutcome) -> None:
    a = make_result(scenario={}, strategies=(make_outcome("s"),)).to_json()
    b = make_result(
        scenario={}, strategies=(make_outcome("s", 1.25, buffers_B={"dispatch": 2.0**29}),)
    ).to_json()
    found = compare(a, b)
    assert {(row.metric, row.statistic) for row in found.rows} == {
        *(
            (f"{stage}_s", s)
            for stage in ("dispatch", "expert", "combine", "layer")
            for s in a["strategies"][0]["metrics"]["layer_s"]
        ),
        ("buffers_B", "total"),
    }
    assert all(row.ratio == pytest.approx(1.25) for row in found.rows if row.metric != "buffers_B")
    assert found.rows[-1].ratio == 0.5
    assert found.rows[0] == Row(
        "s", "layer_s", "critical", *(d["strategies"][0]["metrics"]["layer_s"]["critical"] for d in (a, b))
    )


def test_worse_is_strictly_above_the_limit(make_result: Make, make_outcome: MakeOutcome) -> None:
    a, b = (
        make_result(scenario={}, strategies=(make_outcome("s", scale),)).to_json() for scale in (1.0, 1.25)
    )
    assert len(compare(a, b).worse(0.24)) == 20
    assert compare(a, b).worse(0.2500001) == []
    assert compare(b, a).worse(0.0) == []
    assert compare(a, a).worse(0.0) == []


@pytest.mark.parametrize(("key", "value"), [("fidelity", "bound"), ("tolerance", 0.0)])
def test_unlike_is_not_compared_with_unlike(make_result: Make, key: str, value: object) -> None:
    with pytest.raises(InputError, match=f"cannot compare: {key}"):
        compare(make_result().to_json(), make_result(**{key: value}).to_json())


def test_strategies_are_matched_by_name_and_the_rest_is_named(
    make_result: Make, make_outcome: MakeOutcome
) -> None:
    a = make_result(scenario={}, strategies=(make_outcome("x"), make_outcome("y"))).to_json()
    b = make_result(scenario={}, strategies=(make_outcome("z"), make_outcome("y"))).to_json()
    found = compare(a, b)
    assert {row.strategy for row in found.rows} == {"y"}
    assert (found.only_a, found.only_b) == (("x",), ("z",))
    with pytest.raises(InputError, match="no strategy is in both"):
        compare(a, make_result(scenario={}, strategies=(make_outcome("z"),)).to_json())


def test_changed_inputs_are_named_with_their_place(make_result: Make) -> None:
    a = make_result()
    changed = {
        **a.scenario,
        "ranks": {"ep": 8, "place": "packed"},
        "strategies": [{**a.scenario["strategies"][0], "balancer": "moonep"}],
    }
    found = compare(a.to_json(), make_result(scenario=changed).to_json())
    assert found.differences == ("ranks.ep: 4 -> 8", "strategies.0.balancer: none -> moonep")
    assert compare(a.to_json(), a.to_json()).differences == ()


def test_ratio_from_nothing() -> None:
    assert Row("s", "m", "t", 0.0, 0.0).ratio == 1.0
    assert Row("s", "m", "t", 0.0, 1.0).ratio == float("inf")


@pytest.mark.parametrize(
    ("strategies", "message"),
    [
        ([], "strategies cannot be a list of 0"),
        ([{}], "'name' is missing in strategies.0"),
        ([None], "strategies.0 cannot be empty"),
        ([{"name": "baseline"}], "'metrics' is missing in strategies.0"),
        ([{"name": "baseline", "metrics": 3, "buffers_B": {}}], "strategies.0.metrics cannot be 3"),
    ],
)
def test_an_incomplete_document_is_refused(make_result: Make, strategies: list[object], message: str) -> None:
    a = make_result().to_json()
    with pytest.raises(InputError) as caught:
        compare(a, {**a, "strategies": strategies})
    assert any(message in str(problem) for problem in caught.value.problems), str(caught.value)
    assert {problem.path for problem in caught.value.problems} == {"the second result"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e-6, "5us", None, True, 10**400])
def test_what_is_no_time_is_refused_and_not_compared(make_result: Make, value: object) -> None:
    good, bad = make_result().to_json(), make_result().to_json()
    bad["strategies"][0]["metrics"]["layer_s"]["critical"] = value
    with pytest.raises(InputError, match=r"strategies\.0\.metrics\.layer_s\.critical cannot be"):
        compare(good, bad)


def test_what_is_no_summary_is_refused(make_result: Make) -> None:
    made = make_result()
    with pytest.raises(TypeError, match=r"Result\.to_json"):
        compare(made, made)  # type: ignore[arg-type]
    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"x": deep}
    with pytest.raises(InputError, match="nested"):
        compare(made.to_json(), {**made.to_json(), "scenario": deep})
