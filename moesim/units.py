"""Quantities as people write them: ``"900GB/s"`` <-> a float in SI units.

The grammar is closed: a non-negative decimal number, then one unit of the dimension that the field asks for.
Nothing is guessed: ``GB`` is 1e9 bytes, ``GiB`` 2**30, ``Gb/s`` counts bits, and a bare number is refused for
everything that has a unit.

==========  ============  =====================================
dimension   SI inside     units
==========  ============  =====================================
bytes       B             B kB KB MB GB TB KiB MiB GiB TiB
time        s             s ms us µs ns
bandwidth   B/s           bytes or bits (1/8) per second
rate        1/s           /s k/s M/s G/s
flops       operations/s  FLOP/s OP/s with k M G T P
ratio       1             % or a bare number
share       1             %; bare, only 0 (none) and 1 (all)
growth      1             %; bare, only 0
==========  ============  =====================================

A bare 0.3 where a share is asked could mean 0.3 % or 30 %, so both are said and neither is taken. A *ratio* is
what a count of things is too, as in a calibration: ``cores: 24``.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from moesim.errors import InputError, Problem

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

_DECIMAL = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_BYTES = {"B": 1} | {f"{p}B": n for p, n in (_DECIMAL | _BINARY).items()}
_BITS = {"b/s": 1} | {f"{p}b/s": n for p, n in _DECIMAL.items() if p != "K"}
_PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}

UNITS: dict[str, dict[str, Fraction]] = {
    "bytes": {unit: Fraction(n) for unit, n in _BYTES.items()},
    "time": {
        "s": Fraction(1),
        "ms": Fraction(1, 10**3),
        "us": Fraction(1, 10**6),
        "\u00b5s": Fraction(1, 10**6),
        "\u03bcs": Fraction(1, 10**6),
        "ns": Fraction(1, 10**9),
    },
    "bandwidth": {f"{unit}/s": Fraction(n) for unit, n in _BYTES.items()}
    | {unit: Fraction(n, 8) for unit, n in _BITS.items()},
    "rate": {f"{p}/s": Fraction(_PREFIXES[p]) for p in ("", "k", "M", "G")},
    "flops": {f"{p}{word}/s": Fraction(n) for word in ("FLOP", "OP") for p, n in _PREFIXES.items()},
    "ratio": {"%": Fraction(1, 100), "": Fraction(1)},
    "share": {"%": Fraction(1, 100), "": Fraction(1)},
    "growth": {"%": Fraction(1, 100), "": Fraction(1)},
}
"""Dimension -> unit -> its size in the SI unit of the dimension."""

_BARE: dict[str, tuple[float, ...]] = {"share": (0.0, 1.0), "growth": (0.0,)}
"""The only numbers without a unit where a bare one could be taken for per cent."""

_SPOKEN = {"bytes": "number of bytes", "flops": "number of FLOP/s"}
_EXAMPLE = {
    "bytes": "64KiB",
    "time": "2us",
    "bandwidth": "900GB/s",
    "rate": "50M/s",
    "flops": "1979TFLOP/s",
    "ratio": "95%",
    "share": "95%",
    "growth": "5%",
}
_NUMBER = r"\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?|\.\d+(?:[eE][+-]?\d{1,3})?"
_QUANTITY = re.compile(rf"\s*([+-]?)({_NUMBER})\s*(.*?)\s*", re.DOTALL)
_LONGEST = 64

LEAST, MOST = 1e-30, 1e30
"""Beyond these, in SI units, nothing is an amount; between them nothing that is worked out overflows."""


def legal_units(dimension: str) -> str:
    """The ``legal`` text of an error: the units of ``dimension`` and an example."""
    if dimension in _BARE:
        bare = " or ".join(f"{number:g}" for number in _BARE[dimension])
        return f"a number and %, or {bare}, for example {_EXAMPLE[dimension]}"
    names = ["a bare number" if unit == "" else unit for unit in UNITS[dimension]]
    return f"a number and one of {' '.join(names)}, for example {_EXAMPLE[dimension]}"


def parse(text: str | float, dimension: str) -> float:
    """The value of ``text`` in the SI unit of ``dimension``, correctly rounded.

    Raises :class:`InputError` without a position (``yamlio`` adds it) for a bare number where a unit is
    needed, a unit of another dimension, a negative or non-finite value.

    >>> parse("400Gb/s", "bandwidth"), parse("2.1 us", "time"), parse("0.3%", "ratio")
    (50000000000.0, 2.1e-06, 0.003)
    """
    units = UNITS[dimension]
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise _refuse(f"{'nothing' if text is None else repr(text)} is not a quantity", dimension)
    shown = text if isinstance(text, str) else repr(text)
    if len(shown) > _LONGEST:
        raise _refuse(f"{shown[:20]!r}... is too long for a quantity", dimension)
    match = _QUANTITY.fullmatch(shown)
    if match is None or not shown.isprintable():
        raise _refuse(f"{shown!r} is not a quantity", dimension)
    sign, number, unit = match.groups()
    if unit not in units:
        raise _refuse(_wrong_unit(shown, unit, dimension), dimension)
    exact = Fraction(number) * units[unit]
    if exact and not LEAST <= exact <= MOST:
        base = next(name for name, size in units.items() if size == 1)
        legal = f"0, or from {LEAST:g}{base} to {MOST:g}{base}"
        raise InputError(Problem(f"{shown!r} is too {'large' if exact > 1 else 'small'}", legal=legal))
    value = float(exact)
    if sign == "-" and value != 0.0:
        raise _refuse(f"{shown!r} is negative", dimension)
    if unit == "" and value not in _BARE.get(dimension, (value,)):
        raise _refuse(f"{number} has no %: write {number}% or {value * 100:.15g}%", dimension)
    return value


def format(value: float, dimension: str) -> str:
    """``value`` (SI) for people: three or four significant digits and a prefix; bytes in binary units.

    >>> format(137e9, "bandwidth"), format(2.1e-6, "time"), format(7680, "bytes")
    ('137 GB/s', '2.1 us', '7.5 KiB')
    """
    if dimension in ("ratio", *_BARE):
        return f"{value * 100:.4g}%"
    scale = _SCALES[dimension]
    if not math.isfinite(value):
        return f"{value} {scale[-1][0]}"
    magnitude = abs(value)
    # A value that would be rounded up to 1000 of a unit is written in the next one.
    smallest = scale[-1] if value else next(pair for pair in scale if pair[1] == 1.0)
    unit, size = next((pair for pair in scale if magnitude >= pair[1] * 0.99995), smallest)
    scaled = value / size
    digits = f"{scaled:.4g}" if abs(scaled) < 9999.5 else f"{scaled:.0f}"
    return f"{digits} {unit}"


def _scales() -> dict[str, list[tuple[str, float]]]:
    shown = {
        "bytes": ("TiB", "GiB", "MiB", "KiB", "B"),
        "time": ("s", "ms", "us", "ns"),
        "bandwidth": ("TB/s", "GB/s", "MB/s", "kB/s", "B/s"),
        "rate": ("G/s", "M/s", "k/s", "/s"),
        "flops": ("PFLOP/s", "TFLOP/s", "GFLOP/s", "MFLOP/s", "kFLOP/s", "FLOP/s"),
    }
    return {name: [(unit, float(UNITS[name][unit])) for unit in units] for name, units in shown.items()}


_SCALES = _scales()


def _refuse(message: str, dimension: str) -> InputError:
    return InputError(Problem(message, legal=legal_units(dimension)))


def _wrong_unit(shown: str, unit: str, dimension: str) -> str:
    spoken = _SPOKEN.get(dimension, dimension)
    if unit == "":
        return f"{shown} has no unit, a {spoken} needs one"
    others = [name for name, units in UNITS.items() if name != dimension and unit in units]
    if others:
        return f"{shown!r} is a {_SPOKEN.get(others[0], others[0])}, a {spoken} is asked"
    close = near_units(unit, dimension)
    hint = f", did you mean {' or '.join(close)}" if close else ""
    return f"{shown!r}: unknown unit {unit!r}{hint}"


def near_units(unit: str, dimension: str) -> list[str]:
    """Units of ``dimension`` that differ from ``unit`` only by case or by a common spelling of "per second".

    >>> near_units("gbps", "bandwidth")
    ['GB/s (bytes)', 'Gb/s (bits)']
    """
    folded = unit.casefold().replace(" ", "")
    endings = [end for end in ("ps", "/sec", "s") if folded.endswith(end)]
    spellings = {folded} | {folded.removesuffix(end) + "/s" for end in endings}
    found = [name for name in UNITS[dimension] if name.casefold() in spellings]
    if dimension != "bandwidth":
        return found
    return [f"{name} ({'bits' if name in _BITS else 'bytes'})" for name in found]


class Quantity:
    """Marks a pydantic field as a quantity of one dimension; use the aliases below.

    pydantic finds the two hooks by name, so this module need not import it.
    """

    def __init__(self, dimension: str) -> None:
        self.dimension = dimension

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A validator: text of this dimension -> float in SI units."""
        from pydantic_core import PydanticCustomError, core_schema

        def validate(value: Any) -> float:
            try:
                return parse(value, self.dimension)
            except InputError as error:
                problem = error.problems[0]
                context = {"message": problem.message, "legal": problem.legal}
                raise PydanticCustomError("quantity", "{message}", context) from None

        return core_schema.no_info_plain_validator_function(validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        """A string with the pattern of the dimension (and the bare numbers that are legal)."""
        units = "|".join(re.escape(u) for u in UNITS[self.dimension] if u or self.dimension not in _BARE)
        text = {
            "type": "string",
            "pattern": rf"^\s*\+?({_NUMBER})\s*({units})\s*$",
            "description": f"{self.dimension}: {legal_units(self.dimension)}",
        }
        if "" not in UNITS[self.dimension]:
            return text
        bare = _BARE.get(self.dimension)
        return {"anyOf": [text, {"type": "number", "minimum": 0} if bare is None else {"enum": list(bare)}]}


Bytes = Annotated[float, Quantity("bytes")]
Seconds = Annotated[float, Quantity("time")]
Bandwidth = Annotated[float, Quantity("bandwidth")]
Rate = Annotated[float, Quantity("rate")]
Flops = Annotated[float, Quantity("flops")]
Share = Annotated[float, Quantity("share")]
