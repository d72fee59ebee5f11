"""Columns of flows that grow without being copied each time."""

from __future__ import annotations

import numpy as np

from moesim.rates import FloatArray, IntArray


class FlowStore:
    """``path``, ``taken`` (H, F) as from `moesim.rates.columns`, and a row of each kind of number a flow has.

    ``size`` [B]; ``scale`` [s]: the shortest time of its batch; ``release`` and ``finish`` [s], nan until it is known.
    """

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._count = 0
        self._path = np.full((1, 16), nodes, dtype=np.int64)
        self._taken = np.zeros((1, 16))
        self._numbers = np.zeros((4, 16))

    def __len__(self) -> int:
        return self._count

    @property
    def path(self) -> IntArray:
        return self._path[:, : self._count]

    @property
    def taken(self) -> FloatArray:
        return self._taken[:, : self._count]

    @property
    def size(self) -> FloatArray:
        return self._numbers[0, : self._count]

    @property
    def scale(self) -> FloatArray:
        return self._numbers[1, : self._count]

    @property
    def release(self) -> FloatArray:
        return self._numbers[2, : self._count]

    @property
    def finish(self) -> FloatArray:
        return self._numbers[3, : self._count]

    def append(
        self, path: IntArray, taken: FloatArray, size: FloatArray, scale: float, release: FloatArray
    ) -> IntArray:
        """Add flows; returns their numbers."""
        first, last = self._count, self._count + len(size)
        self._make_room(max(len(path), len(self._path)), last)
        self._path[: len(path), first:last] = path
        self._taken[: len(path), first:last] = taken
        self._numbers[0, first:last] = size
        self._numbers[1, first:last] = scale
        self._numbers[2, first:last] = release
        self._numbers[3, first:last] = np.nan
        self._count = last
        return np.arange(first, last)

    def _make_room(self, width: int, count: int) -> None:
        old_width, old_room = self._path.shape
        if width == old_width and count <= old_room:
            return
        room = max(count, 2 * old_room) if count > old_room else old_room
        path, taken = np.full((width, room), self._nodes, dtype=np.int64), np.zeros((width, room))
        path[:old_width, :old_room], taken[:old_width, :old_room] = self._path, self._taken
        numbers = np.zeros((4, room))
        numbers[:, :old_room] = self._numbers
        self._path, self._taken, self._numbers = path, taken, numbers
