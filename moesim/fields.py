"""Checks a mapping that is in no file, such as the parameters of a kind, against a pydantic model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from moesim.errors import InputError, Problem
from moesim.yamlio import Document

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")


def check(model: type[M], data: Mapping[str, Any], where: str) -> M:
    """``data`` as a ``model``; raises :class:`InputError` with all problems.

    They start with ``where`` and have no place: whoever has the document adds it.
    """
    from moesim.checking import validate

    try:
        return validate(model, Document(dict(data), where, {}, {}))
    except InputError as error:
        bare = [Problem(f"{where}: {one.message}", legal=one.legal) for one in error.problems]
        raise InputError(bare) from None
