"""Reads files that say which rank holds which experts in which layer, in the formats that serving systems write.

``.npz`` array ``placed``, ``.npy`` (OmniPlacement): 0 or 1, (ranks, MoE layers, experts). ``.txt`` (OmniPlacement): a
header "ranks layers experts" and the same numbers. ``.json`` (vLLM Ascend): ``layer_list`` of ``device_list`` of
``device_expert``. ``.yaml`` (TensorRT-LLM): ``initial_global_assignments`` {model layer: expert of each slot}, the same
number of slots a rank.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim import jsonio, yamlio
from moesim.errors import InputError, Problem

IntArray = NDArray[np.int64]

LARGEST = 1 << 26
"""Files and arrays of more bytes are refused: 384 ranks, 100 layers and 512 experts take 20 MB."""


def load(path: Path, ranks: int, experts: int) -> list[IntArray]:
    """Of each MoE layer (R, slots): expert in each slot, -1 where a rank has fewer than others.

    Raises :class:`InputError` that names the file: not one of these formats, of another number of ranks or experts, or
    an expert that has no place in a layer.
    """
    reader = _READERS.get(path.suffix)
    if reader is None:
        what = f"a {path.suffix} file" if path.suffix else "a file without suffix"
        raise _refusal(path, f"{what} is no placement", ", ".join(_READERS))
    try:
        layers = reader(path, ranks)
    except OSError as error:
        raise _refusal(path, error.strerror or "cannot be read") from None
    if not layers:
        raise _refusal(path, "no layer in it")
    for number, held in enumerate(layers):
        if len(held) != ranks:
            raise _refusal(path, f"a placement on {len(held)} ranks", f"ranks.ep of {len(held)}")
        known = {expert for row in held for expert in row}
        if known != set(range(experts)):
            strange = sorted(known ^ set(range(experts)))[:8]
            message = (
                f"MoE layer {number} holds {len(known)} experts, not those from 0 to {experts - 1}: {strange}"
            )
            raise _refusal(path, message, "a placement of the same model")
    return [_table(held) for held in layers]


def _table(held: list[list[int]]) -> IntArray:
    most = max(len(row) for row in held)
    return np.array([[*row, *[-1] * (most - len(row))] for row in held], dtype=np.int64)


def _refusal(path: Path, message: str, legal: str | None = None) -> InputError:
    return InputError(Problem(message, path=str(path), legal=legal))


def _of_flags(path: Path, placed: NDArray[Any]) -> list[list[list[int]]]:
    """From ``placed`` (R, L, E) of 0 and 1: experts in ascending order on each rank."""
    if placed.ndim != 3 or placed.dtype.kind not in "biuf" or not np.isin(placed, (0, 1)).all():
        legal = "0 and 1, (ranks, layers, experts)"
        raise _refusal(path, f"not an array of flags: {placed.dtype} {placed.shape}", legal)
    return [[np.flatnonzero(row).tolist() for row in layer] for layer in placed.swapaxes(0, 1)]


def _npz(path: Path, ranks: int) -> list[list[list[int]]]:
    try:
        with zipfile.ZipFile(path) as archive:
            if max((info.file_size for info in archive.infolist()), default=0) > LARGEST:
                raise _refusal(path, "too large for a placement", f"at most {LARGEST} bytes an array")
        with np.load(path, allow_pickle=False) as file:
            placed = file["placed"]
    except (InputError, OSError):
        raise
    except Exception:  # a hostile archive fails in any way it likes
        raise _refusal(path, "is damaged, or no .npz archive with an array 'placed'") from None
    return _of_flags(path, placed)


def _npy(path: Path, ranks: int) -> list[list[list[int]]]:
    if path.stat().st_size > LARGEST:
        raise _refusal(path, "too large for a placement", f"at most {LARGEST} bytes")
    try:
        placed = np.load(path, allow_pickle=False, mmap_mode="r")
    except (ValueError, EOFError, SyntaxError):
        raise _refusal(path, "is damaged, or no .npy array") from None
    return _of_flags(path, placed)


def _txt(path: Path, ranks: int) -> list[list[list[int]]]:
    text = yamlio.decoded(yamlio.read(path, LARGEST, "a placement"), str(path), "a placement").split()
    if len(text) < 3 or not all(word.isascii() and word.isdigit() and len(word) < 10 for word in text):
        raise _refusal(path, "not a placement", "a header `ranks layers experts`, then as many 0 and 1")
    shape = tuple(int(word) for word in text[:3])
    if len(text) - 3 != shape[0] * shape[1] * shape[2]:
        raise _refusal(path, f"{len(text) - 3} flags, not {' x '.join(map(str, shape))}")
    return _of_flags(path, np.array(text[3:], dtype=np.int64).reshape(shape))


def _json(path: Path, ranks: int) -> list[list[list[int]]]:
    document = jsonio.load(path)
    try:
        layers = sorted(document["layer_list"], key=lambda layer: int(layer["layer_id"]))
        devices = [sorted(layer["device_list"], key=lambda one: int(one["device_id"])) for layer in layers]
        return [[_experts(one["device_expert"]) for one in layer] for layer in devices]
    except (KeyError, TypeError, ValueError, AttributeError):
        legal = "layer_list: [{layer_id, device_list: [{device_id, device_expert: [...]}]}]"
        raise _refusal(path, "not an expert map of vLLM Ascend", legal) from None


def _yaml(path: Path, ranks: int) -> list[list[list[int]]]:
    document = yamlio.load(path).data
    try:
        by_layer = {
            int(layer): _experts(row) for layer, row in document["initial_global_assignments"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        legal = "initial_global_assignments: {layer: [expert of each slot]}"
        raise _refusal(path, "not a load-balancer configuration of TensorRT-LLM", legal) from None
    uneven = [len(row) for row in by_layer.values() if len(row) % ranks]
    if uneven:
        raise _refusal(path, f"{uneven[0]} slots are not the same number on each of {ranks} ranks")
    return [np.array(row).reshape(ranks, -1).tolist() for _, row in sorted(by_layer.items())]


def _experts(written: Any) -> list[int]:
    if not isinstance(written, list) or not all(type(one) is int for one in written):
        raise TypeError
    return written


_READERS: dict[str, Callable[[Path, int], list[list[list[int]]]]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".txt": _txt,
    ".json": _json,
    ".yaml": _yaml,
}
