"""What every account of redundant experts says of them, whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_cases import gate, layer

from moesim import strategy, timing, traffic
from moesim.balancers import BALANCERS, Context

RACK = {"pod_name": "gb200-nvl72", "ep": 16, "experts": 128, "top_k": 8}
QWEN = {"hidden": 4096, "intermediate": 1536}


def seconds(one) -> float:
    """[s] of the layer in closed form."""
    ran = one.bound()
    return float(ran.last.max()) + sum(timing.exposed(ran, ran).values())


def test_moonep_is_flat_in_maxvio_while_none_rises():
    """The benches' span of maxvio, 0.2 to 10; 8,192 tokens a rank as there."""
    took, maxvio = {"none": [], "moonep": []}, []
    for skew in (0.05, 0.5, 1.0, 1.7):
        ids = gate(np.random.default_rng(3), 16 * 8192, 128, 8, skew)
        for name in took:
            one = layer("rank-dedup-push", name, tokens=8192, ids=ids, **RACK, **QWEN)
            took[name].append(seconds(one))
        maxvio.append(traffic.maxvio(one.case.traffic.expert_counts))
    assert maxvio[0] < 0.3
    assert maxvio[-1] > 8
    assert (np.diff(took["none"]) > 0).all()
    assert took["none"][-1] > 2.0 * took["none"][0]
    assert max(took["moonep"]) < 1.2 * min(took["moonep"])
    # Near balance the machinery has its price.
    assert took["none"][0] < took["moonep"][0]


@pytest.mark.parametrize(("ep", "experts", "skew"), [(8, 64, 0.5), (8, 64, 1.0), (64, 256, 1.0)])
def test_stale_eplb_is_no_better_than_none(ep, experts, skew):
    """Popularity of now and of the window are independent, two redundant slots a rank; the true counts help much.

    Not everywhere: copies of whatever help a little where few ranks have many experts (7 % at EP16 of 128).
    """
    eplb = BALANCERS.get("eplb")
    balancer = eplb(eplb.Params(num_redundant_experts=2 * ep, window_size=1))
    took = {"none": [], "stale": [], "exact": []}
    for seed in range(6):
        ids, others = (gate(np.random.default_rng(2 * seed + k), ep * 512, experts, 8, skew) for k in (0, 1))
        rack = {"pod_name": "gb200-nvl72", "ep": ep, "experts": experts, "top_k": 8}
        none = layer("rank-dedup-push", tokens=512, ids=ids, **rack, **QWEN)
        took["none"].append(seconds(none))
        for name, known in (("stale", others), ("exact", ids)):
            past = np.bincount(known.ravel(), minlength=experts)[None]
            context = replace(Context.first(ep, experts), step=1, past=past)
            assignment = balancer.balance(ids, ep, experts, np.random.default_rng(0), context)
            counted = traffic.count(assignment, ep, none.case.traffic.host, none.case.traffic.domain)
            case = replace(none.case, assignment=assignment, traffic=counted)
            plan = strategy.plan(replace(none.strategy, balancer=balancer), case, "bf16")
            took[name].append(seconds(replace(none, case=case, plan=plan)))
    mean = {name: float(np.mean(values)) for name, values in took.items()}
    assert mean["stale"] > 0.97 * mean["none"]
    assert mean["exact"] < mean["stale"] * 0.9


@pytest.mark.parametrize("shape", [QWEN, {"hidden": 7168, "intermediate": 2048}])
def test_one_copy_pays_from_about_2000_tokens(shape):
    """F / W, whatever the expert's size: pushing one takes as long as the GEMM of that many tokens."""
    one = layer("hybrid-ep", "moonep", tokens=4096, skew=1.0, **RACK, **shape)
    push = next(phase for phase in one.plan.phases if phase.name == "weights.push")
    copies = np.bincount(push.flows.src, minlength=16)
    sent = one.fluid().spans["weights.push"]
    a_copy = float((sent.end - sent.start)[copies.argmax()]) / copies.max()
    gemm = next(phase for phase in one.plan.phases if phase.name == "expert.gemm")
    rows = np.bincount(one.case.assignment.placement.slot_rank, one.case.assignment.gemm_rows)
    a_token = float(gemm.duration.max() / rows.max())
    assert 1500 < a_copy / a_token < 3000


@pytest.mark.parametrize(("tokens", "pays"), [(128, False), (512, False), (8192, True)])
def test_below_the_break_even_batch_moving_weights_loses(tokens, pays):
    """One hot rank: its surplus, over the copies that it sends, is below or above 2,000 tokens a copy."""
    ids = gate(np.random.default_rng(5), 16 * tokens, 128, 8, 1.0)
    none, ultraep, moonep = (
        layer("hybrid-ep", name, tokens=tokens, ids=ids, **RACK, **QWEN)
        for name in ("none", "ultraep", "moonep")
    )
    for one in (ultraep, moonep):
        assert (seconds(one) < seconds(none)) == pays
