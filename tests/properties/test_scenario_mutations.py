"""Whatever is done to the text of a scenario, it is a scenario or placed problems, never another error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moesim import resources, scenario, yamlio
from moesim.errors import InputError, Problem

TEXT = """\
moesim: 1
topology: {fabric: {kind: crossbar, devices: 8, port: {capacity: 900GB/s, source: example, grade: assumed}}}
ranks: {ep: 8, place: packed}
model: {hidden: 64, layers: 2, moe_layers: 2, experts: 8, top_k: 2, intermediate: 64}
workload: {phase: decode, tokens_per_rank: 16, layers: [0, 1], steps: 1}
routing: {kind: lognormal, sigma: 0.7}
strategies:
  - {name: base, protocol: cann-ep}
  - {name: ubep, protocol: {kind: ubep, sync: dc}, balancer: {kind: moonep}, assume: [multicast]}
switch_off: [sync]
faults: [{rank: 3, capacity: 50%}]
background: [{src: 0, dst: 1, size: 1GiB, start: 2us}]
tolerance: 0.3%
require: ["base.layer_s.p99 < 400us"]
seed: 0
"""
TOKENS = re.findall(r"[\w.%/<-]+|[^\w\s]|\s+", TEXT)
PIECES = st.sampled_from(
    [
        *sorted(set(TOKENS)),
        "~",
        ".nan",
        "-1",
        "1e30",
        "1e999",
        "9" * 30,
        "true",
        "'",
        '"',
        "\t",
        "&a",
        "*a",
        "!!t",
        "- ",
    ]
) | st.text(max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scenarios")


def check(folder: Path, text: str, sets: tuple[str, ...] = ()) -> None:
    path = folder / "s.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    problems: tuple[Problem, ...] = ()
    try:
        scenario.load(path, sets).resolved()
    except InputError as error:
        problems = error.problems
        refused = True
    else:
        refused = False
    assert refused is bool(problems)
    assert {problem.path for problem in problems} <= {str(path), "--set"}
    assert all(str(problem) for problem in problems)


def test_the_text_itself_is_legal(folder: Path) -> None:
    (folder / "s.yaml").write_text(TEXT)
    assert scenario.load(folder / "s.yaml").strategies[0].name == "base"


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(TOKENS) - 1), PIECES, st.booleans()), min_size=1, max_size=4))
def test_tokens_replaced_or_inserted(folder: Path, edits: list[tuple[int, str, bool]]) -> None:
    tokens = list(TOKENS)
    for place, piece, replace in edits:
        tokens[place] = piece if replace else tokens[place] + piece
    check(folder, "".join(tokens))


@settings(max_examples=75, deadline=None)
@given(st.integers(0, len(TEXT)), st.integers(0, len(TEXT)))
def test_a_part_cut_out(folder: Path, start: int, end: int) -> None:
    check(folder, TEXT[:start] + TEXT[end:])


KEYS = sorted({".".join(map(str, loc)) for loc in yamlio.loads(TEXT).values if loc})


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KEYS) | st.text(max_size=8), PIECES), min_size=1, max_size=3))
def test_overrides(folder: Path, sets: list[tuple[str, str]]) -> None:
    check(folder, TEXT, tuple(f"{key}={value}" for key, value in sets))


@pytest.mark.parametrize("name", resources.names("scenario"))
def test_shipped_scenarios_with_one_line_missing(folder: Path, name: str) -> None:
    lines = resources.find("scenario", name).read_text(encoding="utf-8").splitlines(keepends=True)
    for number in range(len(lines)):
        check(folder, "".join(lines[:number] + lines[number + 1 :]))
