"""How much memory a run takes, so that one which cannot fit is refused before it fills the machine.

The constants were measured (peak resident set over the demand, deepseek-v3 at EP64, four strategies with two
balancers) and rounded up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

BATCH = 80
"""Bytes of one routed entry of the one layer and step that is under way: 71 measured."""
CASE, CASE_RANK = 8_000, 600
"""Bytes that a strategy keeps of one step of one layer, and of each rank in it, tables included."""

_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine() -> float:
    """Bytes of memory that this process may hope for: the machine's, or its container's if that is less."""
    found = float("inf")
    with suppress(AttributeError, ValueError, OSError):
        found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(ValueError, OSError):  # "max" is no number
        found = min(found, float(_LIMIT.read_text()))
    return found


def parts(
    demand: float, *, tokens: int, top_k: int, cases: int, ranks: int, strategies: int
) -> Mapping[str, float]:
    """Bytes [B] by what holds them.

    ``demand``: the composed routing of all ``cases`` (steps x layers), as its source says; ``tokens``: of one step,
    over all ``ranks``.
    """
    return {
        "demand": demand,
        "batch": float(tokens) * top_k * BATCH,
        "results": float(cases) * strategies * (CASE + ranks * CASE_RANK),
    }
