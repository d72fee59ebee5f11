"""JSON files -> plain data; refuses with its place what is no JSON that moesim could have written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from moesim import yamlio
from moesim.errors import InputError, Problem

MAX_BYTES = 1 << 26
"""Larger files are refused: a summary has some kilobytes a strategy."""
MAX_DEPTH = 50


def load(path: Path) -> dict[str, Any]:
    """The object in ``path``: finite numbers, text that can be printed, at most :data:`MAX_DEPTH` deep.

    Raises :class:`InputError` that names the file, and the line and column where it is not JSON.
    """
    text = yamlio.decoded(yamlio.read(path, MAX_BYTES, "a JSON file"), str(path), "a JSON file")
    try:
        document = json.loads(text, parse_constant=_not_finite, parse_int=_integer, parse_float=_number)
    except json.JSONDecodeError as error:
        raise InputError(Problem(f"not JSON ({error.msg})", str(path), error.lineno, error.colno)) from None
    except ValueError as error:
        raise InputError(Problem(f"not JSON ({error})", str(path))) from None
    except RecursionError:
        raise InputError(Problem(f"is nested more than {MAX_DEPTH} deep", str(path))) from None
    if not isinstance(document, dict):
        raise InputError(Problem("not a JSON object", str(path)))
    check(document, str(path))
    return document


def check(document: Mapping[str, Any], path: str) -> None:
    """Refuse plain data that is nested too deep to be worked on, or that holds what is no character."""
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        if not level:
            return
        if any(isinstance(part, str) and not _encodable(part) for part in level):
            raise InputError(Problem("a text in it has half of a character", path, legal="UTF-8 text"))
        level = [inner for part in level for inner in _inside(part)]
    raise InputError(Problem(f"is nested more than {MAX_DEPTH} deep", path))


def _inside(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return [*part, *part.values()]
    return list(part) if isinstance(part, (list, tuple)) else []


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _integer(text: str) -> int:
    if len(text) > 40:
        raise ValueError(f"a number of {len(text)} characters")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if abs(value) > 1e300:
        raise ValueError(f"{text[:40]} is too large")
    return value
