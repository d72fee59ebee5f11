"""Family ``clos``: devices on a switch a host, hosts on one non-blocking core by an uplink each."""

from __future__ import annotations

import numpy as np

from moesim.fabrics import FABRICS
from moesim.fabrics._reader import Reader
from moesim.fabrics._wiring import LinkSpec, Wiring


@FABRICS.register("clos")
def clos(spec: Reader) -> Wiring:
    """``{hosts, devices_per_host, prefix: d, port: {...}, uplink: {...}}``; one domain, uplinks may be the
    bottleneck.
    """
    hosts = spec.count("hosts")
    per_host = spec.count("devices_per_host")
    prefix = spec.text("prefix", "d")
    links = {}
    for key in ("port", "uplink"):
        section = spec.section(key)
        links[key] = LinkSpec.read(section)
        section.close()
    spec.fits(devices=hosts * per_host)
    spec.close()
    spec.check()
    pod = Wiring()
    number = np.arange(hosts * per_host)
    host = number // per_host
    ends = pod.add("device", [f"{prefix}{i}" for i in number], package=number, host=host, domain=0)
    switches = pod.add("switch", [f"host{h}/switch" for h in range(hosts)], host=np.arange(hosts), domain=0)
    core = pod.add("switch", ["core"], domain=0)
    pod.link("port", ends, switches[host], links["port"])
    pod.link("uplink", switches, core, links["uplink"])
    return pod
