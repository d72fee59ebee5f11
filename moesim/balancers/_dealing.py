"""What planners by exact counts share: counting the entries, and giving each one the slot that the plan says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def counts_by_source(ids: NDArray[np.integer], ranks: int, experts: int) -> IntArray:
    """(R, E) entries of ``ids`` (T*R, K), rank-major, from each source rank to each expert."""
    source = np.arange(ranks).repeat(len(ids) // ranks)[:, None]
    pairs = (source * experts + ids.astype(np.int64)).ravel()
    return np.bincount(pairs, minlength=ranks * experts).reshape(ranks, experts)


def deal(ids: NDArray[np.integer], values: IntArray) -> IntArray:
    """Give each entry of ``ids`` (N, K) its value; ``values`` (N*K,) are by expert, source rank and token."""
    flat = ids.ravel()
    dealt = np.empty(flat.size, dtype=np.int64)
    # Sixteen-bit ids take numpy's radix sort.
    narrow = flat.astype(np.uint16) if flat.size and flat.max() < 2**16 else flat
    dealt[np.argsort(narrow, kind="stable")] = values
    return dealt.reshape(ids.shape)
