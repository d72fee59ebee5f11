"""Overrides of a scenario's keys from the command line: ``--set workload.tokens_per_rank=128``.

The value is YAML. A step into a list is a number, or the name of an item, as in
``strategies.ubep.protocol.sync=dc``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moesim import yamlio
from moesim.errors import InputError, Problem
from moesim.registry import nearest
from moesim.yamlio import Document, Loc, Mark, Text

# Where a bare name may stand for a mapping, so that `--set topology.hosts=4` works on `topology: h100-ib`.
_NAME_KEY = {"topology": "name", "protocol": "kind", "balancer": "kind"}


def overridden(document: Document, sets: Sequence[str], option: str) -> Document:
    """A copy of ``document`` with each of ``sets`` (``"a.b=c"``) applied in turn.

    ``option`` is what errors call it. Raises :class:`InputError` with every override that cannot be applied.
    """
    if isinstance(sets, str) or not all(isinstance(text, str) for text in sets):
        raise TypeError('overrides are a list of texts, such as ["ranks.ep=64"]')
    problems: list[Problem] = []
    for text in sets:
        try:
            document = _Override(text, option).apply(document)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return document


def superseded(sets: Sequence[str]) -> list[tuple[str, str]]:
    """The overrides of one command that a later one replaces, each with that one.

    >>> superseded(["ranks.ep=8", "seed=1", "ranks={ep: 16}"])
    [('ranks.ep=8', 'ranks={ep: 16}')]
    """
    keys = [text.partition("=")[0].strip().split(".") for text in sets]
    found = []
    for number, (text, key) in enumerate(zip(sets, keys, strict=True)):
        later = (sets[n] for n in range(number + 1, len(sets)) if key[: len(keys[n])] == keys[n])
        if (by := next(later, None)) is not None:
            found.append((text, by))
    return found


class _Override:
    """One ``a.b=c``; its problems and those of the value it brings are placed in its own text."""

    def __init__(self, text: str, option: str) -> None:
        lines = re.split(r"\r\n|\n|\r", text)
        self.text = Text(option, tuple(lines))
        key, equals, value = text.partition("=")
        self.steps = key.strip().split(".")
        if len(lines) > 1:
            message = f"an override is one line, not {len(lines)}"
            raise InputError(self.text.problem(message, 2, 1, legal=f"a {option} for each key"))
        if not equals or not all(self.steps):
            raise self._refuse(f"{text!r} is not an override", 0, "key=value, for example ranks.ep=64")
        self.value = self._parsed(value, len(key) + 1)

    def _parsed(self, value: str, offset: int) -> Document:
        try:
            # Padded so that columns are those of the whole text.
            parsed = yamlio.loads(f"value:\n{'':{offset}}{value}", self.text.path)
        except InputError as error:
            raise InputError(
                [
                    self.text.problem(
                        one.message, max((one.line or 2) - 1, 1), one.column or 1, legal=one.legal
                    )
                    for one in error.problems
                ]
            ) from None

        def moved(marks: Mapping[Loc, Mark]) -> dict[Loc, Mark]:
            return {
                loc: replace(mark, text=self.text, line=max(mark.line - 1, 1)) for loc, mark in marks.items()
            }

        keys = moved(parsed.keys) | {("value",): self._mark(len(self.steps) - 1)}
        return replace(parsed, keys=keys, values=moved(parsed.values))

    def _mark(self, step: int) -> Mark:
        start = sum(len(one) + 1 for one in self.steps[:step])
        return Mark(self.text, 1, start + 1, len(self.steps[step]) if step < len(self.steps) else 1)

    def _refuse(self, message: str, step: int, legal: str | None = None) -> InputError:
        return InputError(self._mark(step).problem(message, legal))

    def apply(self, document: Document) -> Document:
        """A copy of ``document`` with the value at its place; mappings on the way are made as needed."""
        loc: Loc = ()
        for depth, step in enumerate(self.steps):
            document = self._opened(document, loc, depth)
            loc = (*loc, self._step(document.get(loc), step, depth))
        document = document.graft(loc, self.value)
        if len(loc) > 1 and _NAME_KEY.get(str(loc[-2])) == loc[-1]:
            # The whole is another thing now: what is wrong with it is wrong with the override.
            whole = {loc[:-1]: document.values[loc]}
            document = replace(document, values={**document.values, **whole})
        return document

    def _opened(self, document: Document, loc: Loc, depth: int) -> Document:
        """``document`` with something at ``loc`` that has parts."""
        parent = document.get(loc[:-1]) if loc else document.data
        part = parent.get(str(loc[-1])) if loc and isinstance(parent, dict) else document.get(loc)
        if isinstance(part, (dict, list)):
            return document
        name_key = _NAME_KEY.get(str(loc[-1]))
        if part is None:
            new: dict[str, Any] = {}
        elif isinstance(part, str) and name_key is not None:
            new = {name_key: part}
        else:
            raise self._refuse(f"{'.'.join(self.steps[:depth])} is {part!r} and has no parts", depth)
        mark = (document.mark(loc) if part is not None else None) or self._mark(depth - 1)
        marks: dict[Loc, Mark] = {("value",): mark} | {("value", key): mark for key in new}
        return document.graft(loc, Document({"value": new}, self.text.path, marks, marks))

    def _step(self, part: Any, step: str, depth: int) -> str | int:
        if isinstance(part, dict):
            return step
        names = [str(item.get("name")) if isinstance(item, dict) else "" for item in part]
        if step in names:
            return names.index(step)
        if step.isdecimal() and int(step) < len(part):
            return int(step)
        where = ".".join(self.steps[:depth])
        legal = nearest(step, [*filter(None, names), *(str(number) for number in range(len(part)))])
        raise self._refuse(f"{where} has no {step!r}", depth, legal)
