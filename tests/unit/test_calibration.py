"""Constants of a protocol on a pod: found, inherited, cited, and refused with their place."""

from __future__ import annotations

from pathlib import Path

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


def test_an_heir_of_another_pod_takes_its_access_and_says_whence(files):
    child = (
        "moesim: 1\ninherits: other/one\nconstants:\n  launch: {value: 9us, source: moesim, grade: assumed}\n"
    )
    files(other__one=GOOD, pod__one=child, heir__one=child.replace("other/", "pod/").replace("9us", "8us"))
    found = calibration.load("heir", "one", NAMES)
    assert dict(found.values) == {"launch": 8e-6, "cores": 48, "core_rate": 5.7e9}
    assert found.access == "write"
    assert [Path(path).name for path in found.inherited] == ["pod-one.yaml", "other-one.yaml"]
    assert {cited.where for cited in found.cited} == {
        "one.launch (heir)",
        "one.cores (other)",
        "one.core_rate (other)",
    }


def test_an_heir_without_a_file_of_its_own_inherits_what_its_pod_has(files):
    child = (
        "moesim: 1\ninherits: one\nconstants:\n  scheduler: {value: 1us, source: moesim, grade: assumed}\n"
    )
    files(default__two=child, default__one=GOOD, pod__one=GOOD.replace("2us", "3us"))
    found = calibration.load("pod", "two", {**NAMES, "scheduler": "time"})
    assert found["launch"] == 3e-6


@pytest.mark.parametrize(
    ("parent", "message", "legal"),
    [
        ("othr/one", "unknown calibration 'othr/one'", "other/one"),
        ("pod/one", "itself", ""),
        ("one", "itself", ""),
    ],
)
def test_inherits_nothing_or_itself(files, parent, message, legal):
    files(other__one=GOOD, pod__one=f"moesim: 1\ninherits: {parent}\nconstants: {{}}\n")
    [(line, said, hint)] = refused()
    assert (line, message in said, legal in hint) == (2, True, True)


FIT = GOOD + "fit: {rows: eight rows of EP8, constants: [launch, core_rate], median: 2.1%, p90: 7%}\n"


def test_a_fit_says_what_was_fitted(files):
    files(pod__one=FIT)
    found = calibration.load("pod", "one", NAMES).fit
    assert found == calibration.Fit("eight rows of EP8", ("launch", "core_rate"), 0.021, 0.07)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rows: eight rows of EP8, ", "", "not what a fit says"),
        ("[launch, core_rate]", "[launch, coe_rate]", "constants"),
        ("7%", "7us", "7us"),
    ],
)
def test_a_wrong_fit(files, old, new, message):
    files(pod__one=FIT.replace(old, new))
    [(line, said, _)] = refused()
    assert (line, message in said) == (7, True)


def test_a_fit_may_say_where_its_rows_are_from(files):
    more = "pod: pod, file: m.csv, sources: [ours, theirs], p90"
    files(pod__one=FIT.replace("p90", more))
    found = calibration.load("pod", "one", NAMES).fit
    assert (found.pod, found.file, found.sources) == ("pod", "m.csv", ("ours", "theirs"))
    files(pod__one=FIT.replace("p90", "sources: ours, p90"))
    assert "not a list of sources" in refused()[0][1]


def own(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return calibration.read(path, "pod", "one", NAMES)


def test_a_file_of_the_users_is_known_by_its_name(tmp_path):
    found = own(tmp_path, GOOD)
    assert next(cited.where for cited in found.cited) == "one.launch (mine.yaml)"
    assert (found.pod, found.kind, found.path) == ("mine.yaml", "one", str(tmp_path / "mine.yaml"))


def test_a_file_of_the_users_may_inherit_what_it_takes_the_place_of(files, tmp_path):
    files(pod__one=GOOD)
    text = (
        "moesim: 1\nprotocol: one\ninherits: pod/one\nsources: {lab: {title: Ours, reference: June}}\n"
        "constants:\n  launch: {value: 9us, source: lab, grade: measured}\n"
    )
    found = own(tmp_path, text)
    assert dict(found.values) == {"launch": 9e-6, "cores": 48, "core_rate": 5.7e9}
    assert [Path(path).name for path in found.inherited] == ["pod-one.yaml"]
    assert {cited.where for cited in found.cited} == {
        "one.launch (mine.yaml)",
        "one.cores (pod)",
        "one.core_rate (pod)",
    }
    assert [(one.key, one.title) for one in found.sources] == [("lab", "Ours")]


def test_a_file_of_another_protocol_is_refused_where_it_says_so(tmp_path):
    with pytest.raises(InputError, match="a calibration of 'two' where one of 'one' is needed") as caught:
        own(tmp_path, GOOD.replace("access", "protocol: two\naccess"))
    assert [(one.line, one.column) for one in caught.value.problems] == [(2, 11)]


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
