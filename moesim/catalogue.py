"""What ``moesim list`` shows: everything that a scenario can name, where it is, how much of it is assumed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from moesim import parameters, resources
from moesim.layout import grouped, table, wrapped
from moesim.sources import Cited, Grade

Entry = dict[str, Any]

_BELOW = ("parameters", "path")
_ROOM = 40
"""Characters that a description needs to stand beside its row."""


def entries(kind: str) -> list[Entry]:
    """One row of plain data a name; every row of a kind has the same keys. ``kind``: one of :data:`KINDS`."""
    return KINDS[kind]()


def report(found: Mapping[str, Sequence[Entry]], width: int) -> list[str]:
    """The rows as text, one table a kind; what does not fit beside a row stands under it."""
    lines: list[str] = []
    for kind, rows in found.items():
        lines += ([""] if lines else []) + [f"{kind} ({len(rows)})"]
        if rows:
            lines += _rows(rows, width)
    return lines


def _rows(rows: Sequence[Entry], width: int) -> list[str]:
    heads = [head for head in rows[0] if head not in _BELOW]
    taken = sum(
        2 + max(len(head), *(len(str(row[head])) for row in rows)) for head in heads if head != "about"
    )
    if "about" in heads and taken > width - _ROOM:
        heads.remove("about")
    align = "".join("r" if all(isinstance(row[head], int) for row in rows) else "l" for head in heads)
    top, *groups = grouped([heads, *([str(row[head]) for head in heads] for row in rows)], width, align)
    lines = [*top]
    if any(row.get("parameters") for row in rows):
        lines.append("      parameter, its default (-: none), what is legal")
    for row, group in zip(rows, groups, strict=True):
        lines += group
        for head in row:
            if head == "parameters":
                lines += _parameters(row[head], width)
            elif head not in heads and row[head]:
                lines += wrapped(str(row[head]), width, "      ", "        ")
    return lines


def _parameters(rows: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """A line each: name, default, what is legal."""
    cells = [[row["name"], _default(row), row["legal"]] for row in rows]
    return [f"    {line}" for line in table(cells, width - 4, "lll")] if cells else []


def _default(row: Mapping[str, Any]) -> str:
    if row["required"]:
        return "required"
    return "-" if row["default"] is None else parameters.written(row["default"])


def comment(path: Path) -> str:
    """The first comment of a file: the question that a scenario answers, what a topology is."""
    said: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or (said and not text):
            break
        if text and not text.startswith("yaml-language-server"):
            said.append(text)
    return " ".join(said)


def _assumed(cited: Sequence[Cited]) -> int:
    return sum(item.grade is Grade.ASSUMED for item in cited)


def _topologies() -> list[Entry]:
    from moesim import fabrics

    rows = []
    for name in resources.names("topology"):
        pod = fabrics.load(name)
        path = resources.find("topology", name)
        rows.append(
            {
                "name": name,
                "family": pod.family,
                "devices": len(pod.devices),
                "numbers": len(pod.cited),
                "assumed": _assumed(pod.cited),
                "about": comment(path),
                "path": str(path),
            }
        )
    return rows


def _models() -> list[Entry]:
    from moesim import moe

    loaded = [moe.load(name) for name in moe.names()]
    return [
        {
            "name": model.name,
            "grade": model.grade.value,
            "experts": model.experts,
            "top_k": model.top_k,
            "hidden": model.hidden,
            "moe_layers": model.moe_layers,
            "about": model.title,
        }
        for model in loaded
    ]


def _scenarios() -> list[Entry]:
    paths = {name: resources.find("scenario", name) for name in resources.names("scenario")}
    return [{"name": name, "about": comment(path), "path": str(path)} for name, path in paths.items()]


def _traces() -> list[Entry]:
    return _files("trace")


def _placements() -> list[Entry]:
    return _files("placement")


def _files(kind: str) -> list[Entry]:
    paths = {name: resources.find(kind, name) for name in resources.names(kind)}
    return [{"name": name, "bytes": path.stat().st_size, "path": str(path)} for name, path in paths.items()]


def _protocols() -> list[Entry]:
    from moesim.protocols import PROTOCOLS

    return [_described(name, thing, thing.summary) for name, thing in PROTOCOLS]


def _balancers() -> list[Entry]:
    from moesim.balancers import BALANCERS

    return [_described(name, thing) for name, thing in BALANCERS]


def _routing() -> list[Entry]:
    from moesim.traces import KINDS as TRACES

    return [_described(name, thing) for name, thing in TRACES]


def _described(name: str, thing: Any, about: str = "") -> Entry:
    """A registered class: its parameters and, unless ``about`` is given, the first line of its docstring."""
    text = about or (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")
    return {"name": name, "parameters": parameters.of(thing.Params), "about": text}


KINDS: dict[str, Callable[[], list[Entry]]] = {
    "topologies": _topologies,
    "models": _models,
    "protocols": _protocols,
    "balancers": _balancers,
    "routing": _routing,
    "scenarios": _scenarios,
    "traces": _traces,
    "placements": _placements,
}
