"""Relay trees: copies of one expert that send its weights on to others, after UltraEP v1.0.0 (``weight_sync``)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Relaying = Literal["adaptive", "force", "off"]

LEAST_COPIES = 4
"""Copies below which ``adaptive`` does not relay."""
LEAST_GAIN = 2
"""Sends that ``adaptive`` must take off the busiest sender of an expert."""
MOST_RELAYS = 8


@dataclass(frozen=True, eq=False)
class RelayTrees:
    """``sender`` (M,): rank that sends each copy its weights. ``relayed`` (M,): whether that is not the home."""

    sender: IntArray
    relayed: NDArray[np.bool_]


def relay_trees(
    home: IntArray, expert: IntArray, rank: IntArray, relaying: Relaying, most_relays: int = MOST_RELAYS
) -> RelayTrees:
    """Trees of depth two for M copies of some experts.

    ``home``, ``expert``, ``rank`` (M,): of each copy, the rank that has the weights, which expert, and where it
    goes; copies of an expert are neighbours. ``adaptive`` relays an expert of n copies through floor(sqrt(n)) of them
    where that pays, ``force`` wherever n is 2 or more. Relays are the copies on the ranks that send least so far (then
    the lowest); the others go one to each relay, and then to the relay that sends least (then with fewest of them,
    then the lowest).
    """
    load: defaultdict[int, int] = defaultdict(int)
    sender, relayed = home.copy(), np.zeros(len(home), dtype=bool)
    bounds = np.flatnonzero(np.diff(expert, prepend=-1, append=-1)).tolist()
    for start, end in pairwise(bounds):
        hosts = rank[start:end].tolist()
        count = _relays(len(hosts), relaying, most_relays)
        relays = sorted(range(len(hosts)), key=lambda copy: (load[hosts[copy]], hosts[copy]))[:count]
        load[int(home[start])] += count or len(hosts)
        fed = [0] * count
        leaves = [copy for copy in range(len(hosts)) if copy not in relays] if count else []
        for number, leaf in enumerate(leaves):
            chosen = number
            if number >= count:
                chosen = min(range(count), key=lambda r: (load[hosts[relays[r]]], fed[r], hosts[relays[r]]))
            fed[chosen] += 1
            load[hosts[relays[chosen]]] += 1
            sender[start + leaf], relayed[start + leaf] = hosts[relays[chosen]], True
    return RelayTrees(sender, relayed)


def _relays(copies: int, relaying: Relaying, most: int) -> int:
    """How many of an expert's copies send it on; 0 if its home sends to all."""
    count = min(isqrt(copies), most, copies - 1)
    if relaying == "off" or count < 1:
        return 0
    busiest = max(count, -(-(copies - count) // count))
    pays = copies >= LEAST_COPIES and copies - busiest >= LEAST_GAIN
    return count if relaying == "force" or pays else 0
