"""The closed form on plans small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from small_cases import layer, placed

from moesim import bounds, execution
from moesim.contention import Resources
from moesim.plan import After, FlowSet, Local, Plan, Transfer, When

US = 1e-6
# 100 kB take 1 us of a port.
KB100 = 1e5


@pytest.fixture
def crossbar():
    return Resources(placed("crossbar", 4, "packed", "store"), 2)


def flows(*rows, core_s=0.0):
    """Flows of (src, dst, bytes, core)."""
    src, dst, size, core = (np.array(column) for column in zip(*rows, strict=True))
    return FlowSet.of(src, dst, size, core=core, core_s=np.where(core >= 0, core_s, 0.0))


def send(sent, *after, name="send"):
    return Transfer(name, "send", sent, tuple(after))


def local(name, us, *after, chunks=1):
    return Local(name, name, np.broadcast_to(np.array(us, dtype=float) * US, 4), tuple(after), chunks)


def ends(plan, resources):
    spans = bounds.run(plan, resources).spans
    return {name: (span.end / US).round(6).tolist() for name, span in spans.items()}


def test_a_rank_takes_what_its_ports_need(crossbar):
    """Rank 0 sends 100 and 300 kB, 4 us of its port; rank 2 gets 300 and 200, 5 us of its."""
    sent = flows((0, 1, KB100, -1), (0, 2, 3 * KB100, -1), (3, 2, 2 * KB100, -1))
    span = bounds.run(Plan(4, (send(sent),)), crossbar).spans["send"]
    latency = crossbar.routes.latency[0, 1] / US
    assert span.end / US == pytest.approx([4 + latency, 0, 0, 2 + latency])
    assert span.arrived / US == pytest.approx([0, 1 + latency, 5 + latency, 0])
    assert span.wire / US == pytest.approx([4 + latency, 0, 0, 2 + latency])
    assert (span.last >= 0).tolist() == [False, True, True, False]
    assert span.last[1] == 0


def test_the_slowest_core_counts_but_is_not_wire(crossbar):
    sent = flows((0, 1, KB100, 0), (0, 2, KB100, 0), (0, 3, KB100, 1), core_s=7 * US)
    span = bounds.run(Plan(4, (send(sent),)), crossbar).spans["send"]
    latency = crossbar.routes.latency[0, 1]
    assert span.end[0] == pytest.approx(14 * US + latency)
    assert span.wire[0] == pytest.approx(3 * US + latency)
    assert span.arrived[1:] == pytest.approx([7 * US + latency] * 3)


def test_release_delays(crossbar):
    one = flows((0, 1, KB100, -1))
    late = FlowSet.of(one.src, one.dst, one.payload, release=np.array([9 * US]))
    soon, later = (bounds.run(Plan(4, (send(sent),)), crossbar).spans["send"] for sent in (one, late))
    assert later.end[0] == pytest.approx(soon.end[0] + 9 * US)
    assert later.arrived[1] == pytest.approx(soon.arrived[1] + 9 * US)


def test_dependencies(crossbar):
    sent = flows((0, 1, KB100, -1))
    latency = crossbar.routes.latency[0, 1] / US
    plan = Plan(
        4,
        (
            local("launch", [3, 0, 0, 5]),
            send(sent, After("launch")),
            local("mine", 1, After("send")),
            local("all", 1, After("launch", When.ALL)),
            local("inbound", 1, After("send", When.INBOUND)),
            local("stream", 8, After("send", When.STREAM), chunks=4),
        ),
    )
    there = 3 + 1 + latency
    found = ends(plan, crossbar)
    assert found["mine"] == pytest.approx([there + 1, 1, 1, 6])
    assert found["all"] == [6, 6, 6, 6]
    assert found["inbound"] == pytest.approx([4, there + 1, 1, 6])
    assert found["stream"] == pytest.approx([11, max(8, there + 2), 8, 13])


def test_an_empty_transfer_takes_no_time(crossbar):
    none = np.empty(0, dtype=np.int64)
    plan = Plan(4, (local("launch", 2), send(FlowSet.of(none, none, none), After("launch"))))
    assert ends(plan, crossbar)["send"] == [2, 2, 2, 2]


def staged(*phases):
    """A plan whose stages end with the phases called dispatch, expert and combine."""
    return Plan(4, phases, {stage: stage for stage in ("dispatch", "expert", "combine")})


def test_alone_on_the_fabric_the_bound_is_the_fluid_time(crossbar):
    sent = flows((0, 1, KB100, -1))
    back = flows((1, 0, 2 * KB100, -1))
    plan = staged(
        send(sent, name="there"),
        local("dispatch", 1, After("there", When.INBOUND)),
        local("expert", 4, After("dispatch")),
        send(back, After("expert"), name="back"),
        local("combine", 1, After("back", When.INBOUND)),
    )
    bound, fluid = bounds.run(plan, crossbar), execution.run(plan, crossbar, tolerance=0.0)
    for phase in plan.phases:
        assert fluid.spans[phase.name].end == pytest.approx(bound.spans[phase.name].end)


def test_the_last_rank_counts_where_the_path_leads_over_another(crossbar):
    """Rank 0 sends for 4 us to others, who have 1 us to do: no own path shows that they end at 5 us and a latency."""
    sent = flows(*((0, dst, 4 / 3 * KB100, -1) for dst in (1, 2, 3)))
    plan = staged(
        send(sent),
        local("dispatch", 1, After("send", When.STREAM)),
        local("expert", 0, After("dispatch")),
        local("combine", 0, After("expert")),
    )
    ranked, largest = bounds.stages(bounds.run(plan, crossbar), crossbar)
    latency = crossbar.routes.latency[0, 1]
    assert largest["dispatch"] == pytest.approx(5 * US + latency)
    assert ranked["dispatch"].max() < largest["dispatch"]
    fluid = execution.run(plan, crossbar, tolerance=0.0)
    assert fluid.end("dispatch").max() == pytest.approx(largest["dispatch"])


def test_the_layer_is_bounded_by_the_whole_load_of_a_resource(crossbar):
    """Rank 3 receives 2 us from each of three ranks in each of two operations: 12 us of its port, whatever the path."""
    sent = flows(*((src, 3, 2 * KB100, -1) for src in (0, 1, 2)))
    plan = staged(
        send(sent, name="there"),
        local("dispatch", 0, After("there")),
        local("expert", 0, After("dispatch")),
        send(sent, After("expert"), name="back"),
        local("combine", 0, After("back", When.INBOUND)),
    )
    _, largest = bounds.stages(bounds.run(plan, crossbar), crossbar)
    assert largest["layer"] >= 12 * US
    assert execution.run(plan, crossbar, tolerance=0.0).end("combine").max() >= largest["layer"]


def test_own_wire_leaves_cores_out(crossbar):
    one = layer("cann-ep", pod_name="cloudmatrix384")
    sent = next(phase for phase in one.plan.phases if phase.name == "dispatch.send")
    wire = bounds.own_wire(sent.flows, one.resources)
    assert wire == pytest.approx(one.bound().spans["dispatch.send"].wire)
    assert (wire > 0).all()
