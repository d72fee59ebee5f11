"""What every registered balancer must satisfy; a new one is tested by being registered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from suited import suited

from moesim import traffic
from moesim.balancers import BALANCERS, BalancerParams, Context
from moesim.errors import InputError


def routing(ranks, experts, tokens, top_k, skew, seed=0):
    """Picks (R*T, K) of distinct experts with a lognormal popularity of width ``skew``."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=experts) * skew + rng.gumbel(size=(ranks * tokens, experts))
    return np.argsort(-scores, axis=1)[:, :top_k].astype(np.uint16)


CASES = {
    "one rank": (1, 4, 3, 2, 0.0),
    "one expert a rank": (8, 8, 6, 3, 1.0),
    "top 1": (4, 12, 9, 1, 0.5),
    "uniform": (8, 64, 16, 8, 0.0),
    "skewed": (16, 64, 12, 8, 1.0),
    "all on the same experts": (8, 32, 8, 4, 1000.0),
    "decode": (64, 256, 8, 8, 0.7),
    "no tokens": (4, 8, 0, 2, 0.0),
}


@pytest.fixture(params=BALANCERS.names())
def name(request):
    return request.param


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request):
    ranks, experts, tokens, top_k, skew = request.param
    return routing(ranks, experts, tokens, top_k, skew), ranks, experts


@pytest.fixture
def balancer(name, case):
    return suited(name, *case[1:])


def balanced(balancer, case, seed=0):
    return balancer.balance(*case, np.random.default_rng(seed))


def same(one, two):
    """All arrays of two assignments are equal."""
    return (
        np.array_equal(one.placement.slot_expert, two.placement.slot_expert)
        and np.array_equal(one.placement.slot_rank, two.placement.slot_rank)
        and np.array_equal(one.placement.home, two.placement.home)
        and np.array_equal(one.slot, two.slot)
        and np.array_equal(one.moves, two.moves)
        and np.array_equal(one.gemm_rows, two.gemm_rows)
        and one.static_rows == two.static_rows
    )


def count_in_one_host(assignment, ranks):
    one = np.zeros(ranks, dtype=np.int64)
    return traffic.count(assignment, ranks, one, one)


def test_shapes(balancer, case):
    ids, ranks, experts = case
    assignment = balanced(balancer, case)
    placement = assignment.placement
    assert (placement.experts, placement.ranks) == (experts, ranks)
    assert placement.home.shape == (experts,)
    assert placement.slot_rank.shape == placement.slot_expert.shape == assignment.gemm_rows.shape
    assert assignment.slot.shape == ids.shape
    assert assignment.moves.ndim == 2
    assert assignment.moves.shape[1] == 2
    for array in (placement.slot_expert, placement.slot_rank, assignment.slot, assignment.moves):
        assert array.dtype == np.int64


def test_every_expert_is_hosted_on_a_rank_that_exists(balancer, case):
    _, ranks, experts = case
    placement = balanced(balancer, case).placement
    assert set(range(experts)) <= set(placement.slot_expert.tolist()) <= set(range(-1, experts))
    assert set(placement.slot_rank.tolist()) <= set(range(ranks))
    assert set(placement.home.tolist()) <= set(range(ranks))


def test_every_entry_goes_to_a_slot_that_holds_its_expert(balancer, case):
    assignment = balanced(balancer, case)
    assert (assignment.placement.slot_expert[assignment.slot] == case[0]).all()


def test_entries_are_conserved(balancer, case):
    ids, ranks, experts = case
    assignment = balanced(balancer, case)
    counted = count_in_one_host(assignment, ranks)
    assert counted.expert_counts.tolist() == np.bincount(ids.ravel(), minlength=experts).tolist()
    assert counted.load.sum() == ids.size
    per_slot = counted.entries.sum(axis=0)
    assert (assignment.gemm_rows >= per_slot).all()
    assert (assignment.gemm_rows[per_slot == 0] == 0).all()


def test_weights_move_only_to_copies_away_from_home(balancer, case):
    assignment = balanced(balancer, case)
    placement, (slot, sender) = assignment.placement, assignment.moves.T
    assert len(np.unique(slot)) == len(slot)
    # A copy may be left without entries: UltraEP's quotas and its split of small batches differ by a few.
    assert (placement.slot_expert[slot] >= 0).all()
    assert (placement.home[placement.slot_expert[slot]] != placement.slot_rank[slot]).all()
    assert (placement.slot_rank[slot] != sender).all()
    assert balancer.weights in ("before", "after") or not len(slot), "there is nothing that has been counted"
    assert not assignment.stall


def test_weights_come_for_every_copy_that_is_made_for_the_batch_and_used(balancer, case):
    assignment = balanced(balancer, case)
    placement = assignment.placement
    if balancer.weights in ("before", "after"):
        used = np.unique(assignment.slot)
        away = used[placement.home[placement.slot_expert[used]] != placement.slot_rank[used]]
        assert set(away.tolist()) <= set(assignment.moves[:, 0].tolist())


