"""The README: every command and block is run, every table is compared with what it lists."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import moesim
from moesim import catalogue
from moesim.cli import cli
from moesim.schema import ScenarioKeys

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOESIM = [sys.executable, "-W", "error", "-c", "from moesim.cli import main; main()"]
ENVIRONMENT = os.environ | {"COLUMNS": "100", "PYTHONPATH": str(ROOT)}


class Block(NamedTuple):
    """A fenced block, and the file that the line above says it is."""

    language: str
    text: str
    file: str | None


def blocks() -> list[Block]:
    """All fenced blocks, in order."""
    pattern = r"(?:`([\w-]+\.yaml)`:\n\n)?^```(\w+)\n(.*?)^```$"
    found = re.finditer(pattern, README, re.MULTILINE | re.DOTALL)
    return [Block(match[2], match[3], match[1]) for match in found]


def first_column(header: str) -> list[str]:
    """The first `code` of every row of the table under the heading row that starts with ``header``."""
    lines = README.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {header} |"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [re.findall(r"`([^`]+)`", row)[0] for row in rows]


def installs() -> list[str]:
    return [block.text.strip() for block in blocks() if "pip install" in block.text]


def alike(shown: str, printed: str) -> bool:
    """The same words; numbers may differ in the third digit, as other versions of numpy round otherwise."""
    a, b = (
        [re.fullmatch(r"(\d+\.?\d*)(\D*)", word) or word for word in line.split()]
        for line in (shown, printed)
    )
    return len(a) == len(b) and all(
        x == y
        if isinstance(x, str) or isinstance(y, str)
        else x[2] == y[2] and float(x[1]) == pytest.approx(float(y[1]), rel=0.02, abs=0.1)
        for x, y in zip(a, b, strict=True)
    )


def missing(shown: str, printed: str) -> str | None:
    """The first line of ``shown`` that ``printed`` does not have after the lines before it; None if it has all."""
    lines = iter(printed.splitlines())
    wanted = (line for line in shown.splitlines() if line.strip(" .") != "")
    return next((line for line in wanted if not any(alike(line, other) for other in lines)), None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A place that looks like a clone, with the files that the README names."""
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    for block in blocks():
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    return tmp_path


def run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        arguments, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_block_is_of_a_language_that_is_tested() -> None:
    assert {block.language for block in blocks()} == {"sh", "text", "yaml", "python"}
    assert README.count("```") == 2 * len(blocks())


def test_yaml_blocks_are_files() -> None:
    assert all(block.file for block in blocks() if block.language == "yaml")


def test_two_commands_set_everything_up() -> None:
    first, second = installs()
    assert [first.count("\n"), second.count("\n")] == [0, 0]
    assert first.startswith("python3 -m venv .venv && ")
    assert second.startswith("python3 -m venv .venv && ")
    assert first.split(" && ")[-1] == ".venv/bin/moesim run scenarios/decode-cloudmatrix384.yaml"
    assert ".venv/bin/pytest" in second


def test_ci_runs_the_second_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    search = re.search(r"grep -F '([^']+)' README\.md", script)
    assert search is not None
    assert [line for line in README.splitlines() if search[1] in line] == [installs()[1]]


def test_shell_blocks_run_and_print_what_is_shown(folder: Path) -> None:
    ran, last = 0, ""
    for block in blocks():
        if block.language == "text":
            assert missing(block.text, last) is None, last
        if "np.savez(" in block.text:  # makes a file that the commands behind it read
            run([sys.executable, "-W", "error", "-c", block.text], folder)
        if block.language != "sh":
            continue
        for line in block.text.splitlines():
            if "pip install" in line:
                line = line.split(" && ")[-1].removeprefix(".venv/bin/")
            if line.startswith("moesim "):
                last = run([*MOESIM, *shlex.split(line)[1:]], folder)
                ran += 1
            else:
                assert line.startswith("pytest "), line
    assert ran > 8


def test_python_blocks_run(folder: Path) -> None:
    program = "\n".join(block.text for block in blocks() if block.language == "python")
    printed = run([sys.executable, "-W", "error", "-c", program], folder)
    assert "us a layer" in printed


def test_output_check_finds_a_missing_line() -> None:
    printed = "bound  142.0 us  1.83x\nb\nsend  10.0 33%\n"
    assert missing("bound 142.1 us 1.84x\n...\nsend 10.0 33%", printed) is None
    assert missing("b\nbound 142.0 us 1.83x", printed) == "bound 142.0 us 1.83x"
    for wrong in (
        "bound 148 us 1.83x",
        "bound 142.0 ms 1.83x",
        "bound 142.0 us 1.83",
        "bind 142.0 us 1.83x",
        "bound",
    ):
        assert missing(wrong, printed) == wrong


def test_api_table_is_the_public_list() -> None:
    named = [re.match(r"\w+", cell) for cell in first_column("name")]
    assert sorted(match[0] for match in named if match) == sorted(moesim.__all__)


def test_command_table_is_the_commands() -> None:
    assert sorted(cell.split()[1] for cell in first_column("command")) == sorted(cli.commands)


def test_key_table_is_the_keys() -> None:
    assert first_column("key") == list(ScenarioKeys.model_fields)


@pytest.mark.parametrize("kind", ["topologies", "protocols", "balancers", "routing", "scenarios"])
def test_names_are_those_that_are_there(kind: str) -> None:
    row = next(line for line in README.splitlines() if line.startswith(f"| {kind} |"))
    assert re.findall(r"`([^`]+)`", row) == [entry["name"] for entry in catalogue.entries(kind)]


def test_files_that_are_named_exist() -> None:
    paths = re.findall(
        r"`((?:scenarios|topologies|notebooks|tests|moesim|\.ci)/[\w./-]*|[A-Z]+|pyproject\.toml)`", README
    )
    files = [path for path in paths if "/" in path or path == "LICENSE"]
    assert len(files) > 5
    assert [path for path in files if not (ROOT / path).exists()] == []
