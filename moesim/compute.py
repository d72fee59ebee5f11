"""Time of the expert GEMMs and of memory-bound copies on one device: a roofline, nothing more."""

from __future__ import annotations

import math

import numpy as np

from moesim.errors import InputError, Problem
from moesim.moe import MoEModel, dtype
from moesim.plan import FloatArray, IntArray
from moesim.topology import Device

# What stands in where a device lacks a type: the one of the same width.
_SAME_WIDTH = {"fp8": "int8", "int8": "fp8"}


def compute_dtype(device: Device, name: str) -> str:
    """The data type in which ``device`` multiplies weights of format ``name``.

    The type itself; else the one of the same width (8-bit integers for 8-bit floats and the other way round); else
    ``bf16``, to which weights are widened on the way (they are still read at their own width). An ideal device
    multiplies anything. Raises :class:`InputError` if the device has none of those.
    """
    wanted = dtype(name).compute
    for candidate in (wanted, _SAME_WIDTH.get(wanted, wanted), "bf16"):
        if candidate in device.compute or not device.compute:
            return candidate
    legal = ", ".join(device.compute)
    raise InputError(
        Problem(f"{device.name} cannot compute with {name} weights", legal=f"expert_dtype: {legal}")
    )


def grouped_gemm(
    model: MoEModel, device: Device, form: str, rows: IntArray, slot_rank: IntArray, ranks: int
) -> FloatArray:
    """(R,) [s] of the grouped GEMM of the experts on each rank.

    ``form``: format of the weights. ``rows`` (P,): rows of each slot, padding included; ``slot_rank`` (P,). A rank
    multiplies all rows at the achieved compute rate or reads the weights of every slot that has rows, and its
    activations, at the achieved HBM rate, whichever takes longer (roofline; both rates derated by the device's
    measured efficiencies).
    """
    weights = np.where(rows > 0, model.expert_bytes(form), 0.0)
    return _roofline(model, device, form, rows, weights, slot_rank, ranks, passes=1)


def grouped_gemm_backward(
    model: MoEModel, device: Device, form: str, rows: IntArray, slot_rank: IntArray, ranks: int
) -> FloatArray:
    """(R,) [s] of the gradients of :func:`grouped_gemm`: of its input, and of its weights, which are added in fp32.

    Each of the two has the FLOPs of the forward pass. The weights are read for the first; the second reads and writes
    4 B a weight. Roofline as in the forward pass.
    """
    weights = np.where(rows > 0, model.expert_bytes(form) + 2.0 * gradient_bytes(model), 0.0)
    return _roofline(model, device, form, rows, weights, slot_rank, ranks, passes=2)


def attention_backward(model: MoEModel, device: Device, tokens: FloatArray) -> float:
    """[s] that the backward pass of attention takes at least on the rank of ``tokens`` (R,) that has fewest.

    Query and output projections of hidden x hidden at least, each multiplied twice, at the achieved rate of ``bf16``;
    scores, keys, values and the router, which are left out, take longer still.
    """
    rate = device.compute.get("bf16", math.inf) * device.compute_efficiency
    return float(tokens.min(initial=np.inf)) * 2 * 2 * 2.0 * model.hidden**2 / rate if len(tokens) else 0.0


def gradient_bytes(model: MoEModel) -> float:
    """Bytes of the fp32 gradient of one routed expert."""
    return 2.0 * model.expert_bytes("bf16")


def _roofline(
    model: MoEModel,
    device: Device,
    form: str,
    rows: IntArray,
    weights: FloatArray,
    slot_rank: IntArray,
    ranks: int,
    passes: int,
) -> FloatArray:
    """``weights`` (P,) [B] that each slot moves; ``passes`` over all rows."""
    peak = device.compute.get(compute_dtype(device, form), math.inf)
    rate = peak * device.compute_efficiency
    flops = np.bincount(slot_rank, weights=rows * model.flops_per_entry() * passes, minlength=ranks)
    moved = weights + rows * 4.0 * model.dispatch_width * passes
    return np.maximum(flops / rate, np.bincount(slot_rank, weights=moved, minlength=ranks) / hbm_rate(device))


def hbm_rate(device: Device) -> float:
    """Achieved HBM rate [B/s], reads and writes together."""
    return device.hbm_rate * device.hbm_efficiency


def copy(device: Device, read: FloatArray, written: FloatArray) -> FloatArray:
    """[s] of a copy in HBM that reads and writes so many bytes."""
    return (read + written) / hbm_rate(device)
