"""When flows can have ended at the earliest, given what they take of resources together."""

from __future__ import annotations

import numpy as np

from moesim.rates import FloatArray, IntArray

# Ends closer than this, relative, are one: equal flows stay equal, whatever their order.
TIE = 1e-12
# An end is only moved by more than this, relative: rates are no more accurate.
DUST = 1e-9


def feasible(path: IntArray, work: FloatArray, ends: FloatArray) -> FloatArray:
    """``ends`` (K,) [s], later where flows would have taken more of a resource by then than it gives.

    ``path``, ``work`` (H, K): the resources that each flow crosses, and the seconds of each that all it still has to
    move takes. So a resource has let through, by the end of any flow, no more than it can in that time, and nobody's
    flows are all done before their own demand over capacity. In order of the ends, what is done by any time is part
    of what is done by the last end before it, so one pass suffices.

    >>> feasible(np.array([[0, 0], [1, 2]]), np.array([[1.0, 1.0], [1.0, 1.5]]), np.array([1.0, 1.5])).tolist()
    [1.0, 2.0]
    """
    width = len(path)
    order = np.argsort(ends, kind="stable")
    sooner = ends[order]
    tie = np.repeat(np.cumsum(np.append(False, np.diff(sooner) > TIE * sooner[1:])), width)
    crossed = path[:, order].T.ravel()
    by = np.argsort(crossed, kind="stable")
    crossed, tie = crossed[by], tie[by]
    taken = np.cumsum(work[:, order].T.ravel()[by])
    other = crossed[1:] != crossed[:-1]
    first = np.flatnonzero(np.append(True, other))
    last = np.flatnonzero(np.append(other | (tie[1:] != tie[:-1]), True))
    before = np.repeat(np.append(0.0, taken)[first], np.diff(np.append(first, len(crossed))))
    least = np.empty(len(crossed))
    least[by] = np.repeat(taken[last], np.diff(np.append(-1, last))) - before
    earliest = least.reshape(-1, width).max(axis=1)
    found = ends.copy()
    found[order] = np.where(earliest > sooner * (1 + DUST), earliest, sooner)
    return found
