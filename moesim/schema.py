"""The keys of a scenario file, their types and defaults, and the JSON Schema for editors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError, core_schema

from moesim import requirement, units
from moesim.checking import validate_data
from moesim.errors import InputError
from moesim.registry import Registry, nearest

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

FAULT_TARGETS = ("link", "chip", "nic", "rank", "plane")
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Choice:
    """A registered kind with its checked parameters, and those parameters as they were written."""

    kind: str
    params: BaseModel
    written: Mapping[str, Any]

    def spec(self) -> dict[str, Any]:
        """The mapping that a scenario file would have: ``kind`` and the parameters as written."""
        return {"kind": self.kind, **self.written}


def protocols() -> Registry[Any]:
    """The registry behind ``protocol:``."""
    from moesim.protocols import PROTOCOLS

    return PROTOCOLS


def balancers() -> Registry[Any]:
    """The registry behind ``balancer:``."""
    from moesim.balancers import BALANCERS

    return BALANCERS


def routing_kinds() -> Registry[Any]:
    """The registry behind ``routing:``."""
    from moesim.traces.source import KINDS

    return KINDS


@dataclass(frozen=True)
class Kinds:
    """Marks a :class:`Choice` field with the registry that it chooses from."""

    registry: Callable[[], Registry[Any]]

    def model_of(self, written: Any) -> Any:
        """The ``Params`` of the kind that is written, None if there is no such kind."""
        name = written.get("kind") if isinstance(written, dict) else written
        registry = self.registry()
        return registry.get(name).Params if name in registry.names() else None

    def choose(self, written: Any) -> Choice:
        """The choice that is ``written``: a name, or a mapping with ``kind`` and parameters."""
        registry = self.registry()
        if isinstance(written, Choice):
            return written
        if isinstance(written, str):
            written = {"kind": written}
        if not isinstance(written, dict) or not isinstance(written.get("kind"), str):
            context = {"what": registry.kind, "legal": f"one of: {', '.join(registry.names())}"}
            raise PydanticCustomError("no_kind", "a {what} is a name or a mapping with `kind`", context)
        model = self.model_of(written)
        if model is None:
            name = written["kind"]
            context = {"what": registry.kind, "name": name, "legal": nearest(name, registry.names())}
            raise PydanticCustomError("unknown_kind", "unknown {what} '{name}'", context)
        given = {key: value for key, value in written.items() if key != "kind"}
        return Choice(written["kind"], _checked(model, given), given)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.choose)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        registry = self.registry()
        return {"$comment": registry.kind}  # filled in by json_schema()


def _checked(model: type[BaseModel], given: dict[str, Any]) -> BaseModel:
    try:
        return validate_data(model, given)
    except InputError as error:  # from a validator of the model's own
        raise _custom(error) from None


def _custom(error: InputError) -> PydanticCustomError:
    text = "; ".join(problem.message for problem in error.problems)
    legal = "; ".join(problem.legal for problem in error.problems if problem.legal)
    return PydanticCustomError("input", "{text}", {"text": text, "legal": legal or None})


class _InlineModel:
    """Marks ``model:``, a catalogue name or a mapping with the catalogue's keys; stays as written."""

    def model_of(self, written: Any) -> type[BaseModel] | None:
        from moesim import moe

        return moe.spec() if isinstance(written, dict) else None

    def check(self, written: Any) -> Any:
        from moesim import moe

        if isinstance(written, dict):
            _checked(moe.spec(), written)
        elif not isinstance(written, str):
            legal = "a name of the catalogue or a mapping with the same keys"
            raise PydanticCustomError("model", "not a model", {"legal": legal})
        elif written not in moe.names():
            context = {"name": written, "legal": nearest(written, moe.names())}
            raise PydanticCustomError("model", "unknown model '{name}'", context)
        return written

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        return {"$comment": "model"}  # filled in by json_schema()


def _requirement(text: str) -> str:
    try:
        requirement.parse(text)
    except InputError as error:
        raise _custom(error) from None
    return text


