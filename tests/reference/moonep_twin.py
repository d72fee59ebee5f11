"""MoonEP's planner, one entry at a time: slow, obvious, the judge of the fast one.

Written from the published rule: A moves between ranks, B experts of a home, C layout, D place of each entry.
"""

from __future__ import annotations


def plan_slowly(topk: list[list[list[int]]], experts: int, padding: int) -> dict[str, object]:
    """``topk[r][s][k]``: expert of the k-th entry of token s of rank r. All ties go to the lowest index."""
    ranks = len(topk)
    epn = experts // ranks
    capacity = sum(len(token) for token in topk[0])
    total = [0] * experts
    for rank in topk:
        for token in rank:
            for expert in token:
                total[expert] += 1

    # A: fill the emptiest rank from the fullest until none is too full.
    balance = [sum(total[r * epn : (r + 1) * epn]) - capacity for r in range(ranks)]
    moves = []
    while max(balance) > 0:
        giver = min(range(ranks), key=lambda r: (-balance[r], r))
        taker = min(range(ranks), key=lambda r: (balance[r], r))
        moves.append([giver, taker, -balance[taker]])
        balance[giver] += balance[taker]
        balance[taker] = 0

    # B: each home serves the largest quota with its most wanted expert.
    alloc = [[0] * experts for _ in range(ranks)]
    for home in range(ranks):
        quota = {taker: entries for giver, taker, entries in moves if giver == home}
        left = {e: total[e] for e in range(home * epn, (home + 1) * epn)}
        while any(quota.values()):
            taker = min(quota, key=lambda r: (-quota[r], r))
            expert = min(left, key=lambda e: (-left[e], e))
            part = min(quota[taker], left[expert])
            alloc[taker][expert] += part
            quota[taker] -= part
            left[expert] -= part
        for expert, entries in left.items():
            alloc[home][expert] = entries

    # C: own experts, then copies, each nonempty group padded.
    to_copy, ends, fills, start_of = [], [], [], {}
    for rank in range(ranks):
        own = list(range(rank * epn, (rank + 1) * epn))
        copies = [e for e in range(experts) if e // epn != rank and alloc[rank][e] > 0]
        copies += [-1] * (epn - len(copies))
        end, rank_ends, rank_fills = 0, [], []
        for expert in own + copies:
            rows = alloc[rank][expert] if expert >= 0 else 0
            start_of[rank, expert] = end
            pad = -rows % padding
            rank_fills.append([end + rows, pad] if pad else [0, 0])
            end += rows + pad
            rank_ends.append(end)
        to_copy.append(copies)
        ends.append(rank_ends)
        fills.append(rank_fills)
    buffer_rows = capacity + (padding - 1) * 2 * epn
    while buffer_rows % padding:
        buffer_rows += 1

    # D: the n-th entry of an expert goes to the first destination whose share reaches beyond n.
    seen = [0] * experts
    dst, goes_to = [], []
    for rank in topk:
        rank_dst = []
        for token in rank:
            visited = set()
            for expert in token:
                ordinal, taker = seen[expert], 0
                seen[expert] += 1
                while ordinal >= alloc[taker][expert]:
                    ordinal -= alloc[taker][expert]
                    taker += 1
                place = taker * buffer_rows + start_of[taker, expert] + ordinal
                rank_dst.append(-place - 1 if taker in visited else place)
                goes_to.append(taker)
                visited.add(taker)
        dst.append(rank_dst)
    return {
        "rank_moves": moves,
        "alloc": alloc,
        "experts_to_copy": to_copy,
        "cu_seqlens": ends,
        "zero_fill_ranges": fills,
        "static_rows": buffer_rows,
        "dst": dst,
        "goes_to": goes_to,
    }
