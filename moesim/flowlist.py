"""Raw flow lists: an .npz of flows, run over a topology or over the fabric in the file itself.

Arrays: ``src``, ``dst`` (F,) integer device numbers, ``bytes`` (F,) [B], ``start`` (F,) [s] (zero if absent),
``messages`` (F,): how many a NIC with a message rate has to send (one if absent). The file's own fabric is ``path``
(F, H), the resources that each flow crosses, -1 for padding, and ``cap`` (N,) [B/s].
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moesim import outfile
from moesim.errors import InputError, Problem
from moesim.network import finish_times
from moesim.units import LEAST, MOST

if TYPE_CHECKING:
    from moesim.routing import Routes
    from moesim.topology import Topology

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Row = tuple[IntArray, IntArray, FloatArray]

# Larger files are refused before anything is read; 40 million flows with four resources each fit.
MOST_BYTES = 2_000_000_000
KNOWN = ("src", "dst", "bytes", "start", "messages", "path", "cap")


@dataclass(frozen=True, eq=False)
class FlowList:
    """``src``, ``dst`` (F,), None if the file has none; ``bytes`` (F,) [B]; ``start`` (F,) [s].

    ``messages`` (F,), None for one each. ``path`` (F, H), ``cap`` (N,) [B/s], None if the file has no fabric. ``file``:
    where it came from; ``others``: arrays of the file that nothing here reads.
    """

    file: str
    src: IntArray | None
    dst: IntArray | None
    bytes: FloatArray
    start: FloatArray
    messages: FloatArray | None
    path: IntArray | None
    cap: FloatArray | None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class FlowResult:
    """``finish`` (F,) [s] since time zero, latency included; ``makespan`` [s] is the last of them.

    ``tolerance`` is relative to the makespan, ``error_estimate`` [s]. ``ignored``: arrays of the file that
    had no effect.
    """

    finish: FloatArray
    makespan: float
    solves: int
    passes: int
    tolerance: float
    error_estimate: float
    ignored: tuple[str, ...]


def load(file: str | Path) -> FlowList:
    """Read and check a flow list. Raises `InputError` that names the file and the array; never unpickles
    anything."""
    arrays = _read(Path(file))
    check = _Check(str(file))
    flows = len(arrays["bytes"]) if "bytes" in arrays and arrays["bytes"].ndim == 1 else None
    if flows is None:
        check.problem(
            "bytes", "is missing" if "bytes" not in arrays else "has more than one axis", "(F,) [B]"
        )
    size = check.amounts("bytes", arrays.get("bytes"), flows)
    start = check.amounts("start", arrays.get("start"), flows)
    messages = check.amounts("messages", arrays.get("messages"), flows)
    src, dst = (check.numbers(name, arrays.get(name), flows) for name in ("src", "dst"))
    cap = check.amounts("cap", arrays.get("cap"), None, positive=True)
    path = check.paths(arrays.get("path"), flows, None if cap is None else len(cap))
    if ("path" in arrays) != ("cap" in arrays):
        check.problem(
            "cap" if "path" in arrays else "path", "is missing", "both `path` and `cap`, or neither"
        )
    if (src is None or dst is None) and path is None and not check.problems:
        check.problem("src" if src is None else "dst", "is missing", "`src` and `dst`, or `path` and `cap`")
    if check.problems or size is None:
        raise InputError(check.problems)
    start = np.zeros(len(size)) if start is None else start
    others = tuple(name for name in arrays if name not in KNOWN)
    return FlowList(str(file), src, dst, size, start, messages, path, cap, others)


def run(flows: FlowList, topology: Topology | None, tolerance: float, *, access: str = "bulk") -> FlowResult:
    """Finish times of ``flows`` over ``topology``, or, if that is None, over the file's own fabric.

    ``access``: how the bytes are moved, for the packet efficiency of real links. A flow takes the latency of
    its route after its last byte has left; a flow from a device to itself crosses nothing and ends as it
    starts. Raises `InputError` for device numbers that the pod does not have.
    """
    if not 0 <= tolerance < 1:
        raise InputError(Problem(f"a tolerance of {tolerance:.0%}", legal="from 0 to less than 100%"))
    if topology is None:
        rows, capacity, latency, used = _own_fabric(flows)
    else:
        rows, capacity, latency, used = _over(flows, topology, access)
    found = finish_times(*rows, capacity, flows.bytes, flows.start, tolerance)
    finish = found.finish + latency
    given = [name for name in ("src", "dst", "messages", "path", "cap") if getattr(flows, name) is not None]
    ignored = tuple(name for name in given if name not in used)
    return FlowResult(
        finish=finish,
        makespan=float(finish.max(initial=0.0)),
        solves=found.solves,
        passes=found.passes,
        tolerance=tolerance,
        error_estimate=found.error_estimate,
        ignored=ignored + flows.others,
    )


def save(file: str | Path, result: FlowResult) -> None:
    """Write ``finish_s`` (F,) to an .npz, whole or not at all."""
    with outfile.replaced(file) as stream:
        np.savez_compressed(stream, finish_s=result.finish)


Laid = tuple[Row, FloatArray, FloatArray, tuple[str, ...]]
"""Rows of the flows, capacities (N,), latency (F,) [s], and which arrays of the file were used."""


def _own_fabric(flows: FlowList) -> Laid:
    if flows.path is None or flows.cap is None:
        legal = "--topology, or a file with `path` (F, H) and `cap` (N,)"
        raise InputError(Problem("the file has no fabric of its own", path=flows.file, legal=legal))
    used = flows.path >= 0
    indptr = np.append(0, np.cumsum(used.sum(axis=1)))
    index = flows.path[used]
    return (indptr, index, np.ones(len(index))), flows.cap, np.zeros(len(flows.bytes)), ("path", "cap")


def _over(flows: FlowList, topology: Topology, access: str) -> Laid:
    """Rows of the flows over the pod's routes, which are made for the devices that send or receive only."""
    from moesim.routing import routes

    if flows.src is None or flows.dst is None:
        legal = "`src` and `dst` (F,)"
        raise InputError(Problem("a topology needs to know the devices", path=flows.file, legal=legal))
    devices = len(topology.devices)
    problems = []
    for name, ends in (("src", flows.src), ("dst", flows.dst)):
        for at in np.flatnonzero(ends >= devices)[:1]:
            text = f"array `{name}`: flow {at} names device {ends[at]}, {topology.name} has {devices}"
            problems.append(Problem(text, path=flows.file, legal=f"0 to {devices - 1}"))
    if problems:
        raise InputError(problems)
    named, ends = np.unique(np.concatenate([flows.src, flows.dst]), return_inverse=True)
    src, dst = np.split(ends.reshape(-1), 2)
    nothing = np.zeros(0)
    if not len(named):
        empty = (np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64), nothing)
        return empty, nothing, nothing, ("src", "dst")
    found = routes(topology, named, access)
    limited = bool((found.message_resource[src, dst] >= 0).any())
    used = ("src", "dst", "messages") if limited else ("src", "dst")
    return _with_messages(found, src, dst, flows), found.capacity, found.latency[src, dst], used


