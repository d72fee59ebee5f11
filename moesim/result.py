"""The answer to a scenario: summary, tables and provenance; saved, loaded, equal again."""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moesim import jsonio, outfile, requirement, resources, summary, tables
from moesim.errors import InputError, MoesimError, Problem
from moesim.outcome import StrategyOutcome, cited_json, plain_data, same
from moesim.sources import Cited, Grade, Source, bibliography
from moesim.summary import SCHEMA

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SCHEMA", "Result", "StrategyOutcome", "load_summary", "sources_of"]

_SUMMARY, _PROVENANCE, _SCENARIO = "result.json", "provenance.json", "scenario.yaml"
_FILES = {_SUMMARY, _PROVENANCE, _SCENARIO, *(f"{table}.csv" for table in tables.TABLES)}


@dataclass(frozen=True, eq=False)
class Result:
    """What :func:`moesim.run` and :func:`moesim.bound` return.

    ``scenario``: the resolved scenario as plain data, from which the run repeats. ``applied``: the overrides
    that it already contains. ``inputs``: path -> SHA-256 of every file that was read.
    ``sources``: what to cite. ``cited``: constants of the pod; those of a strategy are with the strategy.
    """

    scenario: Mapping[str, Any]
    seed: int
    fidelity: str
    tolerance: float
    strategies: tuple[StrategyOutcome, ...]
    sources: tuple[Source, ...] = ()
    cited: tuple[Cited, ...] = ()
    warnings: tuple[str, ...] = ()
    version: str = ""
    applied: tuple[str, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return same(self, other)

    def __repr__(self) -> str:
        names = ", ".join(outcome.name for outcome in self.strategies)
        return f"<Result of {names}: {self.fidelity}, seed {self.seed}>"

    __hash__ = None  # type: ignore[assignment]

    @property
    def requirements(self) -> tuple[dict[str, Any], ...]:
        """The scenario's ``require``: ``text``, ``metric``, the ``value`` found [s or B], whether ``met``."""
        found = {outcome.name: outcome.to_json() for outcome in self.strategies}
        asked = [requirement.parse(text) for text in self.scenario.get("require", ())]
        return tuple(
            {
                "text": one.text,
                "metric": one.metric,
                "value": one.measured(found[one.strategy]),
                "met": one.holds(found[one.strategy]),
            }
            for one in asked
        )

    def refusals(self) -> list[str]:
        """Why the answer is no, if it is: requirements that fail, memory that does not suffice."""
        failed = [f"{row['text']} does not hold" for row in self.requirements if not row["met"]]
        return failed + [text for text in (outcome.shortage() for outcome in self.strategies) if text]

    def to_json(self) -> dict[str, Any]:
        """The summary as one plain document; the keys are stable within ``schema``."""
        document: dict[str, Any] = plain_data(
            {
                "schema": SCHEMA,
                "moesim": self.version,
                "scenario": self.scenario,
                "applied": list(self.applied),
                "seed": self.seed,
                "fidelity": self.fidelity,
                "tolerance": self.tolerance,
                "strategies": [outcome.to_json() for outcome in self.strategies],
                "require": list(self.requirements),
                "cited": [cited_json(item) for item in self.cited],
                "sources": [source_json(source) for source in self.sources],
                "warnings": list(self.warnings),
            }
        )
        return document

    def provenance(self) -> dict[str, Any]:
        """What the run stood on; no clock and no machine name in it, so equal runs give equal files."""
        return {
            "schema": SCHEMA,
            "moesim": self.version,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scenario": plain_data(self.scenario),
            "applied": list(self.applied),
            "seed": self.seed,
            "inputs": dict(self.inputs),
            "repeat": f"moesim run {_SCENARIO}",
        }

    def _own_inputs(self) -> dict[str, str]:
        """Path -> SHA-256 of the files that the scenario names and moesim does not ship."""
        named = set(_texts(self.scenario))
        return {path: digest for path, digest in self.inputs.items() if path in named}

    def table(self, name: str) -> pd.DataFrame:
        """One of :data:`moesim.tables.TABLES` as a frame, for notebooks."""
        import pandas as pd

        return pd.DataFrame.from_records(tables.rows(name, self.strategies))

    @property
    def ranks(self) -> pd.DataFrame:
        """Stage times of every rank."""
        return self.table("ranks")

    @property
    def phases(self) -> pd.DataFrame:
        """Start, end and duration of every phase."""
        return self.table("phases")

    @property
    def links(self) -> pd.DataFrame:
        """Load, capacity and utilisation of every resource."""
        return self.table("links")

    @property
    def summary(self) -> pd.DataFrame:
        """A row a strategy and metric: the statistics [s] and the bound [s]."""
        import pandas as pd

        return pd.DataFrame.from_records(
            {
                "strategy": outcome["name"],
                "metric": metric,
                **values,
                "bound": outcome["bound_s"][metric[:-2]],
            }
            for outcome in self.to_json()["strategies"]
            for metric, values in outcome["metrics"].items()
        )

    def save(self, folder: str | Path) -> Path:
        """Write summary, tables, provenance and the resolved scenario to ``folder``, whole or not at all.

        A folder that exists is replaced if it holds nothing but an earlier result; anything else raises
        :class:`InputError` and stays untouched.
        """
        target = ready(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _beside(target) as fresh:
            for table in tables.TABLES:
                tables.write(fresh / f"{table}.csv", tables.rows(table, self.strategies))
            _write_yaml(fresh / _SCENARIO, plain_data(self.scenario), self._own_inputs())
            _write_json(fresh / _PROVENANCE, self.provenance())
            _write_json(fresh / _SUMMARY, self.to_json())
        return target

    @staticmethod
    def load(folder: str | Path) -> Result:
        """The result that :meth:`save` wrote; equal to it. Raises :class:`InputError` on anything else."""
        folder = Path(folder)
        document = load_summary(folder)
        provenance = jsonio.load(folder / _PROVENANCE)
        parts = {table: tables.read(_existing(folder / f"{table}.csv")) for table in tables.TABLES}
        try:
            found = Result(
                scenario=document["scenario"],
                seed=document["seed"],
                fidelity=document["fidelity"],
                tolerance=document["tolerance"],
                strategies=tuple(_outcome(item, parts) for item in document["strategies"]),
                sources=tuple(Source(**item) for item in document["sources"]),
                cited=_cited(document["cited"]),
                warnings=tuple(document["warnings"]),
                version=document["moesim"],
                applied=tuple(document["applied"]),
                inputs=provenance["inputs"],
            )
            found.to_json()  # what cannot be summed up again is no result either
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, MoesimError) as error:
            raise InputError(
                Problem(f"not a result that moesim wrote ({error!r})", path=str(folder))
            ) from None
        return found


def sources_of(cited: Sequence[Cited], own: Sequence[Source] = ()) -> tuple[Source, ...]:
    """The entries behind some numbers, of the bibliography and of files' ``own``, each once, in order of first use."""
    known = bibliography()
    found: list[Source] = []
    for key in dict.fromkeys(item.source for item in cited):
        found += [known[key]] if key in known else []
        found += [source for source in dict.fromkeys(own) if source.key == key]
    return tuple(found)


def load_summary(path: str | Path) -> dict[str, Any]:
    """The JSON summary of a saved result: a folder, or a file that ``--json`` or ``--out`` wrote."""
    path = Path(path)
    file = path / _SUMMARY if path.is_dir() else path
    document = jsonio.load(file)
    if document.get("schema") != SCHEMA or not isinstance(document.get("strategies"), list):
        raise InputError(
            Problem("not a result of moesim", path=str(file), legal=f"schema {SCHEMA}, with strategies")
        )
    summary.check(document, str(file))
    return document


def ready(folder: str | Path) -> Path:
    """``folder``, resolved, if :meth:`Result.save` may write there; :class:`InputError` if it may not."""
    try:
        target = Path(folder).resolve()
    except (OSError, RuntimeError):  # a loop of symbolic links: an error of either type, by Python version
        raise InputError(Problem("is a loop of symbolic links", path=str(folder), legal="a folder")) from None
    if target.exists() and not target.is_dir():
        raise InputError(Problem("is a file, not a folder for results", path=str(folder)))
    foreign = (
        sorted(item.name for item in target.iterdir() if item.name not in _FILES) if target.is_dir() else []
    )
    if foreign:
        raise InputError(
            Problem(
                f"holds {foreign[0]!r}, which is not part of a result: nothing is overwritten",
                path=str(folder),
                legal="a new folder, an empty one, or that of an earlier result",
            )
        )
    return target


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A fresh folder that takes the place of ``target`` if the block ends well, and vanishes if not."""
    scratch = outfile.beside(target)
    fresh, old = scratch / "new", scratch / "old"
    try:
        fresh.mkdir(parents=True)
        yield fresh
        with outfile.undisturbed():
            if target.exists():
                target.rename(old)
            try:
                fresh.rename(target)
            except OSError:
                if old.exists():
                    old.rename(target)
                raise
    finally:
        with outfile.undisturbed():
            shutil.rmtree(scratch, ignore_errors=True)


def _outcome(item: Mapping[str, Any], parts: Mapping[str, list[dict[str, Any]]]) -> StrategyOutcome:
    mine = {
        table: [
            {key: value for key, value in row.items() if key != "strategy"}
            for row in rows
            if row["strategy"] == item["name"]
        ]
        for table, rows in parts.items()
    }
    cases, stages, bound, breakdown = tables.arrays(mine["cases"], mine["ranks"])
    return StrategyOutcome(
        name=item["name"],
        protocol=item["protocol"],
        balancer=item["balancer"],
        assumed=tuple(item["assumed"]),
        cases=cases,
        stages=stages,
        bound=bound,
        breakdown=breakdown,
        bottleneck=(item["bottleneck"]["resource"], item["bottleneck"]["utilisation"]),
        imbalance=item["imbalance"],
        traffic_B=item["traffic_B"],
        formats=item.get("formats", {}),
        crossed_B=item.get("crossed_B", {}),
        buffers_B=item["buffers_B"],
        memory_B=item["memory_B"],
        bandwidth_Bps=item["bandwidth_Bps"],
        phases=tuple(mine["phases"]),
        links=tuple(mine["links"]),
        solves=item["solves"],
        error_estimate=item.get("error_estimate_s", 0.0),
        weights_B=item.get("weights_B", 0.0),
        balancing=item["balancing"],
        entries=tables.entries(mine["cases"], mine["ranks"]),
        cited=_cited(item["cited"]),
        warnings=tuple(item["warnings"]),
    )


def _cited(items: Sequence[Mapping[str, str]]) -> tuple[Cited, ...]:
    return tuple(Cited(**{**item, "grade": Grade(item["grade"])}) for item in items)  # type: ignore[arg-type]


def source_json(source: Source) -> dict[str, str]:
    """A bibliography entry as plain data."""
    return {"key": source.key, "title": source.title, "reference": source.reference, "note": source.note}


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise InputError(Problem("no such file in this result", path=str(path)))
    return path


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(
        json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )


def _write_yaml(path: Path, document: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    with path.open("w", encoding="utf-8") as stream:
        for name, digest in inputs.items():
            stream.write(f"# {digest}  {name}\n")  # as sha256sum writes it
        yaml.dump(document, stream)


def _texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    for inner in part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ():
        yield from _texts(inner)


def changed_inputs(scenario: str | Path) -> list[str]:
    """Of the ``scenario.yaml`` of a saved result: its inputs that are no longer what they were, in words."""
    beside = Path(scenario).parent / _PROVENANCE
    if Path(scenario).name != _SCENARIO or not beside.is_file():
        return []
    inputs = jsonio.load(beside).get("inputs")
    if not isinstance(inputs, dict):
        raise InputError(Problem("has no inputs", path=str(beside), legal="path: SHA-256"))
    changed = []
    for name, digest in inputs.items():
        try:
            now = resources.digest(Path(name))
        except (OSError, ValueError):
            continue  # moved, as a checkout may be; what the scenario names is looked for when it is read
        if now != digest:
            changed.append(f"{name} is not what it was when this result was made")
    return changed
