"""Balancers with parameters that fit the sizes of a test."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from moesim.balancers import BALANCERS, Balancer


def suited(name: str, ranks: int, experts: int) -> Balancer:
    """The balancer called ``name``, with a copy a rank and plans every few steps if it asks for such numbers."""
    kind = BALANCERS.get(name)
    wanted: dict[str, object] = {
        "num_redundant_experts": ranks,
        "step_interval": 5,
        "expert_heat_collection_interval": 3,
        "algorithm_execution_interval": 2,
    }
    if ranks % 8:
        wanted["topology"] = f"ring-{ranks}"
    elif experts < 2 * ranks:
        wanted["topology"] = "ring-8"
    if "placement" in kind.Params.model_fields:
        wanted["placement"] = placement_file(ranks, experts)
    known = kind.Params.model_fields
    return kind(kind.Params(**{key: value for key, value in wanted.items() if key in known}))


_folder = tempfile.TemporaryDirectory(prefix="placements")


@cache
def placement_file(ranks: int, experts: int) -> str:
    """A placement of a few layers: experts in order, and of every other rank a copy on the next."""
    placed = np.zeros((ranks, 4, experts), dtype=np.uint8)
    if ranks >= 1 and experts % ranks == 0:
        own = np.arange(experts)
        placed[own // (experts // ranks), :, own] = 1
        placed[1::2] |= placed[0 : ranks // 2 * 2 : 2]
    path = Path(_folder.name) / f"{ranks}x{experts}.npz"
    np.savez(path, placed=placed)
    return str(path)
