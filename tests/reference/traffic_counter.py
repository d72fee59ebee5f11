"""Traffic counted one entry at a time: slow, obvious, the judge of the fast counter."""

from __future__ import annotations


def count_slowly(
    slot: list[list[int]],
    slot_rank: list[int],
    slot_expert: list[int],
    experts: int,
    host: list[int],
    domain: list[int],
) -> dict[str, list]:
    """``slot``: of each entry of each token, tokens rank-major. Keys as in ``moesim.traffic.Traffic``."""
    ranks = len(host)
    tokens = len(slot) // ranks
    entries = [[0] * len(slot_rank) for _ in range(ranks)]
    entries_to = [[0] * ranks for _ in range(ranks)]
    rows = [[0] * ranks for _ in range(ranks)]
    rows_host = [[0] * (max(host) + 1) for _ in range(ranks)]
    rows_domain = [[0] * (max(domain) + 1) for _ in range(ranks)]
    load = [0] * ranks
    expert_counts = [0] * experts
    for token, choices in enumerate(slot):
        source = token // tokens
        for chosen in choices:
            entries[source][chosen] += 1
            entries_to[source][slot_rank[chosen]] += 1
            load[slot_rank[chosen]] += 1
            expert_counts[slot_expert[chosen]] += 1
        visited = {slot_rank[chosen] for chosen in choices}
        for rank in visited:
            rows[source][rank] += 1
        for place in {host[rank] for rank in visited}:
            rows_host[source][place] += 1
        for place in {domain[rank] for rank in visited}:
            rows_domain[source][place] += 1
    return {
        "entries": entries,
        "entries_to": entries_to,
        "rows": rows,
        "rows_host": rows_host,
        "rows_domain": rows_domain,
        "tokens": [tokens] * ranks,
        "load": load,
        "expert_counts": expert_counts,
    }
