"""Routing as UltraEP's benchmark draws it: popularity falls from rank to rank, and steeply within a rank."""

from __future__ import annotations

import numpy as np

from moesim import traffic


def popularity(alpha: float, ranks: int, masters: int) -> np.ndarray:
    """(E,) weights: 1 / rank^alpha, and 1 / l^4 within a rank."""
    within = np.arange(1, masters + 1.0) ** -4
    return (np.arange(1, ranks + 1.0)[:, None] ** -alpha * within / within.sum()).ravel()


def expected_imbalance(weight: np.ndarray, ranks: int, top_k: int) -> float:
    """Largest over mean load where an expert is among the K of a token with probability 1 - exp(-lambda w)."""
    low, high = 0.0, 1e9
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 - np.exp(-middle * weight)).sum() < top_k else (low, middle)
    return traffic.rank_imbalance((1 - np.exp(-low * weight)).reshape(ranks, -1).sum(axis=1))


def drawn(
    target: float, *, ranks: int, masters: int, top_k: int, tokens: int, seed: int = 1234
) -> np.ndarray:
    """(R*T, K) distinct experts, rank loads of ``target`` times the mean at most; alpha by bisection."""
    low, high = 0.0, 4.0
    for _ in range(50):
        middle = (low + high) / 2
        reached = expected_imbalance(popularity(middle, ranks, masters), ranks, top_k)
        low, high = (middle, high) if reached < target else (low, middle)
    share = popularity(low, ranks, masters).cumsum()
    rng = np.random.default_rng(seed)
    picked = []
    for _ in range(ranks):
        # Draws without replacement are draws with it, of which the first visits count.
        shots = rng.random((6 * top_k, tokens), dtype=np.float32)
        picks = np.searchsorted((share / share[-1]).astype(np.float32), shots).astype(np.uint16)
        new = traffic.first_visits(picks)
        wanted = new & (new.cumsum(axis=0, dtype=np.uint8) <= top_k)
        assert (wanted.sum(axis=0) == top_k).all(), "too few draws"
        picked.append(picks.T[wanted.T].reshape(-1, top_k))
    return np.concatenate(picked)
