"""Fixtures that several test folders use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from moesim.outcome import STAGES, StrategyOutcome
from moesim.result import Result
from moesim.sources import Cited, Grade, Source


def outcome(name: str, scale: float = 1.0, **changes: Any) -> StrategyOutcome:
    """A made-up strategy on 2 layers and 4 ranks, in which every number differs from every other."""
    rng = np.random.default_rng(7)
    stages = {stage: scale * rng.uniform(20e-6, 60e-6, (2, 4)) for stage in STAGES[:3]}
    stages["layer"] = sum(stages.values(), np.zeros((2, 4)))
    slowest = stages["layer"].max(axis=1)
    shares = {"launch": 0.05, "send": 0.4, "wire": 0.2, "wait": 0.15, "gemm": 0.2}
    values: dict[str, Any] = {
        "name": name,
        "protocol": "deepep-ll",
        "balancer": "none",
        "assumed": (),
        "cases": np.array([[0, 3], [0, 4]]),
        "stages": stages,
        "bound": {stage: 0.9 * times.max(axis=1) for stage, times in stages.items()},
        "breakdown": {label: share * slowest for label, share in shares.items()},
        "bottleneck": ("host1 up", 0.83),
        "imbalance": {
            "rank_max_over_mean": 1.37,
            "rows_max_over_mean": 1.21,
            "maxvio": 2.4,
            "after": {"rank_max_over_mean": 1.37, "rows_max_over_mean": 1.21, "maxvio": 2.4},
        },
        "traffic_B": {"self": 1.5e5, "device": 0.0, "host": 3.5e6, "domain": 0.0, "scale_out": 7.25e6},
        "formats": {"dispatch": "fp8", "combine": "bf16"},
        "crossed_B": {
            "payload": {"self": 0.0, "device": 0.0, "host": 6.5e6, "domain": 0.0, "scale_out": 1.75e6},
            "wire": {"self": 0.0, "device": 0.0, "host": 6.75e6, "domain": 0.0, "scale_out": 1.875e6},
        },
        "buffers_B": {"dispatch": 2.0**28, "combine": 3 * 2.0**28},
        "memory_B": {"expert_weights": 11 * 2.0**30, "buffers": 2.0**30, "device": 80 * 2.0**30},
        "bandwidth_Bps": {
            "logical": 41e9,
            "wire": 33e9,
            "library": {"name": "DeepEP low-latency", "value": 45e9},
            "combine": {
                "logical": 82e9,
                "wire": 66e9,
                "library": {"name": "DeepEP low-latency", "value": 90e9},
            },
        },
        "phases": (
            {
                "step": 0,
                "layer": 3,
                "phase": "send",
                "label": "wire",
                "start_s": 1e-6,
                "end_s": 2.1e-5,
                "mean_s": 1.9e-5,
            },
        ),
        "links": (
            {
                "resource": "host1 up",
                "kind": "uplink",
                "load_B": 7.25e6,
                "background_B": 0.0,
                "capacity_Bps": 4e11,
                "utilisation": 0.83,
            },
        ),
        "solves": 321,
        "error_estimate": 1.5e-7,
        "cited": (
            Cited("h100-ib nic.capacity", "400Gb/s", "nvidia-h100", Grade.SPEC),
            Cited("deepep-ll launch", "3us", "example", Grade.ASSUMED, "no measurement is public"),
        ),
        "warnings": (),
    }
    return StrategyOutcome(**(values | changes))


@pytest.fixture
def make_outcome() -> Callable[..., StrategyOutcome]:
    """See :func:`outcome`."""
    return outcome


@pytest.fixture
def make_result() -> Callable[..., Result]:
    """A made-up result: ``make_result(strategies=..., seed=...)``."""

    def make(**changes: Any) -> Result:
        values: dict[str, Any] = {
            "scenario": {
                "moesim": 1,
                "topology": {"name": "h100-ib", "hosts": 8},
                "ranks": {"ep": 4, "place": "packed"},
                "model": "deepseek-v3",
                "workload": {"phase": "decode", "tokens_per_rank": 64, "layers": 2, "steps": 1},
                "routing": {"kind": "realistic", "sigma": 0.7},
                "strategies": [{"name": "baseline", "protocol": "deepep-ll", "balancer": "none"}],
                "tolerance": "0.3%",
                "require": ["baseline.layer_s.p99 < 400us"],
            },
            "seed": 0,
            "fidelity": "fluid",
            "tolerance": 0.003,
            "strategies": (
                outcome("baseline"),
                outcome(
                    "half",
                    0.5,
                    balancer="moonep",
                    assumed=("multicast",),
                    bottleneck=("rank 3 send engine", 0.97),
                ),
            ),
            "sources": (Source("nvidia-h100", "NVIDIA H100 data sheet", "NVIDIA, 2023"),),
            "cited": (Cited("h100-ib host.switches", "4", "nvidia-h100", Grade.ASSUMED),),
            "warnings": ("faults: has no effect on the answer",),
            "version": "0.1.0",
            "applied": ("seed=0",),
            "inputs": {"topologies/h100-ib.yaml": "ab" * 32},
        }
        return Result(**(values | changes))

    return make
