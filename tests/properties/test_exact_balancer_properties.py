"""UltraEP's fast planner against the slow one; what UltraEP, Echo and LLEP promise, on random routing."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.ultraep_twin import copy_of_entry, plan_slowly, split_slowly

from moesim.balancers import echo, llep, ultraep
from moesim.balancers._relays import relay_trees
from moesim.balancers.ultraep import UltraEP


@st.composite
def loads(draw):
    """Counts (R, E) of any skew of experts and of ranks, from nothing to a few thousand entries a source."""
    ranks, masters = draw(st.integers(1, 8)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    by_rank = rng.normal(size=(ranks, 1)) * draw(st.sampled_from([0.0, 1.5, 4.0]))
    by_expert = rng.normal(size=(ranks, masters)) * draw(st.sampled_from([0.0, 0.5, 1.5, 8.0]))
    weight = np.exp(by_rank + by_expert).ravel()
    size = draw(st.sampled_from([0, 1, 3, 20, 300, 5000]))
    return rng.multinomial(size, weight / weight.sum(), size=ranks)


settings_of_ultraep = st.builds(
    UltraEP.Params,
    slots=st.integers(0, 3),
    balance_threshold=st.sampled_from([0.0, 1.0, 1.2]),
    epsilon=st.sampled_from([0.0, 0.01, 0.1]),
    min_tokens=st.sampled_from([1, 2, 16, 1024]),
    locality_aware=st.booleans(),
    allow_zero_master_quota=st.booleans(),
)


def ids_of(counts, seed=0):
    """(N, 1): entries of each source in a random order."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(np.arange(len(row)).repeat(row)) for row in counts])[:, None]


@settings(max_examples=300, deadline=None)
@given(loads(), settings_of_ultraep)
def test_ultraep_plans_as_one_candidate_at_a_time(counts, params):
    ranks, experts = counts.shape
    total = counts.sum(axis=0).reshape(ranks, -1)
    at, path, copies = plan_slowly(
        total.tolist(),
        params.slots,
        threshold=params.balance_threshold,
        epsilon=params.epsilon,
        floor=params.min_tokens,
        keep=not params.allow_zero_master_quota,
    )
    decided = ultraep.plan(counts, params)
    assert (decided.thresholds, decided.paths) == ((at,), (path,))
    away = decided.rank != decided.expert // (experts // ranks)
    found = zip(
        decided.expert[away].tolist(), decided.rank[away].tolist(), decided.quota[away].tolist(), strict=True
    )
    assert list(found) == sorted(copies, key=lambda copy: copy[0])
    shares = ultraep.split(counts, decided, locality_aware=params.locality_aware)
    for expert in range(experts):
        own = decided.expert == expert
        hosts, quotas = decided.rank[own].tolist(), decided.quota[own].tolist()
        slow = split_slowly(counts[:, expert].tolist(), hosts, quotas, local=params.locality_aware)
        assert shares[:, own].tolist() == slow


@settings(max_examples=150, deadline=None)
@given(loads(), settings_of_ultraep)
def test_ultraep_deals_as_one_entry_at_a_time(counts, params):
    ranks, experts = counts.shape
    ids = ids_of(counts)
    found = UltraEP(params).balance(ids, ranks, experts, np.random.default_rng(0))
    decided = ultraep.plan(counts, params)
    shares = ultraep.split(counts, decided, locality_aware=params.locality_aware)
    slot_of = decided.rank * decided.slot_table.shape[1] + decided.slot
    seen = Counter()
    for row, expert in enumerate(ids.ravel().tolist()):
        source = row // (len(ids) // ranks)
        own = np.flatnonzero(decided.expert == expert)
        held = int(counts[source, expert])
        copy = copy_of_entry(seen[source, expert], held, expert, shares[source, own].tolist())
        assert found.slot[row, 0] == slot_of[own[copy]]
        seen[source, expert] += 1
        if row > 500:
            break


