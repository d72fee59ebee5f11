"""UltraEP's copies and weight pushes against its README: EP64 in one rack, 256 experts, top-8, 8,192 tokens a rank.

Its routing is drawn again by its own rule; the seed is unknown. Direct pushes are flows of whole experts and nothing is
fitted to them. The rate through relays comes from the row of 1.51, and is judged on the other.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from small_cases import placed, pod
from ultraep_routing import drawn

from moesim import execution, moe, strategy, traffic, weights
from moesim.balancers.ultraep import UltraEP
from moesim.contention import Resources
from moesim.plan import Plan
from moesim.protocols import Case, build

RANKS, MASTERS, TOP_K, TOKENS = 64, 4, 8, 8192
# Largest over mean load: of one expert, in all; copies; [s] of weight_sync.
ROWS = {
    1.51: {"target": 1.5, "most": 4, "copies": 38, "direct": 0.214e-3, "relay": 0.194e-3},
    2.01: {"target": 2.0, "most": 5, "copies": 46, "direct": 0.265e-3, "relay": 0.195e-3},
}


@cache
def routing(target: float) -> np.ndarray:
    return drawn(target, ranks=RANKS, masters=MASTERS, top_k=TOP_K, tokens=TOKENS)


@cache
def balanced(row: float, relay: str):
    balancer = UltraEP(UltraEP.Params(relay=relay))
    return balancer.balance(routing(ROWS[row]["target"]), RANKS, RANKS * MASTERS, np.random.default_rng(0))


@cache
def pushed(row: float, relay: str, protocol: str) -> float:
    """[s] until the last copy is there."""
    found = balanced(row, relay)
    one = strategy.build("one", build({"kind": protocol}), UltraEP(), (), pod("gb200-nvl72"))
    ways = placed("gb200-nvl72", RANKS, "packed", one.costs.access)
    shape = {"experts": RANKS * MASTERS, "top_k": TOP_K, "hidden": 4096, "intermediate": 1536}
    same = np.zeros(RANKS, dtype=np.int64)
    case = Case(
        model=moe.load({"name": "theirs", "layers": 1, "moe_layers": 1, **shape}),
        device=pod("gb200-nvl72").device,
        routes=ways,
        traffic=traffic.count(found, RANKS, same, same),
        assignment=found,
        calibration=one.costs,
        capacity=TOKENS,
    )
    moved = weights.push(one.balancer, one.moving, case, "bf16", ())
    ran = execution.run(Plan(RANKS, moved.phases, {}), Resources(ways, one.engines), tolerance=0.0)
    return max(float(span.end.max()) for name, span in ran.spans.items() if name.startswith("weights"))


@pytest.mark.parametrize("row", ROWS)
def test_copies(row):
    found = balanced(row, "off")
    expert, rank, _, quota = found.details["quotas"].T
    before = np.bincount(expert // MASTERS, quota)
    assert traffic.rank_imbalance(before) == pytest.approx(row, abs=0.01)
    assert traffic.rank_imbalance(np.bincount(rank, quota)) == pytest.approx(1.01, abs=0.001)
    assert np.bincount(expert).max() - 1 == ROWS[row]["most"]
    assert len(found.moves) == pytest.approx(ROWS[row]["copies"], abs=2)
    # What entries really do: the split by source misses quotas by a few.
    load = np.bincount(found.placement.slot_rank, found.gemm_rows)
    assert traffic.rank_imbalance(load) == pytest.approx(1.01, abs=0.005)


@pytest.mark.parametrize("protocol", ["rank-dedup-push", "hybrid-ep"])
@pytest.mark.parametrize("row", ROWS)
def test_direct_push(row, protocol):
    """Whole experts at what packets of 128 B, or of 256 B, leave of a link."""
    assert pushed(row, "off", protocol) == pytest.approx(ROWS[row]["direct"], rel=0.10)


def test_push_through_relays():
    assert pushed(2.01, "adaptive", "hybrid-ep") == pytest.approx(ROWS[2.01]["relay"], rel=0.05)
    assert pushed(2.01, "adaptive", "hybrid-ep") < pushed(2.01, "off", "hybrid-ep")
