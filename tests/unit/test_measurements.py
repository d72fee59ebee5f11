"""Files of measurements: read whole, or refused with the line and column of every problem."""

from __future__ import annotations

import contextlib
import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim import measurements, resources
from moesim.errors import InputError
from moesim.measurements import COLUMNS

HEAD = ",".join(COLUMNS)
GOOD = "a,h100-ib,deepep-ll,dispatch,16,128,7168,8,,FP8,BF16,,,102.1,validate,a table,notes"
"""One row; its cells begin in column 1, 3, 11 ..."""


def refused(text: str) -> list[tuple[int | None, int | None, str, str]]:
    with pytest.raises(InputError) as caught:
        measurements.loads(text, "m.csv")
    return [(one.line, one.column, one.message, one.legal or "") for one in caught.value.problems]


def column(name: str, row: str = GOOD) -> int:
    """Where the cell ``name`` of ``row`` begins, from 1 (no cell before it has a comma inside)."""
    return 1 + sum(len(cell) + 1 for cell in row.split(",")[: COLUMNS.index(name)])


def with_cell(name: str, value: str, row: str = GOOD) -> str:
    cells = row.split(",")
    cells[COLUMNS.index(name)] = value
    return ",".join(cells)


def test_a_row_in_si_with_blanks() -> None:
    found = measurements.loads(f"{HEAD}\n{GOOD}\n")
    assert found.ignored == ()
    assert found.rows == (
        measurements.Measurement(
            id="a",
            pod="h100-ib",
            protocol="deepep-ll",
            op="dispatch",
            ep=16,
            tokens_per_rank=128,
            hidden=7168,
            top_k=8,
            experts=None,
            dispatch_dtype="FP8",
            combine_dtype="BF16",
            sms=None,
            send_bytes=None,
            latency=pytest.approx(102.1e-6),  # type: ignore[arg-type]
            split="validate",
            source="a table",
            notes="notes",
            line=2,
        ),
    )


def test_columns_in_any_order_and_more_of_them_which_is_said() -> None:
    head = [*reversed(COLUMNS), "lab", "day"]
    row = [*reversed(GOOD.split(",")), "ours", "monday"]
    found = measurements.loads(f"{','.join(head)}\r\n{','.join(row)}\r\n\r\n")
    assert found.rows == measurements.loads(f"{HEAD}\n{GOOD}").rows
    assert found.ignored == ("lab", "day")


def test_a_table_that_had_gaps_writes_whole_numbers_with_a_point() -> None:
    row = with_cell("sms", "24.0", with_cell("ep", "16.0"))
    found = measurements.loads(f"{HEAD}\n{row}").rows[0]
    assert (found.ep, found.sms) == (16, 24)


def test_quoted_cells_hold_commas_quotes_and_lines() -> None:
    row = with_cell("notes", '"random router, ""best"" sizes\nsecond line"')
    found = measurements.loads(f"{HEAD}\n{row}\n{with_cell('id', 'b')}\n").rows
    assert [one.notes for one in found] == ['random router, "best" sizes\nsecond line', "notes"]


@pytest.mark.parametrize("name", resources.names("measurements"))
def test_shipped_files_read_as_the_csv_module_reads_them(name: str) -> None:
    path = resources.find("measurements", name)
    found = measurements.load(path).rows
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(found) == len(rows) > 70
    for one, row in zip(found, rows, strict=True):
        assert (one.id, one.notes, one.source) == (row["id"], row["notes"], row["source"])
        assert one.latency == float(row["latency_us"]) * 1e-6
        assert [one.ep, one.sms] == [int(row["ep"]), int(row["sms"]) if row["sms"] else None]


def test_latencies_keep_their_digits() -> None:
    assert measurements.loads(f"{HEAD}\n{with_cell('latency_us', '.5e2')}").rows[0].latency == 50.0 * 1e-6


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("latency_us", "-3", "cannot be '-3'"),
        ("latency_us", "0", "cannot be '0'"),
        ("latency_us", "0.0", "cannot be"),
        ("latency_us", "nan", "cannot be 'nan'"),
        ("latency_us", "inf", "cannot be 'inf'"),
        ("latency_us", "1e400", "cannot be '1e400'"),
        ("latency_us", "12ms", "in us, without a unit"),
        ("latency_us", "12 us", "in us, without a unit"),
        ("latency_us", "fast", "cannot be 'fast'"),
        ("latency_us", "1_000", "cannot be"),
        ("latency_us", "1e-30", "cannot be"),
        ("latency_us", "1e15", "cannot be"),
        ("latency_us", "", "latency_us is blank"),
        ("ep", "", "ep is blank"),
        ("ep", "0", "ep cannot be '0'"),
        ("ep", "-8", "ep cannot be '-8'"),
        ("ep", "8.5", "ep cannot be"),
        ("ep", "eight", "ep cannot be"),
        ("ep", "99999999999999999999", "ep cannot be"),
        ("tokens_per_rank", "many", "tokens_per_rank cannot be"),
        ("hidden", "7k", "hidden cannot be"),
        ("sms", "-1", "sms cannot be"),
        ("send_bytes", "2KiB", "in bytes, without a unit"),
        ("id", "", "id is blank"),
        ("pod", " ", "pod is blank"),
        ("protocol", "", "protocol is blank"),
        ("op", "dispach", "unknown op 'dispach'"),
        ("split", "test", "unknown split 'test'"),
        ("split", "", "split is blank"),
    ],
)
def test_a_wrong_cell_is_refused_at_its_place(name: str, value: str, message: str) -> None:
    row = with_cell(name, value)
    [(line, at, said, legal)] = refused(f"{HEAD}\n{with_cell('id', 'first')}\n{row}\n")
    assert legal
    assert (line, at) == (3, column(name, row))
    assert message in said


