"""The planners of EPLB and Swift against slow ones that follow the published rules item by item."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.placement_twins import eplb_slowly, swift_slowly

from moesim.balancers._eplb import rebalance
from moesim.balancers.swift import plan, start


@st.composite
def eplb_cases(draw):
    nodes, per_node = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    gpus = nodes * per_node
    groups = nodes * draw(st.integers(1, 3)) if draw(st.booleans()) else draw(st.integers(1, 4))
    experts = groups * draw(st.integers(1, 6))
    replicas = -(-experts // gpus) * gpus + gpus * draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most = draw(st.sampled_from([1, 3, 1000, 60_000]))
    weight = rng.integers(0, most + 1, size=(draw(st.integers(1, 2)), experts))
    return weight, replicas, groups, nodes, gpus


@settings(max_examples=300, deadline=None)
@given(eplb_cases())
def test_eplb(case):
    weight, replicas, groups, nodes, gpus = case
    found = rebalance(weight, replicas, groups, nodes, gpus)
    slow = [eplb_slowly(row.tolist(), replicas, groups, nodes, gpus) for row in weight]
    assert found.phy2log.tolist() == slow


@st.composite
def swift_cases(draw):
    hosts, per_host = draw(st.integers(1, 2)), draw(st.integers(1, 5))
    ranks, local = hosts * per_host, draw(st.integers(1, 5))
    experts = ranks * local
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    load = np.exp(rng.normal(size=(2, experts)) * draw(st.sampled_from([0.3, 1.0, 2.0]))) * 1000
    load = np.round(load) * (rng.random((2, experts)) < draw(st.sampled_from([0.3, 1.0])))
    # As one plan after another would leave it: the start, or what followed other loads.
    old = np.tile(start(ranks, experts, ranks * draw(st.integers(0, 2)))[None], (2, 1, 1))
    host = np.repeat(np.arange(hosts), per_host)
    if draw(st.booleans()):
        old = plan(old, load[::-1], host).placement
    return old, load, host


@settings(max_examples=300, deadline=None)
@given(swift_cases())
def test_swift(case):
    old, load, host = case
    found = plan(old, load, host)
    reference = load[0].sum() / len(host)
    for layer in range(2):
        share = (load[layer] / np.bincount(old[layer].ravel(), minlength=load.shape[1]))[old[layer]]
        before, mean = share.sum(axis=1).max(), load[layer].sum() / len(host)
        here, largest = [], 0.0
        for one in np.unique(host):
            rows = host == one
            sets, most = swift_slowly(old[layer][rows].tolist(), share[rows].tolist(), reference)
            here, largest = here + sets, max(largest, most)
        # Where there are too few experts for all slots, or none is out of balance, all stays as it is.
        whole = all(len(held) == old.shape[2] for held in here)
        if whole and mean > 0 and before / mean >= 1.01 and largest * mean < before * reference * (1 - 1e-12):
            assert [set(row) for row in found.placement[layer].tolist()] == here
        else:
            assert found.placement[layer].tolist() == old[layer].tolist()


@settings(max_examples=200, deadline=None)
@given(swift_cases())
def test_what_swift_promises(case):
    old, load, host = case
    found = plan(old, load, host).placement
    for before, after in zip(old, found, strict=True):
        if np.array_equal(before, after):
            continue
        assert set(after.ravel().tolist()) == set(before.ravel().tolist()), "no expert is lost"
        assert all(len(set(row)) == len(row) for row in after.tolist()), "none is twice on a rank"
        for was, now in zip(before.tolist(), after.tolist(), strict=True):
            assert all(now[slot] == expert for slot, expert in enumerate(was) if expert in now)
        for one in np.unique(host):
            assert set(after[host == one].ravel().tolist()) == set(before[host == one].ravel().tolist())
