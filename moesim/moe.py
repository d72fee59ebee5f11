"""MoE models: what one row weighs on the wire, one expert in memory, one entry in FLOPs.

The catalogue is ``scenarios/models.yaml``; a scenario may give a model inline with the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moesim import fields, resources, yamlio
from moesim.errors import InputError, Problem
from moesim.registry import nearest
from moesim.sources import Grade
from moesim.yamlio import Loc

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True)
class DType:
    """A number format with its scales.

    ``element`` [B] a value. On the wire every ``row_group`` values share a scale of ``row_scale`` [B]
    (``None``: one scale a row); in weights every ``weight_group`` values share one of ``weight_scale`` [B].
    ``compute`` is the key of a device's peak rate. ``source`` says where the layout is from.
    """

    element: float
    row_group: int | None
    row_scale: float
    weight_group: int
    weight_scale: float
    compute: str
    source: str


DTYPES: dict[str, DType] = {
    "bf16": DType(2, 1, 0, 1, 0, "bf16", "no scales"),
    "fp8": DType(1, 128, 4, 128 * 128, 4, "fp8", "DeepEP rows: fp32 scale a 128 values; weights by 128x128"),
    "int8": DType(1, None, 4, 1, 0, "int8", "CANN dispatch: one fp32 scale a token"),
    "mxfp8": DType(1, 32, 1, 32, 1, "fp8", "OCP microscaling: E8M0 scale a 32 values"),
    "nvfp4": DType(0.5, 16, 1, 16, 1, "fp4", "NVFP4: E4M3 scale a 16 values"),
    "mxfp4": DType(0.5, 32, 1, 32, 1, "fp4", "OCP microscaling: E8M0 scale a 32 values"),
    "int4": DType(
        0.5, 32, 2, 32, 2, "bf16", "compressed-tensors: 16-bit scale a 32 values; computed in bf16"
    ),
}
"""Names of formats, for rows and for weights."""


def dtype(name: str) -> DType:
    """The format called ``name``; raises :class:`InputError` with the near names."""
    try:
        return DTYPES[name]
    except KeyError:
        raise InputError(Problem(f"unknown dtype {name!r}", legal=nearest(name, sorted(DTYPES)))) from None


@dataclass(frozen=True)
class MoEModel:
    """The shape of a mixture-of-experts model, as in the header of ``scenarios/models.yaml``.

    Widths are in values, counts are plain numbers. ``shared_intermediate`` is the width of all shared experts
    of a layer together. ``dispatch_width`` differs from ``hidden`` where experts work in a latent space.
    ``n_group`` = 1 means that the gate is not limited to groups.
    """

    name: str
    hidden: int
    layers: int
    moe_layers: int
    first_dense: int
    experts: int
    shared_experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int
    dispatch_width: int
    n_group: int
    topk_group: int
    score: str
    expert_dtype: str
    gate_matrices: int
    title: str
    dtype_text: str
    confidence: str
    source: str
    note: str

    @property
    def grade(self) -> Grade:
        """``spec`` if the shape was read from the published configuration, else ``assumed``."""
        return Grade.SPEC if self.confidence == "A" else Grade.ASSUMED

    def payload_bytes(self, name: str) -> float:
        """Bytes [B] of the values of one row in format ``name``: what the user asked to move, scales left out."""
        return self.dispatch_width * dtype(name).element

    def row_bytes(self, name: str, *, pad: int = 1) -> float:
        """Bytes [B] of one row on the wire in format ``name``: values, then scales, padded to ``pad`` bytes.

        >>> v3 = load("deepseek-v3")
        >>> v3.row_bytes("fp8"), v3.row_bytes("int8", pad=512), v3.row_bytes("nvfp4")
        (7392.0, 7680.0, 4032.0)
        """
        form = dtype(name)
        width = self.dispatch_width
        scales = 1 if form.row_group is None else -(-width // form.row_group)
        raw = -(-width * form.element // 1) + scales * form.row_scale
        return float(-(-raw // pad) * pad)

    def expert_bytes(self, name: str | None = None) -> float:
        """Bytes [B] of one routed expert: gate_matrices x dispatch_width x intermediate values, and scales.

        ``name``: format of the weights, by default the model's own.

        >>> load("deepseek-v3").expert_bytes("fp8")
        44050944.0
        """
        return self._weights(self.intermediate, self.dispatch_width, name)

    def shared_bytes(self, name: str | None = None) -> float:
        """Bytes [B] of all shared experts of one layer together; they work at the full hidden width."""
        return self._weights(self.shared_intermediate, self.hidden, name)

    def _weights(self, intermediate: int, width: int, name: str | None) -> float:
        form = dtype(name or self.expert_dtype)
        values = self.gate_matrices * width * intermediate
        return float(values * form.element + values / form.weight_group * form.weight_scale)

    def flops_per_entry(self) -> float:
        """FLOPs of one entry: one multiply-add a weight, 2 x gate_matrices x dispatch_width x intermediate.

        >>> load("deepseek-v3").flops_per_entry()
        88080384.0
        """
        return 2.0 * self.gate_matrices * self.dispatch_width * self.intermediate

    def shared_flops_per_token(self) -> float:
        """FLOPs of the shared experts of one layer, a token: 2 x gate_matrices x hidden x their width."""
        return 2.0 * self.gate_matrices * self.hidden * self.shared_intermediate


@cache
def spec() -> type[BaseModel]:
    """The pydantic model of a catalogue entry and of an inline model: closed, checked as a whole."""
    # Inside a function so that importing this module stays light.
    from typing import Annotated, Literal

    from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, model_validator

    Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
    Number = Annotated[StrictInt, Field(ge=0, le=1_000_000)]

    def known(name: str) -> str:
        if name not in DTYPES:
            raise ValueError(f"unknown dtype {name!r}; {nearest(name, sorted(DTYPES))}")
        return name

    class Spec(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)
        name: str = "inline"
        hidden: Count
        layers: Count
        moe_layers: Count
        first_dense: Number = 0
        experts: Annotated[StrictInt, Field(ge=1, le=65535)]
        shared_experts: Number = 0
        top_k: Count
        intermediate: Count
        shared_intermediate: Number = 0
        dispatch_width: Count | None = None
        n_group: Count = 1
        topk_group: Count = 1
        score: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
        expert_dtype: Annotated[str, AfterValidator(known)] = "bf16"
        gate_matrices: Literal[2, 3] = 3
        title: str = ""
        dtype_text: str = ""
        confidence: Literal["A", "B", "inline"] = "inline"
        source: str = "given inline"
        note: str = ""

        @model_validator(mode="after")
        def consistent(self) -> Spec:
            wrong = [text for is_wrong, text in _contradictions(self) if is_wrong]
            if wrong:
                raise ValueError("; ".join(wrong))
            return self

    return Spec


def _contradictions(one: Any) -> list[tuple[bool, str]]:
    divides = one.experts % one.n_group == 0
    reach = one.topk_group * (one.experts // one.n_group)
    return [
        (one.top_k > one.experts, f"top_k {one.top_k} exceeds experts {one.experts}"),
        (
            one.first_dense + one.moe_layers > one.layers,
            f"first_dense {one.first_dense} + moe_layers {one.moe_layers} exceed layers {one.layers}",
        ),
        (not divides, f"n_group {one.n_group} does not divide experts {one.experts}"),
        (one.topk_group > one.n_group, f"topk_group {one.topk_group} exceeds n_group {one.n_group}"),
        (
            divides and one.top_k > reach,
            f"top_k {one.top_k} exceeds the {reach} experts of {one.topk_group} groups",
        ),
        (
            (one.shared_experts > 0) != (one.shared_intermediate > 0),
            f"shared_experts {one.shared_experts} and shared_intermediate {one.shared_intermediate}: "
            "both must be 0, or neither",
        ),
    ]


@cache
def _catalogue(path: Path) -> tuple[yamlio.Document, dict[str, Any]]:
    document = yamlio.load(path)
    models = document.data.get("models")
    if document.data.get("moesim") != 1 or not isinstance(models, dict) or len(document.data) != 2:
        raise InputError(document.problem((), "a catalogue of models has the keys moesim: 1 and models"))
    return document, models


def catalogue(path: Path) -> dict[str, MoEModel]:
    """Every model of the catalogue in ``path`` by name; raises :class:`InputError` with all that is wrong in it."""
    document, models = _catalogue(path)
    found: dict[str, MoEModel] = {}
    problems: list[Problem] = []
    for name in models:
        try:
            found[name] = _entry(document, name)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return found


def _entry(document: yamlio.Document, name: str) -> MoEModel:
    """A model of a catalogue; its problems are placed at the keys."""
    from moesim.checking import validate

    loc: Loc = ("models", name)
    entry = document.data["models"][name]
    if not isinstance(entry, dict):
        raise InputError(document.problem(loc, f"model {name!r} is not a mapping", "`key: value` lines"))
    part = document.part(loc)
    return _built(validate(spec(), replace(part, data={"name": name, **part.data})))


def names() -> list[str]:
    """Names in the shipped catalogue, sorted."""
    return sorted(_catalogue(resources.find("models", "models"))[1])


def load(model: str | Mapping[str, Any]) -> MoEModel:
    """The model called ``model`` in the catalogue, or the one given inline as a mapping with the same keys.

    Raises :class:`InputError`: an unknown name (with near ones), or all that is wrong with the mapping.
    Problems of an inline model name the key and have no position: the scenario adds it.

    >>> load("deepseek-v3").experts
    256
    """
    if not isinstance(model, str):
        return _built(fields.check(spec(), model, "model"))
    document, models = _catalogue(resources.find("models", "models"))
    if model not in models:
        raise InputError(Problem(f"unknown model {model!r}", legal=nearest(model, sorted(models))))
    return _entry(document, model)


def _built(checked: BaseModel) -> MoEModel:
    values = checked.model_dump()
    values["dispatch_width"] = values["dispatch_width"] or values["hidden"]
    values["title"] = values["title"] or values["name"]
    values["dtype_text"] = values["dtype_text"] or values["expert_dtype"]
    return MoEModel(**values)
