"""What every registered protocol must satisfy under every balancer; a new one is tested by being registered."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from small_cases import EVERYTHING, SOME_PODS, layer, stages

from moesim import bounds, execution
from moesim.balancers import BALANCERS
from moesim.contention import demand
from moesim.errors import InputError
from moesim.network import finish_times
from moesim.plan import FlowSet, Local, Plan, Transfer
from moesim.protocols import PROTOCOLS, TERMS, build
from moesim.timing import breakdown

LABELS = {
    "launch",
    "planning",
    "metadata",
    "quantise",
    "send",
    "wire",
    "wait",
    "sync",
    "reorder",
    "weights",
    "gemm",
    "reduce",
    "unexplained",
}
PADDED = {"kind": "nccl-alltoall", "sizes": "padded", "capacity_factor": 2}
VARIANTS = {name: name for name in PROTOCOLS.names()} | {
    "ubep tff": {"kind": "ubep", "sync": "tff"},
    "ubep dc": {"kind": "ubep", "sync": "dc"},
    "ubep stop-and-wait": {"kind": "ubep", "sync": "stop-and-wait"},
    "ubep unmixed": {"kind": "ubep", "hop_mix": False},
    "cann-ep few cores": {"kind": "cann-ep", "cores": 5, "window": "fullmesh_v2"},
    "nccl padded": PADDED,
    "trtllm-twosided fp4": {"kind": "trtllm-twosided", "combine": "nvfp4"},
}
SHAPES = {
    "skewed": {},
    "uniform": {"skew": 0.0, "seed": 3},
    "not a power of two, spread": {"ep": 6, "experts": 18, "place": "spread"},
    "one expert a rank": {"experts": 8, "top_k": 2},
    "all to one rank": {"experts": 32, "ids": np.tile(np.arange(4), (8 * 12, 1))},
    "one rank": {"ep": 1},
    "one token": {"tokens": 1},
    "no tokens": {"tokens": 0},
}

every_variant = pytest.mark.parametrize("protocol", VARIANTS.values(), ids=VARIANTS.keys())
every_balancer = pytest.mark.parametrize("balancer", BALANCERS.names())
every_pod = pytest.mark.parametrize("pod", SOME_PODS)
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


def transfer(one, name):
    return next(phase for phase in one.plan.phases if phase.name == name).flows


def matrix(flows, column, ranks):
    """(R, R) bytes of ``column`` from rank to rank."""
    total = np.zeros((ranks, ranks))
    np.add.at(total, (flows.src, flows.dst), getattr(flows, column))
    return total


def rows_sent(one):
    """(R, R) rows that leave their rank."""
    return one.strategy.protocol.rows(one.case) * ~np.eye(one.case.ranks, dtype=bool)


@every_variant
@every_balancer
@every_shape
def test_every_row_reaches_its_rank_and_comes_back(protocol, balancer, shape):
    one = layer(protocol, balancer, **shape)
    proto, rows = one.strategy.protocol, rows_sent(one)
    there = matrix(transfer(one, "dispatch.send"), "payload", one.case.ranks)
    back = matrix(transfer(one, "combine.send"), "payload", one.case.ranks)
    asked = [one.case.model.payload_bytes(form) for form in proto.formats]
    assert there == pytest.approx(rows * asked[0])
    assert back == pytest.approx(rows.T * asked[1])


@every_variant
@every_shape
def test_rows_are_what_the_gate_asks_for(protocol, shape):
    """A row for each entry, or one for each distinct token and rank; never more, never none."""
    one = layer(protocol, **shape)
    rows, counted = one.strategy.protocol.rows(one.case), one.case.traffic
    assert (rows <= counted.entries_to).all()
    if protocol != PADDED:
        assert (rows >= counted.rows).all()


@every_variant
@every_balancer
def test_wire_is_never_less_than_payload_and_no_flow_stays_at_home(protocol, balancer):
    one = layer(protocol, balancer)
    for phase in one.plan.phases:
        if isinstance(phase, Transfer):
            flows = phase.flows
            assert (flows.src != flows.dst).all()
            assert (flows.wire >= flows.payload * (1 - 1e-12)).all()
            assert (flows.messages >= 1).all()
            assert (flows.core < one.resources.cores).all()
            assert (flows.core_s[flows.core < 0] == 0).all()


@every_variant
@pytest.mark.parametrize("balancer", ["none", "moonep"])
@every_pod
def test_fluid_moves_what_the_plan_says_and_is_not_below_its_bound(protocol, balancer, pod):
    one = layer(protocol, balancer, pod_name=pod)
    fluid, bound = one.fluid(), one.bound()
    assert fluid.load == pytest.approx(bound.load, rel=1e-9)
    for phase in one.plan.phases:
        ran, least = fluid.spans[phase.name], bound.spans[phase.name]
        assert (ran.start >= least.start - 1e-15).all()
        assert (ran.end >= least.end * (1 - 1e-9)).all()
        if isinstance(phase, Transfer):
            assert (np.maximum(ran.arrived, ran.start) >= least.arrived * (1 - 1e-9)).all()
            received = np.bincount(phase.flows.dst, minlength=one.case.ranks) > 0
            assert np.array_equal(ran.last >= 0, received)
    for timing in (fluid, bound):
        parts = breakdown(timing)
        assert sum(parts.values()) == pytest.approx(timing.end("combine").max(), rel=1e-9)
        assert set(parts) <= LABELS
    assert fluid.load.max() > 0


@every_variant
@every_shape
def test_critical_times_are_not_below_their_bounds(protocol, shape):
    for balancer, pod in (("none", "clos"), ("moonep", "rails")):
        one = layer(protocol, balancer, pod_name=pod, **shape)
        ran = stages(one.fluid())
        ranked, largest = bounds.stages(one.bound(), one.resources)
        for stage, times in ran.items():
            assert (times >= 0).all()
            assert times.max() >= largest[stage] * (1 - 1e-9), (balancer, stage)
            assert (times >= ranked[stage] * (1 - 1e-9)).all(), (balancer, stage)


@every_variant
@every_balancer
def test_no_tokens_cost_only_fixed_terms(protocol, balancer):
    small, large = (layer(protocol, balancer, tokens=0, hidden=hidden) for hidden in (1024, 4096))
    for phase in small.plan.phases:
        if isinstance(phase, Transfer) and phase.label not in ("metadata", "planning"):
            assert len(phase.flows) == 0
    assert small.fluid().end("combine").tolist() == large.fluid().end("combine").tolist()
    some = layer(protocol, balancer, tokens=12)
    assert small.fluid().end("combine").max() < some.fluid().end("combine").max()
    switched = layer(protocol, balancer, tokens=0, off=EVERYTHING)
    assert switched.fluid().end("combine").max() == 0.0


@every_variant
@every_balancer
@pytest.mark.parametrize("off", [(), ("memory",)])
def test_buffers_never_shrink_with_more_tokens(protocol, balancer, off):
    held = [layer(protocol, balancer, tokens=n, off=off).buffers() for n in (0, 1, 4, 16, 64)]
    for less, more in pairwise(held):
        assert less.keys() == more.keys()
        # Slots that are made as needed, and what is sized by them, follow how uneven the load is, not how large.
        if balancer != "llep":
            assert all(0 <= less[kind] <= more[kind] for kind in less)
    assert sum(held[-1].values()) > sum(held[0].values())


@every_variant
@pytest.mark.parametrize("balancer", ["none", "moonep"])
@every_pod
def test_without_the_four_terms_wire_and_latency_are_left(protocol, balancer, pod):
    one = layer(protocol, balancer, pod_name=pod, off=EVERYTHING)
    for phase in one.plan.phases:
        if isinstance(phase, Local) and phase.label != "gemm":
            assert not phase.duration.any(), phase.name
        elif isinstance(phase, Transfer):
            assert not phase.flows.core_s.any()
    proto, case = one.strategy.protocol, one.case
    for operation, phases in (("dispatch", proto.dispatch(case, ())), ("combine", proto.combine(case, ()))):
        sent = transfer(one, f"{operation}.send")
        alone = Plan(case.ranks, phases, {operation: phases[-1].name})
        took = execution.run(alone, one.resources, tolerance=0.0).end(operation).max()
        # The same bytes as bare flows, one for each pair of ranks.
        wire = matrix(sent, "wire", case.ranks)
        src, dst = np.nonzero(wire)
        bare = demand(FlowSet.of(src, dst, wire[src, dst]), one.resources)
        start = np.zeros(len(src))
        done = finish_times(
            bare.indptr, bare.index, bare.weight, one.resources.capacity, bare.size, start, 0.0
        )
        assert took == pytest.approx((done.finish + bare.latency).max(), rel=1e-9)


@every_variant
@pytest.mark.parametrize("term", TERMS)
def test_a_term_that_is_switched_off_never_lengthens_the_bound(protocol, term):
    for rest in (frozenset(), EVERYTHING - {term}):
        with_it = layer(protocol, pod_name="cloudmatrix384", off=rest)
        without = layer(protocol, pod_name="cloudmatrix384", off=rest | {term})
        _, more = bounds.stages(with_it.bound(), with_it.resources)
        _, less = bounds.stages(without.bound(), without.resources)
        # Copies of several cores to one rank are bounded each for itself, merged ones together.
        slack = 1e-12 if with_it.strategy.protocol.kind in ("cann-ep", "ubep") else 0.01
        assert all(less[stage] <= more[stage] * (1 + slack) for stage in ("dispatch", "layer"))


@pytest.mark.parametrize("term", TERMS)
def test_each_term_alone_costs_the_baseline_something(term):
    whole = layer("cann-ep", pod_name="cloudmatrix384", top_k=8, tokens=64, hidden=7168, skew=1.5)
    without = layer(
        "cann-ep", pod_name="cloudmatrix384", top_k=8, tokens=64, hidden=7168, skew=1.5, off=[term]
    )
    assert without.fluid().end("combine").max() < whole.fluid().end("combine").max()


@every_variant
@every_balancer
def test_phases_are_local_or_transfers_of_known_labels(protocol, balancer):
    one = layer(protocol, balancer)
    assert {phase.label for phase in one.plan.phases} <= LABELS
    for phase in one.plan.phases:
        if isinstance(phase, Local):
            assert phase.duration.shape == (8,)
            assert (phase.duration >= 0).all()
            assert np.isfinite(phase.duration).all()
            assert phase.chunks >= 1
    assert set(one.plan.ends) == {"dispatch", "expert", "combine"}


@pytest.mark.parametrize("name", PROTOCOLS.names())
def test_parameters_are_closed_and_costs_are_cited(name):
    with pytest.raises(InputError, match="unknown"):
        build({"kind": name, "no_such_parameter": 1})
    protocol = build(name)
    assert (protocol.kind, bool(protocol.summary), bool(protocol.bandwidth_name)) == (name, True, True)
    costs = protocol.calibrate("no-such-pod")
    assert costs.pod == "default"
    assert (
        set(costs.values)
        == set(protocol.constants)
        == {cited.where.split()[0].split(".")[1] for cited in costs.cited}
    )


def test_an_unknown_protocol_is_refused_with_a_near_name():
    with pytest.raises(InputError) as caught:
        build("ubepp")
    assert "ubep" in str(caught.value.problems[0].legal)