def _with_messages(found: Routes, src: IntArray, dst: IntArray, flows: FlowList) -> Row:
    """The rows of the routes, and of a NIC with a message rate the time that the messages of each flow take."""
    indptr, index, weight = found.rows(src * found.ranks + dst)
    nic = found.message_resource[src, dst]
    seconds = (1.0 if flows.messages is None else flows.messages) * found.message_cost[src, dst]
    # What carries nothing takes nothing.
    sends = np.flatnonzero((nic >= 0) & (seconds > 0) & (flows.bytes > 0))
    end = indptr[1:][sends]
    longer = np.zeros(len(indptr), dtype=np.int64)
    longer[sends + 1] = 1
    return (
        indptr + np.cumsum(longer),
        np.insert(index, end, nic[sends]),
        np.insert(weight, end, seconds[sends] / flows.bytes[sends]),
    )


def _read(file: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz that can be trusted not to run code or exhaust the memory."""
    legal = "an .npz of arrays src, dst, bytes and optionally start, messages, path, cap"
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                raise InputError(Problem(f"holds more than {MOST_BYTES:,} bytes", path=str(file)))
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            return {name: _array(file, name, archive, entry) for name, entry in entries.items()}
    except OSError as error:
        raise InputError(Problem(f"cannot read: {error.strerror or error}", path=str(file))) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(Problem(f"not a whole .npz file: {error}", path=str(file), legal=legal)) from error


def _array(file: Path, name: str, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, whose header must agree with the bytes that follow it."""
    from numpy.lib import format as npy

    readers: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
        (1, 0): npy.read_array_header_1_0,
        (2, 0): npy.read_array_header_2_0,
    }
    try:
        with archive.open(entry) as stream:
            shape, fortran, dtype = readers[npy.read_magic(stream)](stream)
            if dtype.hasobject or dtype.kind not in "iuf":
                raise InputError(
                    Problem(f"array `{name}` holds {dtype}", path=str(file), legal="integers or floats")
                )
            content = stream.read()
    except (ValueError, KeyError, TypeError, SyntaxError) as error:
        raise InputError(Problem(f"array `{name}` cannot be read: {error}", path=str(file))) from error
    declared = int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize
    if any(n < 0 for n in shape) or declared != len(content):
        text = f"array `{name}` declares {declared} bytes and holds {len(content)}"
        raise InputError(Problem(text, path=str(file)))
    return np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if fortran else "C")


