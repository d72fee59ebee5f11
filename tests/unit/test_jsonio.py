from __future__ import annotations

from pathlib import Path

import pytest

from moesim import jsonio
from moesim.errors import InputError


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("{", 1, "not JSON"),
        ('{"a": 1,\n "b" 2}', 2, "not JSON"),
        ("[]", None, "not a JSON object"),
        ('{"a": NaN}', None, "NaN is no number"),
        ('{"a": -Infinity}', None, "-Infinity is no number"),
        ('{"a": 1e999}', None, "too large"),
        ('{"a": ' + "9" * 500 + "}", None, "500 characters"),
        ('{"a": ' + "9" * 5000 + "}", None, "5000 characters"),
        ('{"a": ' * 200_000, None, "nested"),
        ("[" * 60 + "]" * 60, None, "not a JSON object"),
        ('{"a": ' + "[" * 60 + "]" * 60 + "}", None, "nested"),
        ('{"a": "\\ud800"}', None, "half of a character"),
        ('{"\\ud800": 1}', None, "half of a character"),
        (b'{"a":\n"\xff"}', 2, "UTF-8"),
        ("", 1, "not JSON"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(
    tmp_path: Path, content: str | bytes, line: int | None, message: str
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        jsonio.load(path)
    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == (str(path), line)
    assert message in problem.message


def test_what_is_json_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": [1, 2.5, null, true, "\\u00b5"], "b": {"c": -1e-7}}')
    assert jsonio.load(path) == {"a": [1, 2.5, None, True, "\u00b5"], "b": {"c": -1e-7}}


@pytest.mark.parametrize("path", [".", "no-such-file", "/dev/zero"])
def test_what_cannot_be_read_is_named(path: str) -> None:
    with pytest.raises(InputError) as caught:
        jsonio.load(Path(path))
    assert caught.value.problems[0].path == path
