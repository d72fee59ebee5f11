"""Collects the vertices and links of a pod while a family lays them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moesim.fabrics._reader import Reader
from moesim.topology import FloatArray, IntArray, StrArray


@dataclass(frozen=True)
class LinkSpec:
    """Raw capacity [B/s] per direction, latency [s] and payload shares by access of one kind of link.

    ``read_latency`` [s]: what a read takes, if that is another latency.
    """

    capacity: float
    latency: float
    efficiency: Mapping[str, float]
    read_latency: float | None = None

    @staticmethod
    def read(spec: Reader) -> LinkSpec:
        """From the keys ``capacity``, ``latency`` (0) and ``efficiency`` (1) or ``packets`` of a mapping.

        ``packets: {header, store, bulk}`` derives the share payload / (payload + header) of 128 B and 256 B
        packets.
        """
        capacity = spec.quantity("capacity", "bandwidth")
        latency = spec.quantity("latency", "time", 0.0, zero=True)
        return LinkSpec(capacity, latency, LinkSpec.read_efficiency(spec))

    @staticmethod
    def read_efficiency(spec: Reader) -> dict[str, float]:
        """Access -> payload share, "default" for the others."""
        if not spec.has("packets"):
            return {"default": spec.quantity("efficiency", "share", 1.0, most=1.0)}
        if spec.has("efficiency"):
            spec.problem("efficiency", "efficiency and packets are both given", "one of them")
        packets = spec.section("packets")
        header = packets.quantity("header", "bytes", zero=True)
        payload = {access: packets.quantity(access, "bytes") for access in ("store", "bulk")}
        packets.close()
        share = {access: size / (size + header) for access, size in payload.items()}
        return {**share, "default": share["store"]}

    def times(self, factor: float) -> LinkSpec:
        """The same link with ``factor`` times the capacity."""
        return replace(self, capacity=self.capacity * factor)

    def lasting(self, latency: float, read: float | None = None) -> LinkSpec:
        """The same link with another latency, and another one of reads [s]."""
        return replace(self, latency=latency, read_latency=read)


class Wiring:
    """Vertices and duplex links so far. The membership arguments of :meth:`add` are numbers or one a
    vertex.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._columns: dict[str, list[NDArray[np.generic]]] = {}
        self._ends: list[tuple[IntArray, IntArray]] = []
        self._links: list[tuple[LinkSpec, str, int]] = []

    def add(
        self,
        kind: str,
        names: Sequence[str],
        *,
        package: ArrayLike = -1,
        host: ArrayLike = -1,
        domain: ArrayLike = -1,
        plane: ArrayLike = -1,
        message_rate: float = np.inf,
    ) -> IntArray:
        """Add vertices of one kind and return their numbers."""
        start, count = len(self.names), len(names)
        self.names.extend(names)
        given = {"package": package, "host": host, "domain": domain, "plane": plane}
        for key, value in given.items():
            column = np.broadcast_to(np.asarray(value, dtype=np.int64), count)
            self._columns.setdefault(key, []).append(column)
        self._columns.setdefault("kind", []).append(np.full(count, kind, dtype="U8"))
        self._columns.setdefault("message_rate", []).append(np.full(count, message_rate))
        return np.arange(start, start + count)

    def link(self, kind: str, a: ArrayLike, b: ArrayLike, spec: LinkSpec) -> None:
        """Join ``a[i]`` and ``b[i]`` by a duplex link each; the two broadcast against each other."""
        left, right = np.broadcast_arrays(np.asarray(a, dtype=np.int64), np.asarray(b, dtype=np.int64))
        self._ends.append((left.ravel(), right.ravel()))
        self._links.append((spec, kind, left.size))

    def ints(self, column: str) -> IntArray:
        """(V,) one of package, host, domain, plane."""
        return np.concatenate(self._columns[column]).astype(np.int64)

    def kinds(self) -> StrArray:
        """(V,) kinds of vertices."""
        return np.concatenate(self._columns["kind"]).astype(np.str_)

    def message_rates(self) -> FloatArray:
        """(V,) [1/s]."""
        return np.concatenate(self._columns["message_rate"]).astype(np.float64)

    def ends(self) -> tuple[IntArray, IntArray]:
        """(L,) sources and destinations; the two directions of a link are neighbours."""
        if not self._ends:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        a = np.concatenate([left for left, _ in self._ends])
        b = np.concatenate([right for _, right in self._ends])
        return np.stack([a, b], axis=1).ravel(), np.stack([b, a], axis=1).ravel()

    def column(self, values: Sequence[float]) -> FloatArray:
        """(L,) from one value for each :meth:`link` call."""
        return np.repeat(np.asarray(values, dtype=np.float64), [2 * size for _, _, size in self._links])

    def link_kinds(self) -> StrArray:
        """(L,) kinds of links."""
        return np.repeat(
            np.asarray([kind for _, kind, _ in self._links], dtype=np.str_),
            [2 * size for _, _, size in self._links],
        )

    def specs(self) -> list[LinkSpec]:
        """One for each :meth:`link` call."""
        return [spec for spec, _, _ in self._links]
