"""DeepEP's high-throughput kernels and their kin across domains: what is sent where, what it costs and waits for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_cases import EVERYTHING, layer, stages

from moesim import bounds, execution
from moesim.plan import After, Plan, When
from moesim.timing import breakdown

HIDDEN, TOKENS, TOP_K = 1024, 12, 4
ROW = HIDDEN + 4 * HIDDEN / 128 + TOP_K * 12 + 8
TWO_HOSTS = {"pod_name": "rails", "ep": 8}
"""Two domains of four ranks, one NIC a rank."""
RELAYED = ("deepep-ht", "hybrid-ep", "deepep-v2")


def phases(one):
    return {phase.name: phase for phase in one.plan.phases}


def matrix(flows, column="messages"):
    total = np.zeros((8, 8))
    np.add.at(total, (flows.src, flows.dst), getattr(flows, column))
    return total


def both(found, name):
    return matrix(found[name].flows) + matrix(found[f"{name} last chunk"].flows)


def brute(one):
    """(R, R) rows on the NIC and (R, R) rows that relays pass on, token by token."""
    over, relayed = np.zeros((8, 8)), np.zeros((8, 8))
    slots = one.case.assignment.slot.reshape(8, TOKENS, TOP_K)
    rank_of = one.case.assignment.placement.slot_rank
    for source, tokens in enumerate(slots):
        for token in tokens:
            ranks = set(rank_of[token].tolist())
            for domain in {rank // 4 for rank in ranks}:
                relay = domain * 4 + source % 4
                over[source, relay] += relay != source
                for rank in ranks:
                    if rank // 4 == domain and rank != relay:
                        relayed[relay, rank] += 1
    return over, relayed


@pytest.mark.parametrize("protocol", RELAYED)
def test_a_token_crosses_once_to_the_same_index_of_each_domain_and_comes_back_the_same_way(protocol):
    one = layer(protocol, tokens=TOKENS, **TWO_HOSTS)
    over, relayed = brute(one)
    found = phases(one)
    assert over.sum() > 0
    assert matrix(found["dispatch.nic"].flows) == pytest.approx(over)
    assert both(found, "dispatch.send") == pytest.approx(relayed)
    assert matrix(found["combine.send"].flows) == pytest.approx(relayed.T)
    assert both(found, "combine.nic") == pytest.approx(over.T)


@pytest.mark.parametrize("protocol", RELAYED)
def test_what_came_last_is_forwarded_when_it_is_there(protocol):
    one = layer(protocol, tokens=4096, experts=16, **TWO_HOSTS, constants={"chunk": 1})
    found = phases(one)
    stream = found["dispatch.send"]
    rest = found["dispatch.send last chunk"]
    assert After("dispatch.nic", When.STREAM) in stream.after
    assert After("dispatch.nic", When.INBOUND) in rest.after
    share = rest.flows.wire.sum() / (rest.flows.wire.sum() + stream.flows.wire.sum())
    assert 0 < share < 0.01
    for timing in (one.bound(), one.fluid()):
        spans = timing.spans
        nic = np.maximum(spans["dispatch.nic"].arrived, spans["dispatch.nic"].start)
        assert (spans["dispatch.send"].start < nic).all()
        assert (spans["dispatch.send last chunk"].start >= nic).all()


@pytest.mark.parametrize("protocol", RELAYED)
@pytest.mark.parametrize("balancer", ["none", "moonep"])
@pytest.mark.parametrize("chunk", [0.05, 1e9])
def test_no_phase_of_two_hops_ends_before_its_bound_and_the_parts_add_up(protocol, balancer, chunk):
    one = layer(protocol, balancer, **TWO_HOSTS, tokens=40, constants={"chunk": chunk})
    fluid, bound = one.fluid(), one.bound()
    for name, least in bound.spans.items():
        assert (fluid.spans[name].start >= least.start - 1e-15).all(), name
        assert (fluid.spans[name].end >= least.end * (1 - 1e-9)).all(), name
    assert fluid.load == pytest.approx(bound.load)
    for timing in (fluid, bound):
        assert sum(breakdown(timing).values()) == pytest.approx(timing.end("combine").max(), rel=1e-9)
    ran = stages(fluid)
    ranked, largest = bounds.stages(bound, one.resources)
    for stage, times in ran.items():
        assert times.max() >= largest[stage] * (1 - 1e-9), stage
        assert (times >= ranked[stage] * (1 - 1e-9)).all(), stage


def test_a_channel_takes_its_tokens_and_all_rows_pass_what_sms_share():
    constants = {"cores": 8, "dispatch_core_rate": 1e9, "shared_rate": 5e9, "port_rate": 1e12}
    one = layer("deepep-ht", ep=8, tokens=TOKENS, constants=constants)
    rows = one.case.traffic.rows
    flows = phases(one)["dispatch.send"].flows
    # 12 tokens over 4 channels: 3 each; own-rank rows count.
    engine = rows.sum(axis=1) * ROW * (3 / 12 / 1e9 + 1 / 5e9)
    assert np.bincount(flows.src, flows.core_s, 8) == pytest.approx(engine)
    assert flows.wire == pytest.approx(flows.messages * ROW)
    uneven = layer("deepep-ht", ep=8, tokens=TOKENS, constants=constants | {"cores": 10})
    flows = phases(uneven)["dispatch.send"].flows
    engine = rows.sum(axis=1) * ROW * (3 / 12 / 1e9 + 1 / 5e9)  # of 5 channels, two have 3 and 3 have 2
    assert np.bincount(flows.src, flows.core_s, 8) == pytest.approx(engine)


def test_the_port_limits_what_leaves_the_rank():
    one = layer("deepep-ht", ep=8, tokens=TOKENS, constants={"port_rate": 1e9})
    rows = one.case.traffic.rows
    flows = phases(one)["combine.send"].flows
    away = (rows.T.sum(axis=1) - rows.diagonal()) * 2 * HIDDEN
    assert np.bincount(flows.src, flows.core_s, 8) == pytest.approx(away / 1e9)


def test_receivers_need_as_long_and_have_a_chunk_left():
    constants = {"cores": 8, "dispatch_core_rate": 1e9, "shared_rate": 5e9, "chunk": 0.5}
    one = layer("deepep-ht", ep=8, tokens=TOKENS, constants=constants)
    found, rows = phases(one), one.case.traffic.rows
    seconds = rows.sum(axis=0) * ROW * (3 / 12 / 1e9 + 1 / 5e9)
    chunks = rows.sum(axis=1).max() / (4 * 8 * 0.5)
    assert chunks > 1
    assert found["dispatch.receive last chunk"].duration == pytest.approx(seconds / chunks)
    assert found["dispatch.receive"].duration == pytest.approx(seconds * (1 - 1 / chunks))
    assert {(dep.phase, dep.when) for dep in found["dispatch.receive last chunk"].after} >= {
        ("dispatch.send", When.INBOUND),
        ("dispatch.send", When.MINE),
    }


def test_counts_come_first_in_a_layer_and_not_in_its_benchmark():
    times = {"notify": 7e-6, "notify_at_2": 9e-6}
    one_domain, two = layer("deepep-ht", constants=times), layer("deepep-ht", **TWO_HOSTS, constants=times)
    assert phases(one_domain)["dispatch.notify"].duration == pytest.approx(7e-6)
    assert phases(two)["dispatch.notify"].duration == pytest.approx(9e-6)
    assert "dispatch.notify" not in phases(layer("deepep-ht", off=["sync"]))
    assert "combine.notify" not in phases(one_domain)
    again = layer("deepep-ht", **TWO_HOSTS, constants=times | {"notify_token": 1e-6, "cores": 8})
    assert phases(again)["combine.notify"].duration == pytest.approx(9e-6 + 3e-6)  # 3 of 12 tokens
    for one in (one_domain, two):
        timed = one.strategy.protocol.operation("dispatch", one.case)
        assert not {"dispatch.notify", "combine.notify", "dispatch.expand"} & {phase.name for phase in timed}
    assert one_domain.strategy.protocol.operation("prepare", one_domain.case) is None


def test_relays_pace_a_combine_that_adds_up_for_the_nic():
    slow = layer("deepep-ht", tokens=64, **TWO_HOSTS, constants={"combine_relay_rate": 1e8})
    fast = layer("deepep-ht", tokens=64, **TWO_HOSTS, constants={"combine_relay_rate": 1e12})
    relay = phases(slow)["combine.relay"]
    assert relay.label == "reduce"
    took = [one.bound().spans["combine.nic last chunk"].start.max() for one in (slow, fast)]
    assert took[0] > 2 * took[1]


def test_queues_do_not_grow_with_the_batch_and_rows_do():
    few, many = (layer("deepep-ht", tokens=n, **TWO_HOSTS).buffers() for n in (4, 64))
    assert few["nvlink"] == many["nvlink"] > 0
    assert few["rdma"] == many["rdma"] > 0
    assert few["rows"] < many["rows"]
    assert layer("deepep-ht").buffers()["rdma"] == 0


@pytest.mark.parametrize("protocol", [*RELAYED, "deepep-ll"])
@pytest.mark.parametrize("operation", ["dispatch", "combine"])
def test_the_bound_is_the_fluid_time_where_nothing_contends(protocol, operation):
    """Every rank sends the same to every other, each over its own port and NIC."""
    ids = np.array([[(token + k * 2) % 16 for k in range(8)] for token in range(8 * 64)])
    shape = {"tokens": 64, "top_k": 8, "hidden": 7168, "ids": ids}
    for where in (
        {"pod_name": "gb200-nvl72"},
        {"pod_name": "h100-ib", "ep": 16, "ids": np.tile(ids, (2, 1))},
    ):
        one = layer(protocol, **(shape | where))
        timed = one.strategy.protocol.operation(operation, one.case)
        plan = Plan(one.case.ranks, timed, {})
        least = bounds.latest(bounds.run(plan, one.resources))[timed[-1].name]
        ran = execution.run(plan, one.resources, tolerance=0.0).spans[timed[-1].name].end.max()
        assert least <= ran * (1 + 1e-9)
        assert ran == pytest.approx(least, rel=0.03)


@pytest.mark.parametrize("protocol", [*RELAYED, "deepep-ll"])
def test_two_racks_joined_by_nics(protocol):
    shape = {"ep": 144, "experts": 144, "top_k": 8, "tokens": 4, "pod_name": "gb200-nvl72-racks"}
    one = layer(protocol, **shape)
    assert len(set(one.case.traffic.domain.tolist())) == 2
    ran, least = one.fluid(0.01), one.bound()
    assert (ran.end("combine") >= least.end("combine") * (1 - 1e-9)).all()
    racks = phases(one)["dispatch.nic" if protocol in RELAYED else "dispatch.send"].flows
    crossing = np.abs(racks.dst - racks.src) == 72
    assert crossing.all() if protocol in RELAYED else crossing.any()


@pytest.mark.parametrize("protocol", RELAYED)
def test_with_all_terms_off_two_hops_are_left(protocol):
    one = layer(protocol, **TWO_HOSTS, off=EVERYTHING)
    timed = one.strategy.protocol.operation("dispatch", one.case)
    plan = replace(one.plan, phases=timed, ends={})
    took = bounds.run(plan, one.resources).spans[timed[-1].name].end.max()
    nic, way = phases(one)["dispatch.nic"].flows, one.case.routes.latency
    # The NIC takes 1 us a message, which is more than its bytes; rows inside the domain may be on their way even then.
    least = np.bincount(nic.src, nic.messages).max() * 1e-6 + way[0, 4] + way[0, 1]
    assert took >= least * (1 - 1e-9)
    assert took == pytest.approx(least, rel=0.35)
