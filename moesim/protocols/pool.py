"""A send engine for protocols whose blocks take work as it comes: the cores of a rank act as one.

A library that hands tokens to blocks dynamically, or cuts each peer's bytes over all its channels, keeps its cores
equally busy, so that only their sum and the port behind them matter.
"""

from __future__ import annotations

import numpy as np

from moesim.plan import After, FloatArray, FlowSet, IntArray, Local, Phase, Transfer, When
from moesim.protocols import Case, sequence
from moesim.traffic import off_own

REACH = "peer-memory"
"""Property of ranks that can all store to and load from each other: those of one scale-up domain."""


def send(
    case: Case,
    name: str,
    rows: IntArray,
    after: tuple[After, ...],
    *,
    payload: float | FloatArray,
    wire: float | FloatArray,
    seconds: float | FloatArray,
    label: str = "send",
) -> Transfer:
    """Send ``rows`` (R, R); what stays at home takes no part.

    ``payload``, ``wire`` [B] and ``seconds`` [s] of a source's engine: of one row, or (R, R) for each pair.
    """
    src, dst = np.nonzero(off_own(rows))
    count = rows[src, dst].astype(np.float64)

    def of_pairs(value: float | FloatArray) -> FloatArray:
        shape = (case.ranks, case.ranks)
        taken: FloatArray = count * np.broadcast_to(np.asarray(value, dtype=np.float64), shape)[src, dst]
        return taken

    core, core_s = None, None
    if "imbalance" not in case.off:
        core, core_s = np.zeros(len(src), dtype=np.int64), of_pairs(seconds)
    sent = FlowSet.of(
        src, dst, of_pairs(payload), wire=of_pairs(wire), messages=count, core=core, core_s=core_s
    )
    return Transfer(name, label, sent, after)


def start(case: Case, operation: str, after: tuple[After, ...]) -> list[Phase]:
    """Launch, and what the stated terms of the operation leave unexplained."""
    if "serialisation" in case.off:
        return []
    c = case.calibration
    rest = case.each(c[f"{operation}_unexplained"])
    return sequence(
        [
            Local(f"{operation}.launch", "launch", case.each(c["launch"])),
            Local(f"{operation}.unexplained", "unexplained", rest),
        ],
        after,
    )


def done(call: Phase) -> tuple[After, ...]:
    """A call returns when its own rows are out and those of the others are in."""
    return (After(call.name), After(call.name, When.INBOUND))


def a_token(case: Case, rows: IntArray) -> FloatArray:
    """(R,) rows that a token of each rank has on other ranks, on average."""
    each: FloatArray = off_own(rows).sum(axis=1) / np.maximum(case.tokens, 1.0)
    return each
