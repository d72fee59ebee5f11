"""Planning, weights before, after and beside dispatch, relays, gradients: as phases, and as they run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_cases import EVERYTHING, layer

from moesim import bounds, compute, execution, strategy, weights
from moesim.balancers import BALANCERS
from moesim.plan import Local, Plan, Transfer, When
from moesim.timing import exposed

PORT = 100e9
"""[B/s] of the crossbar of the small cases; two links of 1 us between any two ranks."""


def phases(one):
    return {phase.name: phase for phase in one.plan.phases}


def moving(when, costs=None, counts="none"):
    """MoonEP's plan, moved at another time, with other constants."""
    kind = type("Moving", (BALANCERS.get("moonep"),), {"weights": when, "counts": counts})
    return kind(), costs or {}


def with_moves(one, moves, relayed=None, stall=False, costs=None, when="before", train=False):
    """The same layer with other moves; ``moves``: (slot, sender)."""
    assignment = replace(
        one.case.assignment,
        moves=np.array(moves, dtype=np.int64).reshape(-1, 2),
        relayed=None if relayed is None else np.array(relayed),
        stall=stall,
    )
    balancer, _ = moving(when)
    case = replace(one.case, assignment=assignment)
    planning = replace(one.strategy.planning, values=costs or {})
    changed = replace(one.strategy, balancer=balancer, planning=planning)
    return replace(one, strategy=changed, case=case, plan=strategy.plan(changed, case, "bf16", train))


@pytest.fixture(scope="module")
def base():
    return layer("deepep-ll", "moonep", skew=2.0)


def slots_of(one, rank):
    return np.flatnonzero(one.case.assignment.placement.slot_rank == rank)


def test_counts_go_to_all_and_everybody_plans_alone(base):
    balancer, costs = moving("before", {"plan": 3e-6}, "all")
    found, after = weights.planning(balancer, costs, base.case)
    counts, decided = found
    assert len(counts.flows) == 8 * 7
    assert (counts.flows.payload == 4 * 16).all()
    assert {dep.when for dep in decided.after} == {When.MINE, When.INBOUND}
    assert [(dep.phase, dep.when) for dep in after] == [("plan", When.MINE)]
    ran = execution.run(Plan(8, tuple(found)), base.resources, tolerance=0.0)
    assert ran.spans["plan"].end == pytest.approx(7 * 64 / PORT + 2e-6 + 3e-6)


def test_a_plan_that_takes_no_time_waits_for_the_counts_all_the_same(base):
    balancer, costs = moving("before", {}, "all")
    found, after = weights.planning(balancer, costs, base.case)
    assert [phase.name for phase in found] == ["plan.counts"]
    assert {dep.when for dep in after} == {When.MINE, When.INBOUND}


def test_planning_by_terms(base):
    costs = {"plan": 3e-6, "host_round_trip": 60e-6, "plan_barriers": 2.0, "barrier": 1e-6, "remap": 7e-6}

    def seconds(off):
        balancer, _ = moving("before")
        case = replace(base.case, off=frozenset(off))
        found = [*weights.planning(balancer, costs, case)[0], *weights.remap(costs, case, ())]
        return sum(phase.duration.max() for phase in found if isinstance(phase, Local))

    assert seconds([]) == pytest.approx(72e-6)
    assert seconds(["sync"]) == pytest.approx(10e-6)
    assert seconds(["serialisation"]) == pytest.approx(62e-6)
    assert seconds(EVERYTHING) == 0.0


def test_before_dispatch_a_rank_first_sends_its_own_and_gemms_wait_for_what_comes(base):
    one = with_moves(base, [(slots_of(base, 5)[2], 3)])
    ran = one.fluid()
    push, size = ran.spans["weights.push"], one.case.model.expert_bytes("bf16")
    assert push.end[3] == pytest.approx(size / PORT + 2e-6)
    begins = ran.spans["dispatch.send"].start
    assert (np.delete(begins, 3) < begins[3]).all()
    assert begins[3] >= push.end[3]
    assert ran.spans["expert.gemm"].start[5] >= push.arrived[5]
    assert "weights.barrier" not in ran.spans


def test_the_busiest_sender_decides(base):
    """Three copies from one rank take thrice the time of three from three."""
    size = base.case.model.expert_bytes("bf16")
    to = [slots_of(base, rank)[2] for rank in (1, 2, 3)]
    one, three = (
        with_moves(base, list(zip(to, senders, strict=True))).fluid().spans["weights.push"].arrived.max()
        for senders in ((0, 0, 0), (0, 4, 5))
    )
    # A few rows of ranks that send no weights are under way, too.
    assert one == pytest.approx(3 * size / PORT + 2e-6, rel=5e-3)
    assert three == pytest.approx(size / PORT + 2e-6, rel=5e-3)


def test_weights_contend_with_tokens_where_they_overlap(base):
    """Rank 3 pushes to rank 5 while the others dispatch to it: their rows share its port."""
    slot = slots_of(base, 5)[2]
    wide = replace(base, case=replace(base.case, model=replace(base.case.model, intermediate=8192)))
    with_push, without = (with_moves(wide, moves).fluid() for moves in ([(slot, 3)], []))
    others = np.delete(np.arange(8), [3, 5])
    late, soon = (ran.spans["dispatch.send"].end[others] for ran in (with_push, without))
    assert late.max() > soon.max() * 1.01


