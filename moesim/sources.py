"""Where a number comes from: the bibliography, grades, and how a YAML file cites them.

A number is cited in one of two ways. As a mapping of its own, or as a plain quantity whose mapping (or an
enclosing one) has ``source`` and ``grade`` beside it, which then hold for all plain quantities in it::

    capacity: {value: 28GB/s, source: cm384, grade: spec}
    lane: {capacity: 28GB/s, latency: 200ns, source: cm384, grade: spec}
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from moesim import resources, units, yamlio
from moesim.errors import InputError, Problem
from moesim.registry import nearest
from moesim.yamlio import Document, Loc


class Grade(StrEnum):
    """How well a number is known: stated by its maker, measured, derived from those, or assumed."""

    SPEC = "spec"
    MEASURED = "measured"
    DERIVED = "derived"
    ASSUMED = "assumed"


GRADES = [grade.value for grade in Grade]


@dataclass(frozen=True)
class Source:
    """One entry of the bibliography. ``reference``: an arXiv id, ``repository@commit``, a document's name."""

    key: str
    title: str
    reference: str
    note: str = ""


@dataclass(frozen=True)
class Cited:
    """A number that was used: ``where`` it stands, ``value`` as written, the ``source``'s key, its grade."""

    where: str
    value: str
    source: str
    grade: Grade
    note: str = ""


def bibliography(path: Path | None = None) -> dict[str, Source]:
    """Key -> :class:`Source`, from the shipped ``topologies/sources.yaml`` or from ``path``.

    The file has a mapping ``sources`` of ``key: {title, reference, note}``.
    """
    return dict(_bibliography(path or resources.find("sources", "sources")))


@lru_cache(maxsize=8)
def _bibliography(path: Path) -> dict[str, Source]:
    return _entries(yamlio.load(path))


def own(document: Document) -> dict[str, Source]:
    """The ``sources`` that a file brings itself, by key; none if it has no such mapping."""
    return _entries(document) if "sources" in document.data else {}


def _known(document: Document) -> dict[str, Source]:
    """What a file may cite: the bibliography, and what it brings itself."""
    return {**bibliography(), **own(document)}


def _entries(document: Document) -> dict[str, Source]:
    entries = document.data.get("sources")
    if not isinstance(entries, dict):
        raise InputError(document.problem(("sources",), "a mapping `sources` is missing"))
    problems: list[Problem] = []
    found: dict[str, Source] = {}
    for key, entry in entries.items():
        loc: Loc = ("sources", key)
        if not isinstance(entry, dict):
            problems.append(
                document.problem(loc, f"source {key!r} is not a mapping", legal="title, reference, note")
            )
            continue
        for name in entry.keys() - {"title", "reference", "note"}:
            legal = nearest(name, ["title", "reference", "note"])
            problems.append(document.problem((*loc, name), f"unknown key {name!r}", legal, at="key"))
        for name in ("title", "reference"):
            if not isinstance(entry.get(name), str):
                problems.append(document.problem(loc, f"source {key!r} needs the text {name!r}", at="key"))
        found[key] = Source(
            key, str(entry.get("title")), str(entry.get("reference")), str(entry.get("note") or "")
        )
    if problems:
        raise InputError(problems)
    return found


def cite(document: Document, loc: Loc, dimension: str) -> tuple[float, Cited]:
    """The quantity at ``loc`` in SI units, and its citation.

    Raises :class:`InputError`, placed, for a missing key, a wrong unit, an unknown source or grade, and a
    number without them.
    """
    try:
        part = document.get(loc)
    except (KeyError, IndexError, TypeError):
        problem = document.problem(loc[:-1], f"the key {loc[-1]!r} is missing", units.legal_units(dimension))
        raise InputError(problem) from None
    alone = isinstance(part, dict)
    at: Loc = (*loc, "value") if alone else loc
    if alone:
        closed(document, loc, part)
    written = part["value"] if alone else part
    try:
        value = units.parse(written, dimension)
    except InputError as error:
        raise InputError([document.place(problem, at) for problem in error.problems]) from None
    citation = citation_at(document, loc if alone else loc[:-1], str(written), where=loc)
    return value, citation


def citation_at(document: Document, loc: Loc, value: str, where: Loc | None = None) -> Cited:
    """The citation that holds at the mapping ``loc``: its own ``source`` and ``grade`` or the enclosing ones.

    ``where``: the loc of the number itself, for the name under which it is listed.
    """
    source_loc, source = _inherited(document, loc, "source")
    grade_loc, grade = _inherited(document, loc, "grade")
    problems: list[Problem] = []
    number = where or loc
    if source is None:
        at = source_loc if source_loc[-1:] == ("source",) else number
        problems.append(
            document.problem(at, "this number names no source", legal="`source: key`, `grade: ...`")
        )
    elif not isinstance(source, str) or source not in _known(document):
        known = _known(document)
        legal = nearest(str(source), sorted(known)) + "; or an entry of its own under `sources:` in this file"
        problems.append(document.problem(source_loc, f"unknown source {source!r}", legal))
    if grade is None:
        at = grade_loc if grade_loc[-1:] == ("grade",) else number
        problems.append(
            document.problem(at, "this number has no grade", legal=f"`grade:` {' '.join(GRADES)}")
        )
    elif grade not in GRADES:
        problems.append(document.problem(grade_loc, f"unknown grade {grade!r}", nearest(str(grade), GRADES)))
    if problems:
        raise InputError(problems)
    holder = document.get(loc)
    note = str(holder.get("note") or "") if isinstance(holder, dict) else ""
    name = f"{Path(document.path).stem} {'.'.join(str(step) for step in number)}".rstrip()
    return Cited(name, value, str(source), Grade(grade), note)


def _inherited(document: Document, loc: Loc, key: str) -> tuple[Loc, Any]:
    """The nearest ``key`` at or above ``loc``, and its loc."""
    for depth in range(len(loc), -1, -1):
        holder = document.get(loc[:depth])
        if isinstance(holder, dict) and key in holder:
            return (*loc[:depth], key), holder[key]
    return loc, None


def closed(document: Document, loc: Loc, part: dict[str, Any]) -> None:
    """Refuse keys beside ``value``, ``source``, ``grade`` and ``note`` in the mapping of a number, and no ``value``."""
    legal = ["value", "source", "grade", "note"]
    problems = [
        document.problem((*loc, key), f"unknown key {key!r}", nearest(key, legal), at="key")
        for key in part
        if key not in legal
    ]
    if "value" not in part:
        problems.append(document.problem(loc, "the key 'value' is missing", legal=", ".join(legal)))
    if problems:
        raise InputError(problems)
