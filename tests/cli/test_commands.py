"""The commands: what they print, where, and with which exit code."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import Moesim, Ran

from moesim import simulate
from moesim.errors import InvariantError
from moesim.result import Result

SMALL = str(Path(__file__).parent / "small.yaml")


def process(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    call = [sys.executable, "-c", "from moesim.cli import main; main()", *arguments]
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root, **options.pop("env", {})}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(call, text=True, env=env, **(streams | options))


def test_importing_the_command_line_is_cheap() -> None:
    heavy = ("numpy", "scipy", "pandas", "pydantic", "networkx", "matplotlib", "rich", "simpy", "ruamel")
    code = f"import sys, moesim.cli; print([m for m in {heavy!r} if m in sys.modules])"
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert found.stdout.strip() == "[]"


def test_help_names_every_command_and_the_exit_codes(moesim: Moesim) -> None:
    ran = moesim("--help")
    assert (ran.code, ran.err) == (0, "")
    for verb in ("run", "check", "explain", "list", "schema", "compare", "flows"):
        assert f"\n  {verb} " in ran.out
        assert moesim(verb, "--help").code == 0
    assert "130 interrupted" in ran.out
    assert "...\n" not in ran.out.partition("Commands:")[2].partition("Examples:")[0]


def test_version(moesim: Moesim) -> None:
    from moesim import __version__

    assert moesim("--version") == Ran(0, f"moesim {__version__}\n", "")


def test_run_prints_the_answer_on_stdout_and_nothing_else(moesim: Moesim, tmp_path: Path) -> None:
    ran = moesim("run", SMALL)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("pod")
    assert "\x1b" not in ran.out
    assert list(tmp_path.iterdir()) == []
    for title in (
        "critical time of one MoE layer",
        "where the critical time goes",
        "assumed (",
        "sources to cite",
    ):
        assert f"\n{title}" in ran.out


def test_run_as_json_is_the_result(moesim: Moesim) -> None:
    from moesim import scenario

    ran = moesim("run", SMALL, "--json", "--fidelity", "bound")
    document = json.loads(ran.out)
    assert (ran.code, ran.err, document["fidelity"]) == (0, "", "bound")
    again = simulate.bound(scenario.load(SMALL)).to_json()
    assert document["strategies"] == json.loads(json.dumps(again["strategies"]))


def test_run_applies_overrides_in_order_and_records_them(moesim: Moesim) -> None:
    ran = moesim(
        "run",
        SMALL,
        "--json",
        "--set",
        "ranks.ep=4",
        "--set",
        "ranks.ep=8",
        "--seed",
        "3",
        "--fidelity",
        "bound",
    )
    document = json.loads(ran.out)
    assert document["scenario"]["ranks"]["ep"] == 8
    assert document["seed"] == 3
    assert document["applied"] == ["ranks.ep=4", "ranks.ep=8", "seed=3", "fidelity=bound"]


def test_run_repeats_from_its_folder(moesim: Moesim, tmp_path: Path) -> None:
    first = moesim(
        "run", SMALL, "--set", "strategies.nccl.protocol.sizes=exact", "--seed", "5", "--out", "one"
    )
    assert first.code == 0
    assert first.err == f"written to {tmp_path / 'one'}\n"
    again = moesim("run", "one/scenario.yaml", "--out", "two")
    assert again.code == 0
    one, two = Result.load("one"), Result.load("two")
    assert one.strategies == two.strategies
    assert one.scenario == two.scenario
    for table in ("cases", "ranks", "phases", "links"):
        assert Path(f"one/{table}.csv").read_bytes() == Path(f"two/{table}.csv").read_bytes()
    hashes = json.loads(Path("one/provenance.json").read_text())["inputs"]
    assert any(name.endswith("h100-ib.yaml") for name in hashes)
    assert any(name.endswith("models.yaml") for name in hashes)


def test_out_never_touches_what_is_not_a_result(moesim: Moesim, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine").mkdir()
    Path("mine/data.txt").write_text("x")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("refused only after the work was done")

    monkeypatch.setattr(simulate, "run", never)
    ran = moesim("run", SMALL, "--out", "mine")
    assert ran.code == 2
    assert "data.txt" in ran.err
    assert os.listdir("mine") == ["data.txt"]


def test_a_requirement_that_fails_is_printed_and_exits_1(moesim: Moesim) -> None:
    ran = moesim("run", SMALL, "--set", "require=['nccl.layer_s.p99 < 1us']", "--out", "kept")
    assert ran.code == 1
    assert "NO   nccl.layer_s.p99 < 1us  (is " in ran.out
    assert "no: nccl.layer_s.p99 < 1us does not hold" in ran.err
    assert Result.load("kept").requirements[0]["met"] is False


def test_memory_that_does_not_suffice_exits_1_with_both_numbers(moesim: Moesim) -> None:
    large = ("--set", "model=kimi-k2", "--set", "workload.layers=1", "--set", "ranks.ep=8")
    ran = moesim("run", SMALL, "--fidelity", "bound", *large)
    assert ran.code == 1
    assert "expert weights and buffers take" in ran.err
    assert "the device has 74.51 GiB" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nowhere.yaml"), "nowhere.yaml"),
        (("run", SMALL, "--set", "ranks.ep"), "ranks.ep"),
        (("run", SMALL, "--set", "ranks.ep=5"), "5 ranks do not divide the 64 experts"),
        (("run", SMALL, "--set", "ranks.ep=64"), "64"),
        (("run", SMALL, "--set", "topologi=x"), "topology"),
        (("run", SMALL, "--set", "strategies.nccl.protocol=uhep"), "uhep"),
        (("run", SMALL, "--seed", "x"), "'x' is not a valid integer"),
        (("run", SMALL, "--fidelity", "exact"), "'exact' is not one of 'fluid', 'bound'"),
        (("run",), "Missing argument 'SCENARIO'"),
        (("explain", SMALL, "--set", "model=gpt-5"), "gpt-5"),
        (("runn", SMALL), "No such command 'runn'"),
        (("list", "pods"), "'pods' is not one of"),
        (("compare", "a", "b"), "a: no such file"),
        (("compare", SMALL, SMALL), "not JSON"),
        (("flows", "nothing.npz"), "nothing.npz"),
        (("flows", SMALL), "small.yaml"),
        (("flows", SMALL, "--tolerance", "3us"), "3us"),
    ],
)
def test_bad_input_exits_2_with_one_clear_message_and_writes_nothing(
    moesim: Moesim, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    ran = moesim(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == []


def test_check_goes_on_after_a_bad_file_and_shows_the_place(moesim: Moesim) -> None:
    text = Path(SMALL).read_text()
    Path("bad.yaml").write_text(
        text.replace("tokens_per_rank: 8", "tokens_per_rnak: 8").replace("ep: 16", "ep: x")
    )
    ran = moesim("check", "bad.yaml", SMALL, "gb200-nvl72")
    assert ran.code == 2
    assert ran.out.splitlines() == [
        f"{SMALL}: scenario, 2 strategies on h100-ib, 2 layers",
        "gb200-nvl72: topology gb200-nvl72, 72 devices",
    ]
    assert "bad.yaml:4:" in ran.err
    assert "bad.yaml:6:" in ran.err
    assert "did you mean 'tokens_per_rank'" in ran.err
    assert "^" in ran.err
    assert moesim("check", SMALL).code == 0


def test_explain_prints_ceilings_and_constants(moesim: Moesim) -> None:
    ran = moesim("explain", SMALL)
    assert (ran.code, ran.err) == (0, "")
    for part in (
        "resources of the pod, per direction",
        "ceilings of one rank",
        "assumed constants",
        "sources to cite",
    ):
        assert f"\n{part}" in ran.out
    document = json.loads(moesim("explain", SMALL, "--json", "--set", "ranks.ep=8").out)
    assert document["ranks"]["ep"] == 8
    assert set(document["strategies"][0]["ceilings"]["dispatch"]) >= {
        "floor_s",
        "bottleneck",
        "wire_Bps",
        "logical_Bps",
    }


def test_explain_draws_no_routing(moesim: Moesim, monkeypatch: pytest.MonkeyPatch) -> None:
    from moesim import traces

    def never(*_: object, **__: object) -> None:
        raise AssertionError("routing was composed")

    monkeypatch.setattr(traces, "compose", never)
    assert moesim("explain", SMALL).code == 0


def test_list_everything_or_one_kind(moesim: Moesim) -> None:
    everything = json.loads(moesim("list", "--json").out)
    kinds = ("topologies", "models", "protocols", "balancers", "routing", "scenarios", "traces", "placements")
    assert tuple(everything) == kinds
    assert {row["name"] for row in everything["balancers"]} >= {"none", "moonep"}
    one = moesim("list", "balancers")
    assert one.code == 0
    assert one.out.startswith(f"balancers ({len(everything['balancers'])})\n")


def test_schema_is_json_with_every_protocol(moesim: Moesim) -> None:
    document = json.loads(moesim("schema").out)
    assert document["$schema"].startswith("http://json-schema.org/draft-07")
    assert "strategies" in document["properties"]


@pytest.fixture
def two_results(make_result: Callable[..., Result], make_outcome: Callable[..., Any], tmp_path: Path) -> None:
    scenario = {**make_result().scenario, "require": []}
    make_result(scenario=scenario, strategies=(make_outcome("s"), make_outcome("t"))).save(tmp_path / "a")
    make_result(scenario=scenario, strategies=(make_outcome("s", 1.04), make_outcome("t"))).save(
        tmp_path / "b"
    )
    make_result(scenario=scenario, strategies=(make_outcome("s"),)).save(tmp_path / "less")
    make_result(scenario=scenario, fidelity="bound").save(tmp_path / "bound")


@pytest.mark.usefixtures("two_results")
def test_compare_by_folder_or_file(moesim: Moesim) -> None:
    by_folder = moesim("compare", "a", "b")
    assert by_folder == moesim("compare", "a/result.json", "b")
    assert by_folder.code == 0
    assert "1.0400" in by_folder.out
    rows = json.loads(moesim("compare", "a", "b", "--json").out)["rows"]
    assert {row["ratio"] for row in rows if row["strategy"] == "t"} == {1.0}


@pytest.mark.usefixtures("two_results")
def test_compare_fails_above_a_limit(moesim: Moesim) -> None:
    assert moesim("compare", "a", "b", "--fail-above", "5%").code == 0
    worse = moesim("compare", "a", "b", "--fail-above", "3%")
    assert worse.code == 1
    assert "20 metrics are above 3%" in worse.err
    assert "worse" in worse.out
    assert moesim("compare", "b", "a", "--fail-above", "0%").code == 0
    assert moesim("compare", "a", "b", "--fail-above", "3GB").code == 2


@pytest.mark.usefixtures("two_results")
def test_a_strategy_that_vanished_is_not_a_pass(moesim: Moesim) -> None:
    assert moesim("compare", "a", "less").code == 0
    gone = moesim("compare", "a", "less", "--fail-above", "5%")
    assert gone.code == 1
    assert "t is missing from less" in gone.err


@pytest.mark.usefixtures("two_results")
def test_unlike_fidelities_are_refused(moesim: Moesim) -> None:
    ran = moesim("compare", "a", "bound")
    assert (ran.code, ran.out) == (2, "")
    assert "fidelity is fluid in the first and bound in the second" in ran.err


CROSSBAR = """\
moesim: 1
fabric:
  kind: crossbar
  devices: 4
  port: {capacity: 1GB/s, latency: 0us, efficiency: 1, source: example, grade: assumed}