@settings(max_examples=200, deadline=None)
@given(loads(), settings_of_ultraep)
def test_what_ultraep_promises(counts, params):
    ranks, experts = counts.shape
    decided = ultraep.plan(counts, params)
    total = counts.sum(axis=0)
    quotas = np.bincount(decided.expert, decided.quota, minlength=experts)
    assert quotas.tolist() == total.tolist()
    load = np.bincount(decided.rank, decided.quota, minlength=ranks)
    at = decided.thresholds[0]
    if at is not None:
        assert load.max() <= at, "no rank is above the threshold"
    masters = experts // ranks
    home = decided.rank == decided.expert // masters
    assert (decided.quota[~home] > 0).all()
    assert np.bincount(decided.rank[~home], minlength=ranks).max() <= params.slots
    pairs = np.stack([decided.expert, decided.rank])
    assert len(np.unique(pairs, axis=1).T) == len(decided.expert), "no rank has an expert twice"
    if not params.allow_zero_master_quota:
        assert (decided.quota[home][total > 0] > 0).all()
    shares = ultraep.split(counts, decided, locality_aware=params.locality_aware)
    assert (shares >= 0).all()
    received = np.stack([shares[:, decided.expert == e].sum(axis=1) for e in range(experts)], axis=1)
    assert received.tolist() == counts.tolist()


@settings(max_examples=200, deadline=None)
@given(loads(), st.sampled_from(["adaptive", "force", "off"]))
def test_relays_send_no_more_than_homes_would(counts, relaying):
    ranks, experts = counts.shape
    masters = experts // ranks
    decided = ultraep.plan(counts, UltraEP.Params(slots=3, min_tokens=1))
    away = decided.rank != decided.expert // masters
    expert, rank = decided.expert[away], decided.rank[away]
    trees = relay_trees(expert // masters, expert, rank, relaying)
    direct = np.bincount(expert, minlength=experts)
    for one in np.flatnonzero(direct):
        own = expert == one
        stage = own & ~trees.relayed
        assert (trees.sender[stage] == one // masters).all()
        assert set(trees.sender[own & trees.relayed].tolist()) <= set(rank[stage].tolist())
        most = np.bincount(trees.sender[own]).max()
        assert most <= direct[one]
        if relaying == "adaptive" and trees.relayed[own].any():
            assert most < direct[one]


@settings(max_examples=200, deadline=None)
@given(loads(), st.integers(0, 4), st.sampled_from([0.0, 0.2, 1.0]))
def test_what_echo_promises(counts, slots, threshold):
    ranks, experts = counts.shape
    masters = experts // ranks
    decided = echo.plan(counts, slots, threshold)
    before = counts.sum(axis=0).reshape(ranks, -1).sum(axis=1)
    shares, at_home = echo.split(counts, decided)
    assert (shares >= 0).all()
    assert (at_home >= 0).all()
    assert shares.sum(axis=0).tolist() == decided.slot_tokens.tolist()
    assert at_home.sum() + shares.sum() == counts.sum()
    after = at_home.sum(axis=0).reshape(ranks, -1).sum(axis=1) + decided.slot_tokens.sum(axis=1)
    assert after.max() <= before.max()
    assert (after[before <= decided.average] <= decided.average).all(), "nobody is filled above the average"
    enough = slots >= experts - masters and threshold == 0
    if enough:
        spare = decided.spare.sum()
        assert decided.slot_tokens.sum() == min(decided.spill.sum(), spare)
        assert spare <= decided.spill.sum() < spare + max(ranks, 1)
    held = decided.slot_expert[decided.slot_expert >= 0]
    rank = np.nonzero(decided.slot_expert >= 0)[0]
    assert (held // masters != rank).all()


@settings(max_examples=200, deadline=None)
@given(loads(), st.sampled_from([1.0, 1.1, 2.0]), st.sampled_from([0, 1, 50, 1024]))
def test_what_llep_promises(counts, factor, least):
    ranks, experts = counts.shape
    masters, total = experts // ranks, counts.sum(axis=0)
    decided = llep.plan(total, ranks, factor, least)
    load = np.zeros(ranks, dtype=np.int64)
    for expert, chunks in decided.assignments.items():
        assert [chunk[1] for chunk in chunks] == [0, *(chunk[2] for chunk in chunks[:-1])]
        assert chunks[-1][2] == total[expert]
        for rank, first, end in chunks:
            assert end > first
            load[rank] += end - first
    assert sorted(decided.assignments) == np.flatnonzero(total).tolist()
    assert load.tolist() == list(decided.loads)
    capacity = int(factor * (int(total.sum()) // ranks))
    native = total.reshape(ranks, -1).sum(axis=1)
    if (native <= capacity).all():
        assert not decided.weight_transfers
    assert all(expert // masters == home != rank for expert, home, rank, _, _ in decided.weight_transfers)