def known_properties() -> list[str]:
    """Every property that a balancer, or a protocol in its default form, needs of a pod; sorted."""
    needed: set[str] = set().union(*(balancer.needs for _, balancer in balancers()))
    for _, protocol in protocols():
        if not any(field.is_required() for field in protocol.Params.model_fields.values()):
            needed |= protocol(protocol.Params()).needs()
    return sorted(needed)


def _property(name: str) -> str:
    if name not in known_properties():
        context = {"name": name, "legal": nearest(name, known_properties())}
        raise PydanticCustomError("property", "unknown property '{name}'", context)
    return name


def _expert_dtype(name: str) -> str:
    from moesim.moe import DTYPES

    if name not in DTYPES:
        context = {"name": name, "legal": nearest(name, sorted(DTYPES))}
        raise PydanticCustomError("dtype", "unknown dtype '{name}'", context)
    return name


def _distinct(items: tuple[Any, ...]) -> tuple[Any, ...]:
    twice = [item for item, count in Counter(items).items() if count > 1]
    if twice:
        more = f" and {len(twice) - 8} others" if len(twice) > 8 else ""
        shown = ", ".join(map(str, twice[:8])) + more
        raise PydanticCustomError("twice", "{items} more than once", {"items": shown, "legal": "each once"})
    return items


class Closed(BaseModel):
    """Base: unknown keys are refused, values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


Devices = Annotated[tuple[int | str, ...], Field(min_length=1), AfterValidator(_distinct)]
LayerNumber = Annotated[int, Field(ge=0)]
LayerList = Annotated[tuple[LayerNumber, ...], Field(min_length=1), AfterValidator(_distinct)]
FractionKept = Annotated[units.Share, Field(le=1)]


class Ranks(Closed):
    """How many ranks share the experts, and where they sit on the pod."""

    ep: int = Field(ge=1, description="ranks of the expert-parallel group")
    place: Literal["packed", "spread"] | Devices = Field(
        "packed", description="packed, spread, or the devices of ranks 0, 1, ..."
    )


class Workload(Closed):
    """What one step of the model asks of the group."""

    phase: Literal["decode", "prefill", "train"]
    tokens_per_rank: int = Field(ge=0, le=10**7, description="tokens of every rank in a step")
    layers: Literal["all"] | Annotated[int, Field(ge=1)] | LayerList = Field(
        "all", description="all MoE layers, the first n, or a list of MoE layer numbers from 0"
    )
    steps: int = Field(1, ge=1, le=10**6)
    expert_dtype: Annotated[str, AfterValidator(_expert_dtype)] | None = Field(
        None, description="number format of the expert weights; the model's own if absent"
    )


class Strategy(Closed):
    """A protocol and a balancer, under a name."""

    name: str = Field(pattern=r"^[A-Za-z0-9_+-]{1,60}$")
    protocol: Annotated[Choice, Kinds(protocols)]
    balancer: Annotated[Choice, Kinds(balancers)] = Field("none", validate_default=True)
    assume: Annotated[tuple[Annotated[str, AfterValidator(_property)], ...], AfterValidator(_distinct)] = (
        Field((), description="properties that the real pod is not known to have, assumed here")
    )
    calibration: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="file with the protocol's constants, or the pod/protocol of a shipped one"
    )


class Fault(Closed):
    """A part of the pod with less than its capacity, or none."""

    link: int | str | None = None
    chip: int | str | None = None
    nic: int | str | None = None
    rank: Annotated[int, Field(ge=0)] | None = None
    plane: int | str | None = None
    capacity: FractionKept = Field("0%", validate_default=True, description="what is left of it; 0% is gone")

    @model_validator(mode="after")
    def _one_target(self) -> Fault:
        if sum(getattr(self, target) is not None for target in FAULT_TARGETS) != 1:
            legal = {"legal": f"exactly one of: {', '.join(FAULT_TARGETS)}"}
            raise PydanticCustomError("fault", "a fault names one part of the pod", legal)
        return self

    def spec(self) -> dict[str, Any]:
        """The target and the capacity that is left (0 to 1)."""
        target = next(name for name in FAULT_TARGETS if getattr(self, name) is not None)
        return {target: getattr(self, target), "capacity": self.capacity}


class Background(Closed):
    """A flow of somebody else between two ranks' devices, in every layer; `start` counts from its begin."""

    src: int = Field(ge=0, description="rank on whose device it starts")
    dst: int = Field(ge=0, description="rank on whose device it ends")
    size: units.Bytes
    start: units.Seconds = Field("0us", validate_default=True)

    @model_validator(mode="after")
    def _two_ends(self) -> Background:
        if self.src == self.dst:
            raise PydanticCustomError(
                "background", "the flow ends where it starts, on rank {rank}", {"rank": self.src}
            )
        return self


