"""One batch of one MoE layer on a small pod, put together without a scenario."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from suited import suited

from moesim import bounds, execution, fabrics, moe, ranks, strategy, traffic
from moesim.contention import Resources
from moesim.plan import Plan
from moesim.protocols import Case, build
from moesim.routing import routes
from moesim.strategy import Strategy
from moesim.timing import Timing

EXAMPLE = {"source": "example", "grade": "assumed"}
CROSSBAR = {
    "moesim": 1,
    "fabric": {
        "kind": "crossbar",
        "devices": 8,
        "port": {"capacity": "100GB/s", "latency": "1us", "efficiency": 1, **EXAMPLE},
    },
}
CLOS = {
    "moesim": 1,
    "fabric": {
        "kind": "clos",
        "hosts": 4,
        "devices_per_host": 4,
        "port": {"capacity": "100GB/s", "latency": "0.5us"},
        "uplink": {"capacity": "200GB/s", "latency": "1us"},
        **EXAMPLE,
    },
}
RAILS = {
    "moesim": 1,
    "fabric": {
        "kind": "rails",
        "hosts": 2,
        "devices_per_host": 4,
        "scale_up": {"kind": "mesh", "capacity": "100GB/s", "latency": "0.5us"},
        "nic": {"capacity": "50GB/s", "message_rate": "1M/s", "latency": "1us"},
        "spine": {"chips": 1},
        **EXAMPLE,
    },
}
PODS = {"crossbar": CROSSBAR, "clos": CLOS, "rails": RAILS}
"""Ideal pods by short name; other names are those of shipped ones."""

SOME_PODS = ("crossbar", "clos", "cloudmatrix384", "gb200-nvl72")

EVERYTHING = frozenset({"serialisation", "sync", "imbalance", "memory"})


@cache
def pod(name: str):
    return fabrics.load(PODS.get(name, name))


@cache
def placed(name: str, ep: int, place: str, access: str):
    topology = pod(name)
    return routes(topology, ranks.place(topology, ep, place), access)


@cache
def together(protocol: str, balancer: str, pod_name: str, ep: int, experts: int) -> Strategy:
    """``protocol`` is JSON."""
    assume = ("multicast", "atomic-512B", "peer-memory")
    return strategy.build(
        "one", build(json.loads(protocol)), suited(balancer, ep, experts), assume, pod(pod_name)
    )


def gate(rng: np.random.Generator, tokens: int, experts: int, top_k: int, skew: float) -> np.ndarray:
    """(tokens, K) distinct experts; log-popularity has width ``skew``."""
    scores = rng.normal(size=experts) * skew + rng.gumbel(size=(tokens, experts))
    return np.argsort(-scores, axis=1)[:, :top_k]


@dataclass(frozen=True, eq=False)
class Layer:
    """A strategy, what it is asked about, and its plan over the resources of its pod."""

    strategy: Strategy
    case: Case
    plan: Plan
    resources: Resources

    def fluid(self, tolerance: float = 0.0) -> Timing:
        return execution.run(self.plan, self.resources, tolerance=tolerance)

    def bound(self) -> Timing:
        return bounds.run(self.plan, self.resources)

    def buffers(self) -> dict[str, float]:
        return strategy.buffers(self.strategy, self.case, "bf16")


def layer(
    protocol: str | Mapping[str, object],
    balancer: str = "none",
    *,
    pod_name: str = "crossbar",
    ep: int = 8,
    place: str = "packed",
    tokens: int = 12,
    capacity: int | None = None,
    experts: int = 16,
    top_k: int = 4,
    hidden: int = 1024,
    intermediate: int = 256,
    skew: float = 1.0,
    seed: int = 0,
    off: Iterable[str] = (),
    ids: np.ndarray | None = None,
    constants: Mapping[str, float] | None = None,
    train: bool = False,
) -> Layer:
    """Everything that a scenario would put together; ``constants`` change those of the calibration."""
    topology = pod(pod_name)
    model = moe.load(
        {
            "name": "small",
            "hidden": hidden,
            "layers": 1,
            "moe_layers": 1,
            "experts": experts,
            "top_k": top_k,
            "intermediate": intermediate,
        }
    )
    one = together(json.dumps(protocol), balancer, pod_name, ep, experts)
    costs = one.costs
    for name, value in (constants or {}).items():
        costs = costs.with_value(name, value)
    if ids is None:
        ids = gate(np.random.default_rng(seed), ep * tokens, experts, top_k, skew)
    assignment = one.balancer.balance(ids, ep, experts, np.random.default_rng(seed))
    ways = placed(pod_name, ep, place, costs.access)
    hosts = np.unique(ways.host, return_inverse=True)[1]
    domains = np.unique(ways.domain, return_inverse=True)[1]
    case = Case(
        model=model,
        device=topology.device,
        routes=ways,
        traffic=traffic.count(assignment, ep, hosts, domains),
        assignment=assignment,
        calibration=costs,
        capacity=tokens if capacity is None else capacity,
        off=frozenset(off),
    )
    return Layer(one, case, strategy.plan(one, case, "bf16", train), Resources(ways, one.engines))


def stages(ran: Timing) -> dict[str, np.ndarray]:
    """(R,) [s] of each of the four times."""
    dispatch, expert, combine = (ran.end(stage) for stage in ("dispatch", "expert", "combine"))
    return {"dispatch": dispatch, "expert": expert - dispatch, "combine": combine - expert, "layer": combine}
