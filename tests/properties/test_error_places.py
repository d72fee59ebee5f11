"""Whatever is put in the place of a value, or of a key, of a shipped file: the caret stands there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moesim import calibration, fabrics, resources, scenario, yamlio
from moesim.errors import InputError
from moesim.protocols import PROTOCOLS
from moesim.yamlio import Document, Loc, Mark

Load = Callable[[Path], object]

ODD = ("-7", "nonsense-name", "[1, {x: y}]", "{zz: 1}", "9s", "true", "")

# A change there is told where it does harm: a key that names a profile, one profile beside another. How a file was
# fitted is not read key by key.
ELSEWHERE = ("parameters", "profiles", "latency", "sources", "fit")


def mutated(document: Document, lines: list[str]) -> Iterator[tuple[Loc, str, set[int], str]]:
    """Where, the line number, the columns at which a caret is right, and the text with the change."""

    def text(mark: Mark, width: int, new: str) -> str:
        line = lines[mark.line - 1]
        line = line[: mark.column - 1] + new + line[mark.column - 1 + width :]
        return "\n".join([*lines[: mark.line - 1], line, *lines[mark.line :]])

    named = [tuple(place.split(".")) for place in document.data.get("parameters", {}).values()]
    for number, (loc, mark) in enumerate(document.values.items()):
        if not loc or set(loc) & set(ELSEWHERE):
            continue
        key = document.keys.get(loc)
        if not isinstance(document.get(loc), (dict, list)):
            odd = ODD[number % len(ODD)]
            columns = {*range(mark.column, mark.column + len(odd) + 1), *([key.column] if key else [])}
            yield loc, f"{mark.line}", columns, text(mark, mark.width, odd)
        if key is not None and not any(place[: len(loc)] == loc for place in named):
            yield loc, f"{key.line}", {key.column}, text(key, 0, "zz")


def misplaced(path: Path, folder: Path, load: Load) -> list[str]:
    content = path.read_text(encoding="utf-8")
    file = folder / path.name
    found, refusals = [], 0
    for loc, line, columns, text in mutated(yamlio.loads(content), content.split("\n")):
        file.write_text(text, encoding="utf-8")
        try:
            load(file)
        except InputError as error:
            refusals += 1
            places = [(problem.line, problem.column) for problem in error.problems]
            if not any(str(at) == line and column in columns for at, column in places):
                found.append(f"{loc} in line {line}, {columns}: {error.problems[0]}")
    assert refusals > len(content.split("\n")) // 3
    return found


@pytest.mark.parametrize("name", resources.names("scenario"))
def test_scenarios(name: str, tmp_path: Path) -> None:
    assert misplaced(resources.find("scenario", name), tmp_path, scenario.load) == []


@pytest.mark.parametrize("name", ["h100-ib", "gb200-nvl576"])
def test_topologies(name: str, tmp_path: Path) -> None:
    assert misplaced(resources.find("topology", name), tmp_path, lambda path: fabrics.load(str(path))) == []


@pytest.mark.parametrize("name", ["default/ubep", "h800-ib/deepep-ll", "cloudmatrix384/cann-ep"])
def test_calibrations(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod, _, kind = name.partition("/")
    path, find = resources.find("calibration", name), resources.find
    constants = PROTOCOLS.get(kind).constants

    def load(file: Path) -> object:
        monkeypatch.setattr(resources, "find", lambda what, it: file if it == name else find(what, it))
        return calibration.load(pod, kind, constants)

    assert misplaced(path, tmp_path, load) == []
