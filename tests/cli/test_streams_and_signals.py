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
