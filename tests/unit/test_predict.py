"""Predictions of single measurements: the shape, routing and formats that a row states, and refusals to guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import moesim
from moesim import calibration, fabrics, predict, protocols
from moesim.errors import InputError
from moesim.measurements import COMPUTE, Measurement
from moesim.predict import Predictor
from moesim.traffic import expected_groups, expected_groups_limited


def row(**changes: Any) -> Measurement:
    """128 tokens of DeepSeek-V3's shape on eight H200, DeepEP's low-latency dispatch."""
    values: dict[str, Any] = {
        "id": "a",
        "pod": "h200-hgx",
        "protocol": "deepep-ll",
        "op": "dispatch",
        "ep": 8,
        "tokens_per_rank": 128,
        "hidden": 7168,
        "top_k": 8,
        "experts": 256,
        "dispatch_dtype": "",
        "combine_dtype": "",
        "sms": None,
        "send_bytes": None,
        "latency": 1e-4,
        "split": "validate",
    }
    return Measurement(**(values | changes))


@pytest.mark.parametrize(("op", "metric"), [("dispatch", "dispatch_s"), ("combine", "combine_s")])
def test_a_prediction_is_what_a_scenario_of_this_shape_gives(op: str, metric: str) -> None:
    scenario = moesim.from_mapping(
        {
            "moesim": 1,
            "topology": "h200-hgx",
            "ranks": {"ep": 8},
            "model": "deepseek-v3",
            "workload": {"phase": "decode", "tokens_per_rank": 128, "layers": 1},
            "routing": {"kind": "balanced"},
            "strategies": [{"name": "one", "protocol": "deepep-ll"}],
        }
    )
    run = moesim.run(scenario.edited(["tolerance=0"])).strategies[0].metrics()
    found = Predictor().asked(row(op=op))
    assert found.seconds(fidelity="fluid") == pytest.approx(run[metric]["critical"], rel=1e-3)
    assert found.seconds() == pytest.approx(found.seconds(fidelity="fluid"), rel=0.03)


def test_balanced_unless_the_notes_say_otherwise() -> None:
    traffic = Predictor().asked(row(tokens_per_rank=64)).case.traffic
    assert (traffic.rows == 64).all()
    assert (traffic.entries_to == 64).all()
    few = Predictor().asked(row(tokens_per_rank=64, top_k=2)).case.traffic
    assert (few.rows == 16).all()
    assert (few.rows_host == 64).all()


def test_a_random_router_visits_ranks_more_than_once() -> None:
    rows = Predictor().asked(row(tokens_per_rank=4096, notes="kernel time; random router")).case.traffic.rows
    assert rows.sum(axis=1) == pytest.approx(np.full(8, 4096 * expected_groups(8, 256, 8)), abs=1)


def test_a_router_that_is_limited_to_groups_makes_a_group_of_each_host() -> None:
    predictor = Predictor()
    asked = row(pod="h100-ib", ep=64, tokens_per_rank=4096, notes="HT; group-limited top-4 groups; same")
    traffic = predictor.asked(asked).case.traffic
    hosts = 4096 * expected_groups_limited(8, 256, 8, n_group=8, topk_group=4)
    assert traffic.rows_host.sum(axis=1) == pytest.approx(np.full(64, hosts), abs=8)
    free = predictor.asked(replace(asked, notes="random router")).case.traffic
    assert free.rows_host.sum() > 1.2 * traffic.rows_host.sum()


@pytest.mark.parametrize(
    ("tokens", "notes", "entries"),
    [
        (128, "10 masked selections per rank in the test", 1024 * (1023 / 1024) ** 10),
        (2, "10 masked selections per rank in the test", 16 * (15 / 16) ** 10),
        (128, "~1014 of 1024 selections unmasked in the test", 1014),
        (128, "no masking", 1024),
    ],
)
def test_masked_selections_are_not_sent(tokens: int, notes: str, entries: float) -> None:
    case = Predictor().asked(row(tokens_per_rank=tokens, notes=notes)).case
    assert case.sent == pytest.approx(np.full(8, entries), abs=1)
    assert (case.tokens == tokens).all()


def test_an_all_to_all_sends_its_buffer_in_equal_parts() -> None:
    asked = row(
        protocol="nccl-alltoall", op="alltoall", ep=4, tokens_per_rank=None, hidden=None, send_bytes=2**20
    )
    found = Predictor().asked(replace(asked, top_k=None, experts=None))
    assert (found.case.traffic.entries_to == 1).all()
    assert found.protocol.dispatch_row(found.case.model) == 2**18
    twice = Predictor().asked(replace(found.row, send_bytes=2**30)).seconds()
    assert twice == pytest.approx(
        2 * Predictor().asked(replace(found.row, send_bytes=2**29)).seconds(), rel=0.02
    )


def test_blank_experts_are_those_of_deepseek_v3_at_its_width_only() -> None:
    predictor = Predictor()
    assert predictor.seconds(row(experts=None)) == predictor.seconds(row())
    with pytest.raises(InputError, match="experts not given"):
        predictor.seconds(row(experts=None, hidden=4096))


def test_formats_and_cores_of_the_row_are_used() -> None:
    predictor = Predictor()
    default, bf16 = predictor.asked(row()), predictor.asked(row(dispatch_dtype="BF16"))
    assert predictor.asked(row(dispatch_dtype="FP8", combine_dtype="BF16")).seconds() == default.seconds()
    assert bf16.protocol.formats == ("bf16", "bf16")
    assert bf16.seconds() > default.seconds()
    ht = row(protocol="deepep-ht", tokens_per_rank=4096, notes="random router")
    few, many = (predictor.asked(replace(ht, sms=sms)) for sms in (4, 20))
    assert (few.case.calibration["cores"], many.case.calibration["cores"]) == (4, 20)
    assert few.seconds() > 2 * many.seconds()


def test_every_message_over_the_nic() -> None:
    predictor = Predictor()
    direct, rdma = (
        predictor.asked(row(pod="h800-ib", protocol=name)) for name in ("deepep-ll", "deepep-ll-rdma")
    )
    assert rdma.protocol.kind == "deepep-ll"
    assert rdma.seconds() > 1.3 * direct.seconds()


def test_a_row_of_the_second_generation_is_predicted_as_that() -> None:
    asked = row(pod="gb200-nvl72", protocol="deepep-ht", ep=4, sms=32, notes="8192*3.72 unique ranks")
    predictor = Predictor()
    assert predictor.asked(asked).protocol.kind == "deepep-ht"
    for changes in ({"source": "PR #605 comment, test_ep.py"}, {"notes": "DeepEP V2, unique ranks"}):
        second = predictor.asked(replace(asked, **changes))
        assert second.protocol.kind == "deepep-v2"
        assert second.case.traffic.rows.sum(axis=1) == pytest.approx(
            np.full(4, 128 * expected_groups(4, 256, 8)), abs=1
        )


def test_what_rows_share_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods, routes and constants: a file of thousands of rows has few of them."""
    loads, walks, read = [], [], []
    load, walk, constants = fabrics.load, predict.routes, calibration.load
    monkeypatch.setattr(predict.fabrics, "load", lambda *a: loads.append(a) or load(*a))
    monkeypatch.setattr(predict, "routes", lambda *a: walks.append(a) or walk(*a))
    monkeypatch.setattr(protocols, "load", lambda *a: read.append(a) or constants(*a))
    predictor = Predictor()
    for tokens in range(1, 41):
        for op in ("dispatch", "combine"):
            for ep in (4, 8):
                predictor.seconds(row(tokens_per_rank=tokens, op=op, ep=ep))
    assert (len(loads), len(walks), len(read)) == (1, 2, 1)


