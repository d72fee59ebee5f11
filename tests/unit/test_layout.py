from __future__ import annotations

import pytest

from moesim.layout import columns, digits, microseconds, percent, table, wrapped


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1e-6, "1e-06"),
        (0.01234, "0.0123"),
        (0.99949, "0.999"),
        (0.9996, "1.00"),
        (9.999, "10.00"),
        (99.996, "100.0"),
        (412.345, "412.3"),
        (999.96, "1000"),
        (123456.7, "123457"),
        (-12.345, "-12.35"),
        (None, "-"),
    ],
)
def test_digits(value: float | None, text: str) -> None:
    assert digits(value) == text


def test_small_units() -> None:
    assert microseconds(1.5e-4) == "150.0"
    assert microseconds(None) == "-"
    assert [percent(share) for share in (0.0, 0.0951, 0.0999, 1.0)] == ["0%", "9.5%", "10%", "100%"]


def test_table_aligns_and_wraps_only_its_last_column() -> None:
    lines = table(
        [["name", "n", "about"], ["a", "10", "one two three four five six"], ["bb", "2", ""]], 36, "lrl"
    )
    assert lines == [
        "  name   n  about",
        "  a     10  one two three four five",
        "            six",
        "  bb     2",
    ]


def test_table_ending_in_numbers_has_no_trailing_blanks() -> None:
    assert table([["a", "b"], ["long", "1"]], 80, "lr") == ["  a     b", "  long  1"]


def test_columns_that_do_not_fit_are_continued_with_their_labels() -> None:
    lines = columns(["first", "second", "third"], [("x", ["1", "2", "3"]), ("yy", ["4", "5", "6"])], 20)
    assert lines == [
        "      first  second",
        "  x       1       2",
        "  yy      4       5",
        "      third",
        "  x       3",
        "  yy      6",
    ]
    assert max(map(len, lines)) <= 20


def test_one_column_wider_than_the_screen_is_still_shown() -> None:
    assert columns(["a" * 30], [("x", ["1"])], 20)[0].endswith("a" * 30)


def test_wrapped_keeps_long_words_whole() -> None:
    path = "/very/long/path/" + "x" * 60
    assert wrapped(f"see {path}", 30) == ["  see", "  " + path]
    assert wrapped("", 30, "  ! ") == ["  !"]
