"""What characterises a demand, beside the closest real recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from moesim.traces.trace import Trace

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Real:
    """Statistics of a real recording: ``sigma`` of the log shares, ``zipf`` slope by rank, contiguous
    imbalance by ep, overlap with the token 1, 4, 16 back, distinct ranks a token reaches by ep. Means over
    its layers.
    """

    sigma: float
    expert: float
    imbalance: Mapping[int, float]
    zipf: float | None = None
    overlap: Mapping[int, float] = field(default_factory=dict)
    ranks_hit: Mapping[int, float] = field(default_factory=dict)


# Computed from public recordings (origins in scenarios/traces/README.md; the chat prompts are of
# ngavhane/moe-beyond@4dca2eac, the DeepSeek-R1 totals of sgl-project/sglang issue 6017, decode 2000->100,
# experts placed at random: in expert order load falls with the index, and imbalance is 1.88, 2.25, 2.63,
# 3.13).
REAL: Mapping[str, Real] = {
    "DeepSeek-V2-Lite, mixed chat": Real(
        0.21, 1.72, {8: 1.12, 16: 1.20, 32: 1.38, 64: 1.72}, 0.21,
        {1: 0.26, 4: 0.16, 16: 0.15}, {8: 4.55, 16: 5.33, 32: 5.77},
    ),
    "DeepSeek-V2-Lite, intent": Real(0.89, 3.81, {8: 1.44, 16: 1.80, 32: 2.45, 64: 3.81}, 0.84),
    "DeepSeek-V2-Lite, law": Real(0.59, 3.52, {8: 1.39, 16: 1.70, 32: 2.35, 64: 3.52}, 0.58),
    "DeepSeek-V2-Lite, translation": Real(1.04, 5.62, {8: 1.69, 16: 2.36, 32: 3.54, 64: 5.62}, 1.08),
    "FLAME-MoE-290M": Real(
        0.23, 1.53, {8: 1.11, 16: 1.19, 32: 1.32, 64: 1.53}, 0.21,
        {1: 0.21, 4: 0.12, 16: 0.12}, {8: 4.54, 16: 5.29, 32: 5.76},
    ),
    "gpt-oss-20b, decode": Real(
        1.14, 2.59, {4: 1.16, 8: 1.42, 16: 1.90, 32: 2.59}, 1.03,
        {1: 0.44, 4: 0.36, 16: 0.34}, {4: 3.02, 8: 3.58, 16: 3.86},
    ),
    "DeepSeek-R1, decode (random places)": Real(
        0.7, 6.07, {8: 1.23, 16: 1.43, 32: 1.77, 64: 2.42, 256: 6.07},
    ),
}  # fmt: skip

LAGS = (1, 4, 16)


def of(trace: Trace) -> dict[str, object]:
    """Statistics of ``trace``, means over layers (and steps), and those of the real recording with the
    nearest sigma.

    Keys: ``sigma``, ``zipf``, ``expert`` (max/mean), ``imbalance`` {ep: max/mean over ranks, contiguous},
    ``overlap`` {lag: share of experts in common with the token that many back in its request}, ``ranks_hit``
    {ep: distinct ranks a token}, ``closest`` (its name) and ``table``: rows (quantity, this, the closest).
    Empty but for ``tokens`` if there are no tokens.
    """
    if not trace.ids.size:
        return {"tokens": 0}
    counts = trace.counts().astype(np.float64)
    eps = [ep for ep in (4, 8, 16, 32, 64, 128, 256) if trace.experts % ep == 0]
    logs = np.log(counts.sum(axis=0) + 0.5)
    sigma = float(logs.std(axis=1).mean())
    found: dict[str, object] = {
        "tokens": trace.steps * trace.tokens,
        "sigma": sigma,
        "zipf": zipf_slope(logs),
        "expert": imbalance(counts, trace.experts),
        "imbalance": {ep: imbalance(counts, ep) for ep in eps},
        "overlap": {lag: value for lag in LAGS if (value := overlap(trace, lag)) is not None},
        "ranks_hit": {ep: ranks_hit(trace, ep) for ep in eps},
    }
    closest = min(REAL, key=lambda name: abs(np.log(REAL[name].sigma / max(sigma, 1e-3))))
    return {**found, "closest": closest, "table": _table(found, REAL[closest])}


def _table(found: Mapping[str, object], real: Real) -> list[tuple[str, float, float | None]]:
    rows: list[tuple[str, float, float | None]] = []
    for name in ("sigma", "zipf", "expert", "imbalance", "overlap", "ranks_hit"):
        mine, theirs = found[name], getattr(real, name)
        if isinstance(mine, dict):
            rows += [(f"{name} {at}", value, theirs.get(at)) for at, value in mine.items()]
        else:
            assert isinstance(mine, float)
            rows.append((name, mine, theirs))
    return rows


def imbalance(counts: Floats, ep: int) -> float:
    """Max/mean over ``ep`` ranks with contiguous experts of ``counts`` (..., experts), mean over the rest."""
    load = counts.reshape(*counts.shape[:-1], ep, -1).sum(axis=-1)
    return float((load.max(axis=-1) / load.mean(axis=-1)).mean())


def zipf_slope(logs: Floats) -> float:
    """Minus the slope of log count (layers, experts) on log rank, mean over layers."""
    rank = np.log(np.arange(1, logs.shape[-1] + 1))
    if len(rank) < 2:
        return 0.0
    falling = -np.sort(-logs, axis=-1)
    centred = rank - rank.mean()
    return float(-(falling @ centred / (centred @ centred)).mean())


def ranks_hit(trace: Trace, ep: int) -> float:
    """Mean number of distinct ranks that a token reaches."""
    home = np.sort(trace.ids // (trace.experts // ep), axis=-1)
    return float(1 + (np.diff(home, axis=-1) != 0).sum(axis=-1).mean())


def overlap(trace: Trace, lag: int) -> float | None:
    """Mean share of a token's experts that the token ``lag`` before it in its request has; ``None`` without
    pairs.
    """
    if trace.phase == "decode":
        pairs = trace.requests[lag:] == trace.requests[:-lag]
        now, before = trace.ids[lag:], trace.ids[:-lag]
    else:
        pairs = trace.requests[:, lag:] == trace.requests[:, :-lag]
        now, before = trace.ids[:, :, lag:], trace.ids[:, :, :-lag]
    if not pairs.any():
        return None
    total = 0.0
    for layer in range(trace.ids.shape[1]):
        a, b = now[:, layer][pairs], before[:, layer][pairs]
        total += float((a[:, :, None] == b[:, None, :]).any(axis=2).mean())
    return total / int(trace.ids.shape[1])