def test_the_excerpt_points_at_the_cell() -> None:
    row = with_cell("latency_us", "12ms")
    with pytest.raises(InputError) as caught:
        measurements.loads(f"{HEAD}\n{row}\n", "m.csv")
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"m.csv:2:{column('latency_us', row)}: ")
    marked = lines[1].split(" | ")[1]
    under = lines[2].split(" | ")[1]
    assert marked[under.index("^") : under.rindex("^") + 1] == "12ms"


def test_all_problems_at_once_and_no_good_row_is_kept() -> None:
    rows = [GOOD, with_cell("ep", "x", with_cell("latency_us", "-1")), with_cell("op", "mix"), GOOD]
    found = refused("\n".join([HEAD, *rows]))
    assert [(line, said.split()[0]) for line, _, said, _ in found] == [
        (3, "ep"),
        (3, "latency_us"),
        (4, "unknown"),
        (5, "duplicate"),
    ]
    assert "first in line 2" in found[-1][2]


def test_line_numbers_count_lines_inside_of_cells() -> None:
    rows = [with_cell("notes", '"a\nb\r\nc"'), with_cell("ep", "x")]
    assert refused("\n".join([HEAD, *rows]))[0][0] == 5


@pytest.mark.parametrize("missing", COLUMNS)
def test_a_missing_column(missing: str) -> None:
    kept = [name for name in COLUMNS if name != missing]
    [(line, _, said, _)] = refused(",".join(kept) + "\n" + GOOD)
    assert (line, said) == (1, f"the column {missing!r} is missing")


def test_a_column_in_another_unit_is_pointed_at() -> None:
    head = HEAD.replace("latency_us", "latency_ms")
    [(line, at, said, legal)] = refused(f"{head}\n{GOOD}")
    assert (line, at, legal) == (1, HEAD.index("latency_us") + 1, "latency_us")
    assert "'latency_ms'" in said


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", None, "empty"),
        ("\n\n", None, "empty"),
        (HEAD, 1, "no measurements"),
        (f"{HEAD}\n\n", 1, "no measurements"),
        (f"{HEAD}\n{GOOD}".replace(",", ";"), 1, "separated by ';'"),
        (f"{HEAD}\n{GOOD}".replace(",", "\t"), 1, "separated by"),
        (f"{HEAD},id\n{GOOD},b", 1, "duplicate column 'id'"),
        (f"{HEAD}\n{GOOD},more", 2, "18 cells in a table of 17"),
        (f"{HEAD}\n{GOOD.rpartition(',')[0]}", 2, "16 cells in a table of 17"),
        (f'{HEAD}\n{GOOD},"open', 2, "not closed"),
        (f'{HEAD}\n"a"b{GOOD}', 2, "behind a closing quote"),
    ],
)
def test_a_broken_table(text: str, line: int | None, message: str) -> None:
    found = refused(text)
    assert found[0][0] == line
    assert message in found[0][2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEAD.encode("utf-16"), "not UTF-8"),
        (f"{HEAD}\n{with_cell('notes', 'café')}".encode("latin-1"), "not UTF-8"),
        (b"PK\x03\x04\xff\xfe", "not UTF-8"),
    ],
)
def test_a_file_in_another_encoding(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "m.csv"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        measurements.load(file)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(InputError, match=str(path)):
            measurements.load(path)


def test_a_mark_of_byte_order_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text(f"{HEAD}\n{GOOD}\n", encoding="utf-8-sig")
    assert len(measurements.load(file).rows) == 1


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=4))
def test_any_text_survives_in_notes(texts: list[str]) -> None:
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(COLUMNS)
    for number, text in enumerate(texts):
        writer.writerow([number, *GOOD.split(",")[1:-1], text])
    found = measurements.loads(stream.getvalue()).rows
    assert [one.notes for one in found] == [text.strip() for text in texts]


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for whole in (text, f"{HEAD}\n{text}"):
        with contextlib.suppress(InputError):
            measurements.loads(whole)
