"""Each library's own bandwidth, from counted traffic and its published latency, is the one that it publishes.

Shapes, latencies and bandwidths are those that section 6 of the notes on NVIDIA systems checks: AWS p5en and UCCL
(DeepEP V1), aiconfigurator (low latency), DeepEP PR 605 (V2), DeepEP issues 590 and 634 (Hybrid-EP).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moesim import expected, fabrics, moe, protocols, ranks
from moesim.protocols import Case
from moesim.routing import routes


def case(spec, pod, ep, tokens, hidden=7168, experts=256, hosts=None, masked=0):
    """Expected traffic of a uniform gate, ``masked`` selections taken out."""
    topology = fabrics.load(pod, {} if hosts is None else {"hosts": hosts})
    protocol = protocols.build(spec)
    costs = protocol.calibrate(pod)
    ways = routes(topology, ranks.place(topology, ep), costs.access)
    model = replace(
        moe.load("deepseek-v3"),
        hidden=hidden,
        dispatch_width=hidden,
        experts=experts,
        n_group=1,
        topk_group=1,
    )
    host, domain = (np.unique(group, return_inverse=True)[1] for group in (ways.host, ways.domain))
    assignment, traffic = expected.uniform(model, tokens, host, domain)
    entries = traffic.entries.copy()
    entries[:, 0] -= masked
    traffic = replace(traffic, entries=entries)
    return protocol, Case(model, topology.device, ways, traffic, assignment, costs, tokens)


HT, BF16 = "deepep-ht", {"kind": "deepep-v2", "dispatch": "bf16"}
HYBRID = {"kind": "hybrid-ep", "dispatch": "bf16"}
PUBLISHED = {
    # protocol, pod, shape, operation, latency us, published GB/s, tolerance
    "HT, one host, dispatch": (HT, "h200-hgx", {"ep": 8, "tokens": 4096}, "dispatch", 499.58, 320.68, 0.005),
    "HT, one host, combine": (HT, "h200-hgx", {"ep": 8, "tokens": 4096}, "combine", 965.24, 321.89, 0.005),
    # Published without decimals.
    "HT, two hosts, dispatch": (
        HT,
        "h200-hgx",
        {"ep": 16, "tokens": 4096, "hosts": 2},
        "dispatch",
        1196,
        50,
        0.015,
    ),
    "HT, two hosts, combine": (
        HT,
        "h200-hgx",
        {"ep": 16, "tokens": 4096, "hosts": 2},
        "combine",
        6379,
        18,
        0.02,
    ),
    "LL, one host": ("deepep-ll", "h200-hgx", {"ep": 8, "tokens": 128}, "dispatch", 35.12, 216.0, 0.005),
    "LL, two hosts, masked": (
        "deepep-ll",
        "h800-ib",
        {"ep": 16, "tokens": 128, "masked": 10},
        "dispatch",
        118,
        63.6,
        0.005,
    ),
    "LL, combine, masked": (
        "deepep-ll",
        "h800-ib",
        {"ep": 16, "tokens": 128, "masked": 10},
        "combine",
        195,
        74.6,
        0.005,
    ),
    "V2": (
        BF16,
        "gb200-nvl72",
        {"ep": 4, "tokens": 8192, "hidden": 4096, "experts": 32},
        "dispatch",
        292.571,
        863.7,
        0.005,
    ),
    "Hybrid-EP, IB": (
        HYBRID,
        "b300-hgx",
        {"ep": 16, "tokens": 4096, "experts": 128, "hosts": 2},
        "combine",
        2638.9,
        44.38,
        0.005,
    ),
}


@pytest.mark.parametrize(
    ("spec", "pod", "shape", "operation", "latency", "published", "tolerance"),
    PUBLISHED.values(),
    ids=PUBLISHED.keys(),
)
def test_bandwidth_is_the_published_one(spec, pod, shape, operation, latency, published, tolerance):
    protocol, asked = case(spec, pod, **shape)
    bytes_ = protocol.logical_bytes(asked, operation)
    assert bytes_ / (latency * 1e-6) == pytest.approx(published * 1e9, rel=tolerance)


def test_a_row_of_each_library_has_its_published_bytes():
    model = moe.load("deepseek-v3")
    assert protocols.build("deepep-ll").dispatch_row(model) == 7408
    assert protocols.build("deepep-ll").combine_row(model) == 14336
    assert protocols.build("deepep-v2").dispatch_row(model) == 7488
    assert protocols.build("hybrid-ep").combine_row(model) == 14336
    narrow = replace(model, hidden=4096, dispatch_width=4096)
    assert protocols.build(BF16).dispatch_row(narrow) == 8288
