"""Bad input of every kind: exit code 2, the place, no traceback, no answer."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moesim import resources
from moesim.cli import main

SMALL = Path(__file__).parent / "small.yaml"
RUN = ("run", "x.yaml", "--fidelity", "bound")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("x.yaml").write_text(SMALL.read_text())


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    out, err = capsys.readouterr()
    assert (exit_.value.code, out) == (2, ""), err
    assert "Traceback" not in err
    assert all(line.startswith(("moesim: ", "  ")) for line in err.splitlines()), err
    return err


@pytest.mark.parametrize(
    ("override", "place", "said"),
    [
        ("workload.steps=1000000", "--set:1:16", "this machine has"),
        ("workload.tokens_per_rank=9999999", "--set:1:26", "this machine has"),
        ("tolerance=0.3", "--set:1:11", "write 0.3% or 30%"),
        ("faults=[{rank: 3, capacity: 0.5}]", "--set:1:29", "write 0.5% or 50%"),
        ("faults=[{rank: 5, capacity: 50%}, {rank: 3}]", "--set:1:35", "cut off: rank 3"),
        ("seed=1\nworkload.steps=2", "--set:2:1", "one line"),
        ("routing={kind: 3}", "--set:1:16", "a name or a mapping"),
        ("topology={name: [3]}", "--set:1:17", "topology.name cannot be"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "explain"])
def test_overrides(
    capsys: pytest.CaptureFixture[str], verb: str, override: str, place: str, said: str
) -> None:
    err = refused(capsys, verb, "x.yaml", "--set", override)
    assert f"moesim: {place}: " in err
    assert said in err


@pytest.mark.parametrize(
    ("line", "place", "said"),
    [
        ("faults: [{rank: 3}]", "10:10", "cut off: rank 3"),
        ("tolerance: 1.5", "10:12", "write 1.5% or 150%"),
        ('require: ["\\uDEAD.layer_s.p99 < 1s"]', "10:11", "U+DEAD"),
    ],
)
def test_check_refuses_what_run_refuses(
    capsys: pytest.CaptureFixture[str], line: str, place: str, said: str
) -> None:
    Path("x.yaml").write_text(SMALL.read_text().rstrip() + f"\n{line}\n")
    number = len(SMALL.read_text().rstrip().splitlines()) + 1
    place = place.replace("10:", f"{number}:")
    for err in (refused(capsys, *RUN), refused(capsys, "check", "x.yaml")):
        assert f"moesim: x.yaml:{place}: " in err
        assert said in err
        assert "^" in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"a":' * 100_000, "nested"),
        ('{"schema": 1, "strategies": [' + "9" * 400 + "]}", "400 characters"),
        ('{"schema": 1, "strategies": [{}]}', "'fidelity' is missing"),
        ('{"schema": 1, "strategies": []', "b.json:1:31: not JSON"),
        ("[]", "not a JSON object"),
    ],
)
def test_compare(capsys: pytest.CaptureFixture[str], content: str, said: str) -> None:
    Path("b.json").write_text(content)
    for arguments in (("b.json", "b.json"), ("b.json", "b.json", "--json")):
        err = refused(capsys, "compare", *arguments)
        assert err.startswith("moesim: b.json")
        assert said in err


@pytest.mark.parametrize("limit", ["5", "1", "0.05", "-3%", "x"])
def test_a_limit_needs_its_unit(capsys: pytest.CaptureFixture[str], limit: str) -> None:
    err = refused(capsys, "compare", "a", "b", "--fail-above", limit)
    assert err.startswith("moesim: --fail-above:1:1: ")
    assert "legal: a number and %" in err


@pytest.mark.parametrize(
    "header", ["{'descr': '<i8', 'shape': (2,", "{'descr': '|O', 'fortran_order': 0}", "(" * 500]
)
def test_a_recording_with_a_malformed_header(capsys: pytest.CaptureFixture[str], header: str) -> None:
    text = header.encode() + b"\n"
    with zipfile.ZipFile("t.npz", "w") as archive:
        for name in ("ids", "seq_start", "meta"):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    err = refused(capsys, *RUN, "--set", "routing={kind: recorded, trace: t.npz}")
    assert "moesim: --set:1:33: " in err
    assert "t.npz: array 'ids': its header cannot be read" in err


def test_a_kept_trace_that_was_tampered_with_is_drawn_again(capsys: pytest.CaptureFixture[str]) -> None:
    def answer() -> Any:
        with pytest.raises(SystemExit) as exit_:
            main((*RUN, "--json"))
        assert exit_.value.code == 0
        return json.loads(capsys.readouterr().out)

    first = answer()
    (entry,) = Path("cache").rglob("*.npz")
    with np.load(entry) as file:
        arrays = dict(file)
    arrays["ids"] = arrays["ids"] + 60_000
    np.savez(entry, **arrays)
    assert answer() == first


def test_a_folder_whose_name_is_no_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Path(os.fsdecode(b"odd\xff"))
    odd.mkdir()
    pod = resources.find("topology", "h100-ib").read_text()
    (odd / "pod.yaml").write_text(pod)
    (odd / "x.yaml").write_text(
        SMALL.read_text().replace("{name: h100-ib, hosts: 2}", "{name: pod.yaml, hosts: 2}")
    )
    monkeypatch.chdir(odd)
    err = refused(capsys, *RUN, "--out", "out")
    assert "is not UTF-8 text" in err
    assert "odd" in err
    assert sorted(path.name for path in Path().iterdir()) == ["pod.yaml", "x.yaml"]


@pytest.mark.parametrize(
    ("override", "column", "said", "legal"),
    [
        ("ranks.place=[0, 0]", 13, "ranks.place: 0 more than once", "each once"),
        ("ranks.place=1", 13, "ranks.place cannot be 1", "one of: packed, spread or a list"),
        ("ranks.ep=33", 10, "33 ranks do not divide the 64 experts", "1, 2, 4, 8, 16"),
        ("strategies.nccl.protocol.kind=ubep", 31, "ubep needs atomic-512B", "`assume: [atomic-512B]`"),
        ("strategies.nccl.protocol={kind: deepep-ht, sms: 13}", 49, "sms cannot be 13", "a multiple of 2"),
    ],
)
def test_an_override_is_shown_with_what_is_legal_and_nothing_else(
    capsys: pytest.CaptureFixture[str], override: str, column: int, said: str, legal: str
) -> None:
    lines = refused(capsys, "run", "x.yaml", "--set", override).splitlines()
    (at,) = [number for number, line in enumerate(lines) if said in line]
    assert lines[at].startswith(f"moesim: --set:1:{column}: ")
    assert lines[at + 3].startswith(f"  legal: {legal}")
    assert not any("list of 2" in line or "x.yaml" in line for line in lines)


@pytest.mark.parametrize(
    ("pod", "protocol", "said", "legal"),
    [
        ("gb200-nvl72", "{kind: deepep-v2, sms: 153}", "153 SMs of 152", "at most 152"),
        ("h800-ib", "{kind: deepep-v2, sms: 133}", "133 SMs of 132", "at most 132"),
        ("gb200-nvl72", "{kind: hybrid-ep, sms: 4000}", "4000 SMs of 152", "at most 152"),
        ("h800-ib", "{kind: deepep-ht, sms: 134}", "134 SMs of 132", "at most 132"),
        ("cloudmatrix384", "{kind: cann-ep, cores: 49}", "49 send cores", "cores from 2 to 48"),
    ],
)
def test_no_more_cores_than_the_device_has(
    capsys: pytest.CaptureFixture[str], pod: str, protocol: str, said: str, legal: str
) -> None:
    head, _, _ = SMALL.read_text().partition("strategies:")
    lines = [line if not line.startswith("topology:") else f"topology: {pod}" for line in head.splitlines()]
    lines += ["strategies:", f"  - {{name: one, protocol: {protocol}}}"]
    Path("x.yaml").write_text("\n".join(lines) + "\n")
    column = lines[-1].rindex(": ") + 3
    for err in (refused(capsys, *RUN), refused(capsys, "check", "x.yaml")):
        assert f"moesim: x.yaml:{len(lines)}:{column}: " in err
        assert said in err
        assert f"legal: {legal}" in err
