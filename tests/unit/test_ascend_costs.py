"""What relay-free, xccl-pull and stop-and-wait charge for each phase, worked out by hand from their calibrations."""

from __future__ import annotations

import numpy as np
import pytest
from small_cases import layer

from moesim import bounds, execution
from moesim.plan import Plan, When
from moesim.protocols import build

HIDDEN, TOKENS, TOP_K, EXPERTS = 1024, 12, 4, 16
DIE = {"pod_name": "cloudmatrix384", "ep": 8}
ROW = 1536.0  # 1024 B and a scale of 4 B, padded to blocks of 512 B
EVEN = np.tile(np.arange(16).reshape(4, 4), (24, 1))
"""Picks of 8 ranks x 12 tokens: 6 entries of each rank to each of 16 experts, twice that over 8 ranks."""


def phases(one):
    return {phase.name: phase for phase in one.plan.phases}


def round_robin(ep, tokens):
    """Picks of top-8 of 256 experts that load all ranks and experts alike."""
    entry = np.arange(ep * tokens * 8)
    return ((entry % ep) * (256 // ep) + entry // ep % (256 // ep)).reshape(-1, 8)


def waits(phase):
    return {(dep.phase, dep.when) for dep in phase.after}


def copied(one, read, written):
    device = one.case.device
    return (read + written) / (device.hbm_rate * device.hbm_efficiency)


def test_relay_free_pays_a_round_of_addresses_before_it_sends():
    one = layer("relay-free", **DIE)
    c, found = one.case.calibration, phases(one)
    far = one.case.routes.latency.max(axis=1)
    assert found["dispatch.counts"].duration == pytest.approx(c["issue"])  # 16 records, 48 cores
    assert found["dispatch.count flight"].duration == pytest.approx(far)
    # One vector step over 16 records, then 16 offsets go back from 48 cores.
    assert found["dispatch.offsets"].duration == pytest.approx(c["vector_step"] + c["issue"])
    assert found["dispatch.offset flight"].duration == pytest.approx(far)
    assert found["dispatch.offset barrier"].duration == pytest.approx(c["barrier"])
    assert waits(found["dispatch.send"]) == {("dispatch.offset barrier", When.MINE)}
    assert waits(found["dispatch.flag flight"]) == {("dispatch.flags", When.ALL)}


def test_relay_free_copies_nothing_and_sums_what_it_reads():
    one = layer("relay-free", **DIE)
    assert [phase.label for phase in one.plan.phases].count("reorder") == 0
    own = one.case.traffic.entries_to.diagonal() * 2.0 * HIDDEN
    reduce = phases(one)["combine.reduce"].duration
    assert reduce == pytest.approx(copied(one, own, np.full(8, TOKENS * 2.0 * HIDDEN)))


def test_relay_free_writes_no_faster_than_the_die_although_its_routes_are_those_of_reads():
    one = layer("relay-free", ids=EVEN, **DIE)
    flows = phases(one)["dispatch.send"].flows
    # Six of seven peers are in other packages: 137 GB/s, the sibling 210 GB/s; 1.2 us of latency behind the last row.
    sent = 6 * ROW  # 48 entries of a rank, 6 to each rank
    assert np.bincount(flows.src, flows.wire) == pytest.approx(np.full(8, 7 * sent))
    least = 6 * sent / 137e9 + sent / 210e9 + 1.2e-6
    assert phases(one)["dispatch.write engine"].duration == pytest.approx(least)


def test_relay_free_holds_what_comes_and_no_window():
    one = layer("relay-free", ids=EVEN, capacity=512, **DIE)
    held = one.strategy.protocol.buffers(one.case)
    assert held == {"dispatch": 48 * ROW, "combine": 48 * 2.0 * HIDDEN, "metadata": 32.0 * EXPERTS}


@pytest.mark.parametrize(("ep", "tokens", "published"), [(32, 128, 7.5), (16, 512, 30.0)])
def test_relay_free_holds_what_the_windows_use_on_average(ep, tokens, published):
    """MiB of INT8 dispatch, hidden 7168, top-8 of 256 experts; the windows of cann-ep take 688 and 1376 MiB."""
    held = {}
    for kind in ("relay-free", "cann-ep"):
        shape = {"ep": ep, "tokens": tokens, "experts": 256, "top_k": 8, "hidden": 7168}
        one = layer(kind, pod_name="cloudmatrix384", ids=round_robin(ep, tokens), **shape)
        sizes = one.strategy.protocol.buffers(one.case)
        held[kind] = [sizes["dispatch"] / 2**20, (sizes["dispatch"] + sizes["combine"]) / 2**20]
    assert held["relay-free"][0] == pytest.approx(published)
    assert held["cann-ep"][1] == pytest.approx({32: 688, 16: 1376}[ep], abs=0.5)


def test_windows_of_a2_hosts():
    """2 x (B R min(local, K) H x 2 B + 2 MiB): CANN ops-transformer."""
    one = layer({"kind": "cann-ep", "window": "a2_fullmesh"}, pod_name="a2-cluster", capacity=256)
    held = one.strategy.protocol.buffers(one.case)
    assert held == {"window": 2.0 * (256 * 8 * 2 * 2 * HIDDEN + 2 * 2**20), "metadata": 32.0 * EXPERTS}


def test_a_pull_stages_records_reads_and_sorts():
    one = layer("xccl-pull", ids=EVEN, **DIE)
    c, found = one.case.calibration, phases(one)
    assert found["dispatch.stage"].duration == pytest.approx(copied(one, TOKENS * 2.0 * HIDDEN, 48 * ROW))
    assert found["dispatch.records"].duration == pytest.approx(c["issue"])  # 8 peers, 48 cores
    assert waits(found["dispatch.record flight"]) == {("dispatch.records", When.ALL)}
    assert found["dispatch.record flight"].duration == pytest.approx(1.2e-6)
    assert waits(found["dispatch.send"]) == {("dispatch.offsets", When.ALL)}
    # 48 rows on 48 cores, the six of the own rank are not read.
    least = max(c["issue"] + ROW / c["core_rate"], 1.2e-6 / c["copies_in_flight"])
    assert found["dispatch.read cores"].duration == pytest.approx(least)
    assert found["dispatch.sort"].duration == pytest.approx(copied(one, 48 * ROW, 48 * ROW))
    assert "combine.stage" not in found


def test_few_reads_under_way_hold_a_core_for_round_trips():
    one = layer("xccl-pull", ids=EVEN, constants={"copies_in_flight": 1}, **DIE)
    # A core reads one row and waits for it as long as a read takes.
    assert phases(one)["dispatch.read cores"].duration == pytest.approx(1.2e-6)


def test_a_pull_is_limited_at_the_reader():
    """All ranks read from one, which sends faster than it could write: up to what its lanes carry."""
    everything_to_0 = np.tile([0, 1], (8 * 480, 1))  # experts 0 and 1 are of rank 0
    one = layer("xccl-pull", ids=everything_to_0, tokens=480, top_k=2, **DIE)
    combine = phases(one)["combine.send"].flows
    assert set(combine.src.tolist()) == {0}
    plan = Plan(8, tuple(one.strategy.protocol.operation("combine", one.case)), {})
    span = execution.run(plan, one.resources, tolerance=0.0).spans["combine.send"]
    out = combine.wire.sum()
    took = span.end[0] - span.start[0] - 1.2e-6
    assert out / 137e9 > took > out / (7 * 28e9 + 270e9)


def test_pull_areas_are_fixed_blocks_a_peer_and_the_records_of_the_whole_pod():
    one = layer("xccl-pull", capacity=100, **DIE)
    blocks = 8 * 100 * 2  # ranks x batch x min(top_k, 2 local experts)
    assert one.strategy.protocol.buffers(one.case) == {
        "dispatch": blocks * ROW,
        "combine": blocks * 2.0 * HIDDEN,
        "metadata": 4.0 * 2**20,
    }
    assert 384 * 2 * 48 * 2 * 32 <= 4 * 2**20


def test_stop_and_wait_takes_a_round_trip_a_block():
    one = layer({"kind": "ubep", "sync": "stop-and-wait"}, **DIE)
    c, flows = one.case.calibration, phases(one)["dispatch.send"].flows
    copies = flows.wire / ROW
    assert flows.messages == pytest.approx(3 * copies)
    trip = 2 * one.case.routes.latency[flows.src, flows.dst]
    block = c["issue"] + 512 / c["core_rate"] + trip
    assert flows.core_s == pytest.approx(3 * copies * block)
    assert phases(one)["dispatch.reorder"].duration == pytest.approx(
        copied(one, one.case.received * ROW, one.case.received * ROW)
    )


@pytest.mark.parametrize(
    ("sync", "needs"), [("tff", True), ("sp", True), ("dc", False), ("stop-and-wait", False)]
)
def test_only_flags_in_the_data_need_atomic_writes(sync, needs):
    assert ("atomic-512B" in build({"kind": "ubep", "sync": sync}).needs()) is needs


@pytest.mark.parametrize("kind", ["cann-ep", "ubep", "relay-free", "xccl-pull"])
@pytest.mark.parametrize("name", ["dispatch", "combine"])
@pytest.mark.parametrize(("ep", "tokens"), [(8, 128), (64, 128)])
def test_fluid_and_bound_agree_where_nothing_contends(kind, name, ep, tokens):
    shape = {"ep": ep, "tokens": tokens, "experts": 256, "top_k": 8, "hidden": 7168}
    one = layer(kind, pod_name="cloudmatrix384", ids=round_robin(ep, tokens), **shape)
    phases_ = one.strategy.protocol.operation(name, one.case)
    plan = Plan(
        ep, phases_, {"dispatch": phases_[-1].name, "expert": phases_[-1].name, "combine": phases_[-1].name}
    )
    fluid = execution.run(plan, one.resources, tolerance=0.0).end("dispatch").max()
    _, largest = bounds.stages(bounds.run(plan, one.resources), one.resources)
    assert largest["dispatch"] <= fluid * (1 + 1e-9)
    assert largest["dispatch"] == pytest.approx(fluid, rel=0.03)
