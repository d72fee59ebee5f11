"""Every way moesim says no, and the exit code that goes with it.

======  ==========================================================================
code    meaning
======  ==========================================================================
0       yes
1       the answer is no: a ``require`` fails, buffers and weights do not fit
2       bad input: a file, a key, a unit, an option that does not exist
3       a bug of moesim's own: an invariant broke
130     interrupted
======  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_TOLD = 50
"""Problems that the text of an error holds."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an input, and where.

    ``line`` and ``column`` count from 1; ``excerpt`` holds the rendered source lines with a caret;
    ``legal`` says what would have been accepted.
    """

    message: str
    path: str | None = None
    line: int | None = None
    column: int | None = None
    excerpt: str | None = None
    legal: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.path, self.line, self.column) if part is not None)
        lines = [f"{place}: {self.message}" if place else self.message]
        if self.excerpt:
            lines.append(self.excerpt)
        if self.legal:
            lines.append(f"  legal: {self.legal}")
        return "\n".join(lines)


class MoesimError(Exception):
    """Base of all errors that moesim raises on purpose."""

    exit_code = 3


class InputError(MoesimError):
    """The input cannot be used. Raised by every loader; carries all problems found, its text the first of them."""

    exit_code = 2

    def __init__(self, problems: Problem | str | Sequence[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(self.told()))

    def told(self) -> list[str]:
        """The problems as text, :data:`MOST_TOLD` of them and then how many more there are."""
        texts = [str(problem) for problem in self.problems[:MOST_TOLD]]
        more = len(self.problems) - len(texts)
        return [*texts, f"and {more:,} more problems"] if more else texts


class InvariantError(MoesimError):
    """An invariant of the simulator broke: our bug, please report it."""

    exit_code = 3