def test_a_pod_whose_hosts_are_the_users_choice_has_enough_of_them() -> None:
    assert len(fabrics.load("h200-hgx").devices) == 8
    found = Predictor().asked(row(ep=32)).case.routes
    assert found.host.max() == 3


def gemm(tokens: object, slots: object) -> dict[str, Any]:
    notes = f"{slots} expert slots; rank0 gets {tokens} tokens"
    return {"op": COMPUTE, "pod": "gb200-nvl72", "dispatch_dtype": "NVFP4", "notes": notes}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pod": "h999"}, "unknown pod 'h999'"),
        ({"pod": "h800-ibb"}, "unknown pod 'h800-ibb', did you mean 'h800-ib'?"),
        ({"protocol": "telepathy"}, "unknown protocol 'telepathy'"),
        ({"pod": "gb200-nvl72", "ep": 128}, "ep 128 does not fit the 72 devices"),
        ({"ep": 1024}, "at most 768 ranks"),
        ({"ep": 7}, "ep 7 does not divide 256 experts"),
        ({"ep": 512, "experts": 32768}, "too many"),
        ({"op": "prepare"}, "deepep-ll has no operation prepare"),
        ({"op": "alltoall", "send_bytes": 2048}, "deepep-ll has no operation alltoall"),
        ({"protocol": "nccl-alltoall", "op": "alltoall"}, "send_bytes is blank"),
        ({"dispatch_dtype": "INT3"}, "INT3"),
        ({"dispatch_dtype": "NVFP4"}, "NVFP4"),
        ({"combine_dtype": "FP8"}, "FP8"),
        (
            {"protocol": "rank-dedup-push", "dispatch_dtype": "FP8"},
            "rank-dedup-push has no dispatch in FP8",
        ),
        ({"sms": 20}, "no choice of the number of SMs"),
        ({"protocol": "deepep-ht", "sms": 998}, "998 SMs of 132"),
        ({"tokens_per_rank": None}, "tokens_per_rank is blank"),
        ({"hidden": None}, "hidden, experts not given"),
        ({"top_k": None}, "topk not given"),
        ({"top_k": 300}, "topk 300 of 256 experts"),
        ({"protocol": "rank-dedup-push", "pod": "a2-cluster"}, "multicast"),
        ({"op": COMPUTE, "top_k": 7}, "no model is known"),
        ({"op": COMPUTE}, "the notes do not say"),
        (gemm(0, 256), "the notes say 0 tokens"),
        (gemm(99999999, 256), "the notes say 99999999 tokens"),
        (gemm("9" * 5000, 256), "the notes say 999999999999... tokens"),
        (gemm(96, 0), "the notes say 0 expert slots"),
        (gemm(96, 255), "the notes say 255 expert slots"),
        (gemm(96, 257), "ep 8 does not divide 257 expert slots"),
        (gemm(96, 10**30), "the notes say 100000000000... expert slots"),
        ({"notes": "3 of 0 selections unmasked"}, "the notes say 0 selections"),
        ({"notes": "9 of 8 selections unmasked"}, "the notes say 9 unmasked selections"),
        ({"notes": f"{'9' * 5000} masked selections"}, "999999999999... masked selections"),
        ({"notes": "group-limited top-0 groups"}, "the notes say 0 groups"),
    ],
)
def test_what_cannot_be_modelled_is_not_guessed(changes: dict[str, Any], reason: str) -> None:
    given = row(experts=None, **changes) if "hidden" in changes else row(**changes)
    with pytest.raises(InputError) as caught:
        Predictor().seconds(given)
    assert reason in str(caught.value)


def test_the_grouped_gemm_of_the_busiest_rank_by_hand() -> None:
    """96 tokens have 96 x 8 / U(8) entries on 32 experts: five a slot at most, so the weights of all are read."""
    asked = row(
        pod="gb200-nvl72", op=COMPUTE, dispatch_dtype="NVFP4", notes="256 expert slots; rank0 gets 96 tokens"
    )
    weights = 32 * 3 * 7168 * 2048 * (0.5 + 1 / 16)
    activations = 96 * 8 / expected_groups(8, 256, 8) * 4 * 7168
    device = fabrics.load("gb200-nvl72").device
    seconds = (weights + activations) / (device.hbm_rate * device.hbm_efficiency)
    assert Predictor().seconds(asked) == pytest.approx(seconds, rel=1e-3)
