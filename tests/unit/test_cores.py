"""How copies are dealt to send cores: CANN's runs of experts, UBEP's equal slices, the hop-mixed order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim import cores


@st.composite
def work(draw):
    """Copies (R, P) and a number of cores."""
    ranks, slots = draw(st.integers(1, 4)), draw(st.integers(1, 40))
    seed, most = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([0, 1, 3, 50]))
    rng = np.random.default_rng(seed)
    return rng.integers(0, most + 1, (ranks, slots)), draw(st.integers(1, 48))


def collected(dealt, ranks, slots):
    """(R, P) copies that all cores together send."""
    total = np.zeros((ranks, slots), dtype=np.int64)
    np.add.at(total, (dealt.rank, dealt.slot), dealt.copies)
    return total


def loads(dealt, ranks, total):
    """(R, cores) copies that each core sends."""
    load = np.zeros((ranks, total), dtype=np.int64)
    np.add.at(load, (dealt.rank, dealt.core), dealt.copies)
    return load


@given(work())
def test_every_copy_is_sent_once(case):
    copies, count = case
    order = np.random.default_rng(0).permutation(copies.shape[1])
    for dealt in (cores.runs(copies, count), cores.slices(copies, order, count)):
        assert np.array_equal(collected(dealt, *copies.shape), copies)
        assert (dealt.copies > 0).all()
        assert ((dealt.core >= 0) & (dealt.core < count)).all()


@given(work())
def test_slices_differ_by_at_most_one_copy(case):
    copies, count = case
    load = loads(cores.slices(copies, cores.in_order(copies.shape[1]), count), len(copies), count)
    assert (load.max(axis=1) - load.min(axis=1) <= 1).all()


@given(work())
def test_slices_follow_the_order(case):
    copies, count = case
    order = np.random.default_rng(1).permutation(copies.shape[1])
    dealt = cores.slices(copies, order, count)
    place = np.argsort(order)
    for rank in range(len(copies)):
        mine = dealt.rank == rank
        by_core = np.lexsort((place[dealt.slot[mine]], dealt.core[mine]))
        assert (np.diff(place[dealt.slot[mine]][by_core]) >= 0).all()


@given(work())
def test_runs_are_as_uneven_as_their_experts(case):
    copies, count = case
    each, left = divmod(copies.shape[1], count)
    dealt = cores.runs(copies, count)
    whole = dealt.slot < each * count
    assert np.array_equal(dealt.core[whole], dealt.slot[whole] // each if each else dealt.core[whole])
    for rank in range(len(copies)):
        for slot in range(each * count, copies.shape[1]):
            shared = dealt.copies[(dealt.rank == rank) & (dealt.slot == slot)]
            if len(shared):
                assert shared.max() - shared.min() <= 1
                assert len(shared) == min(copies[rank, slot], count // np.gcd(count, left))


def test_64_experts_on_48_cores():
    """One expert for each core, and each of the 16 left over shared by three cores of its own."""
    dealt = cores.runs(np.full((1, 64), 6), 48)
    assert loads(dealt, 1, 48).tolist() == [[8] * 48]
    assert sorted(dealt.core[dealt.slot == 48].tolist()) == [0, 1, 2]
    assert sorted(dealt.core[dealt.slot == 63].tolist()) == [45, 46, 47]


def test_256_experts_on_40_cores():
    dealt = cores.runs(np.ones((1, 256), dtype=np.int64), 40)
    assert dealt.slot[dealt.core == 3][:6].tolist() == [18, 19, 20, 21, 22, 23]


def test_a_hot_expert_loads_one_core_in_runs_and_all_in_slices():
    copies = np.zeros((1, 96), dtype=np.int64)
    copies[0, 10] = 48
    assert loads(cores.runs(copies, 48), 1, 48).max() == 48
    assert loads(cores.slices(copies, cores.in_order(96), 48), 1, 48).max() == 1


@given(st.integers(1, 300), st.integers(1, 60))
def test_hop_mixing_is_a_permutation(slots, count):
    assert sorted(cores.hop_mixed(slots, count).tolist()) == list(range(slots))


def test_hop_mixing_gives_every_core_near_and_far_experts():
    slots, count = 256, 40
    near = cores.hop_mixed(slots, count) < 64
    per_core = [part.mean() for part in np.array_split(near, count)]
    assert max(per_core) - min(per_core) < 0.35
    plain = [part.mean() for part in np.array_split(cores.in_order(slots) < 64, count)]
    assert (min(plain), max(plain)) == (0, 1)


@pytest.mark.parametrize("deal", [cores.runs, lambda copies, n: cores.slices(copies, cores.in_order(5), n)])
def test_no_copies_are_no_work(deal):
    dealt = deal(np.zeros((3, 5), dtype=np.int64), 4)
    assert len(dealt.rank) == len(dealt.core) == len(dealt.slot) == len(dealt.copies) == 0
