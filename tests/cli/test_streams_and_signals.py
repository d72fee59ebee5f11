"""Streams that are closed, signals, memory that runs out: no bug of ours, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moesim import progress, simulate
from moesim.cli import main
from moesim.errors import InputError

SMALL = str(Path(__file__).parent / "small.yaml")
ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
MAIN = "from moesim.cli import main; main()"


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process."""
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert isinstance(exit_.value.code, int)
    return exit_.value.code, *capsys.readouterr()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_files_are_written_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    kill = f"import os, moesim.tables as t; t.write = lambda *_: os.kill(os.getpid(), {int(number)}); "
    call = [sys.executable, "-c", kill + MAIN, "run", SMALL, "--fidelity", "bound", "--out", "x"]
    ran = subprocess.run(call, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr.strip()) == (130, "", "moesim: interrupted")
    assert list(tmp_path.iterdir()) == []


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
TWICE = [(first, second) for first in SIGNALS for second in SIGNALS[:2]]


@pytest.mark.parametrize("numbers", TWICE)
@pytest.mark.parametrize("verb", ["run", "flows"])
def test_signals_that_follow_the_first_disturb_nothing(
    tmp_path: Path, numbers: tuple[signal.Signals, ...], verb: str
) -> None:
    """Two at once while files are written, two more while they are cleared away, two as the process ends."""
    np.savez(tmp_path / "f.npz", bytes=np.ones(2), path=np.zeros((2, 1), dtype=int), cap=np.ones(1))
    both = " ".join(f"os.kill(os.getpid(), {int(number)});" for number in numbers)
    code = f"""
import atexit, os, pathlib, shutil, numpy
import moesim.tables
def kill(*_, **__):
    {both}
def first(function):
    def called(*given, **named):
        kill()
        return function(*given, **named)
    return called
moesim.tables.write = numpy.savez_compressed = kill
shutil.rmtree, pathlib.Path.unlink = first(shutil.rmtree), first(pathlib.Path.unlink)
atexit.register(kill)
"""
    run = ("run", SMALL, "--fidelity", "bound", "--out", "x")
    arguments = run if verb == "run" else ("flows", "f.npz", "-o", "x.npz")
    call = [sys.executable, "-c", code + MAIN, *arguments]
    ran = subprocess.run(call, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr.strip()) == (130, "", "moesim: interrupted")
    assert [path.name for path in tmp_path.iterdir()] == ["f.npz"]


def test_files_that_are_put_in_place_are_not_disturbed(tmp_path: Path) -> None:
    """A signal between the two renames of a folder that is replaced waits for the second."""
    code = """
import os, pathlib, signal
rename = pathlib.Path.rename
def renamed(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    return rename(*given)
pathlib.Path.rename = renamed
"""
    call = ["run", SMALL, "--fidelity", "bound", "--out", "x"]
    for patch, wanted in (("", 0), (code, 130)):
        ran = subprocess.run([sys.executable, "-c", patch + MAIN, *call], cwd=tmp_path, env=ENV,
                             capture_output=True, text=True, timeout=60)  # fmt: skip
        assert ran.returncode == wanted, ran.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["x"]
        assert (tmp_path / "x" / "result.json").is_file()


def test_a_closed_stream_is_no_bug() -> None:
    code = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"

    def closed(stream: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        call = [sys.executable, "-c", code, str(stream), "-c", MAIN, *arguments]
        return subprocess.run(call, env=ENV, capture_output=True, text=True, timeout=60)

    unread = closed(1, "list", "balancers")
    assert (unread.returncode, unread.stdout) == (2, "")
    assert unread.stderr.startswith("moesim: standard output is closed")
    silent = closed(2, "check", "no-such-file.yaml")
    assert (silent.returncode, silent.stdout) == (2, "")
    assert closed(2, "list", "balancers").stdout.startswith("balancers (")


def test_memory_that_runs_out_is_no_bug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(simulate, "run", fail)
    code, out, err = ended(capsys, "run", SMALL)
    assert (code, out) == (2, "")
    assert "out of memory" in err


def test_a_long_run_says_where_it_is_when_stderr_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(scenario: Any, progress: Callable[[int, int, str], None]) -> None:
        progress(1, 3, "fused: step 0, layer 1")
        time.sleep(0.3)
        raise InputError("enough")

    monkeypatch.setattr(simulate, "run", slow)
    assert ended(capsys, "run", SMALL) == (2, "", "moesim: enough\n")
    monkeypatch.setattr(progress, "EVERY", 0.05)
    code, out, err = ended(capsys, "run", SMALL)
    first, *_, last = err.splitlines()
    assert (code, out) == (2, "")
    assert first == "moesim: 1 of 3 cases after 0 s, now fused: step 0, layer 1"
    assert last == "moesim: enough"
