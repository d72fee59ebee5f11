"""What each protocol charges for each phase, worked out by hand from its calibration."""

from __future__ import annotations

import numpy as np
import pytest
from small_cases import layer

from moesim.plan import When

HIDDEN, TOKENS, TOP_K = 1024, 12, 4
DIE = {"pod_name": "cloudmatrix384", "ep": 8}


def phases(one):
    return {phase.name: phase for phase in one.plan.phases}


def waits(phase):
    return {(dep.phase, dep.when) for dep in phase.after}


def copied(one, read, written):
    device = one.case.device
    return (read + written) / (device.hbm_rate * device.hbm_efficiency)


def received(one):
    return one.case.traffic.load.astype(float)


def test_cann_dispatch_flags_take_issue_fence_flight_and_prefix_sum():
    one = layer("cann-ep", **DIE)
    c, found = one.case.calibration, phases(one)
    far = one.case.routes.latency.max(axis=1)
    assert found["dispatch.core barriers"].duration == pytest.approx(c["barrier"])
    assert found["dispatch.fence"].duration == pytest.approx(far)
    assert found["dispatch.flags"].duration == pytest.approx(c["issue"])  # 16 experts, 48 cores
    assert found["dispatch.flag flight"].duration == pytest.approx(far)
    # 8 ranks x 2 local experts are 16 records, one vector step; then the second barrier, and the third behind the copy.
    assert found["dispatch.prefix sum"].duration == pytest.approx(c["vector_step"] + c["barrier"])
    row = 1536  # 1024 B and a scale of 4 B, padded to blocks of 512 B
    assert found["dispatch.reorder"].duration == pytest.approx(
        copied(one, received(one) * row, received(one) * row)
    )
    assert found["dispatch.last barrier"].duration == pytest.approx(c["barrier"])


def test_cann_needs_its_last_barrier_only_for_several_experts_a_rank():
    one, several = layer("cann-ep", experts=8, **DIE), layer("cann-ep", experts=16, **DIE)
    assert "dispatch.last barrier" not in phases(one)
    assert "dispatch.last barrier" in phases(several)


def test_cann_combine_issues_two_writes_a_copy():
    one = layer("cann-ep", **DIE)
    c, flows = one.case.calibration, phases(one)["combine.send"].flows
    each = np.maximum(
        2 * c["issue"] + 2 * HIDDEN / c["core_rate"],
        2 * one.case.routes.latency[flows.src, flows.dst] / c["copies_in_flight"],
    )
    assert flows.core_s == pytest.approx(flows.messages * each)


def test_ubep_counts_go_to_all_beside_the_sending_and_offsets_are_published():
    one = layer({"kind": "ubep", "sync": "sp"}, **DIE)
    c, found = one.case.calibration, phases(one)
    assert found["dispatch.counts"].duration == pytest.approx(16 * c["issue"])  # one count core
    assert waits(found["dispatch.count flight"]) == {("dispatch.counts", When.ALL)}
    assert found["dispatch.count flight"].duration == pytest.approx(one.case.routes.latency.max(axis=1))
    assert found["dispatch.offsets"].duration == pytest.approx(c["vector_step"] + c["publish"])
    assert ("dispatch.send", When.STREAM) in waits(found["dispatch.reorder"])


@pytest.mark.parametrize(("sync", "writes"), [("sp", 2), ("tff", 1), ("dc", 1)])
def test_ubep_sentinels_are_written_back(sync, writes):
    one = layer({"kind": "ubep", "sync": sync}, **DIE)
    moved = received(one) * 1536
    assert phases(one)["dispatch.reorder"].duration == pytest.approx(copied(one, moved, writes * moved))


def test_ubep_checksum_waits_for_the_batch_on_both_sides():
    one = layer({"kind": "ubep", "sync": "dc"}, **DIE)
    c, found = one.case.calibration, phases(one)
    far = one.case.routes.latency.max(axis=1)
    sent = np.bincount(found["dispatch.send"].flows.src, found["dispatch.send"].flows.wire)
    assert found["dispatch.checksum"].duration == pytest.approx(sent / c["checksum_rate"] + far)
    assert found["dispatch.verify"].duration == pytest.approx(far + received(one) * 1536 / c["checksum_rate"])


