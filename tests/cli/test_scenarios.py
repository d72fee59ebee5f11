"""Every shipped scenario: it says which question it answers, it is valid, and it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moesim import resources
from moesim.cli import cli

NAMES = resources.names("scenario")
SMALL = ["workload.layers=1", "workload.steps=1", "workload.tokens_per_rank=4"]


@pytest.fixture(autouse=True)
def _fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def moesim(*arguments: str) -> int | None:
    """The exit code of a command that does not complain about its input."""
    code: int | None = cli.main(list(arguments), standalone_mode=False)
    return code


def test_the_scenarios_that_are_promised_are_there() -> None:
    promised = {
        "balance-decode-cloudmatrix384",
        "balance-prefill-real",
        "balance-prefill-real-gpt-oss",
        "balance-train-nvl72",
        "compare-nvl576",
        "decode-cloudmatrix384",
        "decode-nvl72",
        "imbalance-nvl72",
        "prefill-h100",
        "train-nvl72",
        "ubep-ablation",
        "ubep-vs-cann-balanced",
    }
    assert promised <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_first_comment_is_a_question(name: str) -> None:
    text = resources.find("scenario", name).read_text(encoding="utf-8")
    comments = [line for line in text.splitlines() if not line.startswith("# yaml-language-server")]
    first = comments[0]
    assert first.startswith("# Question: ")
    assert first.endswith("?")


@pytest.mark.parametrize("name", NAMES)
def test_check_finds_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert moesim("check", name) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{name}: scenario, ")
    assert printed.err == ""


@pytest.mark.parametrize("fidelity", ["bound", "fluid"])
@pytest.mark.parametrize("name", NAMES)
def test_runs_on_a_small_batch(name: str, fidelity: str, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [part for key in SMALL for part in ("--set", key)]
    assert moesim("run", name, "--fidelity", fidelity, "--json", *sets) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fidelity"] == fidelity
    for outcome in document["strategies"]:
        assert 0 < outcome["bound_s"]["layer"] <= outcome["metrics"]["layer_s"]["critical"] * (1 + 1e-9)
