from __future__ import annotations

import os
from pathlib import Path

import pytest

from moesim import yamlio
from moesim.errors import InputError, Problem


def refused(text: str | bytes) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        yamlio.loads(text, "f.yaml")
    return caught.value.problems


def test_scalars_follow_yaml_1_2() -> None:
    text = 'a: 0x1F\nb: 0o17\nc: 0755\nd: 12:30\ne: off\nf: 1e9\ng: "5"\nh: 1_000\n'
    assert yamlio.loads(text + "i: ~\nj:\nk: True\nl: -3\nm: 1.5\n").data == {
        "a": 31, "b": 15, "c": 755, "d": "12:30", "e": "off", "f": 1e9, "g": "5", "h": "1_000",
        "i": None, "j": None, "k": True, "l": -3, "m": 1.5,
    }  # fmt: skip


def test_keys_are_text() -> None:
    assert yamlio.loads("1: a\non: b\ntrue: c\n").data == {"1": "a", "on": "b", "true": "c"}


def test_positions_of_keys_and_values() -> None:
    document = yamlio.loads("# c\na:\n  b: [1, {c: 'x y'}]\n")
    assert document.position(("a", "b", 0)) == (3, 7)
    assert document.position(("a", "b", 1, "c")) == (3, 14)
    assert document.position(("a", "b", 1, "no", "such")) == (3, 10)
    assert document.problem(("a", "b"), "m", at="key").column == 3


def test_the_excerpt_underlines_the_value() -> None:
    problem = yamlio.loads("a: 1\nb: {c: 400Gb}\n", "f.yaml").problem(("b", "c"), "wrong", legal="right")
    assert str(problem) == (
        "f.yaml:2:8: wrong\n     2 | b: {c: 400Gb}\n       |        ^^^^^\n  legal: right"
    )


def test_the_excerpt_of_a_long_line_is_cut_around_the_caret() -> None:
    document = yamlio.loads("{" + ", ".join(f"k{i}: {i}" for i in range(10000)) + "}")
    excerpt = document.problem(("k5000",), "m").excerpt
    assert excerpt is not None
    shown, marks = excerpt.split("\n")
    assert len(shown) < 120
    assert shown[marks.index("^") :].startswith("5000")


def test_a_document_without_places_names_the_key() -> None:
    problem = yamlio.Document({"a": {"b": 1}}, "<x>", {}, {}).problem(("a", "b"), "wrong")
    assert str(problem) == "<x>: a.b: wrong"


def test_all_duplicate_keys_and_bad_numbers_are_told_at_once() -> None:
    problems = refused("a: 1\nb: .nan\na: 2\nc: [-.inf, 1e999]\nd: {x: 1, x: 2}\n")
    assert [(one.line, one.column) for one in problems] == [(2, 4), (3, 1), (4, 5), (4, 12), (5, 11)]
    assert "line 1" in problems[1].message
    assert problems[1].excerpt is not None
    assert "1 | a: 1" in problems[1].excerpt
    assert "3 | a: 2" in problems[1].excerpt


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "empty"),
        ("# only a comment\n", 2, "empty"),
        ("---\n", 2, "nothing"),
        ("- a\n", 1, "a list"),
        ("word", 1, "one value"),
        ("a: &x 1\nb: *x\n", 1, "anchor &x"),
        ("a: 1\nb: *x\n", 2, "alias *x"),
        ("a: !!python/object:os.system x\n", 1, "tag"),
        ("a: !!binary x\n", 1, "tag"),
        ("a:\n\tb: 1\n", 2, "'\\t'"),
        ("a: [1, 2\nb: 3\n", 2, "not YAML"),
        ("a: 'x\n", 2, "end of the file"),
        ("a: b: c\n", 1, "not YAML"),
        ("%YAML 1.1\n---\na: 1\n", 2, "directive"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("? [a]\n: 1\n", 1, "key must be a word"),
        (": 1\n", 1, "key must be a word"),
        ("a: 1\nb: \x07\n", 2, "U+0007"),
        ('a: 1\nb: "\\ud800"\n', 2, "U+D800"),
        ('a: 1\n"\\0": 1\n', 2, "U+0000"),
        ("a: " + "[" * 200, 1, "deep"),
        ("a: " + "9" * 100, 1, "100 characters"),
        (b"a: 1\nb: \xff\n", 2, "UTF-8"),
        (b"\x80\x81\x00\xff" * 100, 1, "UTF-8"),
    ],
)
def test_refused_with_its_line(text: str | bytes, line: int, message: str) -> None:
    problem = refused(text)[-1]
    assert (problem.path, problem.line) == ("f.yaml", line)
    assert message in problem.message


def test_a_bomb_of_aliases_is_refused_at_its_first_anchor() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(i + 1)}: &{chr(i + 1)} [{','.join(['*' + chr(i)] * 9)}]\n" for i in range(ord("a"), ord("z"))
    )
    assert refused(bomb)[0].line == 1


def test_windows_line_ends_and_a_byte_order_mark() -> None:
    document = yamlio.loads(b"\xef\xbb\xbfa: 1\r\nb:\r\n  c: 2\r\n")
    assert document.data == {"a": 1, "b": {"c": 2}}
    assert document.position(("b", "c")) == (3, 6)


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as stream:
        stream.truncate(100_000_000)  # sparse: reading it would be the only cost
    with pytest.raises(InputError, match="100,000,000 bytes"):
        yamlio.load(path)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs an endless file")
def test_an_endless_file_is_refused() -> None:
    with pytest.raises(InputError, match="too large"):
        yamlio.load("/dev/zero")


def test_missing_directory_and_unreadable(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "no.yaml", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(InputError, match=message) as caught:
            yamlio.load(path)
        assert caught.value.problems[0].path == str(path)
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(InputError, match="cannot be read"):
            yamlio.load(name)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text("a: 1\n")
    path.chmod(0)
    with pytest.raises(InputError, match="Permission denied"):
        yamlio.load(path)


def test_graft_keeps_both_places() -> None:
    document = yamlio.loads("a: {b: 1, c: 2}\nd: [5, 6]\n", "f.yaml")
    new = document.graft(("d", 1), yamlio.loads("value: {x: 7}\n", "new"))
    assert new.data == {"a": {"b": 1, "c": 2}, "d": [5, {"x": 7}]}
    assert document.data["d"] == [5, 6]
    assert new.problem(("d", 1, "x"), "m").path == "new"
    assert new.problem(("d", 0), "m").path == "f.yaml"


def test_place_fills_only_what_has_no_place() -> None:
    document = yamlio.loads("a: 1\n", "f.yaml")
    assert document.place(Problem("m", legal="l"), ("a",)).line == 1
    there = Problem("m", path="other.yaml", line=7)
    assert document.place(there, ("a",)) is there
