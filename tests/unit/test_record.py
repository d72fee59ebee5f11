"""The outcome of a strategy, from plans that ran."""

from __future__ import annotations

import numpy as np
import pytest
from small_cases import layer, stages

from moesim import bounds, strategy
from moesim.protocols import PROTOCOLS
from moesim.record import Record


def recorded(one, fidelity="fluid", cases=((0, 0),)):
    """The outcome of the same layer, run once a case."""
    record = Record(one.strategy)
    for where in cases:
        closed = one.bound()
        ranked, largest = bounds.stages(closed, one.resources)
        ran = one.fluid(0.003) if fidelity == "fluid" else closed
        times = stages(ran) if fidelity == "fluid" else ranked
        record.add(where, one.case, closed, ran, times, largest, one.case.traffic)
    record.buffers = one.buffers()
    record.memory = strategy.memory(one.case, one.case.model, "bf16", record.buffers)
    return record.outcome(one.resources)


@pytest.fixture(scope="module")
def one():
    return layer("cann-ep", pod_name="cloudmatrix384", ep=32, experts=32, place="packed")


def test_times_and_bounds_by_case_and_rank(one):
    out = recorded(one, cases=((0, 3), (1, 3)))
    assert out.cases.tolist() == [[0, 3], [1, 3]]
    assert out.stages["layer"].shape == (2, 32)
    total = out.stages["dispatch"] + out.stages["expert"] + out.stages["combine"]
    assert total == pytest.approx(out.stages["layer"])
    for stage, least in out.bound.items():
        assert (out.stages[stage].max(axis=1) >= least * (1 - 1e-9)).all()


@pytest.mark.parametrize("fidelity", ["fluid", "bound"])
def test_breakdown_sums_to_the_slowest_rank(one, fidelity):
    out = recorded(one, fidelity)
    assert sum(part[0] for part in out.breakdown.values()) == pytest.approx(out.stages["layer"].max())
    assert (out.solves > 0) == (fidelity == "fluid")


def test_in_closed_form_the_slowest_rank_takes_the_bound(one):
    """What all ranks together need of a resource can take longer than any rank's own path."""
    crowd = layer("deepep-ll", pod_name="clos", ep=16, experts=16, hidden=8192, tokens=64, skew=3.0)
    for some in (one, crowd):
        out = recorded(some, "bound")
        for stage, least in out.bound.items():
            assert out.stages[stage].max(axis=1) == pytest.approx(least)


def test_ranks_alike_but_for_rounding_all_take_the_bound(one):
    closed = one.bound()
    ranked, largest = bounds.stages(closed, one.resources)
    times = np.full(32, largest["layer"] / 2) * (1 + 1e-15 * np.arange(32))
    times[0] /= 2
    record = Record(one.strategy)
    record.add((0, 0), one.case, closed, closed, {**ranked, "layer": times}, largest, one.case.traffic)
    assert record.times[0]["layer"][1:] == pytest.approx(np.full(31, largest["layer"]))
    assert record.times[0]["layer"][0] == times[0]


def test_traffic_is_payload_of_both_operations_by_tier(one):
    out = recorded(one)
    protocol, model = one.strategy.protocol, one.case.model
    each = sum(model.payload_bytes(form) for form in protocol.formats)
    assert sum(out.traffic_B.values()) == pytest.approx(32 * 12 * 4 * each)
    assert out.traffic_B["self"] == pytest.approx(np.trace(one.case.traffic.entries_to) * each)
    assert out.traffic_B["scale_out"] == 0
    assert min(out.traffic_B[tier] for tier in ("device", "host", "domain")) > 0


@pytest.mark.parametrize("protocol", PROTOCOLS.names())
def test_in_one_domain_what_crosses_a_tier_is_what_was_asked_for(protocol):
    one = layer(protocol, pod_name="clos", ep=16)
    out = recorded(one)
    asked = {**out.traffic_B, "self": 0.0}
    assert out.traffic_B["host"] > 0 < out.traffic_B["domain"]
    assert out.crossed_B["payload"] == pytest.approx(asked)
    assert all(out.crossed_B["wire"][tier] >= size * (1 - 1e-9) for tier, size in asked.items())
    assert out.formats == dict(zip(("dispatch", "combine"), one.strategy.protocol.formats, strict=True))


@pytest.mark.parametrize("protocol", ["deepep-ht", "deepep-v2", "hybrid-ep"])
def test_relayed_rows_count_once_a_domain_beyond_it_and_on_each_hop(protocol):
    one = layer(protocol, pod_name="rails", tokens=40)
    out, counted, model = recorded(one), one.case.traffic, one.case.model
    each = sum(model.payload_bytes(form) for form in one.strategy.protocol.formats)
    away = counted.host[:, None] != np.arange(2)
    assert out.crossed_B["payload"]["scale_out"] == pytest.approx(counted.rows_domain[away].sum() * each)
    assert out.crossed_B["payload"]["scale_out"] < out.traffic_B["scale_out"]
    nics = [row["load_B"] for row in out.links if row["kind"] == "nic" and row["resource"].endswith(" up")]
    assert sum(nics) == pytest.approx(out.crossed_B["wire"]["scale_out"])
    # On the second hop also rows that were asked for from beyond.
    assert out.crossed_B["payload"]["host"] > out.traffic_B["host"]


def test_what_the_answer_hangs_on_is_a_warning():
    ours = recorded(layer("deepep-ht", pod_name="gb200-nvl72", ep=16, experts=16)).warnings
    assert ours == ("DeepEP's kernels reach at most 8 ranks by stores: 16 in a domain are extrapolated",)
    name = layer("ubep").strategy.pod
    first, second = recorded(layer("ubep")).warnings
    assert first == f"ubep is not calibrated on {name}: its default constants are used"
    assert "dispatch_shared" in second


