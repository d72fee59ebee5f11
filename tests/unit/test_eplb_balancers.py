"""The two balancers around EPLB's planner: which counts they see, when weights move, who sends them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moesim.balancers import Context
from moesim.balancers import _copies as copies
from moesim.balancers._eplb import rebalance
from moesim.balancers.eplb import EPLB
from moesim.balancers.eplb_periodic import PeriodicEPLB

R, E, RED = 4, 8, 4


def batch(step, tokens=16):
    """(R*T, 2): popularity that is another at every step."""
    rng = np.random.default_rng(step)
    scores = 2 * rng.normal(size=E) + rng.gumbel(size=(R * tokens, E))
    return np.argsort(-scores, axis=1)[:, :2]


PAST = np.array([np.bincount(batch(step).ravel(), minlength=E) for step in range(40)])


def at(step, layer=0, layers=4):
    return replace(Context.first(R, E), step=step, layer=layer, layers=layers, past=PAST[:step])


def balanced(balancer, step, layer=0):
    return balancer.balance(batch(step), R, E, np.random.default_rng(0), at(step, layer))


def plan_of(first, end):
    return rebalance(PAST[first:end].sum(axis=0)[None], E + RED, 1, 1, R).phy2log[0].tolist()


START = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]


def test_eplb_sees_the_batch_itself_or_the_window_before_it():
    exact = EPLB(EPLB.Params(num_redundant_experts=RED))
    assert balanced(exact, 9).placement.slot_expert.tolist() == plan_of(9, 10)
    stale = EPLB(EPLB.Params(num_redundant_experts=RED, window_size=5))
    assert balanced(stale, 0).placement.slot_expert.tolist() == START
    assert balanced(stale, 3).placement.slot_expert.tolist() == plan_of(0, 3)
    assert balanced(stale, 9).placement.slot_expert.tolist() == plan_of(4, 9)


def test_stale_counts_balance_worse_than_exact_ones():
    def worst(params):
        loads = [balanced(EPLB(params), step).slot // 3 for step in range(1, 40)]
        return np.mean([np.bincount(load.ravel()).max() for load in loads])

    exact, stale = (worst(EPLB.Params(num_redundant_experts=RED, window_size=w)) for w in (0, 1))
    assert exact < stale / 1.2


def test_copies_share_evenly():
    found = balanced(EPLB(EPLB.Params(num_redundant_experts=RED)), 2)
    for expert in range(E):
        rows = found.gemm_rows[found.placement.slot_expert == expert]
        assert rows.max() - rows.min() <= 1


def test_synchronous_plans_are_in_force_and_moved_at_every_interval():
    params = {"num_redundant_experts": RED, "window_size": 6, "step_interval": 10, "use_async": False}
    one = PeriodicEPLB(PeriodicEPLB.Params(**params))
    expected = {0: START, 1: plan_of(4, 10), 2: plan_of(14, 20), 3: plan_of(24, 30)}
    for step in range(40):
        for layer in (0, 3):
            found = balanced(one, step, layer)
            assert found.placement.slot_expert.tolist() == expected[step // 10]
            assert (len(found.moves) > 0) == (step in (10, 20, 30))
            assert found.stall == (step in (10, 20, 30))
            assert found.details == {"plan": step // 10}


def test_asynchronous_plans_arrive_layer_after_layer():
    params = {"num_redundant_experts": RED, "window_size": 100, "step_interval": 10}
    one = PeriodicEPLB(PeriodicEPLB.Params(**params))
    for layer in (0, 3):
        for step in range(40):
            found = balanced(one, step, layer)
            plan = (step - layer - 1) // 10 if step > layer else 0
            assert found.placement.slot_expert.tolist() == (plan_of(0, 10 * plan) if plan else START)
            assert (len(found.moves) > 0) == (step in (10 + layer, 20 + layer, 30 + layer))
            assert not found.stall
            assert found.details == {"plan": plan}


def test_what_one_instance_planned_before_does_not_matter():
    params = PeriodicEPLB.Params(num_redundant_experts=RED, step_interval=7)
    used = PeriodicEPLB(params)
    for step in (30, 8, 22):
        balanced(used, step)
    other = used.balance(batch(9), 2, E, np.random.default_rng(0), replace(at(9), host=np.zeros(2)))
    assert len(other.placement.slot_rank) == E + RED
    one, two = balanced(used, 15), balanced(PeriodicEPLB(params), 15)
    assert one.placement.slot_expert.tolist() == two.placement.slot_expert.tolist()


def test_a_holder_sends_to_its_share_of_the_receivers():
    before = np.array([0, 1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10])  # six ranks of two slots
    after = np.array([0, 1, 0, 2, 3, 0, 0, 6, 7, 0, 9, 0])
    # Expert 0 is on ranks 0 and 1; ranks 2 to 5 receive it: two each.
    assert copies.shared_out(before, after, 6).tolist() == [[5, 0], [6, 0], [9, 1], [11, 1]]
    # Of three receivers each holder has one, and the first takes what is left over.
    after[11] = 10
    assert copies.shared_out(before, after, 6).tolist() == [[5, 0], [6, 1], [9, 0]]


def test_what_a_rank_has_is_not_sent_and_twice_the_same_is_sent_once():
    before, after = np.array([0, 1, 2, 3]), np.array([1, 0, 0, 0])
    assert copies.shared_out(before, after, 2).tolist() == [[2, 0]]


@pytest.mark.parametrize(
    ("params", "message", "legal"),
    [
        (
            {"num_redundant_experts": 3},
            "8 experts and 3 copies",
            "num_redundant_experts of 0 or 4",
        ),
        ({"num_groups": 3}, "num_groups 3 does not divide 8 experts", "num_groups of 1, 2, 4, 8"),
        ({"num_groups": 8, "num_nodes": 8}, "num_nodes 8 does not divide 4 ranks", "num_nodes of 1, 2, 4"),
    ],
)
@pytest.mark.parametrize("kind", [EPLB, PeriodicEPLB])
def test_what_cannot_be_laid_out(kind, params, message, legal):
    found = kind(kind.Params(**params)).problems(R, E, 2)
    assert len(found) == 1
    assert message in found[0].message
    assert found[0].legal == legal
