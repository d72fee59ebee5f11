from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from moesim import parameters


class Inner(BaseModel):
    tau: Annotated[float, Field(gt=0)] | None = None


class Model(BaseModel):
    needed: int
    even: Annotated[int, Field(ge=2, multiple_of=2)] | None = None
    some: Annotated[int, Field(gt=0)] = 1
    word: Literal["a", "b"] = "b"
    only: Literal["x"] = "x"
    flag: bool = True
    share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    many: list[int] | None = None
    inner: Inner | None = None
    either: int | Literal["all"] = "all"
    free: str = ""


@pytest.mark.parametrize(
    ("name", "default", "legal"),
    [
        ("needed", None, "a whole number"),
        ("even", None, "a whole number, at least 2, a multiple of 2"),
        ("some", 1, "a whole number, at least 1"),
        ("word", "b", "a, b"),
        ("only", "x", "x"),
        ("flag", True, "true, false"),
        ("share", 0.5, "a number, at least 0, less than 1"),
        ("many", None, "a list, each a whole number"),
        ("inner", None, "a mapping: tau (a number, more than 0)"),
        ("either", "all", "a whole number or all"),
        ("free", "", "text"),
    ],
)
def test_default_and_legal_values(name: str, default: object, legal: str) -> None:
    rows = {row["name"]: row for row in parameters.of(Model)}
    assert list(rows) == list(Model.model_fields)
    assert rows[name] == {"name": name, "default": default, "required": name == "needed", "legal": legal}
