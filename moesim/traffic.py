"""How many rows and entries travel: pure counting, exact.

An *entry* is one (token, expert) pair, what a GEMM works on. A *row* is one hidden vector on the wire: a
token sends one row to a rank (or host, or domain) however many of its experts live there. Bytes are rows
times the bytes of a row, which only a protocol knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.placement import Assignment
from moesim.plan import Transfer

IntArray = NDArray[np.int64]
Number = np.int64 | np.float64

TIERS = ("self", "device", "host", "domain", "scale_out")
"""Names of the tiers 0 to 4 of a pair of ranks, nearest first."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """What one batch of one layer sends in dispatch; combine returns the same. All counts are int64.

    ``entries`` (R, P): from source rank to slot. ``entries_to`` (R, R): the same, by the slot's rank.
    ``rows`` (R, R), ``rows_host`` (R, H), ``rows_domain`` (R, D): distinct tokens from source rank to
    destination rank, host, domain. What a rank keeps (its diagonal, or the column of its own host or domain)
    is counted like the rest: take it out with :func:`off_own`. ``tokens`` (R,); ``load`` (R,): entries each
    rank computes; ``expert_counts`` (E,): entries of each logical expert. ``host``, ``domain`` (R,): of each
    rank, as given.
    """

    entries: IntArray
    entries_to: IntArray
    rows: IntArray
    rows_host: IntArray
    rows_domain: IntArray
    tokens: IntArray
    load: IntArray
    expert_counts: IntArray
    host: IntArray
    domain: IntArray

    def by_reach(self, matrix: NDArray[Number]) -> dict[str, NDArray[Number]]:
        """Split what each source rank sends, by the nearest thing it shares with the destination.

        ``matrix`` (R, R), for example ``rows``. Returns (R,) arrays that add up to its row sums: ``rank`` (to
        itself), ``host`` (other ranks of its host), ``domain`` (other hosts of its scale-up domain),
        ``beyond`` (the rest).
        """
        same_host = self.host[:, None] == self.host
        same_domain = self.domain[:, None] == self.domain
        own = np.eye(len(matrix), dtype=bool)
        masks = {
            "rank": own,
            "host": same_host & ~own,
            "domain": same_domain & ~same_host & ~own,
            "beyond": ~(same_domain | same_host | own),
        }
        return {reach: np.where(mask, matrix, 0).sum(axis=1) for reach, mask in masks.items()}


def count(assignment: Assignment, ranks: int, host: IntArray, domain: IntArray) -> Traffic:
    """Count the traffic of one batch.

    ``host`` (R,) and ``domain`` (R,): numbers from 0 of the host and scale-up domain of each rank; they set
    the number of columns (largest + 1). Ranks of one host or domain need not be neighbours, nor hosts of
    equal size.

    >>> from moesim.placement import Assignment, Placement
    >>> ids = np.array([[0, 1], [0, 3]])  # rank 0 has one token, for experts 0 and 1; rank 1 one, for 0 and 3
    >>> nothing = np.empty((0, 2), dtype=np.int64)
    >>> both = Assignment(Placement.contiguous(experts=4, ranks=2), ids, nothing, np.bincount(ids.ravel()))
    >>> traffic = count(both, 2, host=np.array([0, 0]), domain=np.array([0, 0]))
    >>> traffic.entries_to.tolist(), traffic.rows.tolist(), traffic.rows_host.tolist()
    ([[2, 0], [1, 1]], [[1, 0], [1, 1]], [[1], [1]])
    """
    placement, slot = assignment.placement, assignment.slot
    tokens = len(slot) // ranks
    if placement.ranks != ranks or len(host) != ranks or len(domain) != ranks or tokens * ranks != len(slot):
        raise ValueError(
            f"{ranks} ranks, but the placement has {placement.ranks}, hosts are given for {len(host)}, "
            f"domains for {len(domain)}, and there are {len(slot)} tokens"
        )
    slots = len(placement.slot_rank)
    source = np.arange(ranks).repeat(tokens)
    # One column a token from here on, in few bytes: numpy compares and gathers long rows fastest, and large new
    # arrays cost more than what is done with them, so that one holds the pairs of all four counts.
    by_choice = np.ascontiguousarray(slot.T, dtype=np.int32)
    rank_of = placement.slot_rank.astype(np.min_scalar_type(ranks)).take(by_choice)
    pair = source * slots + by_choice
    entries = np.bincount(pair.ravel(), minlength=ranks * slots).reshape(ranks, slots)
    pairs = (np.arange(ranks)[:, None] * ranks + placement.slot_rank).ravel()
    to_rank = _sums(pairs, entries, ranks * ranks).reshape(ranks, ranks)
    filled = placement.slot_expert >= 0
    return Traffic(
        entries=entries,
        entries_to=to_rank,
        rows=_distinct(source, rank_of, ranks, np.arange(ranks), pair),
        rows_host=_distinct(source, rank_of, ranks, host, pair),
        rows_domain=_distinct(source, rank_of, ranks, domain, pair),
        tokens=np.full(ranks, tokens, dtype=np.int64),
        load=to_rank.sum(axis=0),
        expert_counts=_sums(placement.slot_expert[filled], entries.sum(axis=0)[filled], placement.experts),
        host=host,
        domain=domain,
    )


def first_visits(places: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which entries are the first of their token to go to their place.

    ``places`` (K, N): place of the k-th entry of token n. Returns (K, N).

    >>> first_visits(np.array([[0, 1], [0, 2]])).tolist()
    [[True, True], [False, True]]
    """
    first = np.ones(places.shape, dtype=bool)
    for k in range(1, len(places)):
        np.not_equal(places[:k], places[k]).all(axis=0, out=first[k])
    return first


