"""Key numbers of each pod, derived a second time from the published texts and not from the topology files.

One row a number: pod, what, value, and the sentence it comes from. Rates are per direction, in GB/s = 1e9
B/s.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from moesim import fabrics
from moesim.ranks import place
from moesim.routing import routes
from moesim.topology import Tier, Topology

GB = 1e9
MEASURES: dict[str, Callable[[Topology], float]] = {
    "devices": lambda pod: len(pod.devices),
    "switches": lambda pod: int((pod.vertex_kind == "switch").sum()),
    "cpus": lambda pod: int((pod.vertex_kind == "cpu").sum()),
    "nics": lambda pod: int((pod.vertex_kind == "nic").sum()),
    "duplex links": lambda pod: len(pod.link_src) // 2,
    "devices a host": lambda pod: len(pod.devices) / len(np.unique(pod.host[pod.devices])),
    "scale-up GB/s": lambda pod: _port(pod, ("nvlink", "mesh", "lane")),
    "scale-out GB/s": lambda pod: _port(pod, ("bus",)),
    "bf16 TFLOP/s": lambda pod: pod.device.compute["bf16"] / 1e12,
    "int8 TOP/s": lambda pod: pod.device.compute["int8"] / 1e12,
    "fp8 TFLOP/s": lambda pod: pod.device.compute["fp8"] / 1e12,
    "fp4 TFLOP/s": lambda pod: pod.device.compute["fp4"] / 1e12,
    "achieved bf16 TFLOP/s": lambda pod: pod.device.compute["bf16"] * pod.device.compute_efficiency / 1e12,
    "HBM TB/s": lambda pod: pod.device.hbm_rate / 1e12,
    "achieved HBM TB/s": lambda pod: pod.device.hbm_rate * pod.device.hbm_efficiency / 1e12,
    "memory GB": lambda pod: pod.device.memory / GB,
    "cores": lambda pod: pod.device.cores,
    "latency us, nearest switch": lambda pod: _latency(pod, 1),
    "store GB/s": lambda pod: _reached(pod, "store"),
    "bulk GB/s": lambda pod: _reached(pod, "bulk"),
    "write host": lambda pod: pod.device.engines["write"][Tier.HOST] / GB,
    "write domain": lambda pod: pod.device.engines["write"][Tier.DOMAIN] / GB,
    "read host": lambda pod: pod.device.engines["read"][Tier.HOST] / GB,
    "read domain": lambda pod: pod.device.engines["read"][Tier.DOMAIN] / GB,
    "sibling": lambda pod: pod.device.engines["write"][Tier.DEVICE] / GB,
}


def _port(pod: Topology, kinds: tuple[str, ...]) -> float:
    mine = (pod.link_src == pod.devices[0]) & np.isin(pod.link_kind, kinds)
    return float(pod.link_capacity[mine].sum()) / GB


def _latency(pod: Topology, peer: int) -> float:
    return float(routes(pod, place(pod, 2, [0, peer]), "write").latency[0, 1]) * 1e6


def _reached(pod: Topology, access: str) -> float:
    return float(routes(pod, place(pod, 2), access).capacity[0]) / GB


ROWS: list[tuple[str, str, float]] = [
    # CloudMatrix384: 384 packages of two dies, 192 CPUs; 48 hosts x 7 and 7 x 16 chips; table 1;
    # 24 AIC, 48 AIV a die.
    ("cloudmatrix384", "devices", 768),
    ("cloudmatrix384", "switches", 336 + 112),
    ("cloudmatrix384", "cpus", 192),
    ("cloudmatrix384", "duplex links", 5376 + 5376 + 1344 + 384),
    ("cloudmatrix384", "devices a host", 16),
    ("cloudmatrix384", "scale-up GB/s", 7 * 224 / 8),
    ("cloudmatrix384", "write host", 137),
    ("cloudmatrix384", "write domain", 135),
    ("cloudmatrix384", "read host", 167),
    ("cloudmatrix384", "read domain", 164),
    ("cloudmatrix384", "sibling", 210),
    ("cloudmatrix384", "cores", 48),
    ("cloudmatrix384", "int8 TOP/s", 1943 / 1.29 / 2),
    ("cloudmatrix384", "bf16 TFLOP/s", 1943 / 1.29 / 4),
    ("cloudmatrix384", "HBM TB/s", 1.6),
    ("cloudmatrix384", "memory GB", 64),
    # 910B: seven HCCS links of 28 GB/s; 200 Gb/s RoCE.
    ("a2-cluster", "devices a host", 8),
    ("a2-cluster", "scale-up GB/s", 7 * 28),
    ("a2-cluster", "scale-out GB/s", 25),
    ("a2-cluster", "bf16 TFLOP/s", 313),
    ("a2-cluster", "memory GB", 64),
    # H100 SXM: 132 SMs, 989 dense bf16, 18 links x 25; one 400 Gb/s NIC a GPU; copy 2.90 TB/s;
    # round trip 0.826 us.
    ("h100-ib", "devices", 64),
    ("h100-ib", "nics", 64),
    ("h100-ib", "scale-up GB/s", 18 * 25),
    ("h100-ib", "scale-out GB/s", 400 / 8),
    ("h100-ib", "store GB/s", 450 * 128 / 160),
    ("h100-ib", "bulk GB/s", 450 * 256 / 288),
    ("h100-ib", "cores", 132),
    ("h100-ib", "bf16 TFLOP/s", 989),
    ("h100-ib", "fp8 TFLOP/s", 1978),
    ("h100-ib", "achieved bf16 TFLOP/s", 794.5),
    ("h100-ib", "HBM TB/s", 3.35),
    ("h100-ib", "achieved HBM TB/s", 2.90),
    ("h100-ib", "memory GB", 80),
    ("h100-ib", "latency us, nearest switch", 0.826 / 2),
    # H800: NVLink cut to 200 GB/s.
    ("h800-ib", "scale-up GB/s", 200),
    ("h800-ib", "store GB/s", 160),
    ("h800-ib", "scale-out GB/s", 50),
    # H200: 4.8 TB/s, 4.01 achieved, 141 GB.
    ("h200-hgx", "devices", 8),
    ("h200-hgx", "scale-up GB/s", 450),
    ("h200-hgx", "HBM TB/s", 4.8),
    ("h200-hgx", "achieved HBM TB/s", 4.01),
    ("h200-hgx", "memory GB", 141),
    # B200 HGX: 148 SMs, NVLink5; 1745 of 2250 achieved; 180 GiB.
    ("b200-hgx", "devices", 8),
    ("b200-hgx", "scale-up GB/s", 18 * 50),
    ("b200-hgx", "scale-out GB/s", 50),
    ("b200-hgx", "cores", 148),
    ("b200-hgx", "achieved bf16 TFLOP/s", 1745),
    ("b200-hgx", "fp8 TFLOP/s", 4500),
    ("b200-hgx", "fp4 TFLOP/s", 9000),
    ("b200-hgx", "HBM TB/s", 7.7),
    ("b200-hgx", "memory GB", 180 * 1.073741824),
    # B300 HGX: 14 PFLOP/s fp4, 800 Gb/s a GPU.
    ("b300-hgx", "scale-up GB/s", 900),
    ("b300-hgx", "scale-out GB/s", 100),
    ("b300-hgx", "fp4 TFLOP/s", 14000),
    ("b300-hgx", "HBM TB/s", 7.75),
    ("b300-hgx", "memory GB", 275040 * 1.048576e-3),
    # GB200 NVL72: 18 trays x 4 GPUs, 18 chips of 72 ports, 50 GB/s a link; round trip 1.730 us; 1822 of 2500.
    ("gb200-nvl72", "devices", 72),
    ("gb200-nvl72", "switches", 18),
    ("gb200-nvl72", "duplex links", 72 * 18),
    ("gb200-nvl72", "devices a host", 4),
    ("gb200-nvl72", "scale-up GB/s", 900),
    ("gb200-nvl72", "store GB/s", 720),
    ("gb200-nvl72", "bulk GB/s", 800),
    ("gb200-nvl72", "latency us, nearest switch", 1.730 / 2),
    ("gb200-nvl72", "achieved bf16 TFLOP/s", 1822),
    ("gb200-nvl72", "HBM TB/s", 8.0),
    ("gb200-nvl72", "memory GB", 189471 * 1.048576e-3),
    # GB300 NVL72: device copy 3312 GB/s read and written; 15 PFLOP/s fp4; round trip 1.710 to 1.727 us.
    ("gb300-nvl72", "devices", 72),
    ("gb300-nvl72", "duplex links", 1296),
    ("gb300-nvl72", "fp4 TFLOP/s", 15000),
    ("gb300-nvl72", "achieved HBM TB/s", 6.6),
    ("gb300-nvl72", "latency us, nearest switch", 1.7185 / 2),
    ("gb300-nvl72", "memory GB", 284208 * 1.048576e-3),
    # GB200 NVL576: 10,368 access links, 288 + 144 chips.
    ("gb200-nvl576", "devices", 576),
    ("gb200-nvl576", "switches", 288 + 144),
    ("gb200-nvl576", "scale-up GB/s", 900),
    # VR NVL72: 36 links x 50, 36 chips; 224 SMs; 22 TB/s; 288 GB.
    ("vr-nvl72", "devices", 72),
    ("vr-nvl72", "switches", 36),
    ("vr-nvl72", "duplex links", 2592),
    ("vr-nvl72", "scale-up GB/s", 1800),
    ("vr-nvl72", "cores", 224),
    ("vr-nvl72", "bf16 TFLOP/s", 4000),
    ("vr-nvl72", "fp8 TFLOP/s", 17500),
    ("vr-nvl72", "HBM TB/s", 22),
    ("vr-nvl72", "memory GB", 288),
]


@pytest.mark.parametrize(("pod", "what", "value"), ROWS, ids=[f"{pod}: {what}" for pod, what, _ in ROWS])
def test_a_number_derived_again_agrees(pod: str, what: str, value: float) -> None:
    assert MEASURES[what](fabrics.load(pod)) == pytest.approx(value, rel=2e-3)


def test_every_shipped_pod_is_derived_again() -> None:
    from moesim import resources

    assert {pod for pod, _, _ in ROWS} == set(resources.names("topology"))
