from __future__ import annotations

from pathlib import Path

import pytest

from moesim import inspection, resources
from moesim.errors import InputError, Problem

TEXT = """\
moesim: 1
topology: {name: h100-ib, hosts: 2}
ranks: {ep: 16}
model: deepseek-v3
workload: {phase: decode, tokens_per_rank: 4, layers: 2}
routing: {kind: uniform}
strategies: [{name: a, protocol: deepep-ll}]
"""

ISLANDS = """\
moesim: 1
fabric:
  kind: graph
  source: example
  grade: assumed
  devices: [a, b, c, d]
  switches: [x, y]
  links:
    - {a: a, b: x, capacity: 1GB/s, latency: 1us}
    - {a: b, b: x, capacity: 1GB/s, latency: 1us}
    - {a: c, b: y, capacity: 1GB/s, latency: 1us}
    - {a: d, b: y, capacity: 1GB/s, latency: 1us}
"""


def checked(folder: Path, text: str) -> str:
    path = folder / "x.yaml"
    path.write_text(text)
    return inspection.check(str(path))


def refused(folder: Path, text: str) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        checked(folder, text)
    return caught.value.problems


def test_it_says_what_a_file_is(tmp_path: Path) -> None:
    assert inspection.check("gb200-nvl72") == "topology gb200-nvl72, 72 devices"
    assert checked(tmp_path, TEXT) == "scenario, 1 strategies on h100-ib, 2 layers"
    models = inspection.check(str(resources.find("models", "models")))
    assert models.startswith("catalogue of ")
    assert inspection.check(str(resources.find("sources", "sources"))).startswith("bibliography of ")


def test_every_shipped_file_is_something() -> None:
    for path in sorted(resources.shipped("topologies").rglob("*.yaml")):
        assert "not checked" not in inspection.check(str(path)), path


def test_a_routing_of_another_model_is_refused(tmp_path: Path) -> None:
    text = TEXT.replace("kind: uniform", "kind: recorded, trace: gpt-oss-20b_decode")
    assert {problem.line for problem in refused(tmp_path, text)} == {6}


def test_a_target_that_only_a_later_layer_misses_is_refused(tmp_path: Path) -> None:
    text = TEXT.replace("layers: 2", "layers: [0, 57]")
    text = text.replace("kind: uniform", "kind: recorded, trace: flame-moe-290m_prefill")
    assert {problem.line for problem in refused(tmp_path, text)} == {6}


@pytest.mark.parametrize(
    ("faults", "column"),
    [
        ("[{rank: 3}]", 10),
        ("[{rank: 3, capacity: 50%}, {rank: 5}, {rank: 6}]", 36),
    ],
)
def test_a_fault_that_cuts_a_rank_off_is_shown(tmp_path: Path, faults: str, column: int) -> None:
    (problem,) = refused(tmp_path, f"{TEXT}faults: {faults}\n")
    assert (problem.line, problem.column) == (8, column)
    assert "unreachable" in problem.message
    assert "^" in (problem.excerpt or "")


def test_a_pod_of_two_islands_is_shown(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(ISLANDS)
    text = TEXT.replace("{name: h100-ib, hosts: 2}", str(tmp_path / "pod.yaml")).replace("ep: 16", "ep: 4")
    (problem,) = refused(tmp_path, text)
    assert (problem.line, problem.column) == (2, 11)
    assert "no path between them" in problem.message
    assert checked(tmp_path, text.replace("ep: 4", "ep: 2")).startswith("scenario")


def test_problems_of_a_catalogue_are_placed(tmp_path: Path) -> None:
    text = resources.find("models", "models").read_text()
    (first, *_) = [n for n, line in enumerate(text.splitlines(), 1) if "top_k: 8" in line and line[:1] != "#"]
    problems = refused(tmp_path, text.replace("top_k: 8", "top_k: 0.5"))
    assert len(problems) > 3
    assert problems[0].line == first


def test_a_calibration_anywhere_is_checked_as_that_of_its_protocol(tmp_path: Path) -> None:
    text = resources.find("calibration", "default/ubep").read_text()
    (tmp_path / "ubep.yaml").write_text(text)
    assert inspection.check(str(tmp_path / "ubep.yaml")).startswith("calibration of ubep, ")
    assert "does not say of which protocol" in refused(tmp_path, text)[0].message
    assert checked(tmp_path, f"protocol: ubep\n{text}").startswith("calibration of ubep, ")
    (problem,) = refused(tmp_path, f"protocol: upeb\n{text}")
    assert (problem.line, problem.column) == (1, 11)
    assert "did you mean 'ubep'" in (problem.legal or "")
    strangers = refused(tmp_path, f"protocol: deepep-ll\n{text}")
    assert all("unknown constant" in problem.message for problem in strangers)
    assert strangers[0].line is not None
