"""The parameters of a registered kind, with default and what is legal, from its pydantic model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
    "multipleOf": "a multiple of",
}
_TYPES = {"integer": "a whole number", "number": "a number", "string": "text", "boolean": "true, false"}


def of(model: type[BaseModel]) -> list[dict[str, Any]]:
    """A row ``name``, ``default`` (as a file would have it; None for none), ``required``, ``legal`` each.

    >>> from moesim.protocols import PROTOCOLS
    >>> of(PROTOCOLS.get("ubep").Params)[0]
    {'name': 'dispatch', 'default': 'int8', 'required': False, 'legal': 'int8, fp8, bf16'}
    """
    schema = model.model_json_schema()
    defined, required = schema.get("$defs", {}), schema.get("required", [])
    return [
        {
            "name": name,
            "default": part.get("default"),
            "required": name in required,
            "legal": legal(part, defined),
        }
        for name, part in schema.get("properties", {}).items()
    ]


def legal(part: Mapping[str, Any], defined: Mapping[str, Any]) -> str:
    """What a part of a JSON Schema accepts, in words; that an optional one may be left out goes without saying."""
    if "$ref" in part:
        return legal(defined[part["$ref"].rpartition("/")[2]], defined)
    if "anyOf" in part:
        options = [legal(one, defined) for one in part["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(options))
    if "const" in part:
        return written(part["const"])
    if "enum" in part:
        return ", ".join(map(written, part["enum"]))
    kind = part.get("type", "")
    if kind == "array":
        return f"a list, each {legal(part.get('items', {}), defined)}"
    if kind == "object":
        inner = (f"{name} ({legal(one, defined)})" for name, one in part.get("properties", {}).items())
        return f"a mapping: {', '.join(inner)}" if part.get("properties") else "a mapping"
    if kind == "integer" and "exclusiveMinimum" in part:
        part = {**part, "minimum": part["exclusiveMinimum"] + 1}
        del part["exclusiveMinimum"]
    bounds = [f"{word} {part[key]:.15g}" for key, word in _BOUNDS.items() if key in part]
    return ", ".join([_TYPES.get(kind, "anything"), *bounds])


def written(value: Any) -> str:
    """``value`` as a scenario file has it."""
    return value if isinstance(value, str) else json.dumps(value)