class _Check:
    """Collects every problem of a flow list, one an array."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def problem(self, name: str, what: str, legal: str) -> None:
        self.problems.append(Problem(f"array `{name}` {what}", path=self.file, legal=legal))

    def amounts(
        self, name: str, array: NDArray[Any] | None, length: int | None, positive: bool = False
    ) -> FloatArray | None:
        """Numbers between `moesim.units.LEAST` and `MOST`, or 0 unless ``positive``, of shape (length,)."""
        if array is None or not self._shape(name, array, length):
            return None
        with np.errstate(over="ignore"):  # of what is wider than a double
            values = array.astype(np.float64)
        good = (values >= LEAST) & (values <= MOST)
        bad = ~(good if positive else good | (values == 0))
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            legal = f"from {LEAST:g} to {MOST:g}"
            self.problem(name, f"[{at}] is {array[at]}", legal if positive else f"0, or {legal}")
            return None
        return values

    def numbers(self, name: str, array: NDArray[Any] | None, length: int | None) -> IntArray | None:
        """Integers >= 0 of shape (length,)."""
        if array is None or not self._shape(name, array, length) or not self._integers(name, array):
            return None
        bad = (array < 0) | (array > np.iinfo(np.int32).max)
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            self.problem(name, f"[{at}] is {array[at]}", "device numbers from 0")
            return None
        return array.astype(np.int64)

    def paths(self, array: NDArray[Any] | None, flows: int | None, resources: int | None) -> IntArray | None:
        """Resource numbers (flows, H), -1 for padding; every flow crosses one at least."""
        if array is None or resources is None:
            return None
        if array.ndim != 2 or (flows is not None and len(array) != flows):
            self.problem("path", f"has shape {array.shape}", "(F, H), a row a flow")
            return None
        if not self._integers("path", array):
            return None
        bad = np.argwhere(
            (array < -1) | (array >= resources) if array.dtype.kind == "i" else array >= resources
        )
        if len(bad):
            row, column = bad[0]
            what = f"[{row}, {column}] is {array[row, column]}"
            self.problem("path", what, f"resources 0 to {resources - 1}, -1 for padding")
            return None
        empty = np.flatnonzero((array < 0).all(axis=1))
        if len(empty):
            self.problem("path", f"row {empty[0]} crosses no resource", "one resource or more a flow")
            return None
        return array.astype(np.int64)

    def _shape(self, name: str, array: NDArray[Any], length: int | None) -> bool:
        good = array.ndim == 1 and (length is None or len(array) == length)
        if not good:
            wanted = "one axis" if length is None else f"({length},), as many as `bytes`"
            self.problem(name, f"has shape {array.shape}", wanted)
        return good

    def _integers(self, name: str, array: NDArray[Any]) -> bool:
        if array.dtype.kind not in "iu":
            self.problem(name, f"holds {array.dtype}", "integers")
        return array.dtype.kind in "iu"
