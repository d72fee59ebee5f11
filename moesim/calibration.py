"""The constants of a protocol or balancer on a pod: what it costs beside the wire, each with a source and a grade.

A file states all constants, or some and takes the others from a file that it ``inherits``: that of another protocol on
the same pod (``cann-ep``), or one of another pod where the physics is the same (``h100-ib/deepep-ll``). ``protocol``
says whose constants they are where the name of the file does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from moesim import resources, sources, units, yamlio
from moesim.errors import InputError, Problem
from moesim.registry import nearest
from moesim.sources import Cited, Source
from moesim.yamlio import Document

FALLBACK = "default"


@dataclass(frozen=True)
class Fit:
    """What ``moesim calibrate`` did: ``constants`` that it fitted to ``rows`` (text), and the residuals left.

    ``median``, ``p90``: of |predicted / measured - 1| over those rows. Where they are stated: the ``pod`` that was
    measured, the ``file`` of the measurements, and what its rows name as their ``sources``.
    """

    rows: str
    constants: tuple[str, ...]
    median: float
    p90: float
    pod: str = ""
    file: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calibration:
    """Constants by name in SI units, and where each comes from.

    ``pod`` is the folder that was used: the pod itself, or ``default`` for a pod that nobody has measured; of a file
    that moesim does not ship its name.
    ``access`` says how the protocol moves bytes (``store``, ``bulk``, ``write``, ``read``): it selects the packet
    efficiency of a link and the engine of a device. ``inherited``: the files that other constants are taken from.
    ``sources``: those that the file brings itself.
    """

    kind: str
    pod: str
    path: str
    access: str
    values: Mapping[str, float]
    cited: tuple[Cited, ...]
    inherited: tuple[str, ...] = ()
    fit: Fit | None = None
    sources: tuple[Source, ...] = ()

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


def read(path: str | Path, pod: str, kind: str, constants: Mapping[str, str]) -> Calibration:
    """The calibration of ``kind`` in the file at ``path``, for ``pod`` whatever pod it was made for.

    Raises :class:`InputError` as :func:`load` does, and where the file is that of another protocol.
    """
    document, shipped = yamlio.load(path), resources.name_of("calibration", Path(path))
    folder, _, named = (shipped or "").partition("/")
    stated = document.data.get("protocol", named or kind)
    if stated != kind:
        message = f"a calibration of {stated!r} where one of {kind!r} is needed"
        if "protocol" in document.data:
            raise InputError(document.problem(("protocol",), message, kind))
        raise InputError(Problem(message, legal=f"{pod}/{kind}, or the path of a file"))
    asked = pod if folder in ("", FALLBACK) else folder
    return _read(document, shipped or f"{Path(path).name}/{kind}", asked, constants, constants, ())


def ancestor(asked: str, stated: str) -> str:
    """``pod/kind`` of the file that a calibration for the pod ``asked`` means by ``inherits: stated``."""
    return stated if "/" in stated else _chosen(asked, stated)


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
    stated = document.data["constants"]
    values: dict[str, float] = {}
    cited: list[Cited] = []
    inherited: tuple[str, ...] = ()
    access = document.data.get("access")
    if "inherits" in document.data:
        # Constants that two protocols or two pods share stand in one file only.
        wanted = {key: dimension for key, dimension in constants.items() if key not in stated}
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
    own = tuple(sources.own(document).values())
    return Calibration(
        kind, pod, document.path, access or "default", values, tuple(cited), inherited, fit, own
    )


def _parent(document: Document, asked: str, heirs: tuple[str, ...]) -> tuple[str, str]:
    """Name of the file that ``document`` inherits, and the pod it is asked for.

    It states ``pod/kind``, or a kind: that of the pod ``asked`` for, or its default.
    """
    stated = str(document.data["inherits"])
    found = ancestor(asked, stated)
    of = found.partition("/")[0] if "/" in stated else asked
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
    keys, more = ["rows", "constants", "median", "p90"], ["pod", "file", "sources"]
    if not isinstance(block, dict) or not set(keys) <= set(block) <= {*keys, *more}:
        hint = f"{', '.join(keys)}; {', '.join(more)} if they are known"
        raise InputError(document.problem(("fit",), "not what a fit says", hint, at="key"))
    names = block["constants"]
    if not isinstance(names, list) or not set(map(str, names)) <= set(legal):
        raise InputError(document.problem(("fit", "constants"), "not a list of constants", ", ".join(legal)))
    shares: dict[str, float] = {}
    for key in ("median", "p90"):
        try:
            shares[key] = units.parse(block[key], "ratio")
        except InputError as error:
            raise InputError([document.place(problem, ("fit", key)) for problem in error.problems]) from None
    texts = block.get("sources", [])
    if not isinstance(texts, list):
        raise InputError(document.problem(("fit", "sources"), "not a list of sources", "[a text, another]"))
    return Fit(
        rows=str(block["rows"]),
        constants=tuple(map(str, names)),
        **shares,
        pod=str(block.get("pod", "")),
        file=str(block.get("file", "")),
        sources=tuple(map(str, texts)),
    )


def _closed(document: Document, constants: Mapping[str, str]) -> None:
    legal = [
        "moesim",
        "protocol",
        "access",
        "inherits",
        "constants",
        "fit",
        "source",
        "sources",
        "grade",
        "note",
    ]
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
