from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moesim import resources, tables, yamlio
from moesim.errors import InputError
from moesim.outcome import COSTS, StrategyOutcome
from moesim.result import Result, changed_inputs, load_summary, ready, sources_of
from moesim.sources import Cited, Grade

Make = Callable[..., Result]
MakeOutcome = Callable[..., StrategyOutcome]


def structure(value: Any) -> Any:
    """The keys of a document, without its values; of a list, the structure of the first item."""
    if isinstance(value, dict):
        return {key: structure(item) for key, item in value.items()}
    if isinstance(value, list):
        return [structure(value[0])] if value else []
    return type(value).__name__


STATISTICS = {"mean": "float", "p50": "float", "p99": "float", "max": "float", "critical": "float"}
BANDWIDTH = {"logical": "float", "wire": "float", "library": {"name": "str", "value": "float"}}
TIERS = dict.fromkeys(("self", "device", "host", "domain", "scale_out"), "float")
IMBALANCE = {"rank_max_over_mean": "float", "rows_max_over_mean": "float", "maxvio": "float"}


def test_keys_of_the_document_are_stable(make_result: Make) -> None:
    document = make_result().to_json()
    assert document.pop("scenario") == make_result().scenario
    (second, strategy) = (document["strategies"].pop(1), document["strategies"].pop(0))
    assert structure(second) == structure(strategy) | {"assumed": ["str"]}
    assert structure(strategy) == {
        "name": "str",
        "protocol": "str",
        "balancer": "str",
        "assumed": [],
        "metrics": {f"{stage}_s": STATISTICS for stage in ("dispatch", "expert", "combine", "layer")},
        "bound_s": {"dispatch": "float", "expert": "float", "combine": "float", "layer": "float"},
        "bottleneck": {"resource": "str", "utilisation": "float", "fixed_and_waiting": "float"},
        "breakdown_s": {
            "launch": "float",
            "send": "float",
            "wire": "float",
            "wait": "float",
            "gemm": "float",
        },
        "imbalance": {**IMBALANCE, "after": IMBALANCE},
        "formats": {"dispatch": "str", "combine": "str"},
        "traffic_B": TIERS,
        "crossed_B": {"payload": TIERS, "wire": TIERS},
        "weights_B": "float",
        "balancing": dict.fromkeys(COSTS, "float"),
        "buffers_B": {"dispatch": "float", "combine": "float"},
        "memory_B": {"expert_weights": "float", "buffers": "float", "device": "float"},
        "bandwidth_Bps": {**BANDWIDTH, "combine": BANDWIDTH},
        "solves": "int",
        "error_estimate_s": "float",
        "cited": [dict.fromkeys(("where", "value", "source", "grade", "note"), "str")],
        "warnings": [],
    }
    assert structure(document) == {
        "schema": "int",
        "moesim": "str",
        "applied": ["str"],
        "seed": "int",
        "fidelity": "str",
        "tolerance": "float",
        "strategies": [],
        "require": [{"text": "str", "metric": "str", "value": "float", "met": "bool"}],
        "cited": [dict.fromkeys(("where", "value", "source", "grade", "note"), "str")],
        "sources": [dict.fromkeys(("key", "title", "reference", "note"), "str")],
        "warnings": ["str"],
    }


def test_saved_and_loaded_is_equal(make_result: Make, make_outcome: MakeOutcome, tmp_path: Path) -> None:
    odd = make_outcome(
        'name, with "quotes"',
        1 / 3,
        breakdown={"sync": make_outcome("x", 1 / 3).stages["layer"].max(axis=1)},
        phases=(
            {"step": 0, "layer": 3, "phase": "NA", "label": "", "start_s": 0.1, "end_s": 0.3, "mean_s": 0.2},
        ),
        links=(),
    )
    made = make_result(strategies=(make_outcome("1"), odd), scenario={"topology": {"name": "x"}})
    made.save(tmp_path / "out")
    loaded = Result.load(tmp_path / "out")
    assert loaded == made
    assert loaded.to_json() == made.to_json()
    assert loaded.provenance() == made.provenance()


