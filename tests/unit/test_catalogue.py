from __future__ import annotations

from pathlib import Path

import pytest

from moesim import catalogue, resources
from moesim.protocols import PROTOCOLS


@pytest.mark.parametrize("kind", sorted(catalogue.KINDS))
def test_rows_of_a_kind_have_the_same_keys_and_a_name_each(kind: str) -> None:
    rows = catalogue.entries(kind)
    assert {tuple(row) for row in rows} <= {tuple(rows[0])} if rows else True
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)


def test_topologies_count_their_numbers_and_say_what_they_are() -> None:
    rows = {row["name"]: row for row in catalogue.entries("topologies")}
    assert sorted(rows) == resources.names("topology")
    pod = rows["cloudmatrix384"]
    assert (pod["devices"], pod["family"]) == (768, "planes")
    assert 0 < pod["assumed"] < pod["numbers"]
    assert Path(pod["path"]).is_file()
    assert "CloudMatrix384" in pod["about"]


def test_registered_kinds_list_their_parameters() -> None:
    rows = {row["name"]: row for row in catalogue.entries("protocols")}
    assert sorted(rows) == PROTOCOLS.names()
    sync = next(one for one in rows["ubep"]["parameters"] if one["name"] == "sync")
    assert (sync["default"], sync["required"]) == ("sp", False)
    assert {"tff", "dc", "sp"} <= set(sync["legal"].split(", "))
    assert all(row["about"] for row in rows.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# Question: one\n# and two?\nmoesim: 1\n# later\n", "Question: one and two?"),
        ("# yaml-language-server: $schema=x\n# What it is.\n#\n# More.\n", "What it is."),
        ("moesim: 1\n# no\n", ""),
        ("", ""),
    ],
)
def test_comment_is_the_first_paragraph(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    assert catalogue.comment(path) == said


@pytest.mark.parametrize("width", [80, 120])
def test_report_names_everything_within_the_width(width: int) -> None:
    found = {kind: catalogue.entries(kind) for kind in ("topologies", "protocols", "models")}
    lines = catalogue.report(found, width)
    assert lines[0] == f"topologies ({len(found['topologies'])})"
    text = "\n".join(lines)
    assert all(row["name"] in text for rows in found.values() for row in rows)
    assert [line for line in lines if len(line) > width and "/" not in line] == []


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("kind", ["protocols", "balancers", "routing"])
def test_every_parameter_has_a_line_with_default_and_legal_values(kind: str, width: int) -> None:
    rows = catalogue.entries(kind)
    lines = catalogue.report({kind: rows}, width)
    assert [line for line in lines if len(line) > width] == []
    text = "\n".join(lines)
    for row in rows:
        own = text[text.index(f"\n  {row['name']} ") :]
        for one in row["parameters"]:
            (line, *_) = [found for found in own.splitlines() if found.startswith(f"      {one['name']} ")]
            shown = (
                "required"
                if one["required"]
                else "-"
                if one["default"] is None
                else str(one["default"]).lower()
            )
            assert line.lower().split()[1] == shown
            assert one["legal"].split()[0].rstrip(",") in line


def test_an_empty_kind_is_a_title_alone() -> None:
    assert catalogue.report({"scenarios": []}, 80) == ["scenarios (0)"]
