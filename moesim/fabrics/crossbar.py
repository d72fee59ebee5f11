"""Family ``crossbar``: every device has one port to one non-blocking switch."""

from __future__ import annotations

import numpy as np

from moesim.fabrics import FABRICS
from moesim.fabrics._reader import Reader
from moesim.fabrics._wiring import LinkSpec, Wiring


@FABRICS.register("crossbar")
def crossbar(spec: Reader) -> Wiring:
    """``{devices, devices_per_host: all, prefix: d, port: {capacity, latency, efficiency}}``; one domain."""
    devices = spec.count("devices")
    per_host = spec.count("devices_per_host", devices)
    prefix = spec.text("prefix", "d")
    section = spec.section("port")
    port = LinkSpec.read(section)
    section.close()
    spec.close()
    spec.check()
    pod = Wiring()
    number = np.arange(devices)
    names = [f"{prefix}{i}" for i in number]
    ends = pod.add("device", names, package=number, host=number // per_host, domain=0)
    switch = pod.add("switch", ["switch"], domain=0, plane=0)
    pod.link("port", ends, switch, port)
    return pod
