"""``moesim validate`` and ``moesim calibrate``: output, exit codes, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commanded import Moesim

from moesim import resources, yamlio
from moesim.measurements import COLUMNS

HEAD = ",".join(COLUMNS)


def published(rows: int, *words: str) -> list[str]:
    """Lines of the shipped file that hold all of ``words``."""
    lines = resources.find("measurements", "published").read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if all(word in line for word in words)][:rows]
    assert len(found) == rows
    return found


@pytest.fixture
def some(tmp_path: Path) -> Path:
    """Eleven validate rows of a protocol, eleven calibrate rows of another, and one of an unknown pod."""
    fitted = published(11, "h200-hgx,deepep-ll,dispatch", "calibrate")
    free = published(11, "h100-ib,deepep-ll,combine", "validate")
    unknown = free[0].replace("h100-ib", "h999-ib").replace(free[0].split(",")[0], "u1", 1)
    file = tmp_path / "some.csv"
    file.write_text("\n".join([HEAD, *fitted, *free, unknown]) + "\n", encoding="utf-8")
    return file


def test_the_report(moesim: Moesim, some: Path) -> None:
    ran = moesim("validate", "--measurements", str(some))
    assert ran.code == 0
    assert ran.err == ""
    assert ran.out.splitlines()[0].startswith(f"{some}: ")
    overall = next(line.split() for line in ran.out.splitlines() if line.startswith("  validate"))
    assert overall[1] == "11"
    (told,) = [line.split() for line in ran.out.splitlines() if "h999-ib" in line]
    assert told[:3] == ["1", "24", "deepep-ll"]
    assert "unknown pod 'h999-ib'," in " ".join(told)


def test_one_document_with_stable_keys(moesim: Moesim, some: Path) -> None:
    ran = moesim("validate", "--measurements", str(some), "--json")
    document = json.loads(ran.out)
    assert ran.code == 0
    assert {"overall", "groups", "unmodelled", "rows", "compute", "fitted"} <= set(document)
    for found in (document["overall"], *document["groups"]):
        assert {"rows", "median_abs_error", "p90_abs_error", "bias"} <= set(found)
        assert 0 < found["median_abs_error"] <= found["p90_abs_error"] < 1
    (unknown,) = document["unmodelled"]
    assert (unknown["id"], unknown["line"]) == ("u1", 24)
    assert unknown["reason"].startswith("unknown pod 'h999-ib'")
    assert len(document["rows"]) == 22
    for row in document["rows"]:
        assert {"id", "predicted_us", "measured_us", "split"} <= set(row)
        assert row["error"] == pytest.approx(row["predicted_us"] / row["measured_us"] - 1)


def test_a_file_of_which_nothing_can_be_modelled_is_a_no(moesim: Moesim, tmp_path: Path) -> None:
    row = published(1, "h100-ib,deepep-ll,combine", "validate")[0]
    Path("none.csv").write_text("\n".join([HEAD, row.replace("deepep-ll", "deepep-lll")]) + "\n")
    ran = moesim("validate", "--measurements", "none.csv", "--figure", "f.png")
    assert (ran.code, ran.err) == (1, "moesim: no: none of the 1 rows can be modelled\n")
    assert "unknown protocol 'deepep-lll', did you mean 'deepep-ll'?" in " ".join(ran.out.split())
    assert not Path("f.png").exists()


def test_cells_that_say_nothing_about_their_operation_are_named(moesim: Moesim) -> None:
    row = published(1, "h100-ib,deepep-ll,combine", "validate")[0].split(",")
    columns = HEAD.split(",")
    row[columns.index("send_bytes")] = "4096"
    rows = [",".join([f"r{number}", *row[1:]]) for number in range(2)]
    Path("more.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    ran = moesim("validate", "--measurements", "more.csv")
    assert (ran.code, ran.err) == (0, "moesim: cells that have no effect: send_bytes in 2 rows of combine\n")


def test_no_more_than_fifty_problems_are_told(moesim: Moesim) -> None:
    row = published(1, "h100-ib,deepep-ll,combine", "validate")[0]
    Path("bad.csv").write_text("\n".join([HEAD, *[row.replace(",combine,", ",broadcast,")] * 2000]) + "\n")
    ran = moesim("validate", "--measurements", "bad.csv")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("unknown op") == 50
    assert ran.err.splitlines()[-1] == "moesim: and 1,950 more problems"


@pytest.mark.parametrize("odd", ["\x1b[31m", "\x9b31m", "\u202e", "[/red]"])
@pytest.mark.parametrize("pod", ["h100-ib", "mars"])
def test_no_control_character_of_a_file_reaches_the_terminal(moesim: Moesim, odd: str, pod: str) -> None:
    row = published(1, "h100-ib,deepep-ll,combine", "validate")[0].replace("h100-ib", pod)
    rows = [HEAD, odd + row, row.replace(f",{pod},", f",{pod}{odd},").replace("n", "m", 1)]
    Path("odd.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    ran = moesim("validate", "--measurements", "odd.csv")
    assert ran.code == (1 if pod == "mars" else 0)
    assert all(line.isprintable() for line in (ran.out + ran.err).splitlines())
    shown = odd if odd.isprintable() else odd.encode("unicode_escape").decode()
    assert shown in ran.out
    Path("odd.csv").write_text("\n".join([HEAD, row, odd + row, odd + row]) + "\n", encoding="utf-8")
    assert all(
        line.isprintable() for line in moesim("validate", "--measurements", "odd.csv").err.splitlines()
    )


def test_the_figure_is_written_and_named_on_stderr(moesim: Moesim, some: Path, tmp_path: Path) -> None:
    ran = moesim("validate", "--measurements", str(some), "--figure", "f.png", "--json")
    assert (ran.code, ran.err) == (0, "written to f.png\n")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(ran.out)["overall"]["rows"] == 11


def test_columns_without_effect_are_named(moesim: Moesim, tmp_path: Path) -> None:
    rows = published(2, "h200-hgx,deepep-ll,dispatch")
    (tmp_path / "m.csv").write_text("\n".join([f"{HEAD},lab", *(f"{row},ours" for row in rows)]))
    ran = moesim("validate", "--measurements", "m.csv")
    assert (ran.code, ran.err) == (0, "moesim: columns that have no effect: lab\n")


GOOD = "a,h200-hgx,deepep-ll,dispatch,8,128,7168,8,256,FP8,BF16,,,35,calibrate,lab,"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "m.csv", "empty"),
        (HEAD.replace(",ep,", ","), "m.csv:1:1", "the column 'ep' is missing"),
        (f"{HEAD.replace('latency_us', 'latency_ms')}\n{GOOD}", "m.csv:1:103", "'latency_ms'"),
        (f"{HEAD}\n{GOOD.replace(',35,', ',35ms,')}", "m.csv:2:59", "in us, without a unit"),
        (f"{HEAD}\n{GOOD.replace(',35,', ',fast,')}", "m.csv:2:59", "'fast'"),
        (f"{HEAD}\n{GOOD.replace(',35,', ',-35,')}", "m.csv:2:59", "'-35'"),
        (f"{HEAD}\n{GOOD.replace(',35,', ',0,')}", "m.csv:2:59", "'0'"),
        (f"{HEAD}\n{GOOD.replace(',35,', ',nan,')}", "m.csv:2:59", "'nan'"),
        (f"{HEAD}\n{GOOD}\n{GOOD}", "m.csv:3:1", "duplicate id"),
        (f"{HEAD}\n{GOOD.replace('calibrate', 'train')}", "m.csv:2:62", "unknown split 'train'"),
        (f"{HEAD}\n{GOOD.replace('dispatch', 'send')}", "m.csv:2:22", "unknown op 'send'"),
        (f'{HEAD}\n{GOOD}"open', "m.csv:2:76", "not closed"),
    ],
)
@pytest.mark.parametrize("verb", ["validate", "calibrate"])
def test_a_bad_file_is_refused_with_its_place(
    moesim: Moesim, tmp_path: Path, verb: str, text: str, place: str, message: str
) -> None:
    (tmp_path / "m.csv").write_text(text)
    call = {
        "validate": ("--measurements", "m.csv"),
        "calibrate": ("m.csv", "--pod", "h200-hgx", "--protocol", "deepep-ll"),
    }
    ran = moesim(verb, *call[verb])
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"moesim: {place}: ")
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_good_rows_of_a_bad_file_are_not_kept(moesim: Moesim, tmp_path: Path) -> None:
    rows = [
        *published(11, "h200-hgx,deepep-ll,dispatch"),
        GOOD.replace(",35,", ",x,"),
        GOOD.replace(",8,", ",y,", 1),
    ]
    (tmp_path / "m.csv").write_text("\n".join([HEAD, *rows]))
    ran = moesim("validate", "--measurements", "m.csv", "--json")
    assert (ran.code, ran.out) == (2, "")
    assert [line for line in ran.err.splitlines() if line.startswith("moesim: ")] == [
        "moesim: m.csv:13:59: latency_us cannot be 'x'",
        "moesim: m.csv:14:31: ep cannot be 'y'",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--measurements", "absent.csv"), "not found"),
        (("--measurements", "publishd"), "did you mean 'published'"),
        (("--measurements", "."), "no such"),
        (("--figure", "f.gif"), "no format of a figure"),
        (("--figure", "absent/f.png"), "cannot write"),
    ],
)
def test_files_that_cannot_be_used(
    moesim: Moesim, some: Path, arguments: tuple[str, ...], message: str
) -> None:
    given = arguments if "--measurements" in arguments else ("--measurements", str(some), *arguments)
    ran = moesim("validate", *given)
    if message != "no such":
        assert message in ran.err
    assert (ran.code, ran.out) == (2, "")


def test_calibrate_prints_and_writes(moesim: Moesim, some: Path, tmp_path: Path) -> None:
    call = ("calibrate", str(some), "--pod", "h200-hgx", "--protocol", "deepep-ll", "-o", "out.yaml")
    ran = moesim(*call)
    assert ran.code == 0
    assert ran.err == "written to out.yaml\n"
    for part in ("constants", "correlation", "dispatch", "all"):
        assert part in ran.out
    block = yamlio.load(tmp_path / "out.yaml").data["fit"]
    assert block["rows"] == "11 rows: dispatch EP8"
    document = json.loads(moesim(*call[:-2], "--json").out)
    assert [one["name"] for one in document["constants"]] == block["constants"]
    assert {"written", "value", "standard_error"} <= set(document["constants"][0])


@pytest.mark.parametrize(
    ("pod", "protocol", "message"),
    [
        ("h200-hxg", "deepep-ll", "did you mean 'h200-hgx'"),
        ("h200-hgx", "deepep-lll", "did you mean 'deepep-ll'"),
        ("gb300-nvl72", "deepep-ll", "0 rows of split calibrate"),
    ],
)
def test_what_cannot_be_fitted(moesim: Moesim, some: Path, pod: str, protocol: str, message: str) -> None:
    ran = moesim("calibrate", str(some), "--pod", pod, "--protocol", protocol)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_the_measurements_are_not_overwritten(moesim: Moesim, some: Path) -> None:
    ran = moesim("calibrate", str(some), "--pod", "h200-hgx", "--protocol", "deepep-ll", "-o", str(some))
    assert (ran.code, ran.out) == (2, "")
    assert "also an input" in ran.err


def test_a_fit_can_be_checked_and_used(moesim: Moesim, some: Path, tmp_path: Path) -> None:
    fit = ("calibrate", str(some), "--pod", "h200-hgx", "--protocol", "deepep-ll", "-o", "out.yaml")
    assert moesim(*fit).code == 0
    ran = moesim("check", "out.yaml")
    assert (ran.code, ran.err) == (0, "")
    assert "calibration of deepep-ll on h200-hgx, " in ran.out
    scenario = Path(__file__).with_name("small.yaml")
    name = yamlio.load(scenario).data["strategies"][0]["name"]
    use = (f"strategies.{name}.protocol=deepep-ll", f"strategies.{name}.calibration=out.yaml")
    sets = [word for text in use for word in ("--set", text)]
    shown = {verb: moesim(verb, str(scenario), *sets) for verb in ("run", "explain")}
    for ran in shown.values():
        assert (ran.code, "Traceback" in ran.err) == (0, False)
        assert "(out.yaml)" in ran.out
        assert "[measurements] Measurements given to moesim calibrate" in ran.out
        assert "are those of h200-hgx, used on" in " ".join(ran.out.split())
    assert "some.csv, SHA-256 " in " ".join(shown["explain"].out.split())
