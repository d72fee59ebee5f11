"""YAML 1.2 -> plain data, with the position of every key and value.

The subset is deliberately small, and what is left out is refused with its place: one document a file, a
mapping at the top, no anchors or aliases (so no YAML bomb), no tags, no duplicate keys, no NaN or infinity,
at most :data:`MAX_BYTES`. Scalars follow the YAML 1.2 core schema (``off`` and ``12:30`` are text); keys are
always text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unicodedata import category

from moesim.errors import InputError, Problem

Loc = tuple[str | int, ...]

MAX_BYTES = 2_000_000
"""Larger files are refused before they are read: no scenario or topology comes near."""

MAX_DEPTH = 50
_LONGEST_NUMBER = 40
_EXCERPT_WIDTH = 100

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True)
class Text:
    """A source text and what to call it in errors."""

    path: str
    lines: tuple[str, ...]

    def problem(
        self, message: str, line: int, column: int, width: int = 1, legal: str | None = None
    ) -> Problem:
        """A :class:`Problem` with the excerpt of ``line`` and a caret under ``column`` (both from 1)."""
        return Problem(message, self.path, line, column, self._excerpt(line, column, width), legal)

    def _excerpt(self, line: int, column: int, width: int) -> str | None:
        if not 1 <= line <= len(self.lines):
            return None
        start = 0 if column < _EXCERPT_WIDTH - 20 else column - _EXCERPT_WIDTH // 2
        part = self.lines[line - 1][start : start + _EXCERPT_WIDTH]
        part = "".join(c if c.isprintable() else " " for c in part)
        caret = min(column - 1 - start, len(part))
        marks = "^" * max(1, min(width, len(part) - caret))
        return f"{line:6d} | {part}\n{'':6} | {'':{caret}}{marks}"


@dataclass(frozen=True)
class Mark:
    """Where one key or value stands: line and column from 1, and how many characters to underline."""

    text: Text
    line: int
    column: int
    width: int = 1

    def problem(self, message: str, legal: str | None = None) -> Problem:
        """A :class:`Problem` at this place."""
        return self.text.problem(message, self.line, self.column, self.width, legal)


@dataclass(frozen=True, eq=False)
class Document:
    """Plain data (dict, list, str, int, float, bool, None) and the place of each part of it.

    A *loc* is the way to a part from the top: ``("strategies", 0, "name")``.
    """

    data: dict[str, Any]
    path: str
    keys: Mapping[Loc, Mark]
    values: Mapping[Loc, Mark]

    def mark(self, loc: Loc, at: str = "value") -> Mark | None:
        """The mark of ``loc``'s value (or ``at="key"``), or of the nearest parent that has one.

        None for data that was never text.
        """
        marks = (self.keys, self.values) if at == "key" else (self.values, self.keys)
        for depth in range(len(loc), -1, -1):
            for table in marks:
                if loc[:depth] in table:
                    return table[loc[:depth]]
        return None

    def position(self, loc: Loc) -> tuple[int, int]:
        """(line, column) of the value at ``loc``, counted from 1; of the nearest parent if there is none."""
        mark = self.mark(loc)
        return (1, 1) if mark is None else (mark.line, mark.column)

    def problem(self, loc: Loc, message: str, legal: str | None = None, at: str = "value") -> Problem:
        """A :class:`Problem` at ``loc``, with an excerpt and a caret under the value (or ``at="key"``).

        Data that was never text has no lines: the message then begins with the key.
        """
        mark = self.mark(loc, at)
        if mark is None:
            name = ".".join(str(step) for step in loc)
            said = name == "" or message.startswith(name)
            return Problem(message if said else f"{name}: {message}", self.path, legal=legal)
        return mark.problem(message, legal)

    def place(self, problem: Problem, loc: Loc, at: str = "value") -> Problem:
        """``problem`` with the place of ``loc``, if it has none yet (a unit's or a registry's complaint)."""
        if problem.path is not None:
            return problem
        return self.problem(loc, problem.message, problem.legal, at)

    def get(self, loc: Loc) -> Any:
        """The part at ``loc``; ``KeyError`` or ``IndexError`` if there is none."""
        part: Any = self.data
        for step in loc:
            part = part[step]
        return part

    def part(self, loc: Loc) -> Document:
        """The mapping at ``loc`` as a document of its own, with its places in this one."""

        def inner(marks: Mapping[Loc, Mark]) -> dict[Loc, Mark]:
            return {at[len(loc) :]: mark for at, mark in marks.items() if at[: len(loc)] == loc}

        return Document(dict(self.get(loc)), self.path, inner(self.keys), inner(self.values))

    def graft(self, loc: Loc, value: Document) -> Document:
        """A copy in which the part ``("value",)`` of ``value`` stands at ``loc``, whose parent must exist."""

        def rebuilt(part: Any, rest: Loc) -> Any:
            if not rest:
                return value.data["value"]
            copy: Any = dict(part) if isinstance(part, dict) else list(part)
            old = copy[rest[0]] if len(rest) > 1 else None
            copy[rest[0]] = rebuilt(old, rest[1:])
            return copy

        def merged(old: Mapping[Loc, Mark], new: Mapping[Loc, Mark]) -> dict[Loc, Mark]:
            kept = {at: mark for at, mark in old.items() if at[: len(loc)] != loc}
            return kept | {loc + at[1:]: mark for at, mark in new.items() if at[:1] == ("value",)}

        return replace(
            self,
            data=rebuilt(self.data, loc),
            keys=merged(self.keys, value.keys),
            values=merged(self.values, value.values),
        )


def load(path: str | Path) -> Document:
    """Read and parse a YAML file; every failure is an :class:`InputError` naming the file."""
    return loads(read(path), str(path))


def read(path: str | Path, limit: int = MAX_BYTES, what: str = "a YAML file") -> bytes:
    """The bytes of ``what``, a text file of at most ``limit`` bytes; a larger one is refused unread."""
    file = Path(path)
    try:
        if file.is_dir():
            raise _file_problem(path, f"is a directory, {what} is needed")
        size = file.stat().st_size
        if size > limit:
            raise _too_large(path, f"{size:,} bytes", limit)
        with file.open("rb") as stream:
            # A device or a pipe has no size: read no more than the limit of it.
            content = stream.read(limit + 1)
    except FileNotFoundError:
        raise _file_problem(path, "no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _file_problem(path, f"cannot be read: {reason}") from None
    if len(content) > limit:
        raise _too_large(path, "more", limit)
    return content


def _file_problem(path: str | Path, message: str, legal: str | None = None) -> InputError:
    return InputError(Problem(message, path=str(path), legal=legal))


def _too_large(path: str | Path, size: str, limit: int = MAX_BYTES) -> InputError:
    return _file_problem(path, f"too large to be read: {size}", f"at most {limit:,} bytes")


def loads(content: str | bytes, path: str = "<string>") -> Document:
    """Parse YAML text; ``path`` is what errors call it.

    >>> document = loads("ranks:\\n  ep: 64\\n")
    >>> document.data, document.position(("ranks", "ep"))
    ({'ranks': {'ep': 64}}, (2, 7))
    """
    text = _checked(content, path)
    source = Text(path, tuple(re.split(r"\r\n|\n|\r", text)))
    _refuse_control_characters(source)
    builder = _Builder(source)
    data = builder.document(text)
    if builder.problems:
        raise InputError(builder.problems)
    return Document(data, path, builder.keys, builder.values)


def _checked(content: str | bytes, path: str) -> str:
    if len(content) > MAX_BYTES:
        raise _too_large(path, "more")
    return content if isinstance(content, str) else decoded(content, path)


def decoded(content: bytes, path: str, what: str = "a YAML file") -> str:
    """The text of ``content``; what is not UTF-8 is an :class:`InputError` with its place."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        problem = Problem("is not UTF-8 text", path, line, column, legal=f"{what} in UTF-8")
        raise InputError(problem) from None


