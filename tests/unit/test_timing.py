"""When phases may start, and the break-down of the slowest rank's time."""

from __future__ import annotations

import numpy as np
import pytest

from moesim.plan import After, FlowSet, Local, Plan, Transfer, When
from moesim.timing import Span, Timing, breakdown, ready, streamed

SPAN = Span(
    start=np.array([1.0, 2.0]),
    end=np.array([5.0, 4.0]),
    arrived=np.array([3.0, 1.5]),
    last=np.array([1, 0]),
    wire=np.array([2.5, 2.0]),
)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (When.MINE, [5, 4]),
        (When.OUTBOUND, [5, 4]),
        (When.ALL, [5, 5]),
        (When.STREAM, [1, 2]),
        # What arrived before the rank itself had come to the transfer does not let it go on earlier.
        (When.INBOUND, [3, 2]),
    ],
)
def test_moments(when, expected):
    assert SPAN.moment(when).tolist() == expected
    assert ready((After("x", when),), {"x": SPAN}, 2).tolist() == expected


def test_a_phase_waits_for_the_last_of_its_dependencies():
    other = Span(np.zeros(2), np.array([0.0, 9.0]))
    after = (After("x", When.INBOUND), After("y"))
    assert ready(after, {"x": SPAN, "y": other}, 2).tolist() == [3, 9]
    assert ready((), {}, 2).tolist() == [0, 0]


def test_only_a_transfer_has_inbound_flows():
    with pytest.raises(ValueError, match="inbound"):
        Span(np.zeros(1), np.zeros(1)).moment(When.INBOUND)


def test_what_streams():
    assert streamed((After("a"), After("b", When.STREAM))) == "b"
    assert streamed((After("a"),)) is None


def local(name, label, duration, *after, chunks=1):
    return Local(name, label, np.array(duration, dtype=float), tuple(after), chunks)


def send(*after):
    both = np.array([0, 1])
    return Transfer("send", "send", FlowSet.of(both, both[::-1], np.ones(2)), tuple(after))


def parts(phases, spans):
    plan = Plan(2, phases, {"combine": phases[-1].name})
    return breakdown(Timing(plan, spans, np.zeros(0)))


def test_local_phases_and_the_wait_for_everybody():
    """Rank 1 ends last; it waited for rank 0's launch, which took 5 s and not 2."""
    phases = (local("launch", "launch", [5, 2]), local("end", "reduce", [1, 3], After("launch", When.ALL)))
    spans = {
        "launch": Span(np.zeros(2), np.array([5.0, 2.0])),
        "end": Span(np.full(2, 5.0), np.array([6.0, 8.0])),
    }
    assert parts(phases, spans) == {"reduce": 3.0, "wait": 3.0, "launch": 2.0}


def test_waiting_for_a_late_sender_wire_and_the_rest_are_told_apart():
    """Rank 0 begins at 1, its last flow comes from rank 1, which began at 4, needs 2 s of wire and took 3.5 s."""
    phases = (
        local("launch", "launch", [1, 4]),
        send(After("launch")),
        local("end", "reduce", [1, 0.2], After("send", When.INBOUND)),
    )
    spans = {
        "launch": Span(np.zeros(2), np.array([1.0, 4.0])),
        "send": Span(
            np.array([1.0, 4.0]),
            np.array([2.0, 7.5]),
            np.array([7.5, 2.0]),
            np.array([1, 0]),
            np.array([0.5, 2.0]),
        ),
        "end": Span(np.array([7.5, 4.0]), np.array([8.5, 4.2])),
    }
    assert parts(phases, spans) == {"launch": 1.0, "wait": 3.0, "wire": 2.0, "send": 1.5, "reduce": 1.0}


@pytest.mark.parametrize(("arrived", "end"), [(9.0, 9.5), (2.0, 6.0)])
def test_streaming_counts_what_held_it_up(arrived, end):
    """4 s in 8 chunks from the second 2 on: held up by an arrival at 9, or only by its own work."""
    phases = (
        local("launch", "launch", [2, 2]),
        send(After("launch")),
        local("end", "reorder", [4, 0], After("send", When.STREAM), chunks=8),
    )
    spans = {
        "launch": Span(np.zeros(2), np.full(2, 2.0)),
        "send": Span(
            np.full(2, 2.0), np.full(2, 9.0), np.array([arrived, 2.0]), np.array([1, 0]), np.array([1.0, 3.0])
        ),
        "end": Span(np.full(2, 2.0), np.array([end, 2.0])),
    }
    found = parts(phases, spans)
    assert sum(found.values()) == pytest.approx(end)
    assert found["reorder"] == pytest.approx(0.5 if arrived > 6 else 4.0)
    assert found["launch"] == 2.0
    assert found.get("wire", 0.0) == pytest.approx(3.0 if arrived > 6 else 0.0)


def test_end_of_a_stage():
    plan = Plan(2, (local("a", "gemm", [1, 2]),), {"expert": "a"})
    assert Timing(plan, {"a": Span(np.zeros(2), np.array([1.0, 2.0]))}, np.zeros(0)).end(
        "expert"
    ).tolist() == [1, 2]
