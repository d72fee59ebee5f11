"""The package as a whole: what importing it costs, what it offers, how its modules stand to each other."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import moesim
from moesim.traces import KINDS

ROOT = Path(__file__).parents[2]
HEAVY = ("numpy", "scipy", "pandas", "networkx", "matplotlib", "simpy", "pydantic", "ruamel", "rich")


def python(program: str, **environment: str) -> str:
    """What ``program`` prints in a fresh interpreter."""
    plain = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=plain | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return found.stdout.strip()


@pytest.mark.parametrize(
    "program", ["import moesim", "from moesim.cli import cli; cli.main(['--help'], standalone_mode=False)"]
)
def test_import_and_help_stay_light(program: str) -> None:
    loaded = f"import sys; print('loaded', sorted(set({HEAVY!r}) & set(sys.modules)))"
    assert python(f"{program}\n{loaded}").splitlines()[-1] == "loaded []"


def test_every_public_name_is_there() -> None:
    for name in moesim.__all__:
        assert getattr(moesim, name) is not None
    assert set(moesim.__all__) <= set(dir(moesim))


def test_another_name_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        moesim.runn  # noqa: B018


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "7"}, "7")])
def test_threads_of_linear_algebra_are_set_only_if_the_user_did_not(
    given: dict[str, str], expected: str
) -> None:
    program = "import os, moesim; print(os.environ['OPENBLAS_NUM_THREADS'])"
    assert python(program, **given) == expected


def test_types_are_shipped() -> None:
    assert (ROOT / "moesim" / "py.typed").is_file()


def test_kinds_of_routing_are_kept_apart() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    apart = next(contract["modules"] for contract in contracts if contract["id"] == "traces")
    assert set(apart) == {kind.__module__ for _, kind in KINDS}


def test_fabric_families_are_kept_apart() -> None:
    from moesim.fabrics import FABRICS

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    apart = next(contract["modules"] for contract in contracts if contract["id"] == "fabrics")
    assert set(apart) == {family.__module__ for _, family in FABRICS}