"""


def test_flows_over_a_topology(moesim: Moesim, tmp_path: Path) -> None:
    Path("pod.yaml").write_text(CROSSBAR)
    # Two flows share port 0 on their way out; the third has a port pair for itself and starts late.
    np.savez("in.npz", src=[0, 0, 2], dst=[1, 3, 3], bytes=[1e6, 3e6, 1e6], start=[0.0, 0.0, 0.01])
    ran = moesim("flows", "in.npz", "--topology", "pod.yaml", "--tolerance", "0", "-o", "out.npz", "--json")
    document = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert document["makespan_s"] == pytest.approx(0.011, rel=1e-9)
    assert (document["tolerance"], document["flows"]) == (0.0, 3)
    assert document["solves"] >= 3
    assert np.load("out.npz")["finish_s"] == pytest.approx([0.002, 0.004, 0.011], rel=1e-9)
    text = moesim("flows", "in.npz", "--topology", "pod.yaml")
    assert text.out.startswith("makespan 11 ms (0.011 s)")


def test_flows_over_the_fabric_in_the_file_name_what_has_no_effect(moesim: Moesim) -> None:
    np.savez("in.npz", src=[0], dst=[1], bytes=[1e6], path=np.array([[0]]), cap=[1e9], extra=[1])
    ran = moesim("flows", "in.npz", "--json")
    assert json.loads(ran.out)["makespan_s"] == pytest.approx(1e-3)
    assert "has no effect: src, dst, extra" in ran.err


def test_our_own_bug_exits_3_and_asks_for_a_report(moesim: Moesim, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (InvariantError("INV-1: bytes vanished"), ZeroDivisionError("x\ny")):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(simulate, "run", fail)
        ran = moesim("run", SMALL)
        assert (ran.code, ran.out) == (3, "")
        assert "please report it" in ran.err
        assert len(ran.err.splitlines()) == 1
    monkeypatch.setenv("MOESIM_DEBUG", "1")
    assert "Traceback" in moesim("run", SMALL).err


def test_interrupt_exits_130_and_leaves_nothing(
    moesim: Moesim, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate, "run", interrupt)
    ran = moesim("run", SMALL, "--out", "x")
    assert (ran.code, ran.out, ran.err.strip()) == (130, "", "moesim: interrupted")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_signal_of_a_running_process(tmp_path: Path, number: signal.Signals) -> None:
    running = process("run", SMALL, "--set", "workload.steps=500", "--out", "x", cwd=tmp_path)
    time.sleep(2.5)
    running.send_signal(number)
    out, err = running.communicate(timeout=20)
    assert (running.returncode, out) == (130, "")
    assert err.strip() == "moesim: interrupted"
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error() -> None:
    with process("list") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        err = running.stderr.read()
    assert (running.returncode, err) == (141, "")


def on_terminal(stream: str, *arguments: str, **env: str) -> tuple[str, str]:
    """What a command writes to ``stream``, a terminal, and to the other of stdout and stderr, a pipe."""
    ours, theirs = pty.openpty()
    other = "stderr" if stream == "stdout" else "stdout"
    with process(*arguments, **{stream: theirs}, env={"TERM": "xterm", "COLUMNS": "100", **env}) as running:
        os.close(theirs)
        seen = bytearray()
        # Reading a terminal that has nobody left at its other end is an error on Linux.
        with contextlib.suppress(OSError):
            while chunk := os.read(ours, 65536):
                seen += chunk
        piped = getattr(running, other).read()
    os.close(ours)
    return seen.decode(), piped


def test_progress_is_drawn_on_a_terminal_only_and_never_into_the_answer() -> None:
    drawn, answer = on_terminal("stderr", "run", SMALL)
    assert "step 0, layer" in drawn
    assert answer.startswith("pod")
    assert "\x1b" not in answer


def test_titles_are_bold_on_a_terminal_unless_colours_are_off() -> None:
    shown, talk = on_terminal("stdout", "list", "balancers")
    assert shown.startswith("\x1b[1mbalancers (")
    assert talk == ""
    plain, _ = on_terminal("stdout", "list", "balancers", NO_COLOR="1")
    assert plain.startswith("balancers (")
    assert "\x1b" not in plain


def test_an_unwritable_place_is_named(moesim: Moesim) -> None:
    Path("file").write_text("")
    ran = moesim("run", SMALL, "--fidelity", "bound", "--out", "file/below")
    assert (ran.code, ran.out) == (2, "")
    assert "file" in ran.err
    assert "Traceback" not in ran.err


def test_completion_offers_shipped_names() -> None:
    env = {"_MOESIM_COMPLETE": "bash_complete", "COMP_WORDS": "moesim flows --top", "COMP_CWORD": "2"}
    running = process(env=env)
    out, _ = running.communicate(timeout=20)
    assert "plain,--topology" in out


@pytest.mark.parametrize("columns", ["80", "120"])
def test_output_fits_the_width(moesim: Moesim, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for command in ("run", "explain"):
        wide = [line for line in moesim(command, SMALL).out.splitlines() if len(line) > int(columns)]
        assert [line for line in wide if "/" not in line] == []
