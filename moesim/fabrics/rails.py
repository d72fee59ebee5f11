"""Family ``rails``: scale-up fabrics of one host or several and one NIC a device, NIC i of every host on rail
i.

Rail leaves join the NICs of ``hosts_per_leaf`` hosts; spines join all leaves, so that traffic between rails
has a path (devices never relay, so it is not carried to the right rail inside the host first).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesim.fabrics import FABRICS
from moesim.fabrics._reader import Reader
from moesim.fabrics._wiring import LinkSpec, Wiring
from moesim.topology import IntArray


@dataclass(frozen=True)
class _Shape:
    """What a file says. ``chips``: scale-up switches of a domain, 0 for a full mesh."""

    hosts: int
    per_host: int
    hosts_per_domain: int
    hosts_per_leaf: int
    prefix: str
    chips: int
    scale_up: LinkSpec
    nic: LinkSpec
    message_rate: float
    spines: int
    taper: float
    spine_latency: float


@FABRICS.register("rails")
def rails(spec: Reader) -> Wiring:
    """``{hosts, devices_per_host, scale_up, nic, hosts_per_leaf, spine}``.

    ``scale_up: {kind: switch, chips, capacity}``: the capacity of a device, spread evenly over its domain's
    chips; ``{kind: mesh, capacity}``: of each link between two devices of a domain. ``spine: {chips, taper,
    latency}``: a leaf's uplinks carry what its NICs bring, divided by the taper. A domain is
    ``hosts_per_domain`` hosts (1), the last one perhaps fewer.
    """
    shape = _read(spec)
    pod = Wiring()
    number = np.arange(shape.hosts * shape.per_host)
    host = number // shape.per_host
    domain = host // shape.hosts_per_domain
    devices = pod.add(
        "device", [f"{shape.prefix}{i}" for i in number], package=number, host=host, domain=domain
    )
    for one in range(int(domain[-1]) + 1):
        _scale_up(pod, shape, one, devices[domain == one])
    _scale_out(pod, shape, devices)
    return pod


def _read(spec: Reader) -> _Shape:
    hosts = spec.count("hosts")
    per_host = spec.count("devices_per_host")
    per_domain = spec.count("hosts_per_domain", 1)
    per_leaf = spec.count("hosts_per_leaf", hosts)
    prefix = spec.text("prefix", "d")
    section = spec.section("scale_up")
    chips = section.count("chips") if section.choice("kind", ("switch", "mesh")) == "switch" else 0
    scale_up = LinkSpec.read(section)
    section.close()
    section = spec.section("nic")
    nic = LinkSpec.read(section)
    message_rate = section.quantity("message_rate", "rate", np.inf)
    section.close()
    section = spec.section("spine")
    spines = section.count("chips")
    taper = section.quantity("taper", "ratio", 1.0)
    spine_latency = section.quantity("latency", "time", 0.0, zero=True)
    section.close()
    spec.fits(
        scale_up_links=hosts * per_host * (chips or per_domain * per_host),
        spine_links=-(-hosts // per_leaf) * per_host * spines,
    )
    spec.close()
    spec.check()
    return _Shape(
        hosts=hosts,
        per_host=per_host,
        hosts_per_domain=per_domain,
        hosts_per_leaf=per_leaf,
        prefix=prefix,
        chips=chips,
        scale_up=scale_up,
        nic=nic,
        message_rate=message_rate,
        spines=spines,
        taper=taper,
        spine_latency=spine_latency,
    )


def _scale_up(pod: Wiring, shape: _Shape, domain: int, devices: IntArray) -> None:
    """Join the ``devices`` of one domain."""
    if shape.chips == 0:
        left, right = np.triu_indices(len(devices), k=1)
        pod.link("mesh", devices[left], devices[right], shape.scale_up)
        return
    own_host = shape.hosts_per_domain == 1
    names = [f"{'host' if own_host else 'domain'}{domain}/nvswitch{c}" for c in range(shape.chips)]
    chips = pod.add("switch", names, host=domain if own_host else -1, domain=domain)
    pod.link("nvlink", devices[:, None], chips, shape.scale_up.times(1 / shape.chips))


def _scale_out(pod: Wiring, shape: _Shape, devices: IntArray) -> None:
    """The link from a device to its NIC has the NIC's rate and no latency: the NIC is the limit, not the
    bus before it.
    """
    number = np.arange(shape.hosts * shape.per_host)
    host, rail = number // shape.per_host, number % shape.per_host
    names = [f"host{h}/nic{r}" for h, r in zip(host, rail, strict=True)]
    nics = pod.add("nic", names, host=host, plane=rail, message_rate=shape.message_rate)
    pod.link("bus", devices, nics, LinkSpec(shape.nic.capacity, 0.0, shape.nic.efficiency))
    units = -(-shape.hosts // shape.hosts_per_leaf)
    names = [f"unit{u}/leaf{r}" for u in range(units) for r in range(shape.per_host)]
    leaves = pod.add("switch", names, plane=np.tile(np.arange(shape.per_host), units))
    leaves = leaves.reshape(units, shape.per_host)
    pod.link("nic", nics, leaves[host // shape.hosts_per_leaf, rail], shape.nic)
    spines = pod.add("switch", [f"spine/chip{s}" for s in range(shape.spines)])
    for unit in range(units):
        hosts = min(shape.hosts_per_leaf, shape.hosts - unit * shape.hosts_per_leaf)
        uplink = shape.nic.times(hosts / (shape.spines * shape.taper)).lasting(shape.spine_latency)
        pod.link("spine", leaves[unit][:, None], spines, uplink)
