"""Constants of a protocol on a pod: found, inherited, cited, and refused with their place."""

from __future__ import annotations

import pytest

from moesim import calibration, resources, yamlio
from moesim.errors import InputError
from moesim.sources import Grade

NAMES = {"launch": "time", "cores": "ratio", "core_rate": "bandwidth"}
GOOD = """\
moesim: 1
access: write
constants:
  launch: {value: 2us, source: cm384, grade: measured}
  cores: {value: 48, source: cm384, grade: spec}
  core_rate: {value: 5.7GB/s, source: ubep-note, grade: derived}
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write calibrations named ``pod/kind``; the loader finds those instead of the shipped ones."""
    known = {}

    def write(**texts):
        for name, text in texts.items():
            pod, _, kind = name.partition("__")
            path = tmp_path / f"{pod}-{kind}.yaml"
            path.write_text(text)
            known[f"{pod}/{kind}"] = path

    find, names = resources.find, resources.names
    monkeypatch.setattr(
        resources, "names", lambda kind: sorted(known) if kind == "calibration" else names(kind)
    )
    monkeypatch.setattr(
        resources, "find", lambda kind, name: known[name] if kind == "calibration" else find(kind, name)
    )
    return write


def refused(constants=NAMES):
    with pytest.raises(InputError) as caught:
        calibration.load("pod", "one", constants)
    return [(problem.line, problem.message, problem.legal or "") for problem in caught.value.problems]


def test_values_in_si_with_their_sources(files):
    files(pod__one=GOOD)
    found = calibration.load("pod", "one", NAMES)
    assert dict(found.values) == {"launch": 2e-6, "cores": 48, "core_rate": 5.7e9}
    assert (found.access, found.pod, found.kind) == ("write", "pod", "one")
    assert [cited.where for cited in found.cited] == [
        "one.launch (pod)",
        "one.cores (pod)",
        "one.core_rate (pod)",
    ]
    assert [cited.grade for cited in found.cited] == [Grade.MEASURED, Grade.SPEC, Grade.DERIVED]


def test_a_pod_that_nobody_has_measured_takes_the_default_and_says_so(files):
    files(default__one=GOOD, other__one=GOOD)
    found = calibration.load("pod", "one", NAMES)
    assert found.pod == "default"
    assert all("(default)" in cited.where for cited in found.cited)


def test_an_heir_states_only_its_own(files):
    child = (
        "moesim: 1\ninherits: one\nconstants:\n  scheduler: {value: 1us, source: moesim, grade: assumed}\n"
    )
    files(pod__one=GOOD, pod__two=child)
    found = calibration.load("pod", "two", {**NAMES, "scheduler": "time"})
    assert dict(found.values) == {"launch": 2e-6, "cores": 48, "core_rate": 5.7e9, "scheduler": 1e-6}
    assert {cited.where for cited in found.cited} == {
        "one.launch (pod)",
        "one.cores (pod)",
        "one.core_rate (pod)",
        "two.scheduler (pod)",
    }


def test_an_heir_may_override(files):
    child = "moesim: 1\ninherits: one\nconstants:\n  launch: {value: 9us, source: moesim, grade: assumed}\n"
    files(pod__one=GOOD, pod__two=child)
    found = calibration.load("pod", "two", NAMES)
    assert found["launch"] == 9e-6
    assert [cited.where for cited in found.cited if "launch" in cited.where] == ["two.launch (pod)"]


def test_all_that_is_wrong_is_said_at_its_place(files):
    files(pod__one=GOOD.replace("access: write", "acess: write").replace("launch:", "lunch:"))
    problems = refused()
    assert [line for line, _, _ in problems] == [2, 4]
    assert "access" in problems[0][2]
    assert "launch" in problems[1][2]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("2us", "2GB/s", 4, "2GB/s"),
        ("2us, source: cm384, ", "2us, ", 4, "source"),
        ("2us", "2", 4, "unit"),
        ("  launch: {value: 2us, source: cm384, grade: measured}\n", "", 4, "launch"),
        ("source: ubep-note", "source: ubep-nota", 6, "ubep-nota"),
    ],
)
def test_one_wrong_constant(files, old, new, line, message):
    files(pod__one=GOOD.replace(old, new))
    problems = refused()
    assert len(problems) == 1
    assert problems[0][0] == line
    assert message in problems[0][1] + problems[0][2]


def test_without_constants(files):
    files(pod__one="moesim: 1\naccess: write\n")
    assert "constants" in refused()[0][1]


def test_a_changed_constant_leaves_the_original_as_it_was(files):
    files(pod__one=GOOD)
    found = calibration.load("pod", "one", NAMES)
    assert found.with_value("cores", 24)["cores"] == 24
    assert found["cores"] == 48


@pytest.mark.parametrize("name", resources.names("calibration"))
def test_shipped_files_cite_each_constant(name):
    """Each constant of a shipped file stands in a mapping with its own source and grade."""
    data = yamlio.load(resources.find("calibration", name)).data
    for constant, cell in data["constants"].items():
        assert set(cell) >= {"value", "source", "grade"}, constant
