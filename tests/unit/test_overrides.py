from __future__ import annotations

import pytest

from moesim import yamlio
from moesim.errors import InputError
from moesim.overrides import overridden

TEXT = """\
topology: h100-ib
ranks: {ep: 8}
empty:
strategies:
  - {name: a, protocol: ubep}
  - {name: b, protocol: {kind: ubep}}
"""


def after(*sets: str) -> dict[str, object]:
    return overridden(yamlio.loads(TEXT, "f.yaml"), sets, "--set").data


def test_values_are_yaml() -> None:
    data = after("ranks.ep=16", "x=a", "y=[1, {b: 2us}]", "z=", "w=a=b", "v='1'")
    assert data["ranks"] == {"ep": 16}
    assert (data["x"], data["y"], data["z"], data["w"], data["v"]) == (
        "a",
        [1, {"b": "2us"}],
        None,
        "a=b",
        "1",
    )


def test_list_items_by_number_and_by_name() -> None:
    strategies = after("strategies.0.name=c", "strategies.b.name=d")["strategies"]
    assert [one["name"] for one in strategies] == ["c", "d"]  # type: ignore[attr-defined]


def test_a_bare_name_becomes_a_mapping() -> None:
    data = after("topology.hosts=4", "strategies.a.protocol.sync=sp")
    assert data["topology"] == {"name": "h100-ib", "hosts": 4}
    assert data["strategies"][0]["protocol"] == {"kind": "ubep", "sync": "sp"}  # type: ignore[index]


def test_missing_mappings_are_made() -> None:
    data = after("routing.drift.tau=50", "empty.x=1")
    assert data["routing"] == {"drift": {"tau": 50}}
    assert data["empty"] == {"x": 1}


def test_a_later_override_wins() -> None:
    assert after("ranks.ep=1", "ranks.ep=2")["ranks"] == {"ep": 2}


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("ranks.ep", 1, "not an override"),
        ("=3", 1, "not an override"),
        ("", 1, "not an override"),
        ("ranks..ep=3", 1, "not an override"),
        ("ranks.ep.x=3", 10, "ranks.ep is 8 and has no parts"),
        ("strategies.c.name=x", 12, "strategies has no 'c'"),
        ("strategies.2.name=x", 12, "strategies has no '2'"),
        ("strategies.-1.name=x", 12, "strategies has no '-1'"),
        ("ranks.ep=[1", 12, "not YAML"),
        ("ranks.ep=.nan", 10, "not a finite number"),
        ("ranks.ep=*a", 10, "alias"),
    ],
)
def test_what_cannot_be_applied(text: str, column: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        after(text)
    (problem,) = caught.value.problems
    assert (problem.path, problem.line, problem.column) == ("--set", 1, column)
    assert message in problem.message
    assert text in (problem.excerpt or "")


@pytest.mark.parametrize("text", ["ranks.ep=8\nseed=1", "ranks.ep=8\r\n", "a\nb=1"])
def test_an_override_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match="one line, not 2") as caught:
        after(text)
    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == ("--set", 2)


def test_every_bad_override_is_told() -> None:
    with pytest.raises(InputError) as caught:
        after("a", "b", "ranks.ep=3", "strategies.c.x=1")
    assert len(caught.value.problems) == 3


def test_places_of_new_and_old_parts() -> None:
    document = overridden(yamlio.loads(TEXT, "f.yaml"), ["topology.hosts=4", "ranks.plaze=x"], "--set")
    assert document.problem(("topology", "name"), "m").path == "f.yaml"
    assert document.problem(("topology", "hosts"), "m").column == 16
    key = document.problem(("ranks", "plaze"), "m", at="key")
    assert (key.path, key.column) == ("--set", 7)
