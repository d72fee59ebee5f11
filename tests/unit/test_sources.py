from __future__ import annotations

from pathlib import Path

import pytest

from moesim import sources, yamlio
from moesim.errors import InputError
from moesim.sources import Grade

BIBLIOGRAPHY = """\
sources:
  maker: {title: Data sheet, reference: M-1, note: n}
  lab: {title: Paper, reference: arXiv 1}
"""


@pytest.fixture(autouse=True)
def small_bibliography(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the shipped bibliography, so that these tests do not hang on its content."""
    path = tmp_path / "sources.yaml"
    path.write_text(BIBLIOGRAPHY)
    shipped = sources.resources.find
    monkeypatch.setattr(
        sources.resources,
        "find",
        lambda kind, name, base=None: path if kind == "sources" else shipped(kind, name, base),
    )


def test_bibliography() -> None:
    found = sources.bibliography()
    assert list(found) == ["maker", "lab"]
    assert (found["maker"].title, found["maker"].reference, found["maker"].note) == ("Data sheet", "M-1", "n")


def test_what_is_wrong_with_a_bibliography(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("sources:\n  a: {title: t}\n  b: {title: t, reference: r, url: u}\n  c: 3\n")
    with pytest.raises(InputError) as caught:
        sources.bibliography(path)
    assert [problem.line for problem in caught.value.problems] == [2, 3, 4]


def test_a_number_with_its_own_citation() -> None:
    document = yamlio.loads(
        "lane: {capacity: {value: 28GB/s, source: maker, grade: spec, note: each way}}\n", "pod.yaml"
    )
    value, cited = sources.cite(document, ("lane", "capacity"), "bandwidth")
    assert value == 28e9
    assert cited == sources.Cited("pod lane.capacity", "28GB/s", "maker", Grade.SPEC, "each way")


def test_a_number_cited_by_what_encloses_it() -> None:
    text = "source: maker\ngrade: spec\nlane: {capacity: 28GB/s, latency: 2us, source: lab, note: table 3}\n"
    document = yamlio.loads(text, "pod.yaml")
    value, cited = sources.cite(document, ("lane", "latency"), "time")
    assert value == 2e-6
    assert (cited.source, cited.grade, cited.note) == ("lab", Grade.SPEC, "table 3")


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a:\n  b: 28GB/s\n", 2, 6, "names no source"),
        ("a:\n  b: 28GB/s\n  source: maker\n", 2, 6, "has no grade"),
        ("a:\n  b: 28GB/s\n  source: makr\n  grade: spec\n", 3, 11, "unknown source 'makr'"),
        ("a:\n  b: 28GB/s\n  source: maker\n  grade: sepc\n", 4, 10, "unknown grade 'sepc'"),
        ("a:\n  b: 28GB\n  source: maker\n  grade: spec\n", 2, 6, "a bandwidth is asked"),
        ("a:\n  b: {value: 28, source: maker, grade: spec}\n", 2, 14, "has no unit"),
        ("a:\n  b: {source: maker, grade: spec}\n", 2, 6, "'value' is missing"),
        ("a:\n  b: {value: 28GB/s, sorce: maker, grade: spec}\n", 2, 22, "unknown key 'sorce'"),
        ("a:\n  c: 28GB/s\n", 2, 3, "'b' is missing"),
        ("a: 3\n", 1, 4, "'b' is missing"),
        ("a:\n  b: [1]\n  source: maker\n  grade: spec\n", 2, 6, "is not a quantity"),
    ],
)
def test_what_is_wrong_is_placed(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        sources.cite(yamlio.loads(text, "pod.yaml"), ("a", "b"), "bandwidth")
    first = caught.value.problems[0]
    assert (first.line, first.column) == (line, column)
    assert message in first.message