class ScenarioKeys(Closed):
    """One question: a pod, a model, a workload, its routing, and the strategies to compare."""

    moesim: Literal[1] = Field(description="version of the file format")
    topology: str | dict[str, Any] = Field(description="a shipped name, a path, or an inline mapping")
    ranks: Ranks
    model: Annotated[str | dict[str, Any], _InlineModel()]
    workload: Workload
    routing: Annotated[Choice, Kinds(routing_kinds)]
    strategies: tuple[Strategy, ...] = Field(min_length=1)
    switch_off: Annotated[
        tuple[Literal["serialisation", "sync", "imbalance", "memory"], ...], AfterValidator(_distinct)
    ] = ()
    faults: tuple[Fault, ...] = ()
    background: tuple[Background, ...] = ()
    fidelity: Literal["fluid", "bound"] = "fluid"
    tolerance: Annotated[units.Share, Field(lt=1)] = Field(
        "0.3%",
        validate_default=True,
        description="completions closer than this share of a transfer may be one; 0 is exact",
    )
    require: tuple[Annotated[str, AfterValidator(_requirement)], ...] = ()
    seed: int = Field(0, ge=0, le=LARGEST_SEED)

    @field_validator("topology", mode="after")
    @classmethod
    def _some_topology(cls, topology: str | dict[str, Any]) -> str | dict[str, Any]:
        if not topology:
            raise PydanticCustomError("topology", "the topology is empty")
        return topology


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft-07 subset) of a scenario file, with every registered kind and its parameters."""
    schema = ScenarioKeys.model_json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    strategy, keys = definitions["Strategy"]["properties"], schema["properties"]
    strategy["protocol"] = _choice_schema("protocol", protocols(), definitions)
    strategy["balancer"] = _choice_schema("balancer", balancers(), definitions) | {"default": "none"}
    keys["routing"] = _choice_schema("routing", routing_kinds(), definitions)
    keys["model"] = _model_schema(definitions)
    strategy["assume"]["items"] = {"enum": known_properties()}
    top = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "moesim scenario"}
    return json.loads(json.dumps(top | {key: value for key, value in schema.items() if key != "title"}))  # type: ignore[no-any-return]


def _choice_schema(what: str, registry: Registry[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    options: list[dict[str, Any]] = [{"enum": registry.names()}]
    for name, thing in registry:
        params = _defined(thing.Params, f"{what}-{name}", definitions)
        params["properties"] = {"kind": {"const": name}} | params.get("properties", {})
        params["required"] = ["kind", *params.get("required", [])]
        definitions[f"{what}-{name}"] = params
        options.append({"$ref": f"#/$defs/{what}-{name}"})
    return {"anyOf": options}


def _model_schema(definitions: dict[str, Any]) -> dict[str, Any]:
    from moesim import moe

    definitions["model"] = _defined(moe.spec(), "model", definitions)
    return {"anyOf": [{"enum": moe.names()}, {"$ref": "#/$defs/model"}]}


def _defined(model: type[BaseModel], name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of ``model``; what it refers to goes to ``definitions`` under names of its own."""
    schema = model.model_json_schema(ref_template=f"#/$defs/{name}-{{model}}")
    for inner, part in schema.pop("$defs", {}).items():
        definitions[f"{name}-{inner}"] = part
    return schema
