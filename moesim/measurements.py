"""Published or own measurements: a CSV of operations with their shape and the time they took.

Every problem of a file is reported with its line and column, and a file with problems gives nothing: its good rows are
not silently kept.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from moesim import yamlio
from moesim.errors import InputError, Problem
from moesim.registry import nearest
from moesim.yamlio import Text

OPERATIONS = ("dispatch", "combine", "prepare", "alltoall")
"""What a protocol can be timed at."""

COMPUTE = "moe_expert_compute"
"""The grouped GEMM of the busiest rank: no communication."""

SPLITS = ("calibrate", "validate")
COLUMNS = (
    "id",
    "pod",
    "protocol",
    "op",
    "ep",
    "tokens_per_rank",
    "hidden",
    "topk",
    "experts",
    "dispatch_dtype",
    "combine_dtype",
    "sms",
    "send_bytes",
    "latency_us",
    "split",
    "source",
    "notes",
)
LIMIT = 50_000_000
"""Largest file that is read [B]."""

_LARGEST = {"ep": 4096, "hidden": 10**6, "topk": 65535, "experts": 65535, "sms": 4096}
_WHOLE = ("ep", "tokens_per_rank", "hidden", "topk", "experts", "sms", "send_bytes")
_NEEDED = ("id", "pod", "protocol", "op", "ep", "latency_us", "split")
_WORDS = {"op": (*OPERATIONS, COMPUTE), "split": SPLITS}
_UNIT = {"latency_us": "us", "send_bytes": "bytes"}
_LEGAL = {
    "id": "a name, each once",
    "pod": "the name of a pod, such as h800-ib",
    "protocol": "the name of a protocol, such as deepep-ll",
    "ep": f"a whole number from 1 to {_LARGEST['ep']:,}",
    "latency_us": "a positive number of us, such as 118.5",
}
_MOST_WHOLE = 10**15
_SHORTEST, _LONGEST = 1e-6, 1e12
"""Times [us] beyond these are no measurement of anything here."""
_DIGITS = re.compile(r"([0-9]{1,15})(\.0*)?")  # a table that had gaps writes 8 as 8.0
_DECIMAL = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_FIELD = re.compile(r'"(?P<quoted>(?:[^"]|"")*)"|(?P<plain>[^,\r\n]*)')


@dataclass(frozen=True)
class Measurement:
    """One timed operation. ``latency`` [s]; ``send_bytes`` [B] of a whole send buffer; None where a cell is blank.

    ``notes`` says in the source's words how it was measured, the routing among it. ``line``: where it stands in its
    file, from 1; 0 for none.
    """

    id: str
    pod: str
    protocol: str
    op: str
    ep: int
    tokens_per_rank: int | None
    hidden: int | None
    top_k: int | None
    experts: int | None
    dispatch_dtype: str
    combine_dtype: str
    sms: int | None
    send_bytes: int | None
    latency: float
    split: str
    source: str = ""
    notes: str = ""
    line: int = 0


@dataclass(frozen=True)
class Measurements:
    """All rows of a file in its order, and the names of columns that moesim does not know.

    ``digest``: SHA-256 of the file, empty for a text.
    """

    path: str
    rows: tuple[Measurement, ...]
    ignored: tuple[str, ...] = ()
    digest: str = ""


_SHAPE = ("tokens_per_rank", "hidden", "top_k", "experts")
_UNREAD = {
    "alltoall": _SHAPE,
    COMPUTE: ("tokens_per_rank", "combine_dtype", "sms", "send_bytes"),
    **dict.fromkeys(("dispatch", "combine", "prepare"), ("send_bytes",)),
}
"""Operation -> what of a row says nothing about it."""


def unread(rows: Iterable[Measurement]) -> list[str]:
    """Cells that are filled in and have no effect, in words: columns and numbers of rows by operation."""
    counts = Counter(
        (row.op, name) for row in rows for name in _UNREAD[row.op] if getattr(row, name) not in (None, "")
    )
    return [
        f"{'topk' if name == 'top_k' else name} in {count} row{'s' * (count > 1)} of {op}"
        for (op, name), count in counts.items()
    ]


@dataclass(frozen=True)
class _Cell:
    """A field with its place: line and column from 1."""

    text: str
    line: int
    column: int


def load(path: str | Path) -> Measurements:
    """The measurements in the CSV at ``path``; raises :class:`InputError` with every problem in it."""
    name = str(path)
    content = yamlio.read(path, LIMIT, "a CSV file")
    found = loads(yamlio.decoded(content, name, "a CSV file"), name)
    return replace(found, digest=hashlib.sha256(content).hexdigest())


def loads(content: str, path: str = "<string>") -> Measurements:
    """The measurements in a CSV text (RFC 4180, a heading line); ``path`` is what errors call it."""
    text = Text(path, tuple(re.split(r"\r\n|\n|\r", content)))
    records = [cells for cells in _records(content, text) if len(cells) > 1 or cells[0].text.strip()]
    if not records:
        raise InputError(
            Problem("the file is empty", path, legal=f"a heading and rows: {', '.join(COLUMNS)}")
        )
    place = _heading(records[0], text)
    problems: list[Problem] = []
    rows: list[Measurement] = []
    first: dict[str, int] = {}
    for cells in records[1:]:
        reader = _Row(cells, place, text, len(records[0]), problems)
        row = reader.measurement()
        if row is None:
            continue
        if row.id in first:
            reader.complain("id", f"duplicate id {row.id!r}, first in line {first[row.id]}", "each id once")
        first.setdefault(row.id, cells[0].line)
        rows.append(row)
    if not problems and not rows:
        problems.append(text.problem("no measurements below the heading", 1, 1, len(text.lines[0])))
    if problems:
        raise InputError(problems)
    return Measurements(path, tuple(rows), tuple(name for name in place if name not in COLUMNS))


def _heading(cells: list[_Cell], text: Text) -> dict[str, int]:
    """Name -> number of each column; the names must hold all of :data:`COLUMNS`, each once."""
    other = next((mark for mark in ";\t|" if len(cells) == 1 and mark in cells[0].text), None)
    if other is not None:
        raise InputError(_at(text, cells[0], f"the columns are separated by {other!r}", "commas"))
    place: dict[str, int] = {}
    problems: list[Problem] = []
    for number, cell in enumerate(cells):
        name = cell.text.strip()
        if name in place:
            problems.append(_at(text, cell, f"duplicate column {name!r}", "each column once"))
        place.setdefault(name, number)
    missing = [name for name in COLUMNS if name not in place]
    strange = {name: number for name, number in place.items() if name not in COLUMNS}
    for name in missing:
        similar = [other for other in strange if other.partition("_")[0] == name.partition("_")[0]]
        if similar:
            cell = cells[strange[similar[0]]]
            problems.append(_at(text, cell, f"the column {name!r} is missing, here is {similar[0]!r}", name))
        else:
            problems.append(text.problem(f"the column {name!r} is missing", 1, 1, legal=", ".join(COLUMNS)))
    if problems:
        raise InputError(problems)
    return place


class _Row:
    """Reads the cells of one record, adding to ``problems``."""

    def __init__(
        self, cells: list[_Cell], place: dict[str, int], text: Text, width: int, problems: list[Problem]
    ) -> None:
        self.cells, self.place, self.text, self.width, self.problems = cells, place, text, width, problems

    def complain(self, name: str, message: str, legal: str | None = None) -> None:
        """Note a problem with the cell in column ``name``."""
        self.problems.append(_at(self.text, self.cells[self.place[name]], message, legal))

    def measurement(self) -> Measurement | None:
        """The row, or None with its problems noted."""
        before = len(self.problems)
        if len(self.cells) != self.width:
            message = f"{len(self.cells)} cells in a table of {self.width} columns"
            legal = "as many cells as the heading; a text with commas in double quotes"
            self.problems.append(
                _at(self.text, self.cells[min(self.width, len(self.cells)) - 1], message, legal)
            )
            return None
        cell = {name: self.cells[number].text.strip() for name, number in self.place.items()}
        for name in _NEEDED:
            if not cell[name]:
                self.complain(name, f"{name} is blank", ", ".join(_WORDS.get(name, ())) or _LEGAL[name])
        for name, words in _WORDS.items():
            if cell[name] and cell[name] not in words:
                self.complain(name, f"unknown {name} {cell[name]!r}", nearest(cell[name], list(words)))
        whole = {name: self._whole(name, cell[name]) for name in _WHOLE}
        latency = self._latency(cell["latency_us"])
        if len(self.problems) > before:
            return None
        assert whole["ep"] is not None
        return Measurement(
            id=cell["id"],
            pod=cell["pod"],
            protocol=cell["protocol"],
            op=cell["op"],
            ep=whole["ep"],
            tokens_per_rank=whole["tokens_per_rank"],
            hidden=whole["hidden"],
            top_k=whole["topk"],
            experts=whole["experts"],
            dispatch_dtype=cell["dispatch_dtype"],
            combine_dtype=cell["combine_dtype"],
            sms=whole["sms"],
            send_bytes=whole["send_bytes"],
            latency=latency,
            split=cell["split"],
            source=cell["source"],
            notes=cell["notes"],
            line=self.cells[0].line,
        )

    def _whole(self, name: str, text: str) -> int | None:
        most = _LARGEST.get(name, _MOST_WHOLE)
        if not text:
            return None
        match = _DIGITS.fullmatch(text)
        if match is None or not 1 <= int(match[1]) <= most:
            self.complain(name, self._no_number(name, text), f"a whole number from 1 to {most:,}, or nothing")
            return None
        return int(match[1])

    def _latency(self, text: str) -> float:
        """[s]"""
        value = float(text) if _DECIMAL.fullmatch(text) else math.nan
        if text and not _SHORTEST <= value <= _LONGEST:
            self.complain("latency_us", self._no_number("latency_us", text), _LEGAL["latency_us"])
        return value * 1e-6

    @staticmethod
    def _no_number(name: str, text: str) -> str:
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        number = re.match(r"[+-]?[0-9.]+\s*([A-Za-zµμ/%]+)$", text)
        unit = f": {name} is in {_UNIT[name]}, without a unit in the cell" if number and name in _UNIT else ""
        return f"{name} cannot be {shown!r}{unit}"


def _at(text: Text, cell: _Cell, message: str, legal: str | None = None) -> Problem:
    width = max(1, len(cell.text.partition("\n")[0]))
    return text.problem(message, cell.line, cell.column, width, legal)


def _records(content: str, text: Text) -> Iterator[list[_Cell]]:
    """Records of cells with their places; quoted cells may hold commas, doubled quotes and line ends."""
    starts = [0, *(match.end() for match in re.finditer(r"\r\n|\n|\r", content)), len(content) + 1]
    line = 0
    cells: list[_Cell] = []
    position = 0
    while position <= len(content):
        while position >= starts[line + 1]:
            line += 1
        match = _FIELD.match(content, position)
        assert match is not None
        quoted, end = match["quoted"], match.end()
        cell = match["plain"] if quoted is None else quoted.replace('""', '"')
        column = position - starts[line] + 1
        if quoted is None and cell.startswith('"'):
            raise InputError(text.problem("a quote that is opened here is not closed", line + 1, column))
        follows = content[end : end + 1]
        if quoted is not None and follows not in ("", ",", "\n", "\r"):
            raise InputError(
                text.problem("text behind a closing quote", line + 1, column, end - position + 1)
            )
        cells.append(_Cell(cell, line + 1, column))
        if follows == ",":
            position = end + 1
            continue
        yield cells
        cells = []
        position = end + (2 if content[end : end + 2] == "\r\n" else 1)
