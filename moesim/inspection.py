"""What ``moesim check`` does: everything that a run does before it simulates, and nothing after."""

from __future__ import annotations

from pathlib import Path

from moesim import fabrics, moe, resources, scenario, sources, yamlio
from moesim.build import build
from moesim.errors import InputError
from moesim.registry import nearest
from moesim.yamlio import Document


def check(name: str) -> str:
    """Load the scenario or topology ``name`` and all that it names, and draw its routing; what it is, in a line.

    The other files that stand beside those, the catalogue of models, the bibliography and calibrations, are told
    apart by their keys and checked too. Raises :class:`InputError` with all problems: whatever a run would refuse.
    """
    if not resources.is_path(name) and name in resources.names("topology"):
        return _topology(name)
    path = resources.find("scenario", name)
    document = yamlio.load(path)
    keys = document.data.keys()
    if "fabric" in keys:
        return _topology(str(path))
    if "models" in keys and "strategies" not in keys:
        return f"catalogue of {len(moe.catalogue(path))} models"
    if "constants" in keys:
        return _calibration(path, document)
    if keys <= {"moesim", "sources"} and "sources" in keys:
        return f"bibliography of {len(sources.bibliography(path))} sources"
    return _scenario(name)


def _scenario(name: str) -> str:
    one = scenario.load(name)
    built = build(one)
    drawn = built.trace
    size = f"{len(one.strategies)} strategies on {built.topology.name}, {len(built.layers)} layers"
    return f"scenario, {size}" + (f", {drawn.steps} steps" if drawn.steps > 1 else "")


def _topology(name: str) -> str:
    topology = fabrics.load(name)
    return f"topology {topology.name}, {len(topology.devices)} devices"


def _calibration(path: Path, document: Document) -> str:
    """Whose constants they are stands in the file, or is its name, as that of every shipped one."""
    from moesim import calibration
    from moesim.balancers import BALANCERS
    from moesim.protocols import PROTOCOLS

    if "protocol" in document.data:
        kind, known = document.data["protocol"], PROTOCOLS.names()
        if kind not in known:
            raise InputError(
                document.problem(("protocol",), f"unknown protocol {kind!r}", nearest(str(kind), known))
            )
    else:
        kind, known = path.stem, [*PROTOCOLS.names(), *BALANCERS.names()]
        if kind not in known:
            message = "a calibration that does not say of which protocol"
            legal = f"`protocol: {PROTOCOLS.names()[0]}`, or another of `moesim list protocols`"
            raise InputError(document.problem(("constants",), message, legal, at="key"))
    user = PROTOCOLS.get(kind) if kind in PROTOCOLS.names() else BALANCERS.get(kind)
    found = calibration.read(path, calibration.FALLBACK, kind, user.constants)
    made_for = "" if found.fit is None else found.fit.pod
    pod = made_for if resources.name_of("calibration", path) is None else found.pod
    return f"calibration of {kind}" + (f" on {pod}" if pod else "") + f", {len(found.values)} constants"
