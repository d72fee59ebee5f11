from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim import units
from moesim.errors import InputError

DIMENSIONS = st.sampled_from(sorted(units.UNITS))


@given(DIMENSIONS, st.floats(min_value=1e-9, max_value=1e18), st.integers(0, 1))
def test_what_is_formatted_reads_back_to_four_digits(dimension: str, value: float, sign: int) -> None:
    assert units.parse(units.format(value, dimension), dimension) == pytest.approx(value, rel=1e-3)


@given(DIMENSIONS, st.decimals(min_value=0, max_value=10**9, places=6), st.data())
def test_a_value_is_the_nearest_float_to_number_times_unit(
    dimension: str, number: object, data: st.DataObject
) -> None:
    bare = dimension not in ("share", "growth")
    unit = data.draw(st.sampled_from(sorted(unit for unit in units.UNITS[dimension] if unit or bare)))
    exact = Fraction(str(number)) * units.UNITS[dimension][unit]
    assert units.parse(f"{number}{unit}", dimension) == float(exact)


@given(st.text(max_size=30) | st.integers() | st.floats() | st.none() | st.booleans(), DIMENSIONS)
def test_anything_gives_a_number_or_an_input_error(text: object, dimension: str) -> None:
    with contextlib.suppress(InputError):
        assert units.parse(text, dimension) >= 0  # type: ignore[arg-type]
