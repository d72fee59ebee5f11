"""A strategy with a calibration of its own: constants, places of errors, what is saved and cited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import moesim
from moesim import inspection, resources, yamlio
from moesim.build import build
from moesim.errors import InputError, Problem
from moesim.explain import explain
from moesim.scenario import Scenario

SCENARIO = """\
moesim: 1
topology: gb200-nvl72
ranks: {ep: 8}
model: mixtral-8x7b
workload: {phase: decode, tokens_per_rank: 4, layers: 1}
routing: {kind: uniform}
fidelity: bound
strategies:
  - {name: plain, protocol: nccl-alltoall}
  - {name: mine, protocol: nccl-alltoall, calibration: constants/lab.yaml}
"""

LAB = """\
moesim: 1
protocol: nccl-alltoall
inherits: gb200-nvl72/nccl-alltoall
sources: {lab: {title: Our own lab, reference: log of June}}
constants:
  launch: {value: 1ms, source: lab, grade: assumed}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the scenario and its calibration, and goes to another folder."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "constants").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def both(lab: str = LAB, scenario: str = SCENARIO) -> Path:
        (tmp_path / "constants" / "lab.yaml").write_text(lab, encoding="utf-8")
        (tmp_path / "x.yaml").write_text(scenario, encoding="utf-8")
        return tmp_path / "x.yaml"

    return both


def refused(path: Path) -> tuple[Problem, ...]:
    """What ``build`` says, and ``check`` too."""
    with pytest.raises(InputError) as caught:
        build(moesim.load(path))
    with pytest.raises(InputError) as again:
        inspection.check(str(path))
    assert again.value.problems == caught.value.problems
    return caught.value.problems


def launches(scenario: Scenario) -> list[float]:
    return [one.costs["launch"] for one in build(scenario).strategies]


def test_the_constants_are_those_of_the_file_in_this_strategy_only(write: Write) -> None:
    scenario = moesim.load(write())
    plain, mine = launches(scenario)
    assert (plain < 1e-4, mine) == (True, 1e-3)
    result = moesim.run(scenario)
    times = [one.stages["layer"].max() for one in result.strategies]
    # Exchange of the sizes, dispatch and combine, each launched once.
    assert times[1] - times[0] == pytest.approx(3 * (mine - plain), rel=1e-6)


def test_it_is_cited_hashed_and_saved_by_its_absolute_path(write: Write, tmp_path: Path) -> None:
    scenario = moesim.load(write())
    file = str((tmp_path / "constants" / "lab.yaml").resolve())
    result = moesim.run(scenario)
    assert result.inputs[file] == resources.digest(Path(file))
    parent = str(resources.find("calibration", "gb200-nvl72/nccl-alltoall").resolve())
    assert parent in result.inputs
    cited = {item.where: (item.source, item.grade) for item in result.strategies[1].cited}
    assert cited["nccl-alltoall.launch (lab.yaml)"] == ("lab", "assumed")
    assert [one.title for one in result.sources if one.key == "lab"] == ["Our own lab"]
    document = explain(scenario)
    assert [one["title"] for one in document["sources"] if one["key"] == "lab"] == ["Our own lab"]
    result.save(tmp_path / "out")
    text = (tmp_path / "out" / "scenario.yaml").read_text(encoding="utf-8")
    assert f"# {resources.digest(Path(file))}  {file}\n" in text
    saved = [one.get("calibration") for one in yamlio.loads(text).data["strategies"]]
    assert saved == [None, file]
    again = moesim.run(moesim.load(tmp_path / "out" / "scenario.yaml"))
    assert again.ranks.equals(result.ranks)


def test_by_override_and_by_shipped_name(write: Write) -> None:
    scenario = moesim.load(write(), sets=["strategies.plain.calibration=../constants/lab.yaml"])
    assert launches(scenario) == [1e-3, 1e-3]
    other = scenario.edited(["strategies.mine.calibration=b200-hgx/nccl-alltoall"])
    assert other.resolved()["strategies"][1]["calibration"] == "b200-hgx/nccl-alltoall"
    told = [text for text in build(other).warnings if "calibration" in text or "constants" in text]
    assert told == [
        "mine: the constants in b200-hgx/nccl-alltoall are those of b200-hgx, used on gb200-nvl72"
    ]
    path = resources.find("calibration", "b200-hgx/nccl-alltoall")
    assert launches(other)[1] == launches(other.edited([f"strategies.mine.calibration={path}"]))[1]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("protocol: nccl-alltoall", "protocol: deepep-ll", 2, "'deepep-ll' where one of 'nccl-alltoall'"),
        ("launch:", "dispatch_at_8:", 6, "unknown constant 'dispatch_at_8'"),
        ("inherits: gb200-nvl72/nccl-alltoall", "access: store", 6, "'peer' is missing"),
        ("source: lab", "source: lob", 6, "unknown source 'lob'"),
        ("1ms", "1GB/s", 6, "1GB/s"),
        ("protocol:", "protocl:", 2, "unknown key 'protocl'"),
    ],
)
def test_what_is_wrong_is_shown_in_the_file(
    write: Write, old: str, new: str, line: int, message: str
) -> None:
    assert LAB.count(old) == 1
    problems = refused(write(LAB.replace(old, new)))
    assert {Path(one.path or "").name for one in problems} == {"lab.yaml"}
    assert (line, True) in [(one.line, message in one.message) for one in problems]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("constants/lob.yaml", "calibration file not found"),
        ("gb200-nvl73/nccl-alltoall", "calibration file not found"),
        ("lab", "unknown calibration 'lab'"),
        ("constants/", "is a directory"),
        ("b200-hgx/deepep-ll", "'deepep-ll' where one of 'nccl-alltoall' is needed"),
    ],
)
def test_a_file_that_cannot_be_used_is_shown_in_the_scenario(write: Write, name: str, message: str) -> None:
    (problem,) = refused(write(scenario=SCENARIO.replace("constants/lab.yaml", name)))
    assert (Path(problem.path or "").name, problem.line) == ("x.yaml", 10)
    assert problem.column == SCENARIO.splitlines()[9].index("constants/lab.yaml") + 1
    assert message in problem.message
