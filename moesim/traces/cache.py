"""Keeps composed traces on disk under a hash of everything they depend on. Never an obstacle to a run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim import outfile
from moesim.errors import InputError
from moesim.traces.source import Batch
from moesim.traces.trace import Trace

LARGEST = 256 << 20
"""Larger traces [B] are composed anew each time."""
CAPACITY = 2 << 30
"""Beyond this [B] in all, those that were used longest ago are removed."""

_ARRAYS = ("ids", "requests", "layer_ids")


def folder() -> Path:
    """Where composed traces are kept: ``$XDG_CACHE_HOME/moesim/traces``, else ``~/.cache/moesim/traces``."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (root if root.is_absolute() else Path("~/.cache").expanduser()) / "moesim" / "traces"


def key(kind: str, params: dict[str, Any], batch: Batch, fingerprint: str) -> str:
    """A hash of all that a trace depends on: parameters, model, batch, seed, recorded file, code and
    numpy.
    """
    model = batch.model
    facts = {
        "kind": kind,
        "params": params,
        "fingerprint": fingerprint,
        "model": [
            model.name,
            model.title,
            model.experts,
            model.top_k,
            model.n_group,
            model.topk_group,
            model.moe_layers,
        ],
        "batch": [batch.ep, batch.tokens_per_rank, batch.phase, batch.layers, batch.steps, batch.seed],
        "code": [_code(), np.__version__],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@cache
def _code() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _digest(name: str, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of an entry's name and content: what somebody else has put there is not taken for ours."""
    digest = hashlib.sha256(json.dumps([name, facts], sort_keys=True).encode())
    for key in _ARRAYS:
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"{key} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.data)
    return digest.hexdigest()


def load(name: str) -> Trace | None:
    """The trace called ``name``, or ``None`` if it is not there or cannot be read."""
    try:
        path = folder() / f"{name}.npz"
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {key: file[key] for key in _ARRAYS}
            facts = json.loads(str(file["facts"]))
            if facts.pop("digest") != _digest(name, facts, arrays):
                return None
            trace = Trace(**arrays, **facts)
    except Exception:  # a damaged archive fails in many ways, and all mean: compose it again
        return None
    with suppress(OSError):
        os.utime(path)
    for array in (trace.ids, trace.requests):
        array.flags.writeable = False
    return replace(trace, notes=tuple(trace.notes))


def save(name: str, trace: Trace) -> None:
    """Keep ``trace``: written beside its place and renamed into it. Does nothing where that is impossible."""
    if trace.ids.nbytes > LARGEST:
        return
    arrays = {name: getattr(trace, name) for name in _ARRAYS}
    facts: dict[str, Any] = {key: getattr(trace, key) for key in ("experts", "phase", "origin", "notes")}
    facts["digest"] = _digest(name, facts, arrays)
    with suppress(OSError, RuntimeError, InputError):  # RuntimeError: there is no home folder
        folder().mkdir(parents=True, exist_ok=True)
        with outfile.replaced(folder() / f"{name}.npz") as file:
            np.savez(file, facts=np.array(json.dumps(facts)), **arrays)
        _prune()


def _prune() -> None:
    kept = sorted(folder().glob("*.npz"), key=lambda path: path.stat().st_mtime, reverse=True)
    total = 0
    for path in kept:
        total += path.stat().st_size
        if total > CAPACITY:
            path.unlink(missing_ok=True)
