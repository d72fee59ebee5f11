"""Every registered kind of routing, on a small batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from moesim import moe
from moesim.traces import KINDS, TraceSource, compose

# The least that each kind must be told; a new kind adds a line here.
LEAST: dict[str, dict[str, Any]] = {
    "balanced": {},
    "dirichlet": {"alpha": 1.5},
    "hot": {"hot": 4, "heat": 6},
    "lognormal": {"sigma": 0.5},
    "realistic": {},
    "recorded": {"trace": "deepseek-v2-lite_esft-law"},
    "uniform": {},
    "zipf": {"exponent": 0.6},
}


def test_the_registry_holds_exactly_these() -> None:
    assert KINDS.names() == sorted(LEAST)


@pytest.mark.parametrize("kind", LEAST)
def test_parameters_are_closed_frozen_and_described(kind: str) -> None:
    source = KINDS.get(kind)
    assert issubclass(source, TraceSource)
    assert issubclass(source.Params, BaseModel)
    params = source.Params(**LEAST[kind])
    with pytest.raises(ValidationError):
        source.Params(**LEAST[kind], nonsense=1)
    for name in source.Params.model_fields:
        with pytest.raises(ValidationError):
            setattr(params, name, 1)
    assert source.Params.model_json_schema()["additionalProperties"] is False
    assert source.__doc__


@pytest.mark.parametrize("kind", LEAST)
@pytest.mark.parametrize("phase", ["decode", "prefill", "train"])
@pytest.mark.parametrize("tokens", [0, 1, 17])
def test_a_trace_is_whole(kind: str, phase: Any, tokens: int) -> None:
    model = moe.load("deepseek-v2-lite")
    trace = compose(
        {"kind": kind, **LEAST[kind]},
        model,
        ep=4,
        tokens_per_rank=tokens,
        phase=phase,
        layers=[7, 2],
        steps=2,
        seed=3,
        cache=False,
    )
    assert trace.ids.shape == (2, 2, 4 * tokens, 6)
    assert trace.ids.dtype == np.uint16
    assert not trace.ids.flags.writeable
    assert trace.requests.shape == (2, 4 * tokens)
    assert trace.requests.dtype == np.int32
    assert trace.layer_ids.tolist() == [7, 2]
    assert (trace.experts, trace.phase, trace.steps, trace.tokens, trace.top_k) == (
        64,
        phase,
        2,
        4 * tokens,
        6,
    )
    assert trace.origin.startswith(("recorded: ", "synthetic: "))
    ordered = np.sort(trace.ids, axis=-1)
    assert (ordered[..., 1:] != ordered[..., :-1]).all()
