"""Family ``planes``: each device has one lane into each of several parallel switch planes of one or two
tiers.

One tier: a plane is one chip that joins all hosts (NVL72). Two tiers: a plane has a first-tier chip for
each group of hosts, joined by trunks to all second-tier chips of the same plane (CloudMatrix384, NVL576).
Planes never meet above the devices.
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
    """What a file says, latencies already on the links. ``sibling``, ``trunk``, ``cpu``: ``None`` if there
    is none.
    """

    hosts: int
    per_host: int
    per_package: int
    hosts_per_group: int
    planes: int
    prefix: str
    lane: LinkSpec
    sibling: LinkSpec | None
    trunk: LinkSpec | None
    trunk_chips: int
    cpu: LinkSpec | None
    cpus_per_host: int

    @property
    def groups(self) -> int:
        return self.hosts // self.hosts_per_group


@dataclass(frozen=True)
class _Latency:
    """[s] of each kind of link."""

    lane: float
    trunk: float
    sibling: float

    @staticmethod
    def split(one: float, two: float, sibling: float) -> _Latency:
        """From device to device over one tier, over two, and to a sibling."""
        return _Latency(one / 2, (two - one) / 2, sibling)


@FABRICS.register("planes")
def planes(spec: Reader) -> Wiring:
    """``{hosts, devices_per_host, planes, lane}`` and, where they exist, ``devices_per_package`` and
    ``sibling``, ``hosts_per_group`` and ``trunk: {chips_per_plane, capacity, taper}``, ``cpus:
    {per_host, ...}``.

    ``latency: {one_tier, two_tier, sibling}``, or the name of one of ``profiles``: device to device, and in
    ``read: {...}`` the same of reads where they differ. One tier is split evenly over its two lanes; what two tiers
    add, over the two trunks.
    """
    shape = _read(spec)
    pod = Wiring()
    devices = _devices(pod, shape)
    first = _first_tier(pod, shape, devices)
    if shape.trunk is not None:
        _second_tier(pod, shape, first)
    return pod


def _read(spec: Reader) -> _Shape:
    hosts = spec.count("hosts")
    per_host = spec.count("devices_per_host")
    per_package = spec.count("devices_per_package", 1)
    group = spec.count("hosts_per_group", hosts)
    count = spec.count("planes")
    prefix = spec.text("prefix", "d")
    links: dict[str, LinkSpec] = {}
    extra = {"trunk_chips": 0, "cpus_per_host": 0}
    for key in ("lane", "sibling", "trunk", "cpus"):
        if key != "lane" and not spec.has(key):
            continue
        section = spec.section(key)
        if key == "trunk":
            extra["trunk_chips"] = section.count("chips_per_plane")
            links[key] = _trunk(section)
        elif key == "cpus":
            extra["cpus_per_host"] = section.count("per_host")
            links[key] = LinkSpec.read(section)
        else:
            links[key] = LinkSpec(
                section.quantity("capacity", "bandwidth"), 0.0, LinkSpec.read_efficiency(section)
            )
        section.close()
    if per_host % per_package:
        spec.problem("devices_per_package", f"{per_package} does not divide {per_host} devices a host")
    if hosts % group:
        spec.problem("hosts_per_group", f"{group} does not divide {hosts} hosts")
    if "sibling" in links and per_package == 1:
        spec.problem("sibling", "a sibling link needs devices_per_package of 2 or more")
    if hosts > group and "trunk" not in links:
        spec.problem(
            None, f"{hosts // group} groups of hosts need a trunk", "trunk: {chips_per_plane, capacity}"
        )
    groups = max(1, hosts // group)
    spec.fits(
        lanes=hosts * per_host * count,
        siblings=hosts * per_host * per_package,
        cpu_links=hosts * extra["cpus_per_host"] * count,
        trunks=groups * count * extra["trunk_chips"],
    )
    write, read = _latencies(spec, "trunk" in links, "sibling" in links)
    spec.close()
    spec.check()
    return _Shape(
        hosts=hosts,
        per_host=per_host,
        per_package=per_package,
        hosts_per_group=group,
        planes=count,
        prefix=prefix,
        lane=links["lane"].lasting(write.lane, read.lane),
        sibling=links["sibling"].lasting(write.sibling, read.sibling) if "sibling" in links else None,
        trunk=links["trunk"].lasting(write.trunk, read.trunk) if "trunk" in links else None,
        cpu=links.get("cpus"),
        **extra,
    )


def _trunk(section: Reader) -> LinkSpec:
    """Capacity of one first-tier chip to one second-tier chip, divided by the taper."""
    capacity = section.quantity("capacity", "bandwidth")
    taper = section.quantity("taper", "ratio", 1.0)
    return LinkSpec(capacity / taper, 0.0, LinkSpec.read_efficiency(section))


def _latencies(spec: Reader, two_tiers: bool, siblings: bool) -> tuple[_Latency, _Latency]:
    """Latencies of the mapping ``latency`` or of the profile that it names, and those of reads."""
    if not spec.has("latency"):
        return (_Latency.split(0.0, 0.0, 0.0),) * 2
    if isinstance(spec.get("latency"), dict):
        profile = spec.section("latency")
    else:
        profiles = spec.section("profiles")
        names = sorted(profiles.document.get(profiles.loc)) or ["a profile"]
        chosen = spec.choice("latency", names)
        for name in names:
            section = profiles.section(name)
            if name != chosen:
                # Checked as well, but what is not used is not cited.
                section = Reader(section.document, section.loc, section.problems)
                _profile(section, two_tiers, siblings)
        profile = profiles.section(chosen)
    return _profile(profile, two_tiers, siblings)


def _profile(profile: Reader, two_tiers: bool, siblings: bool) -> tuple[_Latency, _Latency]:
    read = _tiers(profile.section("read"), two_tiers, siblings) if profile.has("read") else None
    write = _tiers(profile, two_tiers, siblings)
    return write, write if read is None else read


def _tiers(profile: Reader, two_tiers: bool, siblings: bool) -> _Latency:
    one = profile.quantity("one_tier", "time", zero=True)
    two = profile.quantity("two_tier", "time", zero=True) if two_tiers else one
    sibling = profile.quantity("sibling", "time", zero=True) if siblings else 0.0
    if two < one:
        profile.problem("two_tier", "two tiers are faster than one", "at least one_tier")
    profile.close()
    return _Latency.split(one, two, sibling)


def _devices(pod: Wiring, shape: _Shape) -> IntArray:
    number = np.arange(shape.hosts * shape.per_host)
    package = number // shape.per_package
    names = [f"{shape.prefix}{i}" for i in number]
    devices = pod.add("device", names, package=package, host=number // shape.per_host, domain=0)
    if shape.sibling is not None:
        left, right = np.triu_indices(shape.per_package, k=1)
        packages = devices.reshape(-1, shape.per_package)
        pod.link("sibling", packages[:, left], packages[:, right], shape.sibling)
    return devices


def _first_tier(pod: Wiring, shape: _Shape, devices: IntArray) -> IntArray:
    """(groups, planes) chips, joined to all devices (and CPUs) of their group by one lane each."""
    own_host = shape.hosts_per_group == 1
    group = "host" if own_host else "group"
    named = [
        f"{group}{g}/l1.{p}" if shape.groups > 1 else f"switch/chip{p}"
        for g in range(shape.groups)
        for p in range(shape.planes)
    ]
    plane = np.tile(np.arange(shape.planes), shape.groups)
    host = np.repeat(np.arange(shape.groups), shape.planes) if own_host else -1
    chips = pod.add("switch", named, host=host, domain=0, plane=plane).reshape(shape.groups, shape.planes)
    of_host = np.arange(shape.hosts) // shape.hosts_per_group
    above = chips[np.repeat(of_host, shape.per_host)]
    pod.link("lane", devices[:, None], above, shape.lane)
    if shape.cpu is not None:
        names = [f"host{h}/cpu{c}" for h in range(shape.hosts) for c in range(shape.cpus_per_host)]
        at = np.repeat(np.arange(shape.hosts), shape.cpus_per_host)
        cpus = pod.add("cpu", names, host=at, domain=0)
        pod.link("cpu", cpus[:, None], chips[of_host[at]], shape.cpu)
    return chips


def _second_tier(pod: Wiring, shape: _Shape, first: IntArray) -> None:
    """Join each first-tier chip to all second-tier chips of its plane."""
    assert shape.trunk is not None
    plane = np.repeat(np.arange(shape.planes), shape.trunk_chips)
    names = [f"plane{p}/l2.{i}" for p in range(shape.planes) for i in range(shape.trunk_chips)]
    chips = pod.add("switch", names, domain=0, plane=plane).reshape(shape.planes, shape.trunk_chips)
    pod.link("trunk", first[:, :, None], chips[None, :, :], shape.trunk)