def test_tff_blocks_carry_480_of_512_bytes():
    one = layer({"kind": "ubep", "sync": "tff"}, **DIE)
    flows = phases(one)["dispatch.send"].flows
    assert flows.wire == pytest.approx(flows.messages * 3 * 512)  # ceil((1024 + 64) / 480) blocks


def test_deepep_rows_have_a_header_pass_one_port_and_flags_only_fly():
    one = layer("deepep-ll", constants={"dispatch_port_rate": 5e10})
    found, row = phases(one), HIDDEN + 4 * HIDDEN / 128 + 16
    flows = found["dispatch.send"].flows
    assert flows.wire == pytest.approx(flows.messages * row)
    assert flows.core_s == pytest.approx(flows.messages * row / 5e10)
    far = one.case.routes.latency.max(axis=1)
    assert found["dispatch.flag flight"].duration == pytest.approx(far)
    assert "dispatch.post" not in found  # nothing goes through a NIC


def test_deepep_posts_where_messages_go_through_a_nic():
    times = {"dispatch_post": 4e-6, "combine_post": 9e-6}
    both, one_host = layer("deepep-ll", pod_name="rails", constants=times), {"pod_name": "rails", "ep": 4}
    assert phases(both)["dispatch.post"].duration == pytest.approx(4e-6)
    assert phases(both)["combine.post"].duration == pytest.approx(9e-6)
    assert "dispatch.post" not in phases(layer("deepep-ll", **one_host, constants=times))
    rdma = layer({"kind": "deepep-ll", "transport": "rdma"}, **one_host, constants=times)
    assert phases(rdma)["dispatch.post"].duration == pytest.approx(4e-6)


def test_nccl_packs_exchanges_counts_and_sets_up_each_peer():
    one = layer("nccl-alltoall", pod_name="gb200-nvl72", ep=8)
    c, found = one.case.calibration, phases(one)
    packed = TOKENS * TOP_K * 2 * HIDDEN
    assert found["dispatch.pack"].duration == pytest.approx(copied(one, packed, packed))
    assert found["dispatch.peers"].duration == pytest.approx(7 * c["peer"])
    counts = found["dispatch.counts.send"].flows
    assert counts.wire == pytest.approx(np.full(len(counts), 8.0 * 2) * counts.messages)
    assert found["dispatch.host round trip"].duration == pytest.approx(c["host_round_trip"])


def test_dedup_push_expands_duplicates_only_behind_a_barrier_of_all():
    one = layer("rank-dedup-push", pod_name="gb200-nvl72", ep=8)
    found = phases(one)
    more = (received(one) - one.case.traffic.rows.sum(axis=0)) * 2 * HIDDEN
    assert more.max() > 0
    assert found["dispatch.expand"].duration == pytest.approx(copied(one, more, more))
    assert waits(found["dispatch.exit barrier"]) == {("dispatch.send", When.ALL)}
    assert waits(found["combine.entry barrier"]) == {("combine.presum", When.ALL)}


def test_dedup_push_plans_by_itself_unless_the_balancer_does():
    one, moved = layer("rank-dedup-push"), layer("rank-dedup-push", "moonep")
    c = one.case.calibration
    fixed = c["plan"] + c["plan_barriers"] * c["barrier"]
    assert phases(one)["dispatch.plan"].duration == pytest.approx(fixed)
    assert "dispatch.plan" not in phases(moved)
    silent = phases(layer("rank-dedup-push", off=["sync"]))["dispatch.plan"].duration
    assert silent == pytest.approx(c["plan"])


def test_more_cores_than_the_calibration_has_are_refused():
    with pytest.raises(Exception, match="from 2 to 48"):
        layer({"kind": "cann-ep", "cores": 500}, **DIE)
