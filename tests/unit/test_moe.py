"""Models: the catalogue, bytes and FLOPs against hand-made numbers, bad inline models."""

from __future__ import annotations

from typing import Any

import pytest

from moesim import moe
from moesim.errors import InputError
from moesim.sources import Grade

INLINE: dict[str, Any] = {
    "hidden": 1024,
    "layers": 4,
    "moe_layers": 3,
    "first_dense": 1,
    "experts": 32,
    "top_k": 4,
    "intermediate": 512,
}


def test_the_whole_catalogue_loads_and_says_where_it_is_from() -> None:
    names = moe.names()
    assert len(names) == 43
    for name in names:
        model = moe.load(name)
        assert model.name == name
        assert model.confidence in "AB"
        assert model.source
        assert (model.grade is Grade.SPEC) == (model.confidence == "A")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        # hidden, layers, MoE layers, experts, shared, top-k, intermediate, groups, kept groups
        ("deepseek-v3", (7168, 61, 58, 256, 1, 8, 2048, 8, 4)),
        ("deepseek-v2-lite", (2048, 27, 26, 64, 2, 6, 1408, 1, 1)),
        ("kimi-k2", (7168, 61, 60, 384, 1, 8, 2048, 1, 1)),
        ("qwen3-235b-a22b", (4096, 94, 94, 128, 0, 8, 1536, 1, 1)),
        ("gpt-oss-20b", (2880, 24, 24, 32, 0, 4, 2880, 1, 1)),
        ("llama-4-maverick", (5120, 48, 24, 128, 1, 1, 8192, 1, 1)),
    ],
)
def test_shapes_of_well_known_models(name: str, shape: tuple[int, ...]) -> None:
    one = moe.load(name)
    have = (one.hidden, one.layers, one.moe_layers, one.experts, one.shared_experts, one.top_k)
    assert (*have, one.intermediate, one.n_group, one.topk_group) == shape


@pytest.mark.parametrize(
    ("dtype", "pad", "size"),
    [
        ("bf16", 1, 14336),
        ("fp8", 1, 7168 + 56 * 4),
        ("int8", 1, 7172),
        ("int8", 512, 7680),  # 7.5 KiB, as in CANN's dispatch windows
        ("mxfp8", 1, 7168 + 224),
        ("nvfp4", 1, 4032),
        ("mxfp4", 1, 3584 + 224),
        ("int4", 1, 3584 + 448),
    ],
)
def test_bytes_of_a_row_of_7168(dtype: str, pad: int, size: float) -> None:
    assert moe.load("deepseek-v3").row_bytes(dtype, pad=pad) == size


def test_a_scale_block_that_does_not_divide_the_width_counts_whole() -> None:
    # 2880 = 22.5 blocks of 128 values.
    assert moe.load("gpt-oss-20b").row_bytes("fp8") == 2880 + 23 * 4


def test_bytes_and_flops_of_an_expert() -> None:
    v3 = moe.load("deepseek-v3")
    values = 3 * 7168 * 2048
    assert v3.expert_bytes("bf16") == 2 * values
    assert v3.expert_bytes() == v3.expert_bytes("fp8") == values + values / 16384 * 4
    assert v3.flops_per_entry() == 2 * values
    assert v3.shared_flops_per_token() == 2 * values
    assert v3.shared_bytes("bf16") == 2 * values
    # All experts of all layers are most of the 671e9 parameters.
    assert 640e9 < values * (256 + 1) * 58 < 671e9


def test_a_latent_model_dispatches_its_latent_width_and_two_matrix_experts_count_two() -> None:
    nano, ultra = moe.load("nemotron-3-nano-30b-a3b"), moe.load("nemotron-3-ultra-550b-a55b")
    assert nano.expert_bytes("bf16") == 2 * 2 * 2688 * 1856
    assert ultra.row_bytes("bf16") == 2 * 2048
    assert ultra.flops_per_entry() == 2 * 2 * 2048 * 5120
    assert ultra.shared_flops_per_token() == 2 * 2 * 8192 * 10240


def test_an_inline_model_has_the_catalogue_s_defaults() -> None:
    model = moe.load(INLINE)
    assert (model.name, model.dispatch_width, model.expert_dtype) == ("inline", 1024, "bf16")
    assert (model.n_group, model.topk_group, model.gate_matrices, model.grade) == (1, 1, 3, Grade.ASSUMED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": 33}, "top_k 33 exceeds experts 32"),
        ({"moe_layers": 4}, "first_dense 1 + moe_layers 4 exceed layers 4"),
        ({"n_group": 5}, "n_group 5 does not divide experts 32"),
        ({"n_group": 8, "topk_group": 9}, "topk_group 9 exceeds n_group 8"),
        ({"n_group": 32, "topk_group": 2}, "top_k 4 exceeds the 2 experts of 2 groups"),
        ({"shared_experts": 1}, "both must be 0, or neither"),
        ({"hidden": 0}, "model: hidden cannot be 0\n  legal: at least 1"),
        ({"hidden": "1024"}, 'hidden cannot be "1024"\n  legal: a whole number'),
        ({"hidden": True}, "hidden cannot be true"),
        ({"experts": 70000}, "experts cannot be 70000\n  legal: at most 65535"),
        ({"expert_dtype": "fp9"}, "unknown dtype 'fp9'"),
        ({"toopk": 4}, "unknown key 'toopk'\n  legal: did you mean 'top_k'"),
    ],
)
def test_what_is_wrong_with_an_inline_model_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        moe.load(INLINE | change)
    assert message in str(error.value)


def test_all_problems_of_an_inline_model_come_at_once() -> None:
    with pytest.raises(InputError) as error:
        moe.load({"hidden": -1, "hiden": 3})
    text = str(error.value)
    assert len(error.value.problems) == 7
    assert "hidden cannot be -1" in text
    assert "did you mean 'hidden'" in text
    assert "the key 'top_k' is missing" in text


def test_an_unknown_model_or_dtype_names_the_near_ones() -> None:
    with pytest.raises(InputError, match="did you mean 'deepseek-v3'"):
        moe.load("deepsek-v3")
    with pytest.raises(InputError, match="did you mean 'nvfp4'"):
        moe.load("deepseek-v3").row_bytes("nvfp")
