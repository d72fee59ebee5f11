"""The constants of a protocol or balancer on a pod: what it costs beside the wire, each with a source and a grade."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from moesim import resources, sources, yamlio
from moesim.errors import InputError, Problem
from moesim.registry import nearest
from moesim.sources import Cited
from moesim.yamlio import Document

FALLBACK = "default"


@dataclass(frozen=True)
class Calibration:
    """Constants by name in SI units, and where each comes from.

    ``pod`` is the folder that was used: the pod itself, or ``default`` for a pod that nobody has measured.
    ``access`` says how the protocol moves bytes (``store``, ``bulk``, ``write``, ``read``): it selects the packet
    efficiency of a link and the engine of a device.
    """

    kind: str
    pod: str
    path: str
    access: str
    values: Mapping[str, float]
    cited: tuple[Cited, ...]
    inherited: str | None = None
    """The file that it takes its other constants from."""

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def with_value(self, name: str, value: float) -> Calibration:
        """A copy with one constant changed, for sensitivities."""
        return replace(self, values={**self.values, name: value})


def load(
    pod: str, kind: str, constants: Mapping[str, str], legal: Mapping[str, str] | None = None
) -> Calibration:
    """The calibration of ``kind`` on ``pod``, or the default one where there is none.

    ``constants`` maps the names that the protocol or balancer needs to their dimension; the file must hold exactly
    those, and may hold what is ``legal`` besides (what an heir states itself). Raises :class:`InputError` with the
    place of what is missing, unknown or of the wrong unit.
    """
    known = resources.names("calibration")
    chosen = pod if f"{pod}/{kind}" in known else FALLBACK
    document = yamlio.load(resources.find("calibration", f"{chosen}/{kind}"))
    _closed(document, constants if legal is None else legal)
    own = document.data["constants"]
    values: dict[str, float] = {}
    cited: list[Cited] = []
    inherited: str | None = None
    parent = document.data.get("inherits")
    if parent is not None:
        # Constants that two protocols share stand in one file only.
        rest = load(
            pod, parent, {name: kind for name, kind in constants.items() if name not in own}, constants
        )
        values, cited, inherited = dict(rest.values), list(rest.cited), rest.path
    problems: list[Problem] = []
    for name, dimension in constants.items():
        if name in values:
            continue
        try:
            values[name], citation = sources.cite(document, ("constants", name), dimension)
        except InputError as error:
            problems.extend(error.problems)
            continue
        cited.append(replace(citation, where=f"{kind}.{name} ({chosen})"))
    if problems:
        raise InputError(problems)
    access = document.data.get("access", "default")
    return Calibration(kind, chosen, document.path, access, values, tuple(cited), inherited)


def _closed(document: Document, constants: Mapping[str, str]) -> None:
    legal = ["moesim", "access", "inherits", "constants", "source", "grade", "note"]
    problems: list[Problem] = [
        document.problem((key,), f"unknown key {key!r}", nearest(key, legal), at="key")
        for key in document.data
        if key not in legal
    ]
    given = document.data.get("constants")
    if not isinstance(given, dict):
        raise InputError([*problems, document.problem((), "a mapping `constants` is missing")])
    names = sorted(constants)
    problems += [
        document.problem(("constants", key), f"unknown constant {key!r}", nearest(key, names), at="key")
        for key in given
        if key not in constants
    ]
    if problems:
        raise InputError(problems)
