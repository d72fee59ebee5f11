"""What a summary of a result has to hold before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from moesim import jsonio
from moesim.checking import validate
from moesim.outcome import BACKWARD
from moesim.yamlio import Document

SCHEMA = 1

_Amount = Annotated[float, Field(ge=0)]
"""A time [s] or a size [B]."""


class _Open(BaseModel):
    """Keys that are not listed may be anything: a later version may add some."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, defer_build=True)


class _Statistics(_Open):
    critical: _Amount
    mean: _Amount
    p50: _Amount
    p99: _Amount
    max: _Amount


class _Metrics(_Open):
    layer_s: _Statistics
    dispatch_s: _Statistics
    expert_s: _Statistics
    combine_s: _Statistics

    @model_validator(mode="after")
    def _all_of_backward(self) -> _Metrics:
        """A layer in training has all stages of the backward pass."""
        extra = self.__pydantic_extra__ or {}
        names = [f"{stage}_s" for stage in BACKWARD]
        if any(name in extra for name in names):
            for name in names:
                _Statistics.model_validate(extra.get(name))
        return self


class _Strategy(_Open):
    name: str
    metrics: _Metrics
    buffers_B: dict[str, _Amount]


class _Summary(_Open):
    version: Literal[1] = Field(alias="schema")
    fidelity: Literal["fluid", "bound"]
    tolerance: _Amount
    scenario: dict[str, Any]
    strategies: tuple[_Strategy, ...] = Field(min_length=1)


def check(document: Mapping[str, Any], path: str) -> None:
    """Raise :class:`~moesim.errors.InputError` with every key that is missing or wrong; ``path`` names the whole."""
    jsonio.check(document, path)
    validate(_Summary, Document(dict(document), path, {}, {}))