def test_padding_is_wire_but_not_payload():
    exact = recorded(layer("nccl-alltoall"))
    padded = recorded(layer({"kind": "nccl-alltoall", "sizes": "padded", "capacity_factor": 8}))
    assert padded.traffic_B == pytest.approx(exact.traffic_B)
    ratio = padded.bandwidth_Bps["wire"] / padded.bandwidth_Bps["logical"]
    assert ratio > exact.bandwidth_Bps["wire"] / exact.bandwidth_Bps["logical"]


def test_padding_that_is_too_small_is_said():
    out = recorded(layer({"kind": "nccl-alltoall", "sizes": "padded"}, skew=2.0))
    assert any("drops" in warning for warning in out.warnings)


def test_bandwidths(one):
    out = recorded(one)
    rows = one.case.traffic.entries_to
    seconds = out.stages["dispatch"].max()
    row = one.strategy.protocol.dispatch_row(one.case.model)
    asked = one.case.model.payload_bytes(one.strategy.protocol.formats[0])
    assert out.bandwidth_Bps["logical"] == pytest.approx(rows.sum(axis=1).max() * asked / seconds)
    leaving = (rows * ~np.eye(32, dtype=bool)).sum(axis=1).max()
    assert out.bandwidth_Bps["wire"] == pytest.approx(leaving * row / seconds)
    assert "own rank included" in out.bandwidth_Bps["library"]["name"]


def test_the_bandwidth_of_combine_is_of_its_own_rows_and_time(one):
    out, model = recorded(one), one.case.model
    protocol, seconds = one.strategy.protocol, out.stages["combine"].max()
    found = out.bandwidth_Bps["combine"]
    back = one.case.traffic.entries_to
    assert found["logical"] == pytest.approx(
        back.sum(axis=1).max() * model.payload_bytes(protocol.formats[1]) / seconds
    )
    arriving = (back * ~np.eye(32, dtype=bool)).sum(axis=1).max()
    assert found["wire"] == pytest.approx(arriving * protocol.combine_row(model) / seconds)
    assert found["library"] == {
        "name": protocol.bandwidth_name,
        "value": pytest.approx(protocol.logical_bytes(one.case, "combine") / seconds),
    }


def test_bus_bandwidth_leaves_the_own_share_out():
    one = layer("nccl-alltoall", skew=0.0)
    row = one.strategy.protocol.dispatch_row(one.case.model)
    assert one.strategy.protocol.logical_bytes(one.case) == pytest.approx(12 * 4 * row * 7 / 8)


def test_the_bottleneck_is_the_busiest_resource_or_gemm(one):
    out = recorded(one)
    assert out.bottleneck[1] == pytest.approx(max(row["utilisation"] for row in out.links))
    slow = layer("cann-ep", pod_name="cloudmatrix384", intermediate=200_000)
    name, share = recorded(slow).bottleneck
    assert name.endswith("expert GEMM")
    assert 0.5 < share < 1


def test_links_are_the_fabric_and_the_busiest_core_of_each_rank(one):
    out = recorded(one)
    kinds = [row["kind"] for row in out.links]
    assert kinds.count("core") == 32
    assert len(kinds) == one.resources.fabric + 32
    assert all(0 <= row["utilisation"] <= 1 for row in out.links)
    carried = [row["load_B"] for row in out.links if row["kind"] not in ("core", "engine", "messages")]
    assert np.isfinite(carried).all()


def test_phases_have_a_row_each(one):
    out = recorded(one, cases=((0, 0), (0, 1)))
    assert len(out.phases) == 2 * len(one.plan.phases)
    for row in out.phases:
        assert 0 <= row["start_s"] <= row["end_s"] <= out.stages["layer"].max() * (1 + 1e-9)
        assert 0 <= row["mean_s"] <= row["max_s"] * (1 + 1e-9)


def test_imbalance_before_and_after():
    out = recorded(layer("deepep-ll", "moonep", skew=2.0))
    assert out.imbalance["after"]["rank_max_over_mean"] == pytest.approx(1.0)


def test_weights_that_a_balancer_pushes_are_counted(one):
    assert recorded(one).weights_B == 0.0
    skewed = layer("deepep-ll", "moonep", skew=2.0)
    moves = len(skewed.case.assignment.moves)
    assert moves > 0
    # layer() has its expert weights in bf16
    assert recorded(skewed).weights_B == pytest.approx(moves * skewed.case.model.expert_bytes("bf16"))


def test_no_tokens():
    out = recorded(layer("cann-ep", tokens=0))
    assert sum(out.traffic_B.values()) == 0
    assert out.bandwidth_Bps["logical"] == 0
    assert out.stages["layer"].max() > 0


def test_what_does_not_fit_is_said():
    one = layer("cann-ep", pod_name="cloudmatrix384", hidden=100_000, capacity=100_000)
    assert "take" in str(recorded(one).shortage())
    assert recorded(layer("cann-ep")).shortage() is None


def test_dropped_entries_are_not_computed_and_are_said_once():
    exact = layer("nccl-alltoall", skew=2.0)
    padded = layer({"kind": "nccl-alltoall", "sizes": "padded", "capacity_factor": 0.5}, skew=2.0)
    rows = [one.strategy.protocol.gemm_rows(one.case).sum() for one in (exact, padded)]
    kept = 1 - padded.strategy.protocol.dropped(padded.case)
    assert kept < 0.7
    assert rows[1] == pytest.approx(kept * rows[0], rel=0.1)
    assert sum("drops" in warning for warning in recorded(padded).warnings) == 1
