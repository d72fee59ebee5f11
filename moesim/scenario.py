"""A scenario: one question, read from a YAML file, checked as a whole, frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel, PrivateAttr

from moesim import moe, requirement, resources, yamlio
from moesim.checking import in_order, validate
from moesim.errors import InputError, Problem
from moesim.overrides import overridden, superseded
from moesim.registry import nearest
from moesim.requirement import Requirement
from moesim.schema import Choice, ScenarioKeys, json_schema
from moesim.yamlio import Document, Loc

__all__ = ["Scenario", "from_mapping", "json_schema", "load"]


class Scenario(ScenarioKeys):
    """A checked scenario in SI units, with the document it came from.

    The keys are attributes; see :class:`~moesim.schema.ScenarioKeys`.
    """

    _document: Document = PrivateAttr()
    _applied: tuple[str, ...] = PrivateAttr(default=())
    _superseded: tuple[tuple[str, str], ...] = PrivateAttr(default=())

    @property
    def document(self) -> Document:
        """The file it was read from, overrides included: for the places of later problems."""
        return self._document

    @property
    def applied(self) -> tuple[str, ...]:
        """The overrides, in the order they were applied: ``("ranks.ep=32", "seed=3")``."""
        return self._applied

    @property
    def superseded(self) -> tuple[tuple[str, str], ...]:
        """Overrides without effect, each with the later one that was given along with it and replaces it."""
        return self._superseded

    @property
    def base(self) -> Path | None:
        """The folder that relative paths in it start from (after the current one)."""
        path = Path(self._document.path)
        return path.parent if path.is_file() else None

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """``require``, parsed."""
        return tuple(requirement.parse(text) for text in self.require)

    def edited(self, sets: Sequence[str]) -> Scenario:
        """A copy with ``sets`` (``["ranks.ep=32"]``) applied and everything checked again."""
        changed = _checked(overridden(self._document, sets, "--set"), (*self._applied, *sets))
        changed._superseded = (*self._superseded, *superseded(sets))
        return changed

    def resolved(self) -> dict[str, Any]:
        """Plain data from which the same run repeats, from any folder.

        Every key and parameter is there, with its default where none was written; a shipped file is named, any
        other by its absolute path.
        """
        full = _complete(self, self._document.data)
        if isinstance(self.model, dict):
            full["model"] = _complete(moe.spec().model_validate(self.model), self.model)
        full["topology"] = _named(full["topology"], "topology", self.base)
        full["routing"] = _named(full["routing"], "trace", self.base)
        for kind in ("placement", "calibration"):
            full["strategies"] = _named(full["strategies"], kind, self.base)
        return full


def load(
    name: str | Path, sets: Sequence[str] = (), seed: int | None = None, fidelity: str | None = None
) -> Scenario:
    """Read a scenario by shipped name or path, apply overrides, check everything.

    ``sets``: ``"workload.tokens_per_rank=128"``, in the order given, see :mod:`moesim.overrides`; ``seed``
    and ``fidelity`` come last.

    Raises :class:`InputError` with all problems, each with file, line, column, excerpt and what is legal.
    """
    document = yamlio.load(resources.find("scenario", name))
    document = overridden(document, sets, "--set")
    options = {"seed": seed, "fidelity": fidelity}
    given = [(key, f"{key}={value}") for key, value in options.items() if value is not None]
    for key, text in given:
        document = overridden(document, [text], f"--{key}")
    applied = (*sets, *(text for _, text in given))
    found = _checked(document, applied)
    found._superseded = tuple(superseded(applied))
    return found


def from_mapping(data: Mapping[str, Any], path: str = "<scenario>") -> Scenario:
    """A scenario from plain data with the keys of a scenario file, quantities as text."""
    if not isinstance(data, Mapping):
        raise TypeError(
            f"a scenario is a mapping with the keys of a scenario file, not a {type(data).__name__}"
        )
    return _checked(Document(_written(data, ""), path, {}, {}), ())


def _written(value: Any, where: str, depth: int = 0) -> Any:
    """What a notebook holds (numpy numbers and arrays, paths, tuples) as what a file would hold."""
    if depth > yamlio.MAX_DEPTH:
        start = ".".join(where.split(".")[:3])
        raise InputError(f"{start}: nested more than {yamlio.MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        keys = [key for key in value if not isinstance(key, str)]
        if keys:
            raise TypeError(f"{where or 'a scenario'}: a key is text, not {keys[0]!r}")
        return {key: _written(item, f"{where}.{key}".lstrip("."), depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_written(item, f"{where}.{number}", depth + 1) for number, item in enumerate(value)]
    if hasattr(value, "tolist"):
        return _written(value.tolist(), where)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(
        f"{where} cannot be a {type(value).__name__}: text, numbers, lists and mappings are written"
    )


def _checked(document: Document, applied: tuple[str, ...]) -> Scenario:
    problems: list[Problem] = list(_cross_problems(document))
    try:
        scenario = validate(Scenario, document)
    except InputError as error:
        problems = [*error.problems, *problems]
    if problems:
        raise InputError(in_order(problems))
    scenario._document = document
    scenario._applied = applied
    return scenario


def _complete(model: BaseModel, written: Mapping[str, Any]) -> dict[str, Any]:
    """``written``, from which ``model`` was made, with the defaults of what was left out; unset options stay out."""
    full: dict[str, Any] = {}
    for key, field in type(model).model_fields.items():
        if key in written:
            full[key] = _filled(getattr(model, key), written[key])
        elif (default := field.get_default(call_default_factory=True)) not in (None, ""):
            full[key] = _filled(getattr(model, key), default)
    return full


def _filled(value: Any, written: Any) -> Any:
    """What stands for ``value`` in a file, of which ``written`` is there or the default."""
    if isinstance(value, Choice):
        params = _complete(value.params, value.written)
        return written if isinstance(written, str) and not params else {"kind": value.kind, **params}
    if isinstance(value, BaseModel):
        return _complete(value, written)
    if isinstance(value, tuple):
        return [_filled(one, item) for one, item in zip(value, written, strict=True)]
    return written


def _named(value: Any, kind: str, base: Path | None) -> Any:
    """``value`` with each file of ``kind`` by its shipped name or its absolute path."""
    if isinstance(value, dict):
        return {key: _named(item, kind, base) for key, item in value.items()}
    if isinstance(value, list):
        return [_named(item, kind, base) for item in value]
    if isinstance(value, str) and resources.is_path(value):
        for place in (Path(value), *([] if base is None else [base / value])):
            if place.is_file():
                return resources.name_of(kind, place) or str(place.resolve())
    return value


def _cross_problems(document: Document) -> Iterator[Problem]:
    """What is wrong between keys. Reads plain data, so that it is found along with wrong types elsewhere."""
    data = document.data
    strategies = data.get("strategies")
    named = [
        (number, item["name"])
        for number, item in enumerate(strategies if isinstance(strategies, list) else [])
        if isinstance(item, dict) and isinstance(item.get("name"), str)
    ]
    yield from _twice(document, named)
    yield from _strangers(document, [name for _, name in named])
    yield from _files(document)
    ranks = data.get("ranks")
    ep = ranks.get("ep") if isinstance(ranks, dict) else None
    if isinstance(ep, int) and not isinstance(ep, bool) and ep >= 1:
        yield from _outside(document, ep)


def _twice(document: Document, named: list[tuple[int, str]]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for number, name in named:
        if name in first:
            line = document.position(("strategies", first[name], "name"))[0]
            message = f"two strategies are called {name!r}, the first in line {line}"
            yield document.problem(("strategies", number, "name"), message, "a name for each")
        first.setdefault(name, number)


def _strangers(document: Document, names: list[str]) -> Iterator[Problem]:
    require = document.data.get("require")
    for number, text in enumerate(require if isinstance(require, list) else []):
        try:
            wanted = requirement.parse(text).strategy if isinstance(text, str) else None
        except InputError:
            continue  # the schema says what is wrong with it
        if (
            wanted is not None
            and requirement.parse(text).metric.startswith("backward")
            and not _trains(document)
        ):
            legal = "workload.phase: train"
            yield document.problem(("require", number), "without training there is no backward pass", legal)
        if wanted is not None and names and wanted not in names:
            yield document.problem(
                ("require", number), f"there is no strategy {wanted!r}", nearest(wanted, names)
            )


def _trains(document: Document) -> bool:
    work = document.data.get("workload")
    return isinstance(work, dict) and work.get("phase") == "train"


def _files(document: Document) -> Iterator[Problem]:
    path = Path(document.path)
    base = path.parent if path.is_file() else None
    topology, routing = document.data.get("topology"), document.data.get("routing")
    wanted: list[tuple[str, Loc, Any]] = [("topology", ("topology",), topology)]
    if isinstance(topology, dict) and "name" in topology and "fabric" not in topology:
        wanted.append(("topology", ("topology", "name"), topology["name"]))
    if isinstance(routing, dict):
        wanted.append(("trace", ("routing", "trace"), routing.get("trace")))
    strategies = document.data.get("strategies")
    for number, item in enumerate(strategies if isinstance(strategies, list) else []):
        if not isinstance(item, dict):
            continue
        loc: Loc = ("strategies", number)
        wanted.append(("calibration", (*loc, "calibration"), item.get("calibration")))
        balancer = item.get("balancer")
        if isinstance(balancer, dict):
            wanted.append(("placement", (*loc, "balancer", "placement"), balancer.get("placement")))
    for kind, loc, name in wanted:
        if isinstance(name, str) and name:
            try:
                resources.find(kind, name, base)
            except InputError as error:
                yield from (document.place(problem, loc) for problem in error.problems)


def _outside(document: Document, ep: int) -> Iterator[Problem]:
    """Rank numbers that the group does not have, and a list of places of another length."""
    legal = f"0 to {ep - 1}: ranks.ep is {ep}"
    for key, ends in (("background", ("src", "dst")), ("faults", ("rank",))):
        items = document.data.get(key)
        for number, item in enumerate(items if isinstance(items, list) else []):
            for end in ends:
                rank = item.get(end) if isinstance(item, dict) else None
                if isinstance(rank, int) and rank >= ep:
                    yield document.problem((key, number, end), f"there is no rank {rank}", legal)
    place = document.data["ranks"].get("place")
    if isinstance(place, list) and len(place) != ep:
        yield document.problem(
            ("ranks", "place"), f"{len(place)} places for {ep} ranks", f"{ep} devices, one a rank"
        )
