"""Composes the demand of a scenario: spec + model + batch size + seed -> `Trace`, kept in a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from moesim import fields
from moesim.errors import InputError, Problem
from moesim.moe import MoEModel
from moesim.traces import cache as store
from moesim.traces.source import KINDS, Batch, Phase, TraceSource
from moesim.traces.trace import Trace


def compose(
    spec: Mapping[str, Any],
    model: MoEModel,
    *,
    ep: int,
    tokens_per_rank: int,
    phase: Phase,
    layers: Sequence[int],
    steps: int,
    seed: int,
    cache: bool = True,
    base: Path | None = None,
) -> Trace:
    """The demand that ``spec`` (its ``kind`` and the parameters of that kind) describes.

    ``layers``: MoE layers counted from 0; ``base``: the folder that a relative trace file starts from. The
    same arguments give the same bytes; a smaller ``ep`` gives a prefix of the tokens of a larger one, and a
    layer is the same whichever others are asked for (kind ``balanced`` and the target ``rank_imbalance``
    depend on ep by their nature). With ``cache`` the result is kept on disk by the content of everything it
    depends on.

    Raises :class:`InputError`: an unknown kind or parameter, a trace of another model, a target out of reach.

    >>> from moesim import moe
    >>> v3 = moe.load("deepseek-v3")
    >>> spec = {"kind": "realistic", "sigma": 0.7}
    >>> options = {"phase": "decode", "layers": [0], "steps": 1, "seed": 0, "cache": False}
    >>> compose(spec, v3, ep=8, tokens_per_rank=4, **options).ids.shape
    (1, 1, 32, 8)
    """
    batch = Batch(model, ep, tokens_per_rank, phase, tuple(layers), steps, seed, base)
    _check(batch)
    source = _source(spec, base)
    key = store.key(
        str(spec["kind"]), source.params.model_dump(mode="json"), batch, source.fingerprint(batch)
    )
    found = store.load(key) if cache else None
    if found is not None:
        return found
    drawn = source.draw(batch)
    ids = np.ascontiguousarray(drawn.ids)
    requests = np.ascontiguousarray(drawn.requests)
    for array in (ids, requests):
        array.flags.writeable = False
    trace = Trace(
        ids=ids,
        experts=model.experts,
        layer_ids=np.array(batch.layers, dtype=np.int64),
        requests=requests,
        phase=phase,
        origin=drawn.origin,
        notes=drawn.notes,
    )
    if cache:
        store.save(key, trace)
    return trace


def _source(spec: Mapping[str, Any], base: Path | None) -> TraceSource:
    if "kind" not in spec:
        raise InputError(Problem("routing: kind is missing", legal="one of: " + ", ".join(KINDS.names())))
    kind = KINDS.get(str(spec["kind"]))
    rest = {key: value for key, value in spec.items() if key != "kind"}
    return kind(fields.check(kind.Params, rest, "routing"), base)


def _check(batch: Batch) -> None:
    have = batch.model.moe_layers
    wrong = [
        (batch.ep < 1, f"ep {batch.ep} must be at least 1"),
        (batch.tokens_per_rank < 0, f"tokens_per_rank {batch.tokens_per_rank} must not be negative"),
        (batch.steps < 1, f"steps {batch.steps} must be at least 1"),
        (batch.seed < 0, f"seed {batch.seed} must not be negative"),
        (
            batch.phase not in get_args(Phase),
            f"phase {batch.phase!r} must be one of {', '.join(get_args(Phase))}",
        ),
        (not batch.layers, "layers must not be empty"),
        (len(set(batch.layers)) < len(batch.layers), "layers must differ"),
        (
            any(not 0 <= layer < have for layer in batch.layers),
            f"layers must lie in 0..{have - 1}: {batch.model.name} has {have} MoE layers",
        ),
    ]
    problems = [Problem(f"workload: {text}") for is_wrong, text in wrong if is_wrong]
    if problems:
        raise InputError(problems)
