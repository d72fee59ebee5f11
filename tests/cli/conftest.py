"""Runs commands in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from commanded import Moesim, Ran

from moesim.cli import main


@pytest.fixture
def moesim(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Moesim:
    """Run a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOESIM_DEBUG", raising=False)

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        out, err = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return Ran(exit_.value.code, out, err)

    return run
