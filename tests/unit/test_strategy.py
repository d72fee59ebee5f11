"""A protocol and a balancer in one plan: what comes first, what waits for weights, what memory they take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_cases import EVERYTHING, layer, pod
from suited import suited

from moesim import moe, strategy
from moesim.balancers import BALANCERS
from moesim.plan import Transfer, When
from moesim.protocols import PROTOCOLS, build
from moesim.sources import Grade
from moesim.timing import BALANCING


def phases(one):
    return {phase.name: phase for phase in one.plan.phases}


def test_without_a_planning_balancer_a_layer_is_dispatch_gemm_combine():
    one = layer("deepep-ll")
    assert one.strategy.planning is None
    assert one.plan.ends == {
        "dispatch": "dispatch.pack",
        "expert": "expert.gemm",
        "combine": "combine.reduce",
    }
    names = list(phases(one))
    assert names[0].startswith("dispatch.")
    assert not [name for name in names if name.startswith(("plan", "weights"))]


def test_all_ranks_leave_the_planning_together():
    one = layer("deepep-ll", "moonep")
    counts, decided, spread, first = one.plan.phases[:4]
    assert [phase.name for phase in (counts, decided, spread)] == ["plan.counts", "plan", "plan.multicast"]
    assert [(dep.phase, dep.when) for dep in spread.after] == [("plan", When.ALL)]
    ran = one.fluid()
    assert {dep.phase for dep in first.after} == {"plan.multicast"}
    # Every rank has the plan, 3 int32 an expert and rank, at one moment.
    size = 3 * 4 * 16 * 8
    assert spread.flows.payload.tolist() == [size] * 7
    here = ran.spans["plan.multicast"].moment(When.INBOUND)[1:]
    assert here == pytest.approx(ran.spans["plan"].end[1:] + one.case.routes.latency[0, 1] + size / 100e9)


def test_planning_costs_what_the_calibration_says():
    one = layer("deepep-ll", "moonep")
    c = one.strategy.planning
    fixed = c["plan"] + c["plan_barriers"] * c["barrier"]
    assert phases(one)["plan"].duration == pytest.approx(fixed + 12 * 4 * c["plan_per_entry"])
    no_sync = phases(layer("deepep-ll", "moonep", off=["sync"]))["plan"].duration
    assert phases(one)["plan"].duration - no_sync == pytest.approx(c["plan_barriers"] * c["barrier"])
    assert "plan" not in phases(layer("deepep-ll", "moonep", off=["sync", "serialisation"]))


def test_weights_travel_from_home_after_dispatch_and_before_the_gemm():
    one = layer("deepep-ll", "moonep", skew=2.0)
    push, moves = phases(one)["weights.push"], one.case.assignment.moves
    placement = one.case.assignment.placement
    assert len(moves) > 0
    assert push.flows.src.tolist() == placement.home[placement.slot_expert[moves[:, 0]]].tolist()
    assert push.flows.dst.tolist() == placement.slot_rank[moves[:, 0]].tolist()
    assert (push.flows.payload == one.case.model.expert_bytes("bf16")).all()
    ran = one.fluid()
    assert (ran.spans["weights.push"].start >= ran.end("dispatch")).all()
    assert (ran.spans["expert.gemm"].start >= ran.spans["weights.push"].end.max()).all()


def test_nobody_waits_for_the_others_weights_without_sync():
    one = layer("deepep-ll", "moonep", skew=2.0, off=["sync"])
    ran = one.fluid()
    arrived = np.maximum(ran.spans["weights.push"].arrived, ran.spans["weights.push"].start)
    assert ran.spans["expert.gemm"].start == pytest.approx(arrived)


def test_balanced_gemms_take_the_same_rows_everywhere():
    shape = {"skew": 2.0, "tokens": 256, "hidden": 64, "intermediate": 4096}
    spread = [
        phases(layer("deepep-ll", name, pod_name="gb200-nvl72", **shape))["expert.gemm"].duration
        for name in ("none", "moonep")
    ]
    assert np.ptp(spread[1]) < np.ptp(spread[0])


def test_own_protocol_of_the_planner_does_not_plan_twice():
    names = phases(layer("rank-dedup-push", "moonep"))
    assert "plan" in names
    assert "dispatch.plan" not in names
    assert "dispatch.plan" in phases(layer("rank-dedup-push"))


def test_a_planner_adds_static_slots_and_rows():
    plain, static = layer("deepep-ll"), layer("deepep-ll", "moonep")
    added = static.buffers().keys() - plain.buffers().keys()
    assert added == {"weight_slots", "expert_rows"}
    assert static.buffers()["weight_slots"] == 2 * static.case.model.expert_bytes("bf16")
    rows = static.case.assignment.static_rows
    assert static.buffers()["expert_rows"] == rows * static.strategy.protocol.dispatch_row(static.case.model)
    # Its own protocol has such a buffer already.
    assert "expert_rows" not in layer("rank-dedup-push", "moonep").buffers()


def test_memory_is_homes_of_all_layers_and_buffers():
    one = layer("deepep-ll", "moonep")
    model = moe.load("deepseek-v3")
    used = strategy.memory(one.case, model, "fp8", {"a": 3.0, "b": 4.0})
    assert used["expert_weights"] == 2 * model.expert_bytes("fp8") * 58
    assert used["buffers"] == 7.0
    assert used["device"] == one.case.device.memory


def test_what_is_assumed_is_cited_as_such():
    topology = pod("gb200-nvl72")
    one = strategy.build(
        "x", build("ubep"), BALANCERS.get("moonep")(), ("atomic-512B", "multicast"), topology
    )
    assert one.assumed == ("atomic-512B",)
    assert [cited.where for cited in one.cited if cited.where.startswith("assume")] == ["assume atomic-512B"]
    assert one.cited[0].grade is Grade.ASSUMED
    assert {cited.where.split(".")[0] for cited in one.cited[1:]} == {"ubep", "moonep"}


def test_nothing_is_left_of_a_planner_but_its_weights():
    one = layer("deepep-ll", "moonep", skew=2.0, off=EVERYTHING)
    assert set(phases(one)) == {
        "dispatch.send",
        "dispatch.pack",
        "weights.push",
        "weights.here",
        "expert.gemm",
        "combine.send",
        "combine.reduce",
    }


def test_training_is_the_forward_pass_and_a_backward_one():
    """Forward as in prefill, to the digit; backward begins when all have combined."""
    prefill, train = (
        layer("rank-dedup-push", "moonep", pod_name="gb200-nvl72", skew=2.0, train=train)
        for train in (False, True)
    )
    alone, both = prefill.fluid(), train.fluid()
    for stage in prefill.plan.ends:
        assert (both.end(stage) == alone.end(stage)).all()
    assert list(train.plan.ends)[3:] == ["backward_dispatch", "backward_expert", "backward_combine"]
    begins = [span.start.min() for name, span in both.spans.items() if name.startswith("backward.")]
    assert min(begins) == both.end("combine").max()
    assert (both.last > both.end("combine")).all()


@pytest.mark.parametrize("balancer", ["none", "moonep"])
@pytest.mark.parametrize("protocol", PROTOCOLS.names())
def test_backward_sends_the_same_rows_in_bf16_and_plans_nothing(protocol, balancer):
    one = layer(protocol, balancer, pod_name="gb200-nvl72", skew=2.0, train=True)
    back = [phase for phase in one.plan.phases if phase.name.startswith("backward.")]
    assert back
    assert not [phase.name for phase in back if phase.label in ("planning", "metadata")]

    def payload(name, form):
        row = one.case.model.payload_bytes(form)
        return sum(
            phase.flows.payload.sum() / row
            for phase in one.plan.phases
            if isinstance(phase, Transfer) and phase.name.startswith(name) and phase.label not in BALANCING
        )

    sent = payload("dispatch.", one.strategy.protocol.formats[0])
    labels = {phase.label for phase in one.plan.phases if phase.name.startswith("dispatch.")}
    if "metadata" not in labels:  # counts are payload of their phase
        assert payload("backward.dispatch.", "bf16") == pytest.approx(sent)
    assert payload("backward.combine.", "bf16") == pytest.approx(
        payload("combine.", one.strategy.protocol.formats[1])
    )


def test_weights_move_again_backward_and_gradients_return_beside():
    one = layer("rank-dedup-push", "moonep", pod_name="gb200-nvl72", skew=2.0, train=True)
    found = phases(one)
    again, first = found["backward.weights.push"].flows, found["weights.push"].flows
    assert again.src.tolist() == first.src.tolist()
    assert again.wire.sum() == first.wire.sum() == len(one.case.assignment.moves) * first.wire[0]
    assert one.plan.aside == {"gradients.pull"}
    assert found["gradients.pull"].flows.wire.sum() == 2 * first.wire.sum()
    ran = one.fluid()
    assert ran.spans["gradients.pull"].start.min() == ran.end("backward_expert").max()
    assert found["backward.expert.gemm"].duration.max() >= 1.99 * found["expert.gemm"].duration.max()


def test_slots_of_a_layer_or_of_all_and_their_gradients():
    """MoonEP's two slots serve all layers in turn; copies that stay have one a layer."""
    size, gradient = 3 * 1024 * 256 * 2, 3 * 1024 * 256 * 4
    shared = layer("deepep-ll", "moonep")
    sizes = strategy.buffers(shared.strategy, shared.case, "bf16", train=True)
    assert (sizes["weight_slots"], sizes["gradient_slots"]) == (2 * size, 2 * gradient)
    assert "redundant_experts" not in sizes
    fixed = replace(shared.strategy, balancer=suited("eplb", 8, 16))
    deep = replace(shared.case, model=replace(shared.case.model, moe_layers=5))
    sizes = strategy.buffers(fixed, deep, "bf16", train=True)
    assert (sizes["redundant_experts"], sizes["gradient_slots"]) == (5 * 2 * size, 5 * 2 * gradient)


def test_the_oracles_copies_are_free():
    one, none = (
        layer("deepep-ll", name, pod_name="gb200-nvl72", skew=2.0, train=True) for name in ("oracle", "none")
    )
    assert len(one.case.assignment.placement.slot_rank) > 16
    assert one.buffers() == none.buffers()
    assert not [phase for phase in one.plan.phases if phase.label in BALANCING]
    # Two experts a rank are read, however many copies are there.
    assert phases(one)["expert.gemm"].duration.max() <= phases(none)["expert.gemm"].duration.max()