def off_own(matrix: NDArray[Number], own: IntArray | None = None) -> NDArray[Number]:
    """A copy of ``matrix`` (R, G) without what each rank keeps: zero in column ``own[r]`` of row r.

    ``own`` (R,) is the column of each source rank: ``traffic.host`` for ``rows_host``; by default the rank
    itself.
    """
    sent = matrix.copy()
    rows = np.arange(len(matrix))
    sent[rows, rows if own is None else own] = 0
    return sent


def by_tier(matrix: NDArray[Number], tier: NDArray[np.integer]) -> dict[str, float]:
    """Sum of ``matrix`` (R, R) over the pairs of each tier; ``tier`` (R, R): 0 (self) to 4 (scale-out)."""
    sums = np.bincount(tier.ravel(), matrix.ravel(), minlength=len(TIERS))
    return dict(zip(TIERS, sums.tolist(), strict=True))


def crossed(transfers: Iterable[Transfer], tier: NDArray[np.integer]) -> dict[str, dict[str, float]]:
    """``payload`` and ``wire`` bytes that cross each tier: a relayed row counts on each of its hops.

    ``tier`` (R, R) as in :func:`by_tier`. Payload is rows; counts and whatever else is no row are wire only.
    """
    sums = np.zeros((2, len(TIERS)))
    for one in transfers:
        flows = one.flows
        where = tier[flows.src, flows.dst]
        if one.label == "send":
            sums[0] += np.bincount(where, flows.payload, len(TIERS))
        sums[1] += np.bincount(where, flows.wire, len(TIERS))
    return {
        what: dict(zip(TIERS, row.tolist(), strict=True))
        for what, row in zip(("payload", "wire"), sums, strict=True)
    }


def rank_imbalance(load: NDArray[Number]) -> float:
    """Largest over mean load (R,) of the ranks; 1 is balanced, and so is no load at all."""
    return float(load.max() / load.mean()) if load.any() else 1.0


def rows_imbalance(traffic: Traffic) -> float:
    """Largest over mean number of rows that a rank receives, its own included."""
    return rank_imbalance(traffic.rows.sum(axis=0))