def test_a_change_in_any_table_is_seen_after_loading(make_result: Make, tmp_path: Path) -> None:
    made = make_result()
    for table in tables.TABLES:
        folder = made.save(tmp_path / table)
        text = (folder / f"{table}.csv").read_text().splitlines()
        cells = text[1].split(",")
        cells[-1] = repr(float(cells[-1]) * (1 + 1e-9))
        (folder / f"{table}.csv").write_text("\n".join([text[0], ",".join(cells), *text[2:]]) + "\n")
        assert Result.load(folder) != made, table


def test_equal_results_give_equal_bytes(make_result: Make, tmp_path: Path) -> None:
    first, second = (make_result().save(tmp_path / name) for name in "ab")
    assert sorted(os.listdir(first)) == sorted(
        [
            "cases.csv",
            "links.csv",
            "phases.csv",
            "provenance.json",
            "ranks.csv",
            "result.json",
            "scenario.yaml",
        ]
    )
    for name in os.listdir(first):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_scenario_file_reads_back_as_the_resolved_scenario(make_result: Make, tmp_path: Path) -> None:
    scenario = {
        "topology": "x",
        "small": 1e-06,
        "text": "1e-6",
        "no": "off",
        "ratio": "0.3%",
        "none": None,
        "list": [1, "2"],
    }
    folder = make_result(scenario=scenario).save(tmp_path / "out")
    assert yamlio.load(folder / "scenario.yaml").data == scenario


