"""Traffic in closed form, of a uniform gate or perfectly balanced, without drawing any routing."""

from __future__ import annotations

import math

import numpy as np

from moesim.errors import InputError
from moesim.moe import MoEModel
from moesim.placement import Assignment, Placement
from moesim.traffic import IntArray, Traffic, expected_groups, expected_groups_limited


def visited(model: MoEModel, groups: int) -> float:
    """Mean number of ``groups`` equal parts of the experts that a token visits, under the model's own gate.

    A group-limited gate is taken to keep expert groups uniformly at random. Where its groups and the parts do
    not divide each other no closed form holds, and the unrestricted one stands in: an upper bound.
    """
    if model.n_group > 1:
        try:
            return expected_groups_limited(
                groups, model.experts, model.top_k, model.n_group, model.topk_group
            )
        except InputError:
            pass
    return expected_groups(groups, model.experts, model.top_k)


def uniform(model: MoEModel, tokens: int, host: IntArray, domain: IntArray) -> tuple[Assignment, Traffic]:
    """One batch of ``tokens`` on each of R ranks under a uniform gate, experts in their usual places.

    ``host``, ``domain`` (R,). Every count is its expectation rounded down or up, so that what a rank sends in
    all, and what it receives, is the expectation to within one. The assignment has no entries: only its
    placement means something.
    """
    ranks = len(host)
    entries = spread(tokens * model.top_k / model.experts, ranks, model.experts)
    rows = spread(tokens * visited(model, ranks) / ranks, ranks, ranks)
    groups = _to_groups(model, tokens, host), _to_groups(model, tokens, domain)
    return _batch(model, tokens, entries, rows, groups, (host, domain))


def balanced(
    model: MoEModel, tokens: int, host: IntArray, domain: IntArray, selections: int
) -> tuple[Assignment, Traffic]:
    """The same if every token visits min(R, K) distinct ranks, and every pair of ranks exchanges the same.

    ``selections``: entries of a rank, tokens x top_k unless some are masked. The ranks that a token visits lie on as
    many hosts and domains as they can.
    """
    ranks = len(host)
    reached = min(ranks, model.top_k)
    entries = spread(selections / model.experts, ranks, model.experts)
    rows = spread(tokens * reached / ranks, ranks, ranks)

    def groups(group: IntArray) -> IntArray:
        mean = tokens * np.minimum(1.0, reached * np.bincount(group) / ranks)
        return np.broadcast_to(np.rint(mean).astype(np.int64), (ranks, len(mean)))

    return _batch(model, tokens, entries, rows, (groups(host), groups(domain)), (host, domain))


def _batch(
    model: MoEModel,
    tokens: int,
    entries: IntArray,
    rows: IntArray,
    to_groups: tuple[IntArray, IntArray],
    groups: tuple[IntArray, IntArray],
) -> tuple[Assignment, Traffic]:
    """``entries`` (R, E), ``rows`` (R, R), rows to hosts and to domains; host and domain of each rank."""
    ranks = len(rows)
    entries_to = entries.reshape(ranks, ranks, -1).sum(axis=2)
    assignment = Assignment(
        placement=Placement.contiguous(model.experts, ranks),
        slot=np.empty((0, model.top_k), dtype=np.int64),
        moves=np.empty((0, 2), dtype=np.int64),
        gemm_rows=entries.sum(axis=0),
    )
    traffic = Traffic(
        entries=entries,
        entries_to=entries_to,
        rows=rows,
        rows_host=to_groups[0],
        rows_domain=to_groups[1],
        tokens=np.full(ranks, tokens, dtype=np.int64),
        load=entries_to.sum(axis=0),
        expert_counts=entries.sum(axis=0),
        host=groups[0],
        domain=groups[1],
    )
    return assignment, traffic


def spread(mean: float, rows: int, columns: int) -> IntArray:
    """(rows, columns) whole numbers next to ``mean``; row and column sums are as expected to within one.

    Row i counts the whole numbers that ``mean`` steps over from an offset of i / rows; by Hermite's identity
    the offsets of a column add up to steps of rows x mean.

    >>> spread(0.5, 2, 4).tolist()
    [[0, 1, 0, 1], [1, 0, 1, 0]]
    """
    # Sums that are whole must not be missed by a rounding error.
    offset = np.arange(rows)[:, None] / rows + 1e-9
    steps: IntArray = np.floor(np.arange(columns + 1) * mean + offset).astype(np.int64)
    return np.diff(steps, axis=1)


def _to_groups(model: MoEModel, tokens: int, group: IntArray) -> IntArray:
    """(R, G) distinct tokens to each group of ranks; a group with more ranks is reached by more tokens."""
    sizes = np.bincount(group)
    mean = np.zeros(len(sizes))
    for size in set(sizes[sizes > 0].tolist()):
        parts = len(group) / size
        reached = visited(model, int(parts)) / parts if parts.is_integer() else _hit(model, size / len(group))
        mean[sizes == size] = tokens * reached
    return np.broadcast_to(np.rint(mean).astype(np.int64), (len(group), len(sizes)))


def _hit(model: MoEModel, share: float) -> float:
    """Chance that a token visits a set with ``share`` of the experts, under an unrestricted gate."""
    rest = model.experts - round(share * model.experts)
    return 1 - math.comb(rest, model.top_k) / math.comb(model.experts, model.top_k)
