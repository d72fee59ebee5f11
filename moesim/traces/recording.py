"""Reads token-level recordings of routing (.npz) and refuses everything that is not one.

Arrays: ``ids`` integer (tokens, layers, k): experts of each token in each MoE layer; ``seq_start`` integer
(S+1,): sequence s is the rows seq_start[s] to seq_start[s+1], in token order; ``meta``: JSON text with kind
"token", model, experts, topk, phase; optional ``layer_ids`` (layers,), ``pos`` (tokens,), ``seq_name`` (S,),
``phase`` uint8 (tokens,; 0 prefill, 1 decode), ``weights`` (tokens, layers, k).
"""

from __future__ import annotations

import json
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim import jsonio, resources
from moesim.errors import InputError, Problem

LARGEST = 1 << 30
"""Archives whose arrays take more bytes than this are refused before they are unpacked."""

_NEEDED = ("ids", "seq_start", "meta")
_KNOWN = (*_NEEDED, "layer_ids", "pos", "seq_name", "phase", "weights")


@dataclass(frozen=True, eq=False)
class Recording:
    """``ids`` (tokens, layers, k); ``start``, ``end`` (S,): rows of each sequence, of one phase only.

    ``phase``: "prefill" or "decode", what those rows were recorded in.
    """

    ids: NDArray[np.uint16]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    experts: int
    model: str
    phase: str
    origin: str

    @property
    def layers(self) -> int:
        """Recorded MoE layers."""
        return int(self.ids.shape[1])

    @property
    def top_k(self) -> int:
        """Experts a token."""
        return int(self.ids.shape[2])


def digest(path: Path) -> str:
    """SHA-256 of the file; raises :class:`InputError` if it cannot be read."""
    try:
        return resources.digest(path)
    except OSError as error:
        raise _refusal(path, None, error.strerror or "cannot be read") from None


def load(path: Path, phase: str) -> Recording:
    """The recording in ``path``; of its rows those of ``phase`` ("prefill", "decode") if it has both.

    Raises :class:`InputError` that names the file and the array. Object arrays are never unpickled.
    """
    arrays = _arrays(path)
    meta = _meta(path, arrays["meta"])
    ids = _ids(path, arrays["ids"], meta)
    edges = _edges(path, arrays["seq_start"], len(ids))
    _optional(path, arrays, ids, len(edges) - 1)
    start, end, recorded_in = edges[:-1], edges[1:], "prefill" if _is_prefill(path, meta) else "decode"
    if "phase" in arrays:
        start, end, recorded_in = _of_phase(path, arrays["phase"], edges, phase)
    some = end > start
    if not some.any():
        raise _refusal(path, "seq_start", "no sequence has a token")
    origin = ", ".join(str(meta[key]) for key in ("origin", "commit", "licence") if meta.get(key))
    return Recording(
        ids=ids,
        start=start[some],
        end=end[some],
        experts=int(meta["experts"]),
        model=str(meta["model"]),
        phase=recorded_in,
        origin=origin or "not stated",
    )


def _refusal(path: Path, array: str | None, message: str, legal: str | None = None) -> InputError:
    return InputError(
        Problem(f"array {array!r}: {message}" if array else message, path=str(path), legal=legal)
    )


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's, of a header that Python 2 wrote
            _check_sizes(path, archive)
            present = {info.filename.removesuffix(".npy") for info in archive.infolist()}
    except InputError:
        raise
    except OSError as error:
        raise _refusal(path, None, error.strerror or "cannot be read") from None
    except Exception:  # a hostile archive fails in any way it likes
        raise _refusal(path, None, "is not an .npz archive, or is damaged") from None
    missing = [name for name in _NEEDED if name not in present]
    if missing:
        legal = f"a token-level recording has the arrays {', '.join(_NEEDED)}"
        raise _refusal(path, None, f"no array {', '.join(map(repr, missing))} in it", legal)
    found = {}
    for name in _KNOWN:
        if name not in present:
            continue
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = file[name]
        except Exception as error:  # zlib, zip, header and I/O errors: all mean a damaged member
            raise _refusal(
                path, name, f"cannot be read ({type(error).__name__}): the file is damaged"
            ) from None
    return found


def _check_sizes(path: Path, archive: zipfile.ZipFile) -> None:
    total = 0
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name not in _KNOWN:
            continue
        if info.flag_bits & 1:
            raise _refusal(path, name, "is encrypted")
        try:
            with archive.open(info) as member:
                version = np.lib.format.read_magic(member)
                if version not in ((1, 0), (2, 0)):
                    raise ValueError("npy version")
                first = version == (1, 0)
                read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
                shape, _, kind = read(member)
        except Exception:  # as above; a hostile header fails in any way it likes
            raise _refusal(path, name, "its header cannot be read: the file is damaged") from None
        if kind.hasobject:
            raise _refusal(path, name, "holds Python objects, which are never unpickled")
        size = int(kind.itemsize)
        for length in shape:
            size *= int(length)
        total += max(size, info.file_size)
        if total > LARGEST:
            limit = f"more than {LARGEST >> 20} MiB when unpacked"
            raise _refusal(path, name, f"shape {shape} of {kind}: the archive takes {limit}")


