"""Roofline of the expert GEMMs and of copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moesim import compute, moe
from moesim.errors import InputError
from moesim.topology import Device

DEVICE = Device("test", 10, "SM", {"bf16": 1e15, "fp8": 2e15}, 0.5, 4e12, 0.25, 80e9)
MODEL = moe.load(
    {
        "name": "m",
        "hidden": 1000,
        "layers": 1,
        "moe_layers": 1,
        "experts": 4,
        "top_k": 2,
        "intermediate": 500,
    }
)


def gemm(rows, device=DEVICE, form="bf16", ranks=2):
    return compute.grouped_gemm(MODEL, device, form, np.array(rows), np.array([0, 0, 1, 1]), ranks)


def test_many_rows_take_their_operations():
    """100,000 rows of 2 x 3 x 1000 x 500 operations at half of 1e15 a second."""
    assert gemm([100_000, 0, 0, 0]) == pytest.approx([6e-4, 0.0])


def test_activations_are_read_and_written_too():
    """100,000 rows of 2 kB in and 2 kB out take longer than their operations in fp8."""
    assert gemm([100_000, 0, 0, 0], form="fp8")[0] == pytest.approx(4e-4, rel=0.01)


def test_few_rows_take_the_reading_of_the_weights():
    """3 MB of weights and 2 x 2 kB of activations at a quarter of 4 TB/s; a slot without rows is not read."""
    assert gemm([1, 0, 1, 1]) == pytest.approx([(3e6 + 4e3) / 1e12, 2 * (3e6 + 4e3) / 1e12])


def test_narrow_weights_are_read_faster_and_multiplied_faster():
    fast = replace(DEVICE, hbm_rate=4e13)
    assert gemm([100_000, 0, 0, 0], fast, form="fp8")[0] == pytest.approx(3e-4)
    assert gemm([1, 0, 0, 0], form="fp8")[0] < gemm([1, 0, 0, 0])[0]


def test_no_rows_take_no_time():
    assert not gemm([0, 0, 0, 0]).any()


def test_backward_multiplies_twice_and_adds_fp32_gradients():
    """Twice the operations; few rows take 3 MB of weights, 4 B a weight read and written, and 2 x 4 kB a row."""
    slots = np.array([0, 0, 1, 1])
    many, few = (
        compute.grouped_gemm_backward(MODEL, DEVICE, "bf16", np.array(rows), slots, 2)
        for rows in ([100_000, 0, 0, 0], [1, 0, 1, 1])
    )
    assert many == pytest.approx([1.2e-3, 0.0])
    assert few == pytest.approx([(15e6 + 8e3) / 1e12, 2 * (15e6 + 8e3) / 1e12])
    assert compute.gradient_bytes(MODEL) == 4 * 3 * 1000 * 500


def test_attention_backward_is_its_two_projections_twice():
    tokens = np.array([100.0, 50.0])
    assert compute.attention_backward(MODEL, DEVICE, tokens) == pytest.approx(50 * 2 * 2 * 2e6 / 5e14)
    assert compute.attention_backward(MODEL, Device.ideal(), tokens) == 0.0
    assert compute.attention_backward(MODEL, Device.ideal(), np.zeros(2)) == 0.0


def test_an_ideal_device_takes_no_time():
    assert not gemm([5, 5, 5, 5], device=Device.ideal()).any()
    assert not compute.copy(Device.ideal(), np.array([1e9]), np.array([1e9])).any()


@pytest.mark.parametrize(
    ("has", "form", "expected"),
    [
        (("bf16", "fp8"), "fp8", "fp8"),
        (("bf16", "int8"), "fp8", "int8"),
        (("bf16", "fp8"), "int8", "fp8"),
        (("bf16",), "int8", "bf16"),
        (("bf16",), "nvfp4", "bf16"),
        ((), "bf16", "bf16"),
    ],
)
def test_type_that_multiplies(has, form, expected):
    assert compute.compute_dtype(replace(DEVICE, compute=dict.fromkeys(has, 1e15)), form) == expected


def test_a_device_without_any_of_them_is_an_error_that_says_what_it_has():
    with pytest.raises(InputError, match="cannot compute with bf16 weights") as caught:
        compute.compute_dtype(replace(DEVICE, compute={"fp4": 1e15}), "bf16")
    assert "fp4" in str(caught.value.problems[0].legal)


def test_a_copy_reads_and_writes_at_the_achieved_rate():
    assert compute.copy(DEVICE, np.array([1e9, 0.0]), np.array([1e9, 0.0])) == pytest.approx([2e-3, 0.0])
