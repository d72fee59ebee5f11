"""The group-limited gate of DeepSeek-V3 as its report states it, one token at a time."""

from __future__ import annotations

from collections.abc import Sequence


def chosen(gates: Sequence[float], k: int, n_group: int, topk_group: int) -> set[int]:
    """Experts of one token: the k largest gate values in the groups whose two largest values sum highest."""
    size = len(gates) // n_group
    groups = [range(g * size, (g + 1) * size) for g in range(n_group)]

    def score(group: range) -> float:
        return sum(sorted((gates[e] for e in group), reverse=True)[:2])

    kept = sorted(groups, key=score, reverse=True)[:topk_group]
    candidates = [e for group in kept for e in group]
    return set(sorted(candidates, key=lambda e: gates[e], reverse=True)[:k])
