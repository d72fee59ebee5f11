"""From a topology document to a :class:`~moesim.topology.Topology`: the parts that all families share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moesim.fabrics import FABRICS
from moesim.fabrics._reader import Reader
from moesim.fabrics._wiring import LinkSpec, Wiring
from moesim.topology import ACCESSES, Device, FloatArray, Tier, Topology
from moesim.yamlio import Document

DTYPES = ("bf16", "fp8", "int8", "fp4")
PROPERTIES = ("atomic-512B", "multicast")
"""What a fabric can be known to do: 512 B writes seen whole or not at all; one write to many."""


def build(document: Document, parameters: dict[str, Any], path: str | None) -> Topology:
    """Read ``{moesim: 1, fabric, device, properties, parameters}`` and lay the pod out.

    Raises :class:`InputError` with every problem of the file. ``parameters``: those in force. ``path``: the
    file, ``None`` for an inline pod.
    """
    spec = Reader(document)
    if spec.has("moesim") and spec.get("moesim") != 1:
        spec.problem("moesim", f"version {spec.get('moesim')!r} of the format", "moesim: 1")
    name = spec.text("name", "inline" if path is None else Path(path).stem)
    spec.has("parameters")
    spec.has("sources")
    device = _device(spec.section("device")) if spec.has("device") else Device.ideal()
    properties = _properties(spec)
    fabric = spec.section("fabric")
    spec.close()
    family = fabric.choice("kind", FABRICS.names())
    if fabric.get("kind") not in FABRICS.names():
        spec.check()
    pod = FABRICS.get(family)(fabric)
    spec.check()
    ideal = frozenset() if "device" in document.data else frozenset({"ideal"})
    return _topology(pod, name, family, path, device, properties | ideal, spec, parameters)


def _topology(
    pod: Wiring,
    name: str,
    family: str,
    path: str | None,
    device: Device,
    properties: frozenset[str],
    spec: Reader,
    parameters: dict[str, Any],
) -> Topology:
    kinds, specs = pod.kinds(), pod.specs()
    src, dst = pod.ends()
    named = [access for access in ACCESSES if any(access in link.efficiency for link in specs)]
    return Topology(
        name=name,
        family=family,
        path=path,
        vertices=tuple(pod.names),
        vertex_kind=kinds,
        package=pod.ints("package"),
        host=pod.ints("host"),
        domain=pod.ints("domain"),
        plane=pod.ints("plane"),
        devices=np.flatnonzero(kinds == "device"),
        link_src=src,
        link_dst=dst,
        link_capacity=pod.column([link.capacity for link in specs]),
        link_latency=pod.column([link.latency for link in specs]),
        link_kind=pod.link_kinds(),
        read_latency=_read_latency(pod, specs),
        efficiency={
            access: pod.column([link.efficiency.get(access, link.efficiency["default"]) for link in specs])
            for access in [*named, "default"]
        },
        message_rate=pod.message_rates(),
        device=device,
        properties=properties,
        cited=tuple(spec.cited),
        parameters=parameters,
    )


def _read_latency(pod: Wiring, specs: Sequence[LinkSpec]) -> FloatArray | None:
    """(L,) [s] of reads, None where they take as long as all else."""
    if all(link.read_latency is None for link in specs):
        return None
    return pod.column([link.latency if link.read_latency is None else link.read_latency for link in specs])


def _device(spec: Reader) -> Device:
    """``{name, cores, core_kind, compute: {dtype: rate}, hbm_rate, memory}`` and, with defaults, the
    efficiencies (1) and ``engines: {write|read: {device|host|domain|scale_out: rate}}`` (unlimited).
    """
    compute = spec.section("compute")
    dtypes = [dtype for dtype in DTYPES if compute.has(dtype)]
    rates = {dtype: compute.quantity(dtype, "flops") for dtype in dtypes}
    compute.close()
    engines: dict[str, dict[Tier, float]] = {}
    if spec.has("engines"):
        section = spec.section("engines")
        for way in ("write", "read"):
            if section.has(way):
                engines[way] = _engine(section.section(way))
        section.close()
    device = Device(
        name=spec.text("name", "device"),
        cores=spec.count("cores", 1),
        core_kind=spec.text("core_kind", "core"),
        compute=rates,
        compute_efficiency=spec.quantity("compute_efficiency", "share", 1.0, most=1.0),
        hbm_rate=spec.quantity("hbm_rate", "bandwidth"),
        hbm_efficiency=spec.quantity("hbm_efficiency", "share", 1.0, most=1.0),
        memory=spec.quantity("memory", "bytes"),
        engines=engines,
    )
    spec.close()
    return device


def _engine(spec: Reader) -> dict[Tier, float]:
    tiers = {tier.name.lower(): tier for tier in Tier if tier is not Tier.SELF}
    rates: dict[Tier, float] = {
        tier: spec.quantity(key, "bandwidth") for key, tier in tiers.items() if spec.has(key)
    }
    spec.close()
    return rates


def _properties(spec: Reader) -> frozenset[str]:
    """``[name, ...]``, or ``{name: {source, grade, note}}`` which is cited like a number."""
    if not spec.has("properties"):
        return frozenset()
    given = spec.get("properties")
    if not isinstance(given, (list, dict)) or any(name not in PROPERTIES for name in given):
        legal = f"a list of {', '.join(PROPERTIES)}, or a mapping of them to source and grade"
        spec.problem("properties", f"properties are {given!r}", legal)
        return frozenset()
    if isinstance(given, dict):
        section = spec.section("properties")
        for name in given:
            section.section(name).statement()
    return frozenset(given)
