"""Every number that a kind takes has a largest value, which ``check`` tells, so nothing behind it overflows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moesim import schema
from moesim.errors import InputError
from moesim.scenario import load

KINDS = {"protocol": schema.protocols, "balancer": schema.balancers, "routing": schema.routing_kinds}
HEAD = """\
moesim: 1
topology: gb200-nvl72
ranks: {ep: 8}
model: deepseek-v2-lite
workload: {phase: decode, tokens_per_rank: 8, layers: 1}
"""


def numbers(schema_: dict[str, Any], defined: dict[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Each part of a JSON Schema that takes a number, under its place."""
    if "$ref" in schema_:
        schema_ = defined[schema_["$ref"].rpartition("/")[2]]
    for part in schema_.get("anyOf", []):
        yield from numbers(part, defined, at)
    if "items" in schema_:
        yield from numbers(schema_["items"], defined, at)
    for name, part in schema_.get("properties", {}).items():
        yield from numbers(part, defined, f"{at}.{name}".lstrip("."))
    if schema_.get("type") in ("integer", "number"):
        yield at, schema_


def taken() -> Iterator[tuple[str, str, str, Any]]:
    for key, registry in KINDS.items():
        for kind, thing in registry():
            document = thing.Params.model_json_schema()
            for name, part in numbers(document, document.get("$defs", {})):
                yield key, kind, name, part


TAKEN = list(taken())


@pytest.mark.parametrize(("key", "kind", "name", "part"), TAKEN, ids=[".".join(one[:3]) for one in TAKEN])
def test_every_number_has_a_largest_value_that_is_told(
    tmp_path: Path, key: str, kind: str, name: str, part: dict[str, Any]
) -> None:
    most = part.get("maximum", part.get("exclusiveMaximum"))
    assert most is not None
    assert most <= 1e9
    written = f"{name}: 9000000000"
    for step in reversed(name.split(".")[:-1]):
        written = f"{step}: {{{name.rpartition('.')[2]}: 9000000000}}"
    items = {"protocol": "deepep-ll", "balancer": "none", "routing": "{kind: uniform}"}
    if kind == "hot" and name != "hot":
        written = f"hot: 1, {written}"
    items[key] = f"{{kind: {kind}, {written}}}".replace(" at: 9000000000", " at: [9000000000]")
    routing = items.pop("routing")
    rest = ", ".join(f"{one}: {value}" for one, value in items.items())
    text = f"routing: {routing}\nstrategies: [{{name: a, {rest}}}]\n"
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + text)
    with pytest.raises(InputError) as caught:
        load(path)
    told = [one for one in caught.value.problems if "cannot be 9000000000" in one.message]
    assert len(told) == 1
    assert told[0].legal in (f"at most {most:.15g}", f"less than {most:.15g}")
    assert path.read_text().splitlines()[(told[0].line or 0) - 1][(told[0].column or 0) - 1 :].startswith("9")