@pytest.mark.parametrize("intermediate", [256, 4096])
def test_a_relay_sends_on_behind_its_own_receipt(base, intermediate):
    """0 -> 1 -> 2: the leaf has all of it one chunk and one flight after the relay."""
    wide = replace(base, case=replace(base.case, model=replace(base.case.model, intermediate=intermediate)))
    one = with_moves(wide, [(slots_of(base, 1)[2], 0), (slots_of(base, 2)[2], 1)], relayed=[False, True])
    size = one.case.model.expert_bytes("bf16")
    spans = one.fluid().spans
    here = spans["weights.push"].arrived[1]
    assert here == pytest.approx(size / PORT + 2e-6, rel=5e-3)
    late = spans["weights.last chunk"].arrived[2] - here
    # Rows of a rank that sends no weights share the port for a moment.
    assert late == pytest.approx(weights.CHUNK / PORT + 2e-6, rel=0.1)
    assert late >= (weights.CHUNK / PORT + 2e-6) * (1 - 1e-9)
    sent = sum(phase.flows.wire.sum() for phase in one.plan.phases if phase.label == "weights")
    assert sent == pytest.approx(2 * size)


def test_relays_send_at_their_own_rate(base):
    moves = [(slots_of(base, 1)[2], 0), (slots_of(base, 2)[2], 1)]
    spans = with_moves(base, moves, [False, True], costs={"relay_rate": PORT / 4}).fluid().spans
    size = base.case.model.expert_bytes("bf16")
    assert spans["weights.push"].arrived[1] == pytest.approx(size / (PORT / 4) + 2e-6)


def test_in_the_background_nobody_waits(base):
    move = [(slots_of(base, 5)[2], 3)]
    quiet, moved = (with_moves(base, moves, when="background") for moves in ([], move))
    assert "weights.push" not in phases(quiet)
    assert moved.plan.aside == {"weights.push"}
    waits = {dep.phase for phase in moved.plan.phases for dep in phase.after}
    assert "weights.push" not in waits


def test_what_a_step_does_not_hide_of_the_background_is_exposed(base):
    """A model of one layer has a step of one layer."""
    huge = replace(base, case=replace(base.case, model=replace(base.case.model, intermediate=10**6)))
    move = [(slots_of(base, 5)[2], 3)]
    one = with_moves(huge, move, when="background")
    ran, closed = one.fluid(), one.bound()
    late = ran.spans["weights.push"].arrived[5] - ran.last.max()
    assert exposed(ran, closed) == pytest.approx({"weights": late})
    deep = replace(huge, case=replace(huge.case, model=replace(huge.case.model, moe_layers=10**5)))
    many = with_moves(deep, move, when="background")
    assert exposed(many.fluid(), many.bound()) == {}


def test_a_stall_stops_everybody(base):
    costs = {"plan": 5e-6, "remap": 1e-6}
    one = with_moves(base, [(slots_of(base, 5)[2], 3)], stall=True, when="background", costs=costs)
    spans = one.fluid().spans
    assert spans["weights.push"].start == pytest.approx(np.full(8, 5e-6))
    sent = spans["weights.push"].end.max()
    assert spans["plan.remap"].start == pytest.approx(np.full(8, sent))
    first = min(span.start.min() for name, span in spans.items() if name.startswith("dispatch."))
    assert first == pytest.approx(sent + 1e-6)
    assert one.plan.beside == ()
    # Without moves planning costs the step nothing.
    quiet = with_moves(base, [], when="background", costs=costs)
    assert "plan" not in phases(quiet)
    assert "plan.remap" in phases(quiet)


def test_gradients_come_home_in_fp32_once_an_expert_and_rank(base):
    placement = base.case.assignment.placement
    found = weights.gradients({}, base.case, ())
    (pull,) = found
    used = (placement.slot_expert >= 0) & (base.case.assignment.gemm_rows > 0)
    copies = used & (placement.home[placement.slot_expert] != placement.slot_rank)
    assert copies.sum() > 1
    assert sorted(pull.flows.src.tolist()) == sorted(placement.slot_rank[copies].tolist())
    homes = placement.home[placement.slot_expert[copies]]
    assert sorted(pull.flows.dst.tolist()) == sorted(homes.tolist())
    assert (pull.flows.wire == compute.gradient_bytes(base.case.model)).all()
    rate = weights.gradients({"gradient": 1e-5, "gradient_rate": PORT / 8}, base.case, ())
    assert [phase.name for phase in rate] == ["gradients.launch", "gradients.pull", "gradients.zero"]
    ran = execution.run(Plan(8, tuple(rate)), base.resources, tolerance=0.0)
    most = np.bincount(homes).max()
    assert ran.spans["gradients.zero"].end.max() == pytest.approx(
        1e-5 + most * compute.gradient_bytes(base.case.model) / (PORT / 8) + 2e-6
    )


def test_nothing_comes_home_where_there_are_no_copies():
    assert weights.gradients({"gradient": 1.0}, layer("deepep-ll").case, ()) == []


def test_fluid_is_never_below_its_bound(base):
    moves = [(slots_of(base, 1)[2], 0), (slots_of(base, 2)[2], 1), (slots_of(base, 5)[2], 0)]
    for when in ("before", "after", "background"):
        one = with_moves(base, moves, [False, True, False], when=when, train=True)
        closed = one.bound()
        ranked, largest = bounds.stages(closed, one.resources)
        ran = one.fluid()
        assert ran.last.max() >= largest["layer"] * (1 - 1e-9)
        assert (ran.end("dispatch") >= ranked["dispatch"] * (1 - 1e-9)).all()
        transfers = [phase.name for phase in one.plan.phases if isinstance(phase, Transfer)]
        for name in transfers:
            assert (ran.spans[name].end >= closed.spans[name].end * (1 - 1e-9)).all(), name