def test_a_sender_has_the_weights_or_gets_them_from_one_that_has(balancer, case):
    assignment = balanced(balancer, case)
    placement, (slot, sender) = assignment.placement, assignment.moves.T
    expert = placement.slot_expert[slot]
    relayed = np.zeros(len(slot), dtype=bool) if assignment.relayed is None else assignment.relayed
    assert relayed.shape == slot.shape
    assert (placement.home[expert] == sender)[~relayed].all()
    # Trees have two stages: who sends on is itself sent to by one that has them.
    direct = set(zip(expert[~relayed].tolist(), placement.slot_rank[slot[~relayed]].tolist(), strict=True))
    assert set(zip(expert[relayed].tolist(), sender[relayed].tolist(), strict=True)) <= direct


def test_weights_of_another_placement_come_from_who_has_them(name):
    """Over the steps of a run: what is moved in the background is there in the next step, the rest stays."""
    ranks, experts, steps = 8, 32, 24
    balancer = suited(name, ranks, experts)
    batches = [routing(ranks, experts, 16, 4, 1.0, seed) for seed in range(steps)]
    past = np.array([np.bincount(ids.ravel(), minlength=experts) for ids in batches])
    before, arrived = None, set()
    for step, ids in enumerate(batches):
        context = replace(Context.first(ranks, experts), step=step, layer=1, layers=3, past=past[:step])
        found = balancer.balance(ids, ranks, experts, np.random.default_rng(0), context)
        assert (found.placement.slot_expert[found.slot] == ids).all()
        if balancer.weights != "background":
            assert not found.stall
            continue
        held = set(zip(found.placement.slot_rank.tolist(), found.placement.slot_expert.tolist(), strict=True))
        receivers = found.placement.slot_rank[found.moves[:, 0]]
        assert (receivers != found.moves[:, 1]).all()
        if before is not None:
            here = {rank for rank, _ in held - before}
            assert here <= (set(receivers.tolist()) if found.stall else arrived)
        before, arrived = held, set() if found.stall else set(receivers.tolist())


def test_static_rows_hold_whatever_comes(balancer, case):
    assignment = balanced(balancer, case)
    if assignment.static_rows is not None:
        received = np.bincount(assignment.placement.slot_rank, assignment.gemm_rows)
        assert received.max() <= assignment.static_rows


def test_same_seed_same_assignment(balancer, case):
    assert same(balanced(balancer, case, seed=5), balanced(balancer, case, seed=5))


def test_width_of_the_ids_does_not_matter_and_they_are_left_alone(balancer, case):
    ids, ranks, experts = case
    wide = ids.astype(np.int64)
    before = wide.copy()
    assert same(balanced(balancer, case), balanced(balancer, (wide, ranks, experts)))
    assert np.array_equal(wide, before)


def test_order_of_tokens_within_a_rank_does_not_matter(balancer, case):
    ids, ranks, experts = case
    rng = np.random.default_rng(1)
    within = rng.random((ranks, len(ids) // ranks)).argsort(axis=1)
    order = (within + np.arange(ranks)[:, None] * (len(ids) // ranks)).ravel()
    mixed = rng.permuted(ids[order], axis=1)
    one, two = balanced(balancer, case), balanced(balancer, (mixed, ranks, experts))
    assert count_in_one_host(one, ranks).entries.tolist() == count_in_one_host(two, ranks).entries.tolist()


def test_no_tokens_no_work(name):
    assignment = suited(name, 4, 8).balance(np.empty((0, 2), dtype=np.uint16), 4, 8, np.random.default_rng(0))
    assert assignment.slot.shape == (0, 2)
    assert len(assignment.moves) == 0
    assert not assignment.gemm_rows.any()


@pytest.mark.parametrize(
    ("ids", "ranks", "experts"),
    [
        (np.zeros((6, 1), dtype=np.int64), 3, 8),
        (np.full((4, 1), 8), 4, 8),
        (np.full((4, 1), -1), 4, 8),
        (np.zeros((5, 1), dtype=np.int64), 4, 8),
        (np.zeros((4, 1)), 4, 8),
        (np.zeros((0, 1), dtype=np.int64), 0, 8),
    ],
    ids=["experts do not divide", "id too large", "id negative", "ragged batch", "not integers", "no ranks"],
)
def test_bad_input_is_refused(name, ids, ranks, experts):
    with pytest.raises(InputError):
        suited(name, 4, 8).balance(ids, ranks, experts, np.random.default_rng(0))


def test_declaration(name):
    kind = BALANCERS.get(name)
    assert BALANCERS.get(kind.name) is kind
    assert isinstance(kind.needs, frozenset)
    assert issubclass(kind.Params, BalancerParams)
    assert kind.__doc__
    with pytest.raises(ValidationError):
        kind.Params(no_such_parameter=1)
    for limit, value in ((kind.max_ranks, "ranks"), (kind.max_top_k, "experts a token")):
        if limit is not None:
            many = {"ranks": 1, "experts a token": 1, value: limit + 1}
            one = suited(name, many["ranks"], limit + 1)
            found = one.problems(many["ranks"], limit + 1, many["experts a token"])
            assert [one.legal for one in found if f"{limit + 1} {value}" in one.message] == [
                f"at most {limit}"
            ]
