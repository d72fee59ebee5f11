"""LPLB: the optimum of its programme, its topologies, its slow half, and which entries go to the copy."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from small_cases import layer

from moesim.balancers import Context
from moesim.balancers import _copies as copies
from moesim.balancers.lplb import LPLB, neighbours, place, plan, reorder

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "lplb.json").read_text())["vectors"]
NAMED = {"ring4": "ring-4", "cube8": "cube", "ring8": "ring-8", "torus8x4": "torus-8x4"}


def planned(vector):
    inputs = vector["inputs"]
    load = np.array(inputs["workload_per_expert"]).reshape(inputs["ep_size"], -1)
    r2o, redundant = np.array(inputs["r2o"]), inputs["redundant_per_rank"]
    return load, r2o, redundant, plan(load, r2o, redundant)


def loads(load, r2o, redundant, keep):
    """(R,) load of each rank by the definition: what stays, and what it takes from its neighbours."""
    group, directions = r2o.shape
    found = load[:, redundant:].sum(axis=1).astype(float)
    for rank in range(len(load)):
        for number in range(redundant):
            d = number % directions
            other = rank // group * group + r2o[rank % group, d]
            found[rank] += load[rank, number] * keep[rank, d] + load[other, number] * (1 - keep[other, d])
    return found


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_equal_to_the_optimum(vector):
    load, r2o, redundant, found = planned(vector)
    groups = vector["outputs"]["groups"]
    expected = [group["exact_lp_min_max_load"] for group in groups]
    assert found.largest == pytest.approx(expected, abs=0.5e-3)
    assert ((found.keep >= 0) & (found.keep <= 1)).all()
    by_hand = loads(load, r2o, redundant, found.keep)
    # The original works with loads in single precision.
    assert by_hand.reshape(len(groups), -1).max(axis=1) == pytest.approx(found.largest, rel=1e-6)
    assert by_hand.sum() == pytest.approx(load.sum())
    assert by_hand.max() / by_hand.mean() == pytest.approx(vector["derived"]["imbalance_exact_lp"], abs=1e-5)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_topologies_by_name(vector):
    assert neighbours(NAMED[vector["name"].partition("_")[0]]).tolist() == vector["inputs"]["r2o"]


def test_hypercube_and_every_direction_reach_every_rank_once():
    assert neighbours("hypercube")[0].tolist() == [3, 12]
    for name in ("cube", "hypercube", "ring-5", "torus-3x2", "ring-1"):
        for column in neighbours(name).T:
            assert sorted(column.tolist()) == list(range(len(column)))


def test_there_are_ten_vectors():
    assert len(VECTORS) == 10


def test_several_copies_a_direction_share_one_variable():
    load = np.array([[40, 40, 10], [0, 0, 10]])
    found = plan(load, neighbours("ring-2"), 2)
    assert found.largest.tolist() == pytest.approx([50])
    assert loads(load, neighbours("ring-2"), 2, found.keep).tolist() == pytest.approx([50, 50])


def test_copies_stand_where_the_topology_says():
    order = np.array([[5, 0], [1, 2], [3, 4]])
    placement = place(order, neighbours("ring-3"), 1)
    assert placement.slot_expert.reshape(3, -1).tolist() == [[5, 0, 1], [1, 2, 3], [3, 4, 5]]
    assert placement.home.tolist() == [0, 1, 1, 2, 2, 0]


def test_reorder_packs_the_heaviest_first_and_sorts_each_rank():
    assert reorder(np.array([1, 8, 2, 7, 3, 6]), 3).tolist() == [[1, 0], [3, 2], [5, 4]]
    assert reorder(np.zeros(6, dtype=int), 3).tolist() == [[0, 1], [2, 3], [4, 5]]


def test_which_entries_stay():
    # One rank of two sends 5 entries to expert 0 and 3 to expert 2; expert 0 is copied to rank 1.
    ids = np.array([[0], [2], [0], [0], [2], [0], [0], [2]] + [[3]] * 8)
    found = LPLB(LPLB.Params(topology="ring-2")).balance(ids, 2, 4, np.random.default_rng(0))
    keep = found.details["keep"]
    assert found.placement.slot_expert.tolist() == [0, 1, 2, 2, 3, 0]
    for expert, copy, share in ((0, 5, keep[0, 0]), (2, 2, keep[1, 0])):
        slots = found.slot[ids == expert]
        count = len(slots)
        stays = [(j * 499 + 41) % count < int(share * count + 1e-9) for j in range(count)]
        assert (slots != copy).tolist() == stays
    assert (found.slot[ids == 3] == 4).all()


def test_the_split_nearly_reaches_the_optimum():
    rng = np.random.default_rng(1)
    scores = rng.normal(size=64) * 0.4 + rng.gumbel(size=(8 * 512, 64))
    ids = np.argsort(-scores, axis=1)[:, :4]
    found = LPLB().balance(ids, 8, 64, rng)
    load = np.bincount(found.placement.slot_rank, found.gemm_rows)
    home = np.bincount(ids.ravel() // 8, minlength=8)
    assert load.max() < home.max()
    # Every (source rank, expert) rounds down what stays.
    assert load.max() <= found.details["largest"][0] + 8 * 4


def test_reorders_move_layer_after_layer_and_the_split_is_of_the_moment():
    past = np.random.default_rng(0).integers(1, 1000, size=(30, 8))
    one = LPLB(LPLB.Params(topology="ring-4", window_size=3, step_interval=10))
    ids = np.random.default_rng(1).integers(0, 8, size=(64, 1))
    for where in (0, 2):
        tables = [place(np.arange(8).reshape(4, 2), neighbours("ring-4"), 1)]
        for made in (10, 20):
            order = reorder(past[made - 3 : made].sum(axis=0), 4)
            tables.append(place(order, neighbours("ring-4"), 1))
        moves = [copies.shared_out(a.slot_expert, b.slot_expert, 4).tolist() for a, b in pairwise(tables)]
        assert all(moves)
        for step in range(30):
            context = replace(Context.first(4, 8), step=step, layer=where, layers=3, past=past[:step])
            found = one.balance(ids, 4, 8, np.random.default_rng(0), context)
            number = 0 if step <= 10 + where else 1 if step <= 20 + where else 2
            assert found.placement.slot_expert.tolist() == tables[number].slot_expert.tolist()
            assert found.moves.tolist() == (moves[number] if step in (10 + where, 20 + where) else [])


@pytest.mark.parametrize(
    ("params", "ranks", "message", "legal"),
    [
        ({}, 12, "cube needs groups of 8 ranks, not 12", "a multiple of 8 ranks, or a topology like ring-12"),
        ({"redundant_per_rank": 3}, 8, "3 copies a rank in 2 directions, of 3", "redundant_per_rank of 2"),
        (
            {"topology": "ring-8", "redundant_per_rank": 4},
            8,
            "4 copies a rank",
            "redundant_per_rank of 1, 2, 3",
        ),
        ({}, 24, "2 copies a rank in 2 directions, of 1 ex", "a topology of one direction, like ring-8"),
    ],
)
def test_what_it_cannot_do(params, ranks, message, legal):
    found = LPLB(LPLB.Params(**params)).problems(ranks, 24, 2)
    assert [one.legal for one in found] == [legal]
    assert message in found[0].message


def test_the_programme_is_solved_on_the_way_to_dispatch():
    one = layer("cann-ep", "lplb", pod_name="cloudmatrix384", ep=8, experts=16)
    names = [phase.name for phase in one.plan.phases]
    assert names[:3] == ["plan.counts", "plan", "plan.remap"]
    assert (one.plan.phases[1].duration == one.strategy.planning["plan"]).all()
    without = layer("cann-ep", "eplb-periodic", pod_name="cloudmatrix384", ep=8, experts=16)
    assert without.plan.phases[0].name == "plan.remap"
    assert one.fluid().end("dispatch").max() > without.fluid().end("dispatch").max() + 100e-6
