"""Plans in SimPy: who waits for what, and what others' flows do to it."""

from __future__ import annotations

import numpy as np
import pytest
from small_cases import layer, placed

from moesim import bounds, execution
from moesim.contention import Resources
from moesim.plan import After, FlowSet, Local, Plan, Transfer, When

US = 1e-6
KB100 = 1e5  # 1 us of a port


@pytest.fixture
def crossbar():
    return Resources(placed("crossbar", 4, "packed", "store"), 2)


def flows(*rows):
    src, dst, size = (np.array(column) for column in zip(*rows, strict=True))
    return FlowSet.of(src, dst, size)


def local(name, us, *after, chunks=1):
    return Local(name, name, np.broadcast_to(np.array(us, dtype=float) * US, 4), tuple(after), chunks)


def run(phases, resources, **options):
    return execution.run(Plan(4, tuple(phases)), resources, tolerance=0.0, **options)


def test_two_senders_share_a_port(crossbar):
    """100 and 300 kB into one port at 50 GB/s each: the first is here at 2 us, the second at 4 us."""
    span = run([Transfer("send", "send", flows((0, 2, KB100), (1, 2, 3 * KB100)))], crossbar).spans["send"]
    latency = crossbar.routes.latency[0, 2] / US
    assert span.end / US == pytest.approx([2 + latency, 4 + latency, 0, 0])
    assert span.arrived[2] / US == pytest.approx(4 + latency)
    assert span.last[2] == 1


def test_the_last_to_arrive_is_named_whatever_its_number(crossbar):
    span = run([Transfer("send", "send", flows((0, 2, 3 * KB100), (1, 2, KB100)))], crossbar).spans["send"]
    assert span.last.tolist() == [-1, -1, 0, -1]


def test_a_rank_shares_a_port_as_one_however_many_flows_it_has(crossbar):
    """Rank 0 sends 100 kB to rank 2 in four flows, rank 1 in one: both end together."""
    quarter = [(0, 2, KB100 / 4)] * 4
    span = run([Transfer("send", "send", flows(*quarter, (1, 2, KB100)))], crossbar).spans["send"]
    latency = crossbar.routes.latency[0, 2] / US
    assert span.end[:2] / US == pytest.approx([2 + latency] * 2)


def test_what_is_here_counts_from_the_rank_s_own_start(crossbar):
    """Rank 2 comes to the transfer at 9 us; its flow was there long before, and it goes on at 9, not at 3."""
    found = run(
        [
            local("launch", [0, 0, 9, 0]),
            Transfer("send", "send", flows((0, 2, KB100)), (After("launch"),)),
            local("next", 1, After("send", When.INBOUND)),
        ],
        crossbar,
    )
    assert found.spans["next"].start[2] == pytest.approx(9 * US)
    assert found.spans["next"].start[1] == 0.0


def test_all_waits_for_the_slowest(crossbar):
    found = run([local("launch", [1, 7, 2, 3]), local("next", 1, After("launch", When.ALL))], crossbar)
    assert found.spans["next"].end / US == pytest.approx([8, 8, 8, 8])


@pytest.mark.parametrize(("work", "expected"), [(8, 8), (2, 5.5)])
def test_streaming_ends_one_chunk_behind_the_last_arrival(crossbar, work, expected):
    """3 us of the port, two links of 1 us, a quarter of the work; or the work itself."""
    found = run(
        [
            Transfer("send", "send", flows((0, 1, 3 * KB100))),
            local("stream", work, After("send", When.STREAM), chunks=4),
        ],
        crossbar,
    )
    assert found.spans["stream"].end[1] / US == pytest.approx(expected)


def test_flows_start_with_their_rank(crossbar):
    """Rank 1 starts 1 us after rank 0, so rank 0 has the port of rank 2 to itself for that long."""
    found = run(
        [
            local("launch", [0, 1, 0, 0]),
            Transfer("send", "send", flows((0, 2, 2 * KB100), (1, 2, 2 * KB100)), (After("launch"),)),
        ],
        crossbar,
    )
    latency = crossbar.routes.latency[0, 2] / US
    assert found.spans["send"].end[:2] / US == pytest.approx([3 + latency, 4 + latency])


def test_background_flows_are_shared_with_and_not_waited_for(crossbar):
    sent = [Transfer("send", "send", flows((0, 2, KB100)))]
    others = flows((1, 2, 100 * KB100)), np.zeros(1)
    alone, beside = run(sent, crossbar), run(sent, crossbar, background=others)
    assert beside.spans["send"].end[0] - alone.spans["send"].end[0] == pytest.approx(US)
    after = run(sent, crossbar, background=(others[0], np.array([1.0])))
    assert after.spans["send"].end[0] == pytest.approx(alone.spans["send"].end[0])


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_what_others_put_on_the_fabric_until_the_plan_ends_is_known(crossbar, tolerance):
    """2 us of the port of rank 2 at half, then the end: 1 us of it for each; a flow of later has moved nothing."""
    plan = Plan(4, (Transfer("send", "send", flows((0, 2, KB100))),))
    others = flows((1, 2, 100 * KB100), (3, 1, KB100)), np.array([0.0, 1.0])
    alone = execution.run(plan, crossbar, tolerance=tolerance)
    beside = execution.run(plan, crossbar, tolerance=tolerance, background=others)
    assert alone.others is None
    names = [crossbar.name(i) for i in np.flatnonzero(beside.others)]
    arrives = beside.spans["send"].end[0]
    port = crossbar.routes.capacity[0]
    assert len(names) == 2
    # It goes on at the full rate while the last byte of the plan's flow is on its way.
    expected = KB100 + (arrives - 2 * US) * port
    assert beside.others[beside.others > 0] == pytest.approx([expected, expected])
    assert beside.load == pytest.approx(alone.load)


def test_an_empty_background_flow_does_nothing():
    rails = Resources(placed("rails", 8, "packed", "store"), 1)
    sent = Plan(8, (Transfer("send", "send", flows((0, 4, KB100))),))
    nothing = flows((1, 4, 0.0)), np.zeros(1)
    alone = execution.run(sent, rails, tolerance=0.0)
    beside = execution.run(sent, rails, tolerance=0.0, background=nothing)
    assert beside.spans["send"].end.tolist() == alone.spans["send"].end.tolist()


def test_load_and_solves(crossbar):
    found = run([Transfer("send", "send", flows((0, 2, KB100), (1, 2, 3 * KB100)))], crossbar)
    closed = bounds.run(found.plan, crossbar)
    assert found.load == pytest.approx(closed.load)
    assert found.solves > 0
    assert closed.solves == 0


def test_tolerance_changes_little_and_the_error_is_estimated():
    one = layer("cann-ep", pod_name="cloudmatrix384", ep=16, experts=64, tokens=16, top_k=8)
    exact, merged = one.fluid(0.0), one.fluid(0.003)
    assert merged.end("combine").max() == pytest.approx(exact.end("combine").max(), rel=0.003)
    assert exact.error_estimate == 0.0
    assert 0.0 < merged.error_estimate < 0.003 * merged.end("combine").max()
    assert merged.solves <= exact.solves


def test_no_rank_has_anything_to_do(crossbar):
    none = np.empty(0, dtype=np.int64)
    found = run(
        [Transfer("send", "send", FlowSet.of(none, none, none)), local("end", 0, After("send"))], crossbar
    )
    assert not found.spans["end"].end.any()
