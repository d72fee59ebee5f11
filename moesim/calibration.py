"""The constants of a protocol or balancer on a pod: what it costs beside the wire, each with a source and a grade.

A file states all constants, or some and takes the others from a file that it ``inherits``: that of another protocol on
the same pod (``cann-ep``), or one of another pod where the physics is the same (``h100-ib/deepep-ll``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from moesim import resources, sources, units, yamlio
from moesim.errors import InputError, Problem
from moesim.registry import nearest
from moesim.sources import Cited
from moesim.yamlio import Document

FALLBACK = "default"


@dataclass(frozen=True)
class Fit:
    """What ``moesim calibrate`` did: ``constants`` that it fitted to ``rows`` (text), and the residuals left.

    ``median``, ``p90``: of |predicted / measured - 1| over those rows.
    """

    rows: str
    constants: tuple[str, ...]
    median: float
    p90: float


@dataclass(frozen=True)
class Calibration:
    """Constants by name in SI units, and where each comes from.

    ``pod`` is the folder that was used: the pod itself, or ``default`` for a pod that nobody has measured.
    ``access`` says how the protocol moves bytes (``store``, ``bulk``, ``write``, ``read``): it selects the packet
    efficiency of a link and the engine of a device. ``inherited``: the files that other constants are taken from.
    """

    kind: str
    pod: str
    path: str
    access: str
    values: Mapping[str, float]
    cited: tuple[Cited, ...]
    inherited: tuple[str, ...] = ()
    fit: Fit | None = None

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def with_value(self, name: str, value: float) -> Calibration:
        """A copy with one constant changed, for sensitivities."""
        return replace(self, values={**self.values, name: value})


def load(pod: str, kind: str, constants: Mapping[str, str]) -> Calibration:
    """The calibration of ``kind`` on ``pod``, or the default one where there is none.

    ``constants`` maps the names that the protocol or balancer needs to their dimension; the file must hold exactly
    those, or inherit what it does not. Raises :class:`InputError` with the place of what is missing, unknown or of the
    wrong unit.
    """
    name = _chosen(pod, kind)
    return _read(yamlio.load(resources.find("calibration", name)), name, pod, constants, constants, ())


def read(path: str | Path, kind: str, pod: str, constants: Mapping[str, str]) -> Calibration:
    """The calibration in the file at ``path``, as :func:`load` would give it if it were that of ``kind`` on ``pod``."""
    return _read(yamlio.load(path), f"{pod}/{kind}", pod, constants, constants, ())


def _chosen(pod: str, kind: str) -> str:
    name = f"{pod}/{kind}"
    return name if name in resources.names("calibration") else f"{FALLBACK}/{kind}"


def _read(
    document: Document,
    name: str,
    asked: str,
    constants: Mapping[str, str],
    legal: Mapping[str, str],
    heirs: tuple[str, ...],
) -> Calibration:
    """``constants`` are needed of the file called ``name``, which may state any that are ``legal``.

    ``asked``: the pod it is for, which has a file of its own or not. ``heirs``: names of the files that take
    something from this one.
    """
    _closed(document, legal)
    pod, _, kind = name.partition("/")
    own = document.data["constants"]
    values: dict[str, float] = {}
    cited: list[Cited] = []
    inherited: tuple[str, ...] = ()
    access = document.data.get("access")
    if "inherits" in document.data:
        # Constants that two protocols or two pods share stand in one file only.
        wanted = {key: dimension for key, dimension in constants.items() if key not in own}
        heirs = (*heirs, name)
        parent, of = _parent(document, asked, heirs)
        text = yamlio.load(resources.find("calibration", parent))
        rest = _read(text, parent, of, wanted, legal, heirs)
        values, cited, inherited = dict(rest.values), list(rest.cited), (rest.path, *rest.inherited)
        access = access or rest.access
    problems: list[Problem] = []
    for key, dimension in constants.items():
        if key in values:
            continue
        try:
            values[key], citation = sources.cite(document, ("constants", key), dimension)
        except InputError as error:
            problems.extend(error.problems)
            continue
        cited.append(replace(citation, where=f"{kind}.{key} ({pod})"))
    if problems:
        raise InputError(problems)
    fit = _fit(document, legal) if "fit" in document.data else None
    return Calibration(kind, pod, document.path, access or "default", values, tuple(cited), inherited, fit)


def _parent(document: Document, asked: str, heirs: tuple[str, ...]) -> tuple[str, str]:
    """Name of the file that ``document`` inherits, and the pod it is asked for.

    It states ``pod/kind``, or a kind: that of the pod ``asked`` for, or its default.
    """
    stated = str(document.data["inherits"])
    pod, slash, _ = stated.partition("/")
    found, of = (stated, pod) if slash else (_chosen(asked, stated), asked)
    known = resources.names("calibration")
    if found not in known:
        raise InputError(
            document.problem(("inherits",), f"unknown calibration {stated!r}", nearest(found, known))
        )
    if found in heirs:
        raise InputError(document.problem(("inherits",), f"{stated} inherits from this file itself"))
    return found, of


def _fit(document: Document, legal: Mapping[str, str]) -> Fit:
    """The block ``fit``; :class:`InputError` for what is not as :func:`moesim.calibrate.write` writes it."""
    block = document.data["fit"]
    keys = ["rows", "constants", "median", "p90"]
    if not isinstance(block, dict) or sorted(block) != sorted(keys):
        raise InputError(document.problem(("fit",), "not what a fit says", ", ".join(keys), at="key"))
    names = block["constants"]
    if not isinstance(names, list) or not set(map(str, names)) <= set(legal):
        raise InputError(document.problem(("fit", "constants"), "not a list of constants", ", ".join(legal)))
    shares: list[float] = []
    for key in ("median", "p90"):
        try:
            shares.append(units.parse(block[key], "ratio"))
        except InputError as error:
            raise InputError([document.place(problem, ("fit", key)) for problem in error.problems]) from None
    return Fit(str(block["rows"]), tuple(map(str, names)), *shares)


def _closed(document: Document, constants: Mapping[str, str]) -> None:
    legal = ["moesim", "access", "inherits", "constants", "fit", "source", "sources", "grade", "note"]
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
