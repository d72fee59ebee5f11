from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest

from moesim import resources, scenario, yamlio
from moesim.balancers import BALANCERS
from moesim.moe import names as model_names
from moesim.protocols import PROTOCOLS
from moesim.traces import KINDS

DATA: dict[str, Any] = {
    "moesim": 1,
    "topology": {"fabric": {"kind": "crossbar"}},
    "ranks": {"ep": 2},
    "model": "mixtral-8x7b",
    "workload": {"phase": "decode", "tokens_per_rank": 16},
    "routing": {"kind": "lognormal", "sigma": 0.7},
    "strategies": [{"name": "a", "protocol": {"kind": "ubep", "sync": "dc"}, "balancer": "none"}],
}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    schema = scenario.json_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("name", resources.names("scenario"))
def test_shipped_scenarios_are_valid(validator: jsonschema.Draft7Validator, name: str) -> None:
    assert not list(validator.iter_errors(yamlio.load(resources.find("scenario", name)).data))


def edited(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    data = copy.deepcopy(DATA)
    part: Any = data
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "valid"),
    [
        (("seed",), 3, True),
        (("seed",), -3, False),
        (("sead",), 3, False),
        (("ranks", "ep"), "8", False),
        (("ranks", "place"), "spread", True),
        (("ranks", "place"), [0, "d1"], True),
        (("ranks", "place"), "pack", False),
        (("tolerance",), "0.3%", True),
        (("tolerance",), 0.003, False),
        (("tolerance",), "3us", False),
        (("workload", "layers"), [0, 1], True),
        (("workload", "layers"), 0, False),
        (("model",), "no-such-model", False),
        (("model",), {"hidden": 64}, False),
        (("routing", "kind"), "lognorml", False),
        (("routing", "sigmma"), 1, False),
        (("strategies", 0, "protocol"), "ubep", True),
        (("strategies", 0, "protocol"), "ubepp", False),
        (("strategies", 0, "protocol", "sync"), "dd", False),
        (("strategies", 0, "balancer"), {"kind": "moonep"}, True),
        (("strategies", 0, "balancer"), {"kind": "moonep", "x": 1}, False),
        (("strategies", 0, "assume"), ["multicast"], True),
        (("strategies", 0, "assume"), ["multicas"], False),
        (("background",), [{"src": 0, "dst": 1, "size": "1GiB"}], True),
        (("background",), [{"src": 0, "dst": 1, "size": 3}], False),
        (("background",), [{"src": 0, "dst": 1, "size": "3GB/s"}], False),
        (("faults",), [{"chip": "a", "capacity": "50%"}], True),
        (("faults",), [{"chop": "a"}], False),
    ],
)
def test_the_schema_agrees_with_the_loader(
    validator: jsonschema.Draft7Validator, path: tuple[str | int, ...], value: Any, valid: bool
) -> None:
    data = edited(path, value)
    assert validator.is_valid(data) is valid
    if valid:
        scenario.from_mapping(data)
    else:
        with pytest.raises(scenario.InputError):
            scenario.from_mapping(data)


def test_every_registered_kind_and_model_is_offered() -> None:
    schema = scenario.json_schema()
    strategy = schema["$defs"]["Strategy"]["properties"]
    assert strategy["protocol"]["anyOf"][0]["enum"] == PROTOCOLS.names()
    assert strategy["balancer"]["anyOf"][0]["enum"] == BALANCERS.names()
    assert schema["properties"]["model"]["anyOf"][0]["enum"] == model_names()
    for what, registry in (("protocol", PROTOCOLS), ("balancer", BALANCERS), ("routing", KINDS)):
        for name in registry.names():
            assert schema["$defs"][f"{what}-{name}"]["properties"]["kind"] == {"const": name}


def test_every_reference_is_defined() -> None:
    schema = scenario.json_schema()

    def references(part: Any) -> list[str]:
        if isinstance(part, dict):
            own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
            return own + [one for item in part.values() for one in references(item)]
        return [one for item in part for one in references(item)] if isinstance(part, list) else []

    assert {one.removeprefix("#/$defs/") for one in references(schema)} <= schema["$defs"].keys()
