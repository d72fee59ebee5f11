"""The works that the engine is timed on: all-to-alls of a large NVLink domain and of a superpod, from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Work:
    """Flows that start at 0: ``path`` (F, H) resources, -1 padding; ``capacity`` (N,) [B/s]; ``size`` (F,) [B]."""

    path: np.ndarray
    capacity: np.ndarray
    size: np.ndarray

    @property
    def shortest(self) -> float:
        """The most loaded resource's demand / capacity [s]: no makespan is below it."""
        used = self.path >= 0
        load = np.bincount(self.path[used], np.repeat(self.size, used.sum(axis=1)), len(self.capacity))
        return float((load / self.capacity).max())

    def arguments(self) -> tuple[np.ndarray, ...]:
        """The CSR rows, capacity, size and start that `moesim.network.finish_times` takes."""
        used = self.path >= 0
        indptr = np.append(0, np.cumsum(used.sum(axis=1)))
        index = self.path[used]
        return indptr, index, np.ones(len(index)), self.capacity, self.size, np.zeros(len(self.size))


def _pairs(ranks: int) -> tuple[np.ndarray, np.ndarray]:
    src, dst = np.divmod(np.arange(ranks**2), ranks)
    return src[src != dst], dst[src != dst]


def _sizes(flows: int) -> np.ndarray:
    """Log-normal sizes, sigma 1, mean 1 MB, whole bytes."""
    return np.rint(np.random.default_rng(0).lognormal(np.log(1e6) - 0.5, 1.0, flows))


def crossbar(ranks: int = 72, skewed: bool = False) -> Work:
    """A (equal sizes) and B (log-normal): one 900 GB/s port up and one down a rank, non-blocking switch."""
    src, dst = _pairs(ranks)
    size = _sizes(len(src)) if skewed else np.full(len(src), 1e6)
    return Work(np.stack([src, ranks + dst], axis=1), np.full(2 * ranks, 900e9), size)


def _superpod(src: np.ndarray, dst: np.ndarray, ranks: int) -> Work:
    hosts = ranks // 8
    far = src // 8 != dst // 8
    up, down = 2 * ranks + src // 8, 2 * ranks + hosts + dst // 8
    path = np.stack([src, np.where(far, up, -1), np.where(far, down, -1), ranks + dst], axis=1)
    capacity = np.append(np.full(2 * ranks, 392e9), np.full(2 * hosts, 3136e9))
    return Work(path, capacity, _sizes(len(src)))


def superpod(ranks: int) -> Work:
    """C48, C96, ... C384: hosts of 8 ranks, 392 GB/s a rank and 3136 GB/s a host each way, skewed all-to-all."""
    return _superpod(*_pairs(ranks), ranks)


def sparse_superpod(ranks: int = 384, peers: int = 64) -> Work:
    """D: on the fabric of C each rank sends to some random peers."""
    rng = np.random.default_rng(1)
    chosen = [rng.choice(np.delete(np.arange(ranks), rank), peers, replace=False) for rank in range(ranks)]
    return _superpod(np.repeat(np.arange(ranks), peers), np.concatenate(chosen), ranks)
