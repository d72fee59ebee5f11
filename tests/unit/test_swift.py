"""Swift's planner against what the real one decided, its cycle, and who sends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moesim.balancers import Context
from moesim.balancers.swift import Swift, plan, senders, start

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "swift_balancer.json").read_text())["vectors"]


def planned(vector):
    inputs = vector["inputs"]
    placement = np.array(inputs["placement"])
    hosts = np.arange(placement.shape[1]) // inputs["npus_per_host"]
    host = hosts if inputs["intra_host_redundancy"] else np.zeros_like(hosts)
    return placement, plan(placement, np.array(inputs["expert_load"]), host)


def imbalance(placement, load):
    copies = np.bincount(placement.ravel(), minlength=len(load))
    rank = (load / copies)[placement].sum(axis=1)
    return rank.max() / rank.mean()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_equal_to_the_original(vector):
    old, found = planned(vector)
    assert np.sort(found.placement).tolist() == np.sort(vector["outputs"]["placement"]).tolist()
    assert int(found.change) == vector["outputs"]["change"]
    assert found.layer_priority.tolist() == vector["outputs"]["layer_priority"]
    for layer, derived in enumerate(vector["derived"]):
        load = np.array(vector["inputs"]["expert_load"][layer])
        new = found.placement[layer]
        assert imbalance(old[layer], load) == pytest.approx(derived["max_over_mean_before"], abs=1e-6)
        assert imbalance(new, load) == pytest.approx(derived["max_over_mean_after"], abs=1e-6)
        moves = senders(old[layer], new)
        received = np.bincount(moves[:, 0] // new.shape[1], minlength=len(new))
        assert received.tolist() == derived["received_per_rank"]
        assert len(moves) == derived["expert_copies_moved"]


def test_there_are_ten_vectors():
    assert len(VECTORS) == 10


def test_what_stays_keeps_its_slot():
    for vector in VECTORS:
        old, found = planned(vector)
        for before, after in zip(old[0], found.placement[0], strict=True):
            for slot, expert in enumerate(before):
                if expert in after:
                    assert after[slot] == expert


def test_a_balanced_layer_is_left_alone_and_so_is_one_without_load():
    old = start(4, 8, 4)[None].repeat(2, axis=0)
    flat = np.array([[10.0] * 8, [0.0] * 8])
    even = np.array([[2.0, 1, 2, 1, 2, 1, 2, 1], [0.0] * 8])  # 1 + 1 + 1 on every rank
    assert plan(old, even, np.zeros(4)).placement.tolist() == old.tolist()
    assert not plan(old, even, np.zeros(4)).change
    assert plan(old, flat, np.zeros(4)).placement[1].tolist() == old[1].tolist()


def test_hosts_keep_their_experts_to_themselves():
    old = start(8, 16, 8)
    old[3, 2], old[7, 2] = 0, 8
    load = np.random.default_rng(0).lognormal(3, 1, 16)
    host = np.repeat([0, 1], 4)
    new = plan(old[None], load[None], host).placement[0]
    assert (new != old).any()
    assert (new[:4] < 8).all()
    assert (new[4:] >= 8).all()


def test_an_expert_is_sent_by_who_gives_it_up_or_else_by_the_lowest_holder():
    old = np.array([[0, 1], [0, 2], [3, 4], [5, 6]])
    new = np.array([[0, 1], [7, 2], [3, 0], [0, 6]])
    new[1, 0] = 5
    # Rank 1 gives expert 0 up, rank 3 expert 5.
    assert senders(old, new).tolist() == [[2, 3], [5, 1], [6, 1]]
    new[1, 0] = 0
    assert senders(old, new).tolist() == [[5, 0], [6, 0]]


R, E = 4, 8


def batch(step):
    rng = np.random.default_rng(step)
    scores = 2 * rng.normal(size=E) + rng.gumbel(size=(R * 16, E))
    return np.argsort(-scores, axis=1)[:, :2]


PAST = np.array([np.bincount(batch(step).ravel(), minlength=E) for step in range(40)])


def test_a_cycle_counts_plans_and_changes_a_layer_a_step():
    given = {"expert_heat_collection_interval": 2, "algorithm_execution_interval": 5}
    one = Swift(Swift.Params(num_redundant_experts=R, **given))
    layers, cycle = 3, 10
    for layer in range(layers):
        old, expected = start(R, E, R), [start(R, E, R)]
        for begin in range(0, 40, cycle):
            counted = PAST[begin : begin + 2].sum(axis=0).astype(float)
            old = plan(old[None], counted[None], np.zeros(R)).placement[0]
            expected.append(old)
        for step in range(40):
            moving = step >= 7 and (step - 7 - layer) % cycle == 0 and step >= 7 + layer
            number = max(0, (step - 1 - 7 - layer) // cycle + 1)
            context = replace(Context.first(R, E), step=step, layer=layer, layers=layers, past=PAST[:step])
            found = one.balance(batch(step), R, E, np.random.default_rng(0), context)
            assert found.placement.slot_expert.tolist() == expected[number].ravel().tolist(), step
            wanted = senders(expected[number], expected[number + 1]).tolist() if moving else []
            assert found.moves.tolist() == wanted
            assert found.details == {"plan": number}
        assert len({tuple(table.ravel()) for table in expected}) > 3, "most plans are others"


def test_copies_that_cannot_be_laid_out():
    found = Swift(Swift.Params(num_redundant_experts=3)).problems(4, 8, 2)
    assert [one.legal for one in found] == ["num_redundant_experts of 0 or 4"]