def maxvio(counts: NDArray[Number]) -> float:
    """Largest over mean entries (E,) of the logical experts, minus 1: 0 is balanced. Not about ranks."""
    return rank_imbalance(counts) - 1.0


def expected_groups(groups: int, experts: int, top_k: int) -> float:
    """Mean number of distinct groups (ranks, hosts) that a token visits under an unrestricted uniform gate.

    All sets of K experts are equally likely: g (1 - C(E - E/g, k) / C(E, k)), as in DeepEP V2. ``groups``
    must divide ``experts``.

    >>> round(expected_groups(8, 256, 8), 3)
    5.295
    """
    _check_gate(groups, experts, top_k, experts)
    return groups * (1 - comb(experts - experts // groups, top_k) / comb(experts, top_k))


def expected_groups_limited(groups: int, experts: int, top_k: int, n_group: int, topk_group: int) -> float:
    """Mean number of distinct groups (ranks, hosts) that a token visits under group-limited routing.

    Of ``n_group`` expert groups ``topk_group`` are kept, uniformly at random, and then K experts of those.
    Real gates prefer groups with large scores and visit up to a tenth more hosts. ``groups`` must divide
    ``n_group`` or be a multiple of it. With G expert groups of e experts, g of them kept, m on each of H
    destinations, j of those kept: H sum_j C(m, j) C(G-m, g-j) / C(G, g) (1 - C((g-j) e, k) / C(g e, k)).

    >>> round(expected_groups_limited(8, 256, 8, n_group=8, topk_group=4), 3)
    3.629
    """
    if n_group < 1 or not 1 <= topk_group <= n_group or experts % n_group:
        raise InputError(f"cannot keep {topk_group} of {n_group} groups of {experts} experts")
    size = experts // n_group
    kept = topk_group * size
    _check_gate(groups, experts, top_k, kept)
    if groups > n_group:
        if groups % n_group:
            raise InputError(f"{groups} destinations do not divide {n_group} expert groups evenly")
        part = experts // groups
        return groups * topk_group / n_group * (1 - comb(kept - part, top_k) / comb(kept, top_k))
    if n_group % groups:
        raise InputError(f"{n_group} expert groups do not divide evenly over {groups} destinations")
    held = n_group // groups
    reached = 0.0
    for j in range(max(0, topk_group - n_group + held), min(held, topk_group) + 1):
        ways = comb(held, j) * comb(n_group - held, topk_group - j) / comb(n_group, topk_group)
        reached += ways * (1 - comb(kept - j * size, top_k) / comb(kept, top_k))
    return groups * reached


def _check_gate(groups: int, experts: int, top_k: int, choice: int) -> None:
    if groups < 1 or experts % groups:
        raise InputError(f"{experts} experts do not divide evenly over {groups} destinations")
    if not 1 <= top_k <= choice:
        raise InputError(f"a token cannot have {top_k} distinct experts out of {choice}")


def _sums(bins: IntArray, values: IntArray, size: int) -> IntArray:
    """Sum of integer ``values`` in each bin; exact, counts being far below 2**53."""
    return np.bincount(bins, values.ravel().astype(np.float64), size).astype(np.int64)


def _distinct(source: IntArray, rank_of: IntArray, ranks: int, group: IntArray, pair: IntArray) -> IntArray:
    """Distinct tokens (R, G) from source rank to group of ranks, 0 to G - 1.

    ``source`` (N,) rank of each token; ``rank_of`` (K, N) those it goes to; ``group`` (R,); ``pair`` (K, N): scratch.
    """
    groups = int(group.max()) + 1
    if groups == 1:
        return np.bincount(source, minlength=ranks)[:, None]
    places = group.astype(np.min_scalar_type(groups)).take(rank_of)
    # Who comes to a place once more is counted in bins of its own: cheaper than leaving it out.
    np.multiply(~first_visits(places), ranks * groups, out=pair)
    pair += source * groups
    pair += places
    bins = np.bincount(pair.ravel(), minlength=2 * ranks * groups)
    return bins[: ranks * groups].reshape(ranks, groups)
