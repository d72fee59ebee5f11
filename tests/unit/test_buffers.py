"""Buffer formulas against the published worked examples."""

from __future__ import annotations

import pytest

from moesim import buffers

MIB = 2**20


def total(sizes):
    return sum(sizes.values())


@pytest.mark.parametrize(
    ("ranks", "local", "tokens", "v1", "v2", "windows"),
    [
        (256, 1, 128, 956, 988, 688),
        (320, 1, 96, 891, 921, 645),
        (32, 8, 128, 956, 988, 688),
        (16, 16, 512, 3824, 3952, 1376),
    ],
)
def test_worked_examples(ranks, local, tokens, v1, v2, windows):
    """H 7168, top-8; MiB, dispatch and combine together, of CANN's two layouts and of CloudMatrix384."""
    for in_block, expected in ((False, v1), (True, v2)):
        sizes = buffers.cann_fullmesh(ranks, tokens, 8, local, 7168, flags_in_block=in_block)
        assert round(total(sizes) / MIB) == expected
    assert total(buffers.cloudmatrix(ranks, tokens, 8, local, 7680, 14336)) == windows * MIB


def test_two_experts_a_die_double_the_windows():
    one, two = (buffers.cloudmatrix(320, 96, 8, local, 7680, 14336) for local in (1, 2))
    assert total(two) == 2 * total(one) == 1290 * MIB


def test_window_of_the_older_full_mesh():
    """2 x (64 tokens x 16 ranks x min(2, 8) x 4096 x 2 B + 2 MiB) = 2 x (16 + 2) MiB."""
    assert buffers.cann_a2_fullmesh(16, 64, 8, 2, 4096) == 36 * MIB


@pytest.mark.parametrize(("tokens", "expected"), [(2048, 35.55), (1856, 32.21), (1840, 31.94), (1536, 26.66)])
def test_deepep_low_latency(tokens, expected):
    """GiB at hidden 5120 and 448 experts."""
    sizes = buffers.deepep_low_latency(tokens, 5120, 448)
    assert round(total(sizes) / 2**30, 2) == expected
    assert total(sizes) % 128 == 0


def test_deepep_low_latency_limit_of_32_gib_lies_between_1840_and_1856_tokens():
    below, above = (total(buffers.deepep_low_latency(tokens, 5120, 448)) for tokens in (1840, 1856))
    assert below < 32 * 2**30 < above


def test_on_demand_is_what_comes_and_a_record_for_each_rank_and_local_expert():
    assert buffers.on_demand(7e6, 8e6, 64, 4) == {"dispatch": 7e6, "combine": 8e6, "metadata": 64 * 4 * 32}


def test_nothing_to_hold():
    assert total(buffers.cloudmatrix(8, 0, 8, 1, 7680, 14336)) == 0
    assert total(buffers.deepep_low_latency(0, 1024, 8)) == 2 * 128


def test_rounding_up():
    assert [buffers.up(value, 32) for value in (0, 1, 32, 33)] == [0, 32, 32, 64]
