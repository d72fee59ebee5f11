"""Balancers with parameters that fit the sizes of a test."""

from __future__ import annotations

from moesim.balancers import BALANCERS, Balancer


def suited(name: str, ranks: int, experts: int) -> Balancer:
    """The balancer called ``name``, with a copy a rank and plans every few steps if it asks for such numbers."""
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
    params = BALANCERS.get(name).Params
    return BALANCERS.get(name)(params(**{key: wanted[key] for key in wanted if key in params.model_fields}))
