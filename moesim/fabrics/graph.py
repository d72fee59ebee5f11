"""Family ``graph``: any pod, written out as devices, switches and links."""

from __future__ import annotations

from typing import Any

import numpy as np

from moesim.fabrics import FABRICS
from moesim.fabrics._reader import Reader
from moesim.fabrics._wiring import LinkSpec, Wiring
from moesim.registry import nearest


@FABRICS.register("graph")
def graph(spec: Reader) -> Wiring:
    """``{devices: [name | {name, host, domain, package}], switches: [name], links: [{a, b, capacity,
    latency, count}]}``.

    Devices are in rank order. Where it is not said, all are in host 0 and domain 0, each in a package of
    its own. ``count`` parallel links are that many paths of a spray.
    """
    devices = [_device(spec, i, item) for i, item in enumerate(spec.items("devices"))]
    listed = spec.items("switches") if spec.has("switches") else []
    switches = [_name(spec, "switches", i, item) for i, item in enumerate(listed)]
    names = [device["name"] for device in devices] + switches
    for key, offset, group in (("devices", 0, devices), ("switches", len(devices), switches)):
        for i in range(len(group)):
            if names[offset + i] in names[: offset + i]:
                _refuse(spec, key, i, f"the name {names[offset + i]!r} is given twice", "each name once")
    links = [_link(spec, i, names) for i in range(len(spec.items("links")))]
    spec.fits(links=sum(count for _, _, count, _ in links))
    spec.close()
    spec.check()
    pod = Wiring()
    package, host, domain = ([device[key] for device in devices] for key in ("package", "host", "domain"))
    pod.add("device", names[: len(devices)], package=package, host=host, domain=domain)
    pod.add("switch", switches)
    for a, b, count, link in links:
        pod.link("link", np.full(count, a), np.full(count, b), link)
    return pod


def _refuse(spec: Reader, key: str, index: int, message: str, legal: str) -> None:
    spec.problems.append(spec.document.problem((*spec.loc, key, index), message, legal))


def _name(spec: Reader, key: str, index: int, item: Any) -> str:
    if not isinstance(item, str) or not item or "--" in item:
        _refuse(spec, key, index, f"{item!r} is not a name", 'text without "--"')
        return f"{key}{index}"
    return item


def _device(spec: Reader, index: int, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        name = _name(spec, "devices", index, item)
        return {"name": name, "host": 0, "domain": 0, "package": index}
    one = spec.element("devices", index)
    name = _name(spec, "devices", index, one.get("name"))
    numbers = {"host": 0, "domain": 0, "package": index}
    device = {key: one.count(key, default, least=0) for key, default in numbers.items()}
    one.close()
    return {"name": name, **device}


def _link(spec: Reader, index: int, names: list[str]) -> tuple[int, int, int, LinkSpec]:
    one = spec.element("links", index)
    ends = []
    for key in ("a", "b"):
        name = one.get(key)
        if name not in names:
            one.problem(key, f"link end {key} is the unknown {name!r}", nearest(str(name), names))
        ends.append(names.index(name) if name in names else -1)
    if ends[0] == ends[1] and ends[0] >= 0:
        one.problem("b", f"the link joins {names[ends[0]]!r} to itself", "two different ends")
    count = one.count("count", 1)
    link = LinkSpec.read(one)
    one.close()
    return ends[0], ends[1], count, link
