"""When phases may start, and the break-down of the slowest rank's time."""

from __future__ import annotations

import numpy as np
import pytest

from moesim.plan import After, Beside, FlowSet, Local, Plan, Transfer, When
from moesim.timing import Span, Timing, breakdown, exposed, ready, stages, streamed

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
    return breakdown(Timing(plan, spans, np.zeros(0), np.zeros(0)))


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
    assert Timing(plan, {"a": Span(np.zeros(2), np.array([1.0, 2.0]))}, np.zeros(0), np.zeros(0)).end(
        "expert"
    ).tolist() == [1, 2]


def test_a_late_sender_that_pushed_weights_is_their_price():
    """Rank 0 waits from 1 to 6 for rank 1, of which 2 to 5 passed with weights; then a second of wire."""
    push = Transfer("push", "weights", FlowSet.of(np.array([1]), np.array([0]), np.ones(1)))
    phases = (push, send(After("push")), local("end", "reduce", [1, 0], After("send", When.INBOUND)))
    nobody, nothing = np.array([-1, -1]), np.zeros(2)
    spans = {
        "push": Span(np.array([0.0, 2.0]), np.array([1.0, 5.0]), np.array([5.0, 2.0]), nobody, nothing),
        "send": Span(
            np.array([1.0, 6.0]), np.array([2.0, 7.0]), np.array([7.0, 6.0]), np.array([1, 0]), np.ones(2)
        ),
        "end": Span(np.array([7.0, 7.0]), np.array([8.0, 7.0])),
    }
    # Of the weights 3 s while it waited, and the second that its own (empty) push took.
    assert parts(phases, spans) == {"reduce": 1.0, "wire": 1.0, "wait": 2.0, "weights": 4.0}


def ran(ends, last, beside):
    """A layer of stages with ``ends`` and a transfer ``x`` that arrives at ``last``."""
    flow = FlowSet.of(np.array([0]), np.array([1]), np.ones(1))
    names = {stage: f"{stage}.end" for stage in ends}
    phases = (*(local(name, "gemm", [0, 0]) for name in names.values()), Transfer("x", "gradients", flow))
    spans = {names[stage]: Span(np.zeros(2), np.array([end - 0.5, end])) for stage, end in ends.items()}
    spans["x"] = Span(np.zeros(2), np.array([last, 0.0]), np.array([0.0, last]))
    return Timing(Plan(2, phases, names, (beside,)), spans, np.zeros(0), np.zeros(0))


FORWARD = {"dispatch": 1.0, "expert": 2.0, "combine": 4.0}
BACKWARD = {"backward_dispatch": 5.5, "backward_expert": 7.0, "backward_combine": 9.0}


@pytest.mark.parametrize(
    ("beside", "hidden_until"),
    [
        (Beside(("x",), "gradients"), 9.0),
        # Two layers more, which count by their closed form, here of 9 s.
        (Beside(("x",), "gradients", layers=2), 27.0),
        # Backward dispatch takes from 4 to 5.5.
        (Beside(("x",), "gradients", stage="backward_dispatch", seconds=0.25), 10.75),
    ],
)
def test_what_outlasts_the_work_beside_it_is_exposed(beside, hidden_until):
    one = ran(FORWARD | BACKWARD, 30.0, beside)
    assert exposed(one, one) == pytest.approx({"gradients": 30.0 - hidden_until})
    short = ran(FORWARD | BACKWARD, hidden_until - 0.01, beside)
    assert exposed(short, short) == {}


def test_stages_follow_each_other_and_backward_is_all_three_of_it():
    one = ran(FORWARD | BACKWARD, 1.0, Beside(("x",), "gradients"))
    times = stages(one)
    assert [times[stage][1] for stage in FORWARD] == [1.0, 1.0, 2.0]
    assert [times[stage][1] for stage in BACKWARD] == [1.5, 1.5, 2.0]
    assert times["backward"].tolist() == [5.0, 5.0]
    assert times["layer"].tolist() == [8.5, 9.0]
    assert set(stages(ran(FORWARD, 1.0, Beside(("x",), "gradients")))) == {*FORWARD, "layer"}
