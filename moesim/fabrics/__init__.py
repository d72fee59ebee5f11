"""Fabric families, one file each, and the loader of topology files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moesim import resources, yamlio
from moesim.errors import InputError, Problem
from moesim.registry import Registry, nearest
from moesim.yamlio import Document, Loc, Mark, Text

if TYPE_CHECKING:
    from moesim.fabrics._reader import Reader
    from moesim.fabrics._wiring import Wiring
    from moesim.topology import Topology

FABRICS: Registry[Callable[[Reader], Wiring]] = Registry("fabric", "moesim.fabrics", "moesim.fabrics")
"""Family name -> function that reads the mapping ``fabric`` of a topology file and lays the pod out."""


_Place = tuple[Document, Loc]
_Settings = dict[str, tuple[Any, Mark | None, Mark | None]]
"""Parameter -> its value and the places of its name and of that, if it stands in a file."""


def load(
    spec: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    base: Path | None = None,
    within: _Place | None = None,
) -> Topology:
    """The pod that ``spec`` asks for: a shipped name, a path, or a mapping.

    A mapping with ``fabric`` is a topology written inline; another one is ``{name: h100-ib, hosts: 8}``: a
    shipped name or path with some of its declared parameters set, as ``overrides`` does too. ``base``: the
    folder that paths may be relative to. ``within``: the document and place that an inline mapping comes
    from, for the positions in errors. Raises :class:`InputError`.

    >>> load("gb200-nvl72").name, len(load({"name": "h100-ib", "hosts": 2}).devices)
    ('gb200-nvl72', 16)
    """
    settings: _Settings = {name: (value, None, None) for name, value in (overrides or {}).items()}
    return _load(spec, settings, base, within)


def _load(
    spec: str | Path | Mapping[str, Any], settings: _Settings, base: Path | None, within: _Place | None
) -> Topology:
    from moesim.fabrics._pod import build

    if isinstance(spec, (str, Path)):
        file = resources.find("topology", str(spec), base)
        return build(*_adjusted(yamlio.load(file), settings), path=str(file))
    if "fabric" in spec:
        return build(*_adjusted(_inline(spec, within), settings), path=None)
    if "name" not in spec:
        problem = Problem("a topology mapping needs `fabric` or `name`", legal="{name: h100-ib, hosts: 8}")
        raise InputError(problem if within is None else within[0].place(problem, within[1]))
    given = {
        key: (
            value,
            *((within[0].mark((*within[1], key), at) if within else None) for at in ("key", "value")),
        )
        for key, value in spec.items()
        if key != "name"
    }
    name = spec["name"]
    if not isinstance(name, (str, Path)):
        problem = Problem(f"topology.name cannot be {name!r}", legal="a shipped name or a path")
        raise InputError(problem if within is None else within[0].place(problem, (*within[1], "name")))
    return _load(str(name), given | settings, base, within)


def _inline(spec: Mapping[str, Any], within: _Place | None) -> Document:
    """``spec`` as a document of its own, with the marks of the one it stands in."""
    if within is None:
        return Document(dict(spec), "<inline topology>", {}, {})
    document, loc = within
    return replace(document.part(loc), data=dict(spec))


def _adjusted(document: Document, settings: _Settings) -> tuple[Document, dict[str, Any]]:
    """The document with its declared parameters set, and all of them with the value in force."""
    declared = document.data.get("parameters") or {}
    problems: list[Problem] = []
    places: dict[str, Loc] = {}
    if not isinstance(declared, dict):
        raise InputError(
            document.problem(("parameters",), "parameters are no mapping", "{hosts: fabric.hosts}")
        )
    for name, place in declared.items():
        loc = tuple(str(place).split("."))
        try:
            document.get(loc)
            places[name] = loc
        except (KeyError, TypeError, IndexError):
            message = f"the parameter {name!r} sets {place!r}, which is not in the file"
            problems.append(document.problem(("parameters", name), message, "a key such as fabric.hosts"))
    for name, (value, key, mark) in settings.items():
        if name not in places:
            message = f"unknown parameter {name!r} of {document.path}"
            legal = nearest(name, sorted(places)) if places else "this pod has no parameters"
            problems.append(key.problem(message, legal) if key else Problem(message, legal=legal))
            continue
        document = document.graft(places[name], _given(name, value, mark, document.get(places[name])))
    if problems:
        raise InputError(problems)
    values = {name: document.get(loc) for name, loc in places.items()}
    plain = {name: v["value"] if isinstance(v, dict) and "value" in v else v for name, v in values.items()}
    return document, plain


def _given(name: str, value: Any, mark: Mark | None, old: Any) -> Document:
    """A parameter's value from outside the file; a number is no longer what the file's source says."""
    mark = mark or Mark(Text(f"parameter {name}", (f"{name}: {value}",)), 1, 1, len(name))
    number = isinstance(old, (dict, int, float)) or (isinstance(old, str) and old[:1].isdigit())
    plain = number and not isinstance(value, dict)
    data = {"value": value, "source": "user", "grade": "assumed"} if plain else value
    return Document({"value": data}, mark.text.path, {}, {("value",): mark})
