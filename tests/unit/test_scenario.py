from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moesim import resources, scenario
from moesim.errors import InputError, Problem
from moesim.scenario import Scenario
from moesim.schema import Choice

TEXT = """\
# Question: a small one
moesim: 1
topology:
  fabric: {kind: crossbar, devices: 8, port: {capacity: 900GB/s, source: example, grade: assumed}}
ranks: {ep: 8, place: packed}
model: mixtral-8x7b
workload:
  phase: decode
  tokens_per_rank: 16
  layers: 2
  steps: 1
routing: {kind: lognormal, sigma: 0.7}
strategies:
  - {name: base, protocol: cann-ep}
  - {name: ubep, protocol: {kind: ubep, sync: dc}, balancer: {kind: moonep}, assume: [multicast]}
switch_off: []
faults: []
background: []
fidelity: fluid
tolerance: 0.3%
require: ["base.layer_s.p99 < 400us"]
seed: 0
"""


def loaded(folder: Path, text: str = TEXT, **options: Any) -> Scenario:
    path = folder / "s.yaml"
    path.write_text(text)
    return scenario.load(path, **options)


def refused(folder: Path, text: str = TEXT, **options: Any) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        loaded(folder, text, **options)
    return caught.value.problems


def changed(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


def test_a_scenario_in_si_units(tmp_path: Path) -> None:
    one = loaded(tmp_path)
    assert (one.ranks.ep, one.workload.tokens_per_rank, one.tolerance) == (8, 16, 0.003)
    assert [(s.name, s.protocol.kind, s.balancer.kind) for s in one.strategies] == [
        ("base", "cann-ep", "none"),
        ("ubep", "ubep", "moonep"),
    ]
    assert one.strategies[1].protocol.spec() == {"kind": "ubep", "sync": "dc"}
    assert one.strategies[1].protocol.params.sync == "dc"  # type: ignore[attr-defined]
    assert one.requirements[0].limit == pytest.approx(400e-6)
    assert one.base == tmp_path


def test_defaults(tmp_path: Path) -> None:
    optional = (
        "switch_off",
        "faults",
        "background",
        "fidelity",
        "tolerance",
        "require",
        "seed",
        "  steps",
        "  layers",
    )
    text = "\n".join(line for line in TEXT.split("\n") if not line.startswith(optional))
    one = loaded(tmp_path, text.replace(", place: packed", ""))
    assert (one.fidelity, one.tolerance, one.seed, one.workload.steps) == ("fluid", 0.003, 0, 1)
    assert (one.workload.layers, one.ranks.place, one.faults, one.require) == ("all", "packed", (), ())


def test_it_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        loaded(tmp_path).seed = 3


# Each line: what is replaced by what; the line where the problem must be shown; what it says; what is legal.
CASES = [
    ("seed: 0", "sead: 0", 22, "unknown key 'sead'", "did you mean 'seed'"),
    ("{ep: 8,", "{epp: 8,", 5, "unknown key 'epp'", "did you mean 'ep'"),
    ("sync: dc", "synk: dc", 15, "unknown key 'synk'", "did you mean 'sync'"),
    ("sync: dc", "sync: dd", 15, 'cannot be "dd"', "tff, dc, sp"),
    ("sigma: 0.7", "sigma: .inf", 12, "not a finite number", "finite"),
    ("sigma: 0.7", "sigma: high", 12, 'cannot be "high"', "a number"),
    (
        "{kind: lognormal, sigma: 0.7}",
        "{kind: lognorml}",
        12,
        "unknown routing kind",
        "did you mean 'lognormal'",
    ),
    ("{kind: lognormal, sigma: 0.7}", "{sigma: 0.7}", 12, "mapping with `kind`", "lognormal"),
    ("{kind: lognormal, sigma: 0.7}", "3", 12, "mapping with `kind`", "lognormal"),
    ("protocol: cann-ep", "protocol: can-ep", 14, "unknown protocol 'can-ep'", "did you mean 'cann-ep'"),
    ("protocol: cann-ep", "protocol: [cann-ep]", 14, "name or a mapping", "cann-ep"),
    ("{kind: moonep}", "{kind: moonp}", 15, "unknown balancer 'moonp'", "did you mean 'moonep'"),
    ("[multicast]", "[multicas]", 15, "unknown property 'multicas'", "did you mean 'multicast'"),
    ("[multicast]", "[multicast, multicast]", 15, "more than once", ""),
    ("[multicast]", "multicast", 15, 'cannot be "multicast"', "a list"),
    ("name: ubep", "name: base", 15, "two strategies are called 'base', the first in line 14", "each"),
    ("name: ubep", "name: 'u b'", 15, "strategies.1.name", "matches"),
    ("moesim: 1", "moesim: 2", 2, "moesim cannot be 2", "1"),
    ("moesim: 1", "", 3, "the key 'moesim' is missing", ""),
    ("ep: 8", "ep: 0", 5, "ranks.ep cannot be 0", "at least 1"),
    ("ep: 8", "ep: -8", 5, "ranks.ep cannot be -8", "at least 1"),
    ("ep: 8", "ep: '8'", 5, 'ranks.ep cannot be "8"', "a whole number"),
    ("ep: 8", "ep: 8.5", 5, "ranks.ep cannot be 8.5", "a whole number"),
    ("ep: 8", "ep: true", 5, "ranks.ep cannot be true", "a whole number"),
    ("ep: 8", "ep: ~", 5, "ranks.ep cannot be empty", "a whole number"),
    ("place: packed", "place: pack", 5, 'cannot be "pack"', "did you mean 'packed'"),
    ("place: packed", "place: [0, 1]", 5, "2 places for 8 ranks", "8 devices"),
    ("place: packed", "place: [0, 1, 1, 2, 3, 4, 5, 6]", 5, "1 more than once", ""),
    (
        "place: packed",
        "place: [0, 1, 1.5, 2, 3, 4, 5, 6]",
        5,
        "ranks.place.2 cannot be 1.5",
        "whole number or text",
    ),
    ("phase: decode", "phase: decod", 8, 'cannot be "decod"', "did you mean 'decode'"),
    ("tokens_per_rank: 16", "tokens_per_rank: -1", 9, "cannot be -1", "at least 0"),
    ("layers: 2", "layers: 0", 10, "workload.layers cannot be 0", "all or at least 1 or a list"),
    ("layers: 2", "layers: []", 10, "cannot be a list of 0", "at least 1"),
    ("layers: 2", "layers: [1, 1]", 10, "1 more than once", ""),
    ("layers: 2", "layers: [1, x]", 10, 'workload.layers.1 cannot be "x"', "a whole number"),
    ("model: mixtral-8x7b", "model: mixtral", 6, "unknown model 'mixtral'", "mixtral-8x7b"),
    ("model: mixtral-8x7b", "model: {hidden: 4096}", 6, "'experts' is missing", ""),
    ("model: mixtral-8x7b", "model: 8", 6, "not a model", "catalogue"),
    ("tolerance: 0.3%", "tolerance: 3us", 20, "is a time, a share is asked", "%"),
    ("tolerance: 0.3%", "tolerance: 100%", 20, "tolerance cannot be", "less than 1"),
    ("fidelity: fluid", "fidelity: exact", 19, 'cannot be "exact"', "fluid"),
    ("seed: 0", "seed: -1", 22, "seed cannot be -1", "at least 0"),
    ("switch_off: []", "switch_off: [synk]", 16, 'switch_off.0 cannot be "synk"', "did you mean 'sync'"),
    ("faults: []", "faults: [{chip: a, link: b}]", 17, "one part of the pod", "exactly one of"),
    ("faults: []", "faults: [{chip: a, capacity: 110%}]", 17, "faults.0.capacity cannot be", "at most 1"),
    ("faults: []", "faults: [{rank: 8}]", 17, "there is no rank 8", "0 to 7"),
    ("background: []", "background: [{src: 0, dst: 9, size: 1GB}]", 18, "there is no rank 9", "0 to 7"),
    ("background: []", "background: [{src: 0, dst: 0, size: 1GB}]", 18, "ends where it starts", ""),
    ("background: []", "background: [{src: 0, dst: 1, size: 5}]", 18, "has no unit", "KiB"),
    ("background: []", "background: [{src: 0, dst: 1, size: 5GB/s}]", 18, "is a bandwidth", "KiB"),
    ("base.layer_s.p99 < 400us", "bse.layer_s.p99 < 400us", 21, "no strategy 'bse'", "did you mean 'base'"),
    ("base.layer_s.p99 < 400us", "base.layer_s.p99 < 400", 21, "has no unit", "us"),
    ("base.layer_s.p99 < 400us", "base.layer.p99 < 400us", 21, "unknown metric", "layer_s"),
    ("topology:\n  fabric: {", "topology: nvl73\nx: {y: {", 3, "unknown topology 'nvl73'", "path"),
    ("topology:\n  fabric: {", "topology: no/such.yaml\nx: {y: {", 3, "file not found", "existing file"),
    ("{kind: lognormal, sigma: 0.7}", "{kind: recorded, trace: no.npz}", 12, "file not found", ""),
]


@pytest.mark.parametrize(("old", "new", "line", "message", "legal"), CASES, ids=[case[1] for case in CASES])
def test_one_mistake_is_shown_in_its_line(
    tmp_path: Path, old: str, new: str, line: int, message: str, legal: str
) -> None:
    text = changed(old, new)
    problems = refused(tmp_path, text.replace("assumed}}", "assumed}}}") if "{y:" in new else text)
    told = [problem for problem in problems if message in problem.message]
    assert len(told) == 1, [str(problem) for problem in problems]
    (problem,) = told
    assert (problem.path, problem.line) == (str(tmp_path / "s.yaml"), line)
    assert legal in (problem.legal or "")
    assert problem.excerpt is not None
    assert "^" in problem.excerpt


def test_every_mistake_is_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = TEXT
    for old, new in (
        ("ep: 8", "ep: 0"),
        ("phase: decode", "phase: decod"),
        ("sync: dc", "synk: dc"),
        ("name: ubep", "name: base"),
        ("0.3%", "3us"),
        ("seed: 0", "sead: 0"),
    ):
        text = text.replace(old, new)
    assert [problem.line for problem in refused(tmp_path, text)] == [5, 8, 15, 15, 20, 22]


def test_a_list_item_is_blamed_not_the_list(tmp_path: Path) -> None:
    problems = refused(tmp_path, changed("layers: 2", "layers: [0, -1]"))
    assert [problem.message for problem in problems] == ["workload.layers.1 cannot be -1"]


@pytest.mark.parametrize(
    "content", [b"", b"- a\n", b"\x80\x00\xff" * 99, b"moesim: 1\nmoesim: 1\n", b"a: &a [*a]\n"]
)
def test_a_file_that_is_no_scenario(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        scenario.load(path)
    assert caught.value.problems[0].path == str(path)


def test_a_missing_file_and_a_missing_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="file not found"):
        scenario.load(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="unknown scenario 'no-such-question'"):
        scenario.load("no-such-question")


def test_overrides_come_after_the_file_and_options_after_overrides(tmp_path: Path) -> None:
    one = loaded(
        tmp_path, sets=["seed=4", "ranks.ep=4", "strategies.ubep.protocol.sync=sp"], seed=5, fidelity="bound"
    )
    assert (one.seed, one.ranks.ep, one.fidelity) == (5, 4, "bound")
    assert one.strategies[1].protocol.spec()["sync"] == "sp"
    assert one.applied == (
        "seed=4",
        "ranks.ep=4",
        "strategies.ubep.protocol.sync=sp",
        "seed=5",
        "fidelity=bound",
    )


def test_a_bad_override_is_shown_in_its_own_text(tmp_path: Path) -> None:
    problems = refused(tmp_path, changed("seed: 0", "seed: x"), sets=["ranks.ep=x", "ranks.plaze=spread"])
    assert [(p.path, p.line, p.column) for p in problems] == [
        ("--set", 1, 7),
        ("--set", 1, 10),
        (str(tmp_path / "s.yaml"), 22, 7),
    ]


def test_edited_is_a_copy_checked_again(tmp_path: Path) -> None:
    one = loaded(tmp_path, sets=["seed=4"])
    two = one.edited(["ranks.ep=4"])
    assert (one.ranks.ep, two.ranks.ep, two.seed) == (8, 4, 4)
    assert two.applied == ("seed=4", "ranks.ep=4")
    with pytest.raises(InputError, match="at least 1"):
        one.edited(["ranks.ep=0"])


def test_what_is_resolved_loads_to_the_same_scenario(tmp_path: Path) -> None:
    one = loaded(tmp_path, sets=["strategies.0.protocol.dispatch=bf16", "workload.steps=3"], seed=9)
    again = scenario.from_mapping(one.resolved())
    assert again.resolved() == one.resolved()
    assert set(one.resolved()) == set(Scenario.model_fields)
    for choice, same in zip(choices(one), choices(again), strict=True):
        assert (choice.kind, choice.params) == (same.kind, same.params)
    plain = {"routing", "strategies"}
    assert again.model_dump(exclude=plain) == one.model_dump(exclude=plain)


def choices(one: Scenario) -> list[Choice]:
    return [one.routing, *(choice for each in one.strategies for choice in (each.protocol, each.balancer))]


def test_what_is_resolved_has_every_default(tmp_path: Path) -> None:
    text = changed("  layers: 2\n", "").replace("place: packed", "place: spread")
    text = text.replace("background: []", "background: [{src: 0, dst: 1, size: 1GiB}]")
    full = loaded(tmp_path, text).resolved()
    assert full["workload"]["layers"] == "all"
    assert full["ranks"]["place"] == "spread"
    assert full["background"] == [{"src": 0, "dst": 1, "size": "1GiB", "start": "0us"}]
    ubep = next(one for one in full["strategies"] if one["name"] == "ubep")
    assert ubep["protocol"].keys() >= {"kind", "sync", "dispatch", "combine"}
    inline = {"hidden": 64, "layers": 1, "moe_layers": 1, "experts": 8, "top_k": 2, "intermediate": 8}
    model = scenario.from_mapping(full | {"model": inline}).resolved()["model"]
    assert (model["gate_matrices"], model["expert_dtype"]) == (3, "bf16")


def test_what_is_resolved_names_shipped_files_by_name_and_others_absolutely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pod.yaml").write_text("moesim: 1\n")
    one = loaded(tmp_path, sets=["topology=pod.yaml"])
    shipped = loaded(tmp_path, sets=[f"topology={resources.find('topology', 'h100-ib')}"])
    trace = resources.find("trace", "gpt-oss-20b_decode")
    recorded = loaded(tmp_path, sets=[f"routing={{kind: recorded, trace: {trace}}}"])
    monkeypatch.chdir("/")
    assert one.resolved()["topology"] == str(tmp_path / "pod.yaml")
    assert shipped.resolved()["topology"] == "h100-ib"
    assert recorded.resolved()["routing"] == {"kind": "recorded", "trace": "gpt-oss-20b_decode"}


def test_plain_data_may_hold_numpy_numbers_and_paths(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("moesim: 1\n")
    data = loaded(tmp_path).resolved() | {"seed": np.int64(7), "topology": tmp_path / "pod.yaml"}
    one = scenario.from_mapping(data)
    assert (one.seed, one.topology) == (7, str(tmp_path / "pod.yaml"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (3, "not a int"),
        ([], "not a list"),
        ({3: 1}, "a key is text, not 3"),
        ({"ranks": {"ep": object()}}, "ranks.ep cannot be a object"),
        ({"ranks": {("a",): 1}}, "ranks: a key is text"),
        ({"strategies": [{"name": {1}}]}, "strategies.0.name cannot be a set"),
    ],
)
def test_what_is_no_plain_data_is_said(data: Any, said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        scenario.from_mapping(data)


def test_plain_data_that_is_nested_too_deep_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    endless: dict[str, Any] = {}
    endless["model"] = endless
    for data in ({"model": deep}, endless):
        with pytest.raises(InputError, match=r"model.*: nested more than 50 deep"):
            scenario.from_mapping(data)


@pytest.mark.parametrize("sets", [[3], "ranks.ep=8", [b"seed=1"]])
def test_overrides_are_a_list_of_texts(tmp_path: Path, sets: Any) -> None:
    with pytest.raises(TypeError, match="a list of texts"):
        loaded(tmp_path, sets=sets)
    with pytest.raises(TypeError, match="a list of texts"):
        loaded(tmp_path).edited(sets)


def test_problems_of_plain_data_name_the_key() -> None:
    with pytest.raises(InputError) as caught:
        scenario.from_mapping({"moesim": 1, "ranks": {"ep": 0}})
    messages = [problem.message for problem in caught.value.problems]
    assert any("ranks.ep cannot be 0" in message for message in messages)
    assert any("'workload' is missing" in message for message in messages)


def test_problems_of_edited_plain_data_are_placed_where_they_can_be(tmp_path: Path) -> None:
    one = scenario.from_mapping(loaded(tmp_path).resolved())
    with pytest.raises(InputError) as caught:
        one.edited(["strategies.ubep.name=new", "ranks.ep=0"])
    assert [(problem.path, problem.column) for problem in caught.value.problems] == [("--set", 10)]
    with pytest.raises(InputError) as caught:
        one.edited(["strategies.base.name=new"])
    assert str(caught.value).startswith("<scenario>: require.0: there is no strategy 'base'")


def test_a_wrong_item_does_not_make_its_list_too_short(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, changed("layers: 2", "layers: [-1]"))
    assert "layers.0" in problem.message


@pytest.mark.parametrize("item", ["{}", "{}.5", "0", "x{}"])
def test_a_long_list_takes_no_longer_than_reading_it(tmp_path: Path, item: str) -> None:
    """Measured in steps of the interpreter, which are the same on every machine: twice the list, twice the steps."""

    def steps(count: int) -> int:
        text = changed("place: packed", f"place: [{', '.join(item.format(i) for i in range(count))}]")
        taken, before = 0, sys.gettrace()

        def count_lines(*_: Any) -> Any:
            nonlocal taken
            taken += 1
            return count_lines

        sys.settrace(count_lines)
        try:
            refused(tmp_path, text)
        finally:
            sys.settrace(before)
        return taken

    assert steps(400) < 2.5 * steps(200)
