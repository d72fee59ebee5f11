"""Checks a mapping against a pydantic model and says everything that is wrong with it, in our own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from moesim.errors import InputError, Problem
from moesim.registry import nearest

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")


def check(model: type[M], data: Mapping[str, Any], where: str) -> M:
    """``data`` as a ``model``; raises :class:`InputError` with one problem for each field that is wrong.

    ``where`` starts the name of the field in the message ("routing" -> "routing.sigma"): these problems have
    no line of their own, whoever holds the document adds it.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        found = [_problem(dict(one), list(model.model_fields), where) for one in error.errors()]
        raise InputError(found) from None


def _problem(error: dict[str, Any], fields: list[str], where: str) -> Problem:
    place = ".".join([where, *(str(part) for part in error["loc"])])
    kind, legal = error["type"], (error.get("ctx") or {}).get("legal")
    if kind == "extra_forbidden" and len(error["loc"]) == 1:
        return Problem(f"{place}: unknown key", legal=nearest(str(error["loc"][-1]), fields))
    if kind == "missing":
        return Problem(f"{place}: missing")
    message = error["msg"].removeprefix("Value error, ")
    given = "" if isinstance(error["input"], dict) else f" (given: {error['input']!r})"
    return Problem(f"{place}: {message}{given}", legal=legal)
