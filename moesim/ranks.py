"""Which rank of the EP group sits on which device of the pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from moesim.errors import InputError, Problem
from moesim.registry import nearest
from moesim.topology import IntArray, Topology

RULES = ("packed", "spread")


def place(topology: Topology, ep: int, rule: str | Sequence[int | str] = "packed") -> IntArray:
    """(ep,) device numbers (indices of ``topology.devices``), in rank order, none twice.

    ``packed``: the first devices, so that a group fills as few hosts as it can. ``spread``: over all hosts,
    as evenly as they divide, consecutive ranks staying together. A list: device numbers or names. Raises
    :class:`InputError` when the group does not fit the pod.
    """
    devices = len(topology.devices)
    if not 1 <= ep <= devices:
        legal = f"ep from 1 to {devices}"
        raise InputError(
            Problem(f"ep {ep} does not fit the {devices} devices of {topology.name}", legal=legal)
        )
    if isinstance(rule, str):
        if rule == "packed":
            return np.arange(ep, dtype=np.int64)
        if rule == "spread":
            return _spread(topology, ep)
        raise InputError(
            Problem(f"unknown placement {rule!r}", legal=f"{nearest(rule, list(RULES))}; or a list")
        )
    return _listed(topology, ep, rule)


def _spread(topology: Topology, ep: int) -> IntArray:
    """Host h of H gets ranks from ``ep * h / H``, and those beyond its size go where there is room."""
    host = topology.host[topology.devices]
    members = [np.flatnonzero(host == h) for h in np.unique(host)]
    share = np.zeros(len(members), dtype=np.int64)
    sizes = np.array([len(group) for group in members])
    while (left := ep - int(share.sum())) > 0:
        room = np.flatnonzero(share < sizes)
        if left >= len(room):
            share[room] += 1
        else:
            # Fewer ranks than hosts are left: take hosts at equal distances.
            share[room[np.arange(left) * len(room) // left]] += 1
    return np.concatenate([group[:n] for group, n in zip(members, share, strict=True)]).astype(np.int64)


def _listed(topology: Topology, ep: int, devices: Sequence[int | str]) -> IntArray:
    names = topology.device_names()
    number = {name: i for i, name in enumerate(names)}
    problems: list[Problem] = []
    chosen: list[int] = []
    for device in devices:
        if isinstance(device, str) and device in number:
            chosen.append(number[device])
        elif isinstance(device, int) and not isinstance(device, bool) and 0 <= device < len(names):
            chosen.append(device)
        else:
            near = nearest(device, list(names)) if isinstance(device, str) and len(names) <= 100 else None
            legal = near or f"0 to {len(names) - 1}, or a name from {names[0]} to {names[-1]}"
            problems.append(Problem(f"{topology.name} has no device {device!r}", legal=legal))
    if len(devices) != ep:
        problems.append(Problem(f"{len(devices)} devices are listed for ep {ep}", legal=f"a list of {ep}"))
    twice = sorted(names[d] for d, count in Counter(chosen).items() if count > 1)
    if twice:
        shown = ", ".join(twice[:8]) + (f" and {len(twice) - 8} others" if len(twice) > 8 else "")
        problems.append(Problem(f"devices listed twice: {shown}", legal="one rank a device"))
    if problems:
        raise InputError(problems)
    return np.array(chosen, dtype=np.int64)
