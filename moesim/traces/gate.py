"""The gate: k distinct experts a token, drawn in proportion to weights, within the best groups.

Drawing without replacement in proportion to w is an exponential race: expert e arrives at time X_e / w_e with
X_e ~ Exp(1), and the first k win (equivalently the Gumbel top-k trick; -log of the time is log w_e + Gumbel
noise, which plays the part of the gate value).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float32]


def race(rng: np.random.Generator, rows: int, weights: Times) -> Times:
    """Arrival times (rows, E) for ``weights`` (E,) or (rows, E), in any unit."""
    times = rng.standard_exponential((rows, weights.shape[-1]), dtype=np.float32)
    # An expert of weight 0 comes last, but before those whose group is out.
    times /= np.maximum(weights, np.float32(1e-36))
    return times


def first(times: Times, k: int) -> NDArray[np.intp]:
    """The k earliest experts (rows, k) of ``times`` (rows, E), in no particular order."""
    if k == times.shape[-1]:
        return np.broadcast_to(np.arange(k), (len(times), k)).copy()
    return np.argpartition(times, k - 1, axis=-1)[:, :k]


def best_groups(times: Times, n_group: int, topk_group: int) -> NDArray[np.bool_]:
    """Which of ``n_group`` equal blocks of experts the gate keeps, (rows, n_group).

    A group's score is the sum of its two largest gate values, as in DeepSeek-V3 (noaux_tc; arXiv 2412.19437);
    gate values are minus log times, so the best groups have the smallest products of their two earliest
    times.
    """
    grouped = times.reshape(len(times), n_group, -1)
    size = grouped.shape[-1]
    two = np.partition(grouped, 1, axis=-1)[..., :2] if size > 2 else grouped
    score = two.astype(np.float64).prod(axis=-1)
    kept = np.zeros(score.shape, dtype=np.bool_)
    np.put_along_axis(kept, np.argpartition(score, topk_group - 1, axis=-1)[:, :topk_group], True, axis=-1)
    return kept


def pick(times: Times, k: int, n_group: int = 1, topk_group: int = 1) -> NDArray[np.intp]:
    """The k experts (rows, k) that win the race inside the best groups. Overwrites ``times``."""
    if topk_group < n_group:
        kept = best_groups(times, n_group, topk_group)
        times.reshape(len(times), n_group, -1)[~kept] = np.inf
    return first(times, k)