def _refuse_control_characters(source: Text) -> None:
    for number, line in enumerate(source.lines, 1):
        if line.isprintable():
            continue
        for column, character in enumerate(line, 1):
            if not (character.isprintable() or character == "\t" or category(character) in ("Zs", "Cf")):
                message = f"the character U+{ord(character):04X} is not text"
                raise InputError(source.problem(message, number, column, legal="printable UTF-8 text"))


class _Builder:
    """Builds plain data from the parser's events, collecting marks and problems."""

    def __init__(self, source: Text) -> None:
        self.source = source
        self.keys: dict[Loc, Mark] = {}
        self.values: dict[Loc, Mark] = {}
        self.problems: list[Problem] = []

    def document(self, text: str) -> dict[str, Any]:
        """The one mapping of ``text``; raises at once when the rest cannot be understood."""
        events = self._events(text)
        next(events)  # start of the stream
        start = next(events)
        if type(start).__name__ == "StreamEndEvent":
            raise self._fatal("the file is empty", start, "a mapping, `key: value` lines")
        if start.version is not None or start.tags:
            raise self._fatal("a % directive is not allowed", start)
        first = next(events)
        kind = type(first).__name__
        if kind != "MappingStartEvent":
            empty = kind == "ScalarEvent" and first.value in _NULL
            found = "nothing" if empty else "a list" if kind == "SequenceStartEvent" else "one value"
            raise self._fatal(f"the top of the file is {found}", first, "a mapping, `key: value` lines")
        data: dict[str, Any] = self._part(first, events, ())
        next(events)  # end of the document
        after = next(events)
        if type(after).__name__ != "StreamEndEvent":
            raise self._fatal("a second document begins here", after, "one document a file")
        return data

    def _events(self, text: str) -> Iterator[Any]:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        try:
            for event in YAML(typ="safe", pure=True).parse(text):
                self._check_plain(event)
                yield event
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            message = f"not YAML: {error.problem or error.context}"
            if error.context and error.problem:
                begun = error.context_mark
                message += f" ({error.context}{f' begun in line {begun.line + 1}' if begun else ''})"
            for theirs in ("'\\x00'", "'<stream end>'", "end of stream"):
                message = message.replace(theirs, "end of the file")
            legal = "spaces: YAML has no tabs" if "'\\t'" in message else None
            line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
            problem = self.source.problem(message, line, column, legal=legal)
            raise InputError([*self.problems, problem]) from None
        except (YAMLError, ValueError, IndexError, AttributeError, AssertionError) as error:
            # The parser's own slips on broken text: the text is still what is wrong.
            raise InputError([*self.problems, Problem(f"not YAML: {error}", self.source.path)]) from None

    def _check_plain(self, event: Any) -> None:
        if type(event).__name__ == "AliasEvent":
            raise self._fatal(f"the alias *{event.anchor} is not allowed", event, "the value written out")
        if getattr(event, "anchor", None):
            raise self._fatal(f"the anchor &{event.anchor} is not allowed", event, "the value written out")
        if getattr(event, "ctag", None) is not None:
            raise self._fatal(f"the tag {event.ctag} is not allowed", event, "plain values")

    def _part(self, event: Any, events: Iterator[Any], loc: Loc) -> Any:
        kind = type(event).__name__
        self.values[loc] = self._mark(event)
        if kind == "ScalarEvent":
            return self._scalar(event)
        if len(loc) >= MAX_DEPTH:
            raise self._fatal(f"nested more than {MAX_DEPTH} deep", event)
        return self._mapping(events, loc) if kind == "MappingStartEvent" else self._sequence(events, loc)

    def _sequence(self, events: Iterator[Any], loc: Loc) -> list[Any]:
        items: list[Any] = []
        while type(event := next(events)).__name__ != "SequenceEndEvent":
            items.append(self._part(event, events, (*loc, len(items))))
        return items

    def _mapping(self, events: Iterator[Any], loc: Loc) -> dict[str, Any]:
        data: dict[str, Any] = {}
        while type(event := next(events)).__name__ != "MappingEndEvent":
            if type(event).__name__ != "ScalarEvent" or event.value == "":
                raise self._fatal("a key must be a word", event, "`key: value`")
            key = self._escaped(event, str(event.value))
            at = (*loc, key)
            mark = self._mark(event)
            if key in data:
                first = self.keys[at]
                problem = mark.problem(
                    f"duplicate key {key!r}, first given in line {first.line}", "each key once"
                )
                both = f"{first.problem('').excerpt}\n{problem.excerpt}"
                self.problems.append(replace(problem, excerpt=both))
            else:
                self.keys[at] = mark
            value = next(events)
            data[key] = self._part(value, events, at)
            if type(value).__name__ == "ScalarEvent" and value.value == "" and value.implicit[0]:
                self.values[at] = mark  # nothing stands there: its key is what can be shown
        return data

    def _scalar(self, event: Any) -> str | int | float | bool | None:
        text = str(event.value)
        if not event.implicit[0]:  # quoted or a block
            return self._escaped(event, text)
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _NOT_FINITE.fullmatch(text):
            return self._bad_number(event, f"{text} is not a finite number")
        for pattern, convert in _NUMBERS:
            if pattern.fullmatch(text):
                return self._number(event, text, convert)
        return text

    def _escaped(self, event: Any, text: str) -> str:
        """``text``, in which an escape may have brought what no file can hold."""
        odd = next((c for c in text if c == "\0" or category(c) == "Cs"), None)
        if odd is not None:
            message = f"the escape of U+{ord(odd):04X} is not a character of a text"
            self.problems.append(self._mark(event).problem(message, legal="printable UTF-8 text"))
            return text.encode("ascii", "backslashreplace").decode()
        return text

    def _number(self, event: Any, text: str, convert: _Convert) -> int | float:
        if len(text) > _LONGEST_NUMBER:
            return self._bad_number(event, f"a number of {len(text)} characters")
        value = convert(text)
        if abs(value) > 1e300:
            return self._bad_number(event, f"{text} is too large")
        return value

    def _bad_number(self, event: Any, message: str) -> float:
        self.problems.append(self._mark(event).problem(message, legal="a finite number"))
        return 0.0

    def _mark(self, event: Any) -> Mark:
        start, end = event.start_mark, event.end_mark
        whole = type(event).__name__ == "ScalarEvent" and end.line == start.line
        width = max(1, end.column - start.column) if whole else 1
        return Mark(self.source, start.line + 1, start.column + 1, width)

    def _fatal(self, message: str, event: Any, legal: str | None = None) -> InputError:
        return InputError([*self.problems, self._mark(event).problem(message, legal)])


def _integer(text: str) -> int:
    return int(text, 10) if text[:2] not in ("0o", "0x") else int(text, 0)


_Convert = Callable[[str], int | float]
_NUMBERS: tuple[tuple[re.Pattern[str], _Convert], ...] = ((_INT, _integer), (_FLOAT, float))
