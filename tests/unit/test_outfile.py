"""Files that a command writes: whole or not at all, and never over an input, a folder or a device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moesim import outfile
from moesim.errors import InputError


def test_only_a_regular_file_that_is_no_input_is_replaced(tmp_path: Path) -> None:
    given, other = tmp_path / "given", tmp_path / "out"
    given.touch()
    outfile.ready(other, [given])
    other.touch()
    outfile.ready(other, [given])
    with pytest.raises(InputError, match="also an input"):
        outfile.ready(given, [given])
    alias = tmp_path / "alias"
    alias.symlink_to(given)
    with pytest.raises(InputError, match="also an input"):
        outfile.ready(alias, [given])
    os.mkfifo(tmp_path / "pipe")
    for special in (tmp_path, tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(InputError, match="no regular file"):
            outfile.ready(special, [given])


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(TypeError), outfile.replaced(tmp_path / "out") as stream:
        stream.write("no bytes")  # type: ignore[arg-type]
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out", b"old")]
    with outfile.replaced(tmp_path / "out") as stream:
        stream.write(b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out", b"new")]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"), outfile.replaced(tmp_path / "absent" / "out"):
        pass