def test_scenario_file_has_the_hash_of_files_that_are_not_shipped(make_result: Make, tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text("moesim: 1\n")
    inputs = {str(pod): resources.digest(pod), "/shipped/models.yaml": "ab" * 32}
    made = make_result(scenario={"topology": str(pod), "require": []}, inputs=inputs)
    file = made.save(tmp_path / "out") / "scenario.yaml"
    assert file.read_text().startswith(f"# {inputs[str(pod)]}  {pod}\ntopology: ")
    assert Result.load(tmp_path / "out") == made
    assert changed_inputs(file) == []
    pod.write_text("moesim: 2\n")
    assert changed_inputs(file) == [f"{pod} is not what it was when this result was made"]
    pod.unlink()
    assert changed_inputs(file) == []
    assert changed_inputs(pod) == []


def test_provenance_names_versions_inputs_and_overrides(make_result: Make, tmp_path: Path) -> None:
    document = json.loads((make_result().save(tmp_path / "out") / "provenance.json").read_text())
    assert document["moesim"] == "0.1.0"
    assert document["numpy"] == np.__version__
    assert document["inputs"] == {"topologies/h100-ib.yaml": "ab" * 32}
    assert document["applied"] == ["seed=0"]
    assert document["scenario"] == make_result().scenario


def test_an_earlier_result_is_replaced_and_anything_else_is_not(make_result: Make, tmp_path: Path) -> None:
    folder = make_result(seed=1).save(tmp_path / "out")
    make_result(seed=2).save(folder)
    assert Result.load(folder).seed == 2
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        make_result(seed=3).save(folder)
    assert Result.load(folder).seed == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_file_in_the_way_is_not_overwritten(make_result: Make, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        make_result().save(tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_an_interrupted_save_leaves_the_earlier_result(
    make_result: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_result(seed=1).save(tmp_path / "out")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Result, "provenance", interrupt)
    for target in (folder, tmp_path / "new"):
        with pytest.raises(KeyboardInterrupt):
            make_result(seed=2).save(target)
    monkeypatch.undo()
    assert Result.load(folder).seed == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_save_that_cannot_take_its_place_puts_the_earlier_result_back(
    make_result: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_result(seed=1).save(tmp_path / "out")
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no"):
        make_result(seed=2).save(folder)
    assert Result.load(folder).seed == 1


def test_ready_accepts_new_and_empty_folders(tmp_path: Path) -> None:
    assert ready(tmp_path / "a" / "b") == (tmp_path / "a" / "b").resolve()
    assert ready(tmp_path) == tmp_path.resolve()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"schema": 99}', "not a result"),
        ('{"schema": 1}', "not a result"),
    ],
)
def test_files_that_are_no_results_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        load_summary(path)


def test_missing_and_broken_files_of_a_result_are_named(make_result: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_summary(tmp_path)
    folder = make_result().save(tmp_path / "out")
    (folder / "ranks.csv").write_text("strategy,step\nbaseline,one\n")
    with pytest.raises(InputError, match=r"ranks\.csv:2"):
        Result.load(folder)
    (folder / "ranks.csv").unlink()
    with pytest.raises(InputError, match=r"ranks\.csv: no such file"):
        Result.load(folder)


def test_frames_for_notebooks(make_result: Make) -> None:
    made = make_result()
    assert list(made.ranks.columns)[:4] == ["strategy", "step", "layer", "rank"]
    assert len(made.ranks) == 2 * 2 * 4
    row = made.ranks.query("strategy == 'half' and layer == 4 and rank == 2").iloc[0]
    assert row["layer_s"] == made.strategies[1].stages["layer"][1, 2]
    assert set(made.links["resource"]) == {"host1 up"}
    assert set(made.phases["phase"]) == {"send"}
    summary = made.summary.set_index(["strategy", "metric"])
    assert summary.loc[("half", "layer_s"), "critical"] == made.strategies[1].metrics()["layer_s"]["critical"]
    assert summary.loc[("half", "layer_s"), "bound"] == pytest.approx(
        made.strategies[1].bound["layer"].mean()
    )


def test_sources_are_listed_once_in_order_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from moesim import result
    from moesim.sources import Source

    known = {key: Source(key, key.upper(), "ref") for key in ("a", "b", "c")}
    monkeypatch.setattr(result, "bibliography", lambda: known)
    used = [Cited("x", "1", key, Grade.SPEC) for key in ("b", "a", "b")]
    assert [source.key for source in sources_of(used)] == ["b", "a"]


def test_results_with_nan_survive(make_result: Make, make_outcome: MakeOutcome, tmp_path: Path) -> None:
    made = make_result(
        scenario={}, strategies=(make_outcome("a", imbalance={"maxvio": None}, bottleneck=("none", None)),)
    )
    document = made.to_json()
    made.save(tmp_path / "out")
    assert Result.load(tmp_path / "out").to_json() == document
    assert replace(made, seed=5) != made


def test_a_loop_of_links_is_no_folder(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(InputError, match="loop"):
        ready(loop)


ODD: tuple[Any, ...] = (None, -1, 0, 1e300, "x", "", [], {}, [[1]], {"x": 1}, True)


def read_or_refused(folder: Path) -> bool:
    """True unless a refusal does not name the folder; any other error is the test's."""
    try:
        Result.load(folder).to_json()
    except InputError as error:
        return str(folder) in str(error)
    return True


def test_a_result_with_any_key_changed_is_read_or_refused(make_result: Make, tmp_path: Path) -> None:
    folder = make_result().save(tmp_path / "out")
    for name in ("result.json", "provenance.json"):
        whole = (folder / name).read_text()

        def paths(part: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
            items = (
                part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
            )
            return [found for key, item in items for found in ((*above, key), *paths(item, (*above, key)))]

        for number, path in enumerate(paths(json.loads(whole))):
            document = json.loads(whole)
            holder = document
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = ODD[number % len(ODD)]
            (folder / name).write_text(json.dumps(document))
            assert read_or_refused(folder), path
        (folder / name).write_text(whole)


@pytest.mark.parametrize("table", tables.TABLES)
def test_a_result_with_any_cell_changed_is_read_or_refused(
    make_result: Make, tmp_path: Path, table: str
) -> None:
    folder = make_result().save(tmp_path / "out")
    file = folder / f"{table}.csv"
    lines = file.read_text().splitlines()
    for row in (0, 1, len(lines) - 1):
        for column in range(lines[0].count(",") + 1):
            for odd in ("", "x", "1e999", "nan", "9" * 30, '"', "-3", "\udc80"):
                cells = [line.split(",") for line in lines]
                cells[row][column] = odd
                text = "\n".join(",".join(one) for one in cells) + "\n"
                file.write_bytes(text.encode("utf-8", "surrogateescape"))
                assert read_or_refused(folder), (row, column, odd)
