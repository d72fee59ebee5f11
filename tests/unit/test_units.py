from __future__ import annotations

import math
import subprocess
import sys

import pytest

from moesim import units
from moesim.errors import InputError


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("900GB/s", "bandwidth", 900e9),
        ("400Gb/s", "bandwidth", 50e9),
        ("400 Gb/s", "bandwidth", 50e9),
        ("1GiB/s", "bandwidth", 2.0**30),
        ("8b/s", "bandwidth", 1.0),
        ("2us", "time", 2e-6),
        ("2\u00b5s", "time", 2e-6),
        ("2\u03bcs", "time", 2e-6),
        ("2.1 us", "time", 2.1e-6),
        ("1e3ns", "time", 1e-6),
        ("64KiB", "bytes", 65536.0),
        ("64KB", "bytes", 64e3),
        ("64kB", "bytes", 64e3),
        ("1TiB", "bytes", 2.0**40),
        ("50M/s", "rate", 50e6),
        ("7/s", "rate", 7.0),
        ("1979TFLOP/s", "flops", 1979e12),
        ("752TOP/s", "flops", 752e12),
        ("95%", "ratio", 0.95),
        ("0.3%", "ratio", 0.003),
        (0.5, "ratio", 0.5),
        (1, "ratio", 1.0),
        ("0.5", "ratio", 0.5),
        ("30%", "share", 0.3),
        (0, "share", 0.0),
        ("1", "share", 1.0),
        (1.0, "share", 1.0),
        ("150%", "growth", 1.5),
        ("0", "growth", 0.0),
        ("0us", "time", 0.0),
        ("-0us", "time", 0.0),
        (".5s", "time", 0.5),
        ("5.s", "time", 5.0),
    ],
)
def test_legal_quantities_are_exact(text: str | float, dimension: str, value: float) -> None:
    assert units.parse(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension", "message", "legal"),
    [
        ("1e999s", "time", "too large", "0, or from 1e-30s to 1e+30s"),
        ("1e22GB/s", "bandwidth", "too large", "0, or from 1e-30B/s to 1e+30B/s"),
        ("1e-300GB/s", "bandwidth", "too small", "0, or from 1e-30B/s to 1e+30B/s"),
        ("1e-999%", "share", "too small", "0, or from 1e-30 to 1e+30"),
    ],
)
def test_what_nothing_measures_is_refused(text: str, dimension: str, message: str, legal: str) -> None:
    with pytest.raises(InputError) as caught:
        units.parse(text, dimension)
    (problem,) = caught.value.problems
    assert message in problem.message
    assert problem.legal == legal


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        ("900", "bandwidth", "has no unit"),
        (900, "bandwidth", "has no unit"),
        (0, "time", "has no unit"),
        ("0", "bytes", "has no unit"),
        ("400GB", "bandwidth", "is a number of bytes, a bandwidth is asked"),
        ("400Gb/s", "bytes", "is a bandwidth, a number of bytes is asked"),
        ("5s", "bandwidth", "is a time"),
        ("5%", "time", "is a ratio"),
        ("-3us", "time", "is negative"),
        (-0.5, "ratio", "is negative"),
        ("nan", "ratio", "is not a quantity"),
        (float("nan"), "ratio", "is not a quantity"),
        (float("inf"), "ratio", "is not a quantity"),
        ("infGB/s", "bandwidth", "is not a quantity"),
        ("", "time", "is not a quantity"),
        ("GB/s", "bandwidth", "is not a quantity"),
        ("1,000GB/s", "bandwidth", "unknown unit"),
        ("1 000GB/s", "bandwidth", "unknown unit"),
        ("3 4 GB/s", "bandwidth", "unknown unit"),
        ("5\nus", "time", "is not a quantity"),
        ("9" * 100 + "s", "time", "too long"),
        (True, "ratio", "is not a quantity"),
        (None, "time", "is not a quantity"),
        (0.3, "share", "0.3 has no %: write 0.3% or 30%"),
        ("5", "share", "5 has no %: write 5% or 500%"),
        (1, "growth", "1 has no %: write 1% or 100%"),
        ([1], "time", "is not a quantity"),
    ],
)
def test_anything_else_is_refused_and_says_which_units(text: object, dimension: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        units.parse(text, dimension)  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    assert message in problem.message
    assert problem.legal is not None
    assert all(unit in problem.legal for unit in units.UNITS[dimension])


@pytest.mark.parametrize(
    ("text", "dimension", "suggestions"),
    [
        ("5gb/s", "bandwidth", ["GB/s (bytes)", "Gb/s (bits)"]),
        ("5Gbps", "bandwidth", ["GB/s (bytes)", "Gb/s (bits)"]),
        ("5 GB/sec", "bandwidth", ["GB/s (bytes)", "Gb/s (bits)"]),
        ("5TFLOPS", "flops", ["TFLOP/s"]),
        ("5US", "time", ["us"]),
        ("5Kib", "bytes", ["KiB"]),
    ],
)
def test_a_near_unit_is_suggested(text: str, dimension: str, suggestions: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        units.parse(text, dimension)
    assert all(name in caught.value.problems[0].message for name in suggestions)


def test_an_example_of_each_dimension_is_legal() -> None:
    for dimension in units.UNITS:
        example = units.legal_units(dimension).rpartition(" ")[2]
        assert units.parse(example, dimension) > 0


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (137e9, "bandwidth", "137 GB/s"),
        (2.1e-6, "time", "2.1 us"),
        (7680.0, "bytes", "7.5 KiB"),
        (0.0, "time", "0 s"),
        (0.0, "bytes", "0 B"),
        (999.96e9, "bandwidth", "1 TB/s"),
        (0.003, "ratio", "0.3%"),
        (1979e12, "flops", "1.979 PFLOP/s"),
        (math.inf, "rate", "inf /s"),
        (1e-12, "time", "0.001 ns"),
        (-2e-6, "time", "-2 us"),
    ],
)
def test_format(value: float, dimension: str, text: str) -> None:
    assert units.format(value, dimension) == text


def test_importing_units_brings_no_heavy_package() -> None:
    code = (
        "import sys, moesim.units, moesim.yamlio, moesim.sources, moesim.resources;"
        "heavy = {'pydantic', 'pandas', 'matplotlib', 'scipy', 'networkx'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
