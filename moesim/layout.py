"""Plain text for people: aligned tables that fit a width, and numbers with the digits that matter."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from unicodedata import category

INDENT = "  "
GAP = "  "


def digits(value: float | None) -> str:
    """Three or four significant digits, never an exponent between 1e-4 and 1e15; ``-`` for no value.

    >>> digits(412.345), digits(41.26), digits(0.01234), digits(123456.7), digits(None)
    ('412.3', '41.26', '0.0123', '123457', '-')
    """
    if value is None:
        return "-"
    size = abs(value)
    if size >= 999.95:
        return f"{value:.0f}"
    if size >= 99.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.3g}"


def microseconds(seconds: float | None) -> str:
    """``seconds`` in us, without the unit: the heading of a table carries it."""
    return digits(None if seconds is None else seconds * 1e6)


def percent(share: float | None) -> str:
    """A share, 0 to 1, in whole per cent or one decimal below ten.

    >>> percent(0.5), percent(0.0123), percent(None)
    ('50%', '1.2%', '-')
    """
    if share is None:
        return "-"
    value = share * 100
    return f"{value:.0f}%" if value >= 9.95 or value == 0 else f"{value:.1f}%"


def printable(text: str) -> str:
    """``text`` with control characters and what else cannot be seen as escapes, so that none reaches a terminal.

    >>> printable("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or category(c) == "Zs" else c.encode("unicode_escape").decode() for c in text
    )


def wrapped(text: str, width: int, first: str = INDENT, rest: str | None = None) -> list[str]:
    """``text`` in lines of at most ``width``; a word that is longer stays whole, so that it can be copied."""
    hanging = first if rest is None else rest
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]


def table(rows: Sequence[Sequence[str]], width: int, align: str) -> list[str]:
    """Rows (the first is the heading) as aligned lines. ``align``: ``l`` or ``r`` for each column.

    A last column that is left-aligned is wrapped into what is left of ``width``.
    """
    return [line for lines in grouped(rows, width, align) for line in lines]


def grouped(rows: Sequence[Sequence[str]], width: int, align: str) -> list[list[str]]:
    """As :func:`table`, with the lines of each row apart."""
    sizes = [max(len(row[column]) for row in rows) for column in range(len(align))]
    groups = []
    for row in rows:
        cells = [
            cell.rjust(size) if side == "r" else cell.ljust(size)
            for cell, size, side in zip(row, sizes, align, strict=True)
        ]
        if align[-1] == "l" and row[-1]:
            lead = INDENT + GAP.join(cells[:-1]) + (GAP if len(cells) > 1 else "")
            groups.append(wrapped(row[-1], max(width, len(lead) + 12), lead, " " * len(lead)))
        else:
            groups.append([(INDENT + GAP.join(cells)).rstrip()])
    return groups


def columns(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], width: int) -> list[str]:
    """A labelled row a quantity, a column a head; heads that do not fit are continued below.

    A row without cells is a title between rows.
    """
    label = max(len(name) for name, _ in rows)
    sizes = [
        max([len(head), *(len(cells[number]) for _, cells in rows if cells)])
        for number, head in enumerate(heads)
    ]
    lines: list[str] = []
    start = 0
    while start < len(heads):
        end, used = start, len(INDENT) + label
        while end < len(heads) and (end == start or used + len(GAP) + sizes[end] <= width):
            used += len(GAP) + sizes[end]
            end += 1
        shown = [("", list(heads)), *rows]
        for name, cells in shown:
            text = GAP.join(
                cell.rjust(size) for cell, size in zip(cells[start:end], sizes[start:end], strict=False)
            )
            lines.append((INDENT + name.ljust(label) + (GAP + text if cells else "")).rstrip())
        start = end
    return lines