def _meta(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    if array.shape != () or array.dtype.kind != "U":
        raise _refusal(path, "meta", f"is {array.dtype} {array.shape}, not one JSON text")
    try:
        meta = json.loads(str(array))
    except (ValueError, RecursionError):
        raise _refusal(path, "meta", "is not JSON") from None
    if not isinstance(meta, dict):
        raise _refusal(path, "meta", "is not a JSON object")
    jsonio.check(meta, f"{path}: array 'meta'")
    if meta.get("kind") != "token":
        raise _refusal(
            path, "meta", f"kind is {_shown(meta.get('kind'))}", "'token': a token-level recording"
        )
    for key, kind in (("model", str), ("phase", str), ("experts", int), ("topk", int)):
        if not isinstance(meta.get(key), kind) or isinstance(meta.get(key), bool):
            raise _refusal(path, "meta", f"{key} is {_shown(meta.get(key))}", f"{key}: {kind.__name__}")
    if not 1 <= meta["topk"] <= meta["experts"] <= 65535:
        raise _refusal(
            path, "meta", f"experts {_shown(meta['experts'])} and topk {_shown(meta['topk'])} are impossible"
        )
    return meta


def _shown(value: object) -> str:
    text = f"{float(value):g}" if isinstance(value, int) and abs(value) > 10**15 else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_prefill(path: Path, meta: dict[str, Any]) -> bool:
    text = meta["phase"].strip().lower()
    if not text.startswith(("prefill", "decode")):
        raise _refusal(path, "meta", f"phase is {_shown(meta['phase'])}", "prefill ... or decode ...")
    return bool(text.startswith("prefill"))


def _ids(path: Path, array: NDArray[Any], meta: dict[str, Any]) -> NDArray[np.uint16]:
    if array.dtype.kind not in "iu" or array.ndim != 3:
        raise _refusal(path, "ids", f"is {array.dtype} {array.shape}", "integers (tokens, layers, topk)")
    if 0 in array.shape:
        raise _refusal(path, "ids", f"is empty: shape {array.shape}")
    if array.shape[2] != meta["topk"]:
        raise _refusal(path, "ids", f"has {array.shape[2]} experts a token, meta says topk {meta['topk']}")
    if meta.get("moe_layers", array.shape[1]) != array.shape[1]:
        raise _refusal(
            path, "ids", f"has {array.shape[1]} layers, meta says moe_layers {_shown(meta['moe_layers'])}"
        )
    outside = (array < 0) | (array >= meta["experts"])
    if outside.any():
        token, layer, pick = (int(i) for i in np.argwhere(outside)[0])
        text = f"ids[{token}, {layer}, {pick}] is {array[token, layer, pick]}"
        raise _refusal(path, "ids", text, f"experts 0..{meta['experts'] - 1}")
    ids = array.astype(np.uint16)
    ordered = np.sort(ids, axis=2)
    twice = (ordered[:, :, 1:] == ordered[:, :, :-1]).any(axis=2)
    if twice.any():
        token, layer = (int(i) for i in np.argwhere(twice)[0])
        raise _refusal(
            path, "ids", f"ids[{token}, {layer}] has an expert twice: {ids[token, layer].tolist()}"
        )
    return ids


def _edges(path: Path, array: NDArray[Any], tokens: int) -> NDArray[np.int64]:
    if array.dtype.kind not in "iu" or array.ndim != 1 or len(array) < 2:
        raise _refusal(path, "seq_start", f"is {array.dtype} {array.shape}", "integers (sequences + 1,)")
    edges = array.astype(np.int64)
    if edges[0] != 0 or edges[-1] != tokens:
        raise _refusal(
            path, "seq_start", f"runs from {edges[0]} to {edges[-1]}, not from 0 to {tokens} tokens"
        )
    if (falls := np.diff(edges) < 0).any():
        raise _refusal(path, "seq_start", f"falls after sequence {int(np.argmax(falls))}")
    return edges


def _optional(path: Path, arrays: dict[str, NDArray[Any]], ids: NDArray[np.uint16], sequences: int) -> None:
    tokens, layers = ids.shape[:2]
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "layer_ids": ((layers,), "iu"),
        "pos": ((tokens,), "iu"),
        "seq_name": ((sequences,), "U"),
        "phase": ((tokens,), "iu"),
        "weights": (ids.shape, "f"),
    }
    for name, (shape, kinds) in shapes.items():
        if name in arrays and (arrays[name].shape != shape or arrays[name].dtype.kind not in kinds):
            have = f"is {arrays[name].dtype} {arrays[name].shape}"
            raise _refusal(path, name, f"{have}, does not go with ids {ids.shape}", f"shape {shape}")
    if "weights" in arrays:
        weights = arrays["weights"]
        if not np.isfinite(weights).all():
            raise _refusal(path, "weights", "holds NaN or infinity")
        if (weights < 0).any():
            raise _refusal(path, "weights", "holds negative gate values")
    if "layer_ids" in arrays and (np.diff(arrays["layer_ids"].astype(np.int64)) <= 0).any():
        raise _refusal(path, "layer_ids", "does not rise")


def _of_phase(
    path: Path, array: NDArray[Any], edges: NDArray[np.int64], phase: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], str]:
    """Rows of one phase in each sequence: prefill comes first in it. The other phase if there is none of
    this.
    """
    if ((array != 0) & (array != 1)).any():
        raise _refusal(path, "phase", "holds other numbers than 0 (prefill) and 1 (decode)")
    decoded = np.concatenate([[0], np.cumsum(array.astype(np.int64))])
    border = edges[1:] - (decoded[edges[1:]] - decoded[edges[:-1]])
    sequence = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    if not np.array_equal(array == 1, np.arange(len(array)) >= border[sequence]):
        raise _refusal(path, "phase", "has prefill after decode in a sequence")
    parts = {"prefill": (edges[:-1], border), "decode": (border, edges[1:])}
    if not (parts[phase][1] > parts[phase][0]).any():
        phase = "decode" if phase == "prefill" else "prefill"
    return (*parts[phase], phase)
