"""Checks a document against a pydantic model: every problem at once, in our words, each at its place.

Text is never taken for a number nor ``true`` for 1: validation is strict, as between JSON and its schema.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar, get_args, runtime_checkable

from pydantic import BaseModel, ValidationError

from moesim.errors import InputError, Problem
from moesim.registry import nearest
from moesim.yamlio import Document, Loc

M = TypeVar("M", bound=BaseModel)

_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "multiple_of": "a multiple of {multiple_of}",
    "string_pattern_mismatch": "text that matches {pattern}",
}


_MISMATCHES = {*_TYPES, "literal_error", "enum"}


@runtime_checkable
class Chooser(Protocol):
    """Metadata of a field whose model depends on what is written there (the ``kind`` of a protocol)."""

    def model_of(self, written: Any) -> type[BaseModel] | None:
        """The model of the keys beside ``kind``; None if there is no such kind."""
        ...


def validate(model: type[M], document: Document) -> M:
    """``document`` as a ``model``; raises :class:`InputError` with all problems, in the file's order."""
    try:
        return validate_data(model, document.data)
    except ValidationError as error:
        raise InputError(in_order(problems_of(error, model, document))) from None


def validate_data(model: type[M], data: Any) -> M:
    """Plain ``data`` as a ``model``, strictly; raises pydantic's ``ValidationError``."""
    # By way of JSON: strict, and yet a list is a tuple and a text an enumeration, as in a YAML file.
    return model.model_validate_json(json.dumps(data), strict=True)


def in_order(problems: list[Problem]) -> list[Problem]:
    """``problems`` in the order of the file, each once."""
    return sorted(dict.fromkeys(problems), key=lambda one: (one.path or "", one.line or 0, one.column or 0))


def problems_of(error: ValidationError, model: type[BaseModel], document: Document) -> list[Problem]:
    """What pydantic found, placed in ``document``. The branches of a union make one problem together."""
    merged: dict[Loc, list[dict[str, Any]]] = {}
    branches: set[Loc] = set()
    for item in error.errors(include_url=False):
        if _miscounted(item):
            continue
        loc, rest = _within(document, item["loc"])
        merged.setdefault(loc, []).append(dict(item))
        if rest and item["type"] != "missing":
            branches.add(loc)
    # "a list is not a number" goes without saying where one of the list's items is what is wrong.
    above = {other[:depth] for other in merged for depth in range(len(other))}
    deeper = branches & above
    return [
        problem
        for loc, items in merged.items()
        if loc not in deeper
        for problem in _at(loc, items, model, document)
    ]


def _miscounted(item: Mapping[str, Any]) -> bool:
    """Items that are wrong are not counted by pydantic, and then "too few" is said of a list that is long enough."""
    least = (item.get("ctx") or {}).get("min_length", 0)
    return item["type"] == "too_short" and isinstance(item["input"], list) and len(item["input"]) >= least


def _within(document: Document, loc: tuple[int | str, ...]) -> tuple[Loc, Loc]:
    """The part of a pydantic loc that is in the document, and the rest: branches of unions, missing keys."""
    part: Any = document.data
    inside: list[str | int] = []
    rest: list[str | int] = []
    for step in loc:
        found = step in part if isinstance(part, dict) else isinstance(part, list) and isinstance(step, int)
        if found:
            part = part[step]
        (inside if found else rest).append(step)
    return tuple(inside), tuple(rest)


def _at(
    loc: Loc, items: list[dict[str, Any]], model: type[BaseModel], document: Document
) -> Iterator[Problem]:
    name = ".".join(str(step) for step in loc) or "the file"
    legal: list[str] = []
    # A list that is wrong in itself: that it is no other branch of a union adds nothing.
    if any(item["type"] == "twice" for item in items):
        items = [item for item in items if item["type"] not in _MISMATCHES]
    for item in items:
        kind, context = item["type"], item.get("ctx") or {}
        if kind == "extra_forbidden":
            keys = _legal_keys(model, document, loc[:-1])
            yield document.problem(loc, f"unknown key {loc[-1]!r}", nearest(str(loc[-1]), keys), at="key")
        elif kind == "missing":
            missing = f"the key {item['loc'][-1]!r} is missing"
            yield document.problem(loc, f"{missing} in {name}" if loc else missing, at="key")
        elif kind in _TYPES:
            legal.append(_TYPES[kind])
        elif kind in _BOUNDS:
            bounds = {
                key: f"{bound:.15g}" if isinstance(bound, float) else bound for key, bound in context.items()
            }
            legal.append(_BOUNDS[kind].format(**bounds))
        elif kind in ("literal_error", "enum"):
            options = re.findall(r"'([^']*)'", context["expected"]) or [context["expected"]]
            legal.append(nearest(str(item["input"]), options) if len(options) > 1 else options[0])
        else:
            message = item["msg"].removeprefix("Value error, ")
            written = item["input"] if isinstance(item["input"], dict) else {}
            if kind == "no_kind" and "kind" not in written:
                yield from _misspelt_kind(document, loc, written)
            at = (*loc, "kind") if kind in ("unknown_kind", "no_kind") and "kind" in written else loc
            yield document.problem(at, f"{name}: {message}", context.get("legal"))
    if legal:
        message = f"{name} cannot be {_shown(items[0]['input'])}"
        yield document.problem(loc, message, " or ".join(dict.fromkeys(legal)))


def _misspelt_kind(document: Document, loc: Loc, written: dict[str, Any]) -> Iterator[Problem]:
    """The key that was meant to be ``kind``, if there is one."""
    close = difflib.get_close_matches("kind", written, n=1)
    for key in close:
        yield document.problem((*loc, key), f"unknown key {key!r}", "did you mean 'kind'?", at="key")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = json.dumps(value, ensure_ascii=False) if value is not None else "empty"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _legal_keys(model: type[BaseModel], document: Document, loc: Loc) -> list[str]:
    """The keys that the mapping at ``loc`` may have."""
    models: list[type[BaseModel]] = [model]
    keys: list[str] = []
    part: Any = document.data
    for step in loc:
        part = part[step]
        if isinstance(step, int):
            continue
        fields = [one.model_fields[step] for one in models if step in one.model_fields]
        choosers = [mark for field in fields for mark in field.metadata if isinstance(mark, Chooser)]
        chosen = [one for one in (chooser.model_of(part) for chooser in choosers) if one is not None]
        keys = ["kind"] if choosers else []
        models = chosen + [one for field in fields for one in _models(field.annotation)]
    return keys + [name for one in models for name in one.model_fields]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
