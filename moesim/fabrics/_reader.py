"""Reads the mappings of a topology file: closed keys, quantities with citations, all problems at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from moesim.errors import InputError, Problem
from moesim.registry import nearest
from moesim.sources import Cited, citation_at, cite, closed
from moesim.yamlio import Document, Loc

LARGEST_COUNT = 100_000
"""More devices, chips or parallel links than this is a slip of the keyboard."""

LARGEST_TOTAL = 2_000_000
"""More vertices or links than this would not be routed in a day."""


def _shown(value: Any) -> str:
    return "empty" if value is None else repr(value)


@dataclass(eq=False)
class Reader:
    """One mapping of ``document``. Every key that is asked for becomes legal; :meth:`close` refuses the
    others.

    A problem is noted and a harmless value returned, so that one pass finds them all; :meth:`check` raises
    them. ``problems`` and ``cited`` are shared with the readers of nested mappings.
    """

    document: Document
    loc: Loc = ()
    problems: list[Problem] = field(default_factory=list)
    cited: list[Cited] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def has(self, key: str) -> bool:
        """Whether an optional key is there."""
        self.asked.append(key)
        return key in self._mapping()

    def get(self, key: str) -> Any:
        """The plain value of ``key``, ``None`` if it is missing."""
        self.asked.append(key)
        return self._mapping().get(key)

    def quantity(
        self,
        key: str,
        dimension: str,
        default: float | None = None,
        *,
        zero: bool = False,
        most: float | None = None,
    ) -> float:
        """The number at ``key`` in SI units, cited; positive unless ``zero`` is allowed, at most ``most``."""
        if not self.has(key) and default is not None:
            return default
        try:
            value, citation = cite(self.document, (*self.loc, key), dimension)
        except InputError as error:
            self.problems.extend(error.problems)
            return 1.0
        self.cited.append(citation)
        if value == 0 and not zero:
            self.problem(key, f"{key} is zero", "a positive value")
        if most is not None and value > most:
            self.problem(key, f"{key} is {value:g}", f"at most {most:g}")
        return value or 0.0

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """The whole number at ``key``, between ``least`` and :data:`LARGEST_COUNT`, cited if a source is
        given.
        """
        if not self.has(key):
            if default is None:
                self.problem(None, f"the key {key!r} is missing", "a whole number")
            return least if default is None else default
        part = self.get(key)
        own = isinstance(part, dict)
        if own:
            try:
                closed(self.document, (*self.loc, key), part)
            except InputError as error:
                self.problems.extend(error.problems)
                return least
        value = part.get("value") if own else part
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST_COUNT:
            loc: Loc = (*self.loc, key, "value") if own else (*self.loc, key)
            legal = f"a whole number from {least} to {LARGEST_COUNT}"
            self.problems.append(self.document.problem(loc, f"{key} is {_shown(value)}", legal))
            return least
        where = (*self.loc, key)
        try:
            self.cited.append(citation_at(self.document, where if own else self.loc, str(value), where))
        except InputError as error:
            # A bare count of an inline pod needs no source; a wrong one is still wrong.
            self.problems.extend(
                p
                for p in error.problems
                if "names no source" not in p.message and "has no grade" not in p.message
            )
        return value

    def statement(self) -> None:
        """Cite the mapping itself, ``{source, grade, note}``: something that holds and has no number."""
        try:
            self.cited.append(citation_at(self.document, self.loc, "yes"))
        except InputError as error:
            self.problems.extend(error.problems)
        self.close()

    def choice(self, key: str, names: Sequence[str], default: str | None = None) -> str:
        """One of ``names``."""
        if not self.has(key) and default is not None:
            return default
        value = self.get(key)
        if value not in names:
            message = f"unknown {key} {value!r}" if key in self._mapping() else f"the key {key!r} is missing"
            self.problem(key, message, nearest(str(value), list(names)))
            return names[0]
        return str(value)

    def text(self, key: str, default: str) -> str:
        """A short name: a letter first, then letters, digits, spaces, dots, "_" or "-"."""
        if not self.has(key):
            return default
        value = self.get(key)
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z][\w .-]{0,40}", value):
            self.problem(
                key,
                f"{key} is {_shown(value)}",
                "a short name: a letter, then letters, digits, spaces, . _ -",
            )
            return default
        return value

    def section(self, key: str) -> Reader:
        """The mapping at ``key``; an empty one, and a problem, if it is missing or something else."""
        part = self.get(key)
        if not isinstance(part, dict):
            found = "missing" if part is None else "not a mapping"
            self.problem(key, f"{key} is {found}", "a mapping, `key: value` lines")
            empty = Document({}, self.document.path, self.document.keys, self.document.values)
            return Reader(empty, (), [], [])
        return Reader(self.document, (*self.loc, key), self.problems, self.cited)

    def items(self, key: str) -> list[Any]:
        """The list at ``key``, as plain data."""
        part = self.get(key)
        if not isinstance(part, list) or not part:
            found = "missing" if part is None else "not a list" if not isinstance(part, list) else "empty"
            self.problem(key, f"{key} is {found}", "a list with at least one item")
            return []
        return part

    def element(self, key: str, index: int) -> Reader:
        """The mapping that is item ``index`` of the list at ``key``."""
        return Reader(self.document, (*self.loc, key, index), self.problems, self.cited)

    def fits(self, **totals: int) -> None:
        """Note a problem for each total (``devices=hosts * devices_per_host``) that is beyond reason."""
        for what, total in totals.items():
            if total > LARGEST_TOTAL:
                self.problem(None, f"{total:,} {what} in all", f"at most {LARGEST_TOTAL:,}")

    def problem(self, key: str | None, message: str, legal: str | None = None) -> None:
        """Note a problem at ``key``, or at the mapping itself."""
        loc = self.loc if key is None or key not in self._mapping() else (*self.loc, key)
        self.problems.append(self.document.problem(loc, message, legal))

    def close(self) -> None:
        """Refuse the keys that nobody asked for; ``source``, ``grade`` and ``note`` are legal everywhere."""
        legal = [*dict.fromkeys(self.asked), "source", "grade", "note"]
        for key in self._mapping():
            if key not in legal:
                problem = self.document.problem(
                    (*self.loc, key), f"unknown key {key!r}", nearest(key, legal), at="key"
                )
                self.problems.append(problem)

    def check(self) -> None:
        """Raise all problems found so far."""
        if self.problems:
            raise InputError(self.problems)

    def _mapping(self) -> dict[str, Any]:
        part = self.document.get(self.loc)
        return part if isinstance(part, dict) else {}
