from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moesim import footprint, scenario
from moesim.build import Built, build
from moesim.errors import InputError, Problem

TEXT = """\
moesim: 1
topology:
  fabric: {kind: crossbar, devices: 8, port: {capacity: 900GB/s, source: example, grade: assumed}}
ranks: {ep: 4, place: packed}
model: mixtral-8x7b
workload: {phase: decode, tokens_per_rank: 16, layers: all, steps: 1}
routing: {kind: lognormal, sigma: 0.7}
strategies:
  - {name: base, protocol: nccl-alltoall}
  - {name: ubep, protocol: {kind: ubep, sync: sp}, assume: [atomic-512B]}
seed: 0
"""


def built(folder: Path, *edits: tuple[str, str]) -> Built:
    text = TEXT
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = folder / "s.yaml"
    path.write_text(text)
    return build(scenario.load(path))


def refused(folder: Path, *edits: tuple[str, str]) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        built(folder, *edits)
    return caught.value.problems


def test_what_is_built(tmp_path: Path) -> None:
    one = built(tmp_path)
    assert len(one.topology.devices) == 8
    assert one.devices.shape == (4,)
    assert one.model.name == "mixtral-8x7b"
    assert one.layers == tuple(range(one.model.moe_layers))
    assert [made.protocol.kind for made in one.strategies] == ["nccl-alltoall", "ubep"]
    assert len(one.warnings) == 1
    assert "describes no device" in one.warnings[0]


def test_the_demand_has_the_shape_that_was_asked(tmp_path: Path) -> None:
    one = built(tmp_path, ("layers: all", "layers: [5, 2]"), ("steps: 1", "steps: 3"))
    assert one.layers == (2, 5)
    assert one.trace.ids.shape == (3, 2, 4 * 16, one.model.top_k)
    assert one.trace is one.trace


def test_the_same_seed_gives_the_same_demand(tmp_path: Path) -> None:
    edit = ("layers: all", "layers: 1")
    ids = [built(tmp_path, edit, ("seed: 0", f"seed: {seed}")).trace.ids for seed in (3, 3, 4)]
    assert np.array_equal(ids[0], ids[1])
    assert not np.array_equal(ids[0], ids[2])


def test_a_layer_list_and_a_count_mean_the_same_layers(tmp_path: Path) -> None:
    a = built(tmp_path, ("layers: all", "layers: 2")).trace.ids
    b = built(tmp_path, ("layers: all", "layers: [0, 1]")).trace.ids
    assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "legal"),
    [
        ("ep: 4", "ep: 3", 4, "3 ranks do not divide the 8 experts", "1, 2, 4, 8"),
        ("devices: 8", "devices: 2", 4, "ep 4 does not fit the 2 devices", "1 to 2"),
        ("place: packed", "place: [0, 1, 2, 99]", 4, "99", "0 to 7"),
        ("layers: all", "layers: 99", 6, "has 32 MoE layers", "1 to 32"),
        ("layers: all", "layers: [0, 32]", 6, "has 32 MoE layers", "0 to 31"),
        (", assume: [atomic-512B]", "", 10, "needs atomic-512B", "assume: [atomic-512B]"),
        ("base, ", "base, balancer: moonep, ", 9, "needs multicast", "assume: [multicast]"),
        ("capacity: 900GB/s", "capacity: 900", 3, "has no unit", "GB/s"),
        ("kind: crossbar", "kind: crosbar", 3, "crosbar", "did you mean 'crossbar'"),
        ("seed: 0", "faults: [{chip: no-such}]", 11, "no-such", "switch"),
    ],
)
def test_a_misfit_is_shown_in_its_line(
    tmp_path: Path, old: str, new: str, line: int, message: str, legal: str
) -> None:
    problems = refused(tmp_path, (old, new))
    told = [problem for problem in problems if message in problem.message and problem.line == line]
    assert told, [str(problem) for problem in problems]
    assert legal in (told[0].legal or "")
    assert "^" in (told[0].excerpt or "")


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [("tokens_per_rank: 16", "tokens_per_rank: 9000000", 44), ("steps: 1", "steps: 1000000", 68)],
)
def test_a_run_that_memory_does_not_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, column: int
) -> None:
    monkeypatch.setattr(footprint, "machine", lambda: 4 * 2.0**30)
    (problem,) = refused(tmp_path, (old, new))
    assert (problem.line, problem.column) == (6, column)
    assert "this machine has 4 GiB" in problem.message
    assert "fewer steps" in (problem.legal or "")
    monkeypatch.setattr(footprint, "machine", lambda: 2.0**50)
    assert built(tmp_path, (old, new)).model.name == "mixtral-8x7b"


def test_every_misfit_is_told_at_once(tmp_path: Path) -> None:
    problems = refused(
        tmp_path,
        ("capacity: 900GB/s", "capacity: 900"),
        ("ep: 4", "ep: 3"),
        ("layers: all", "layers: 99"),
    )
    assert {problem.line for problem in problems} == {3, 4, 6}


def test_inputs_without_effect_are_named(tmp_path: Path) -> None:
    one = built(
        tmp_path,
        ("name: base,", "name: base, assume: [multicast],"),
        ("seed: 0", "faults: [{rank: 0, capacity: 100%}]\nbackground: [{src: 0, dst: 1, size: 0B}]"),
    )
    assert len(one.warnings) == 4
    assert "multicast" in one.warnings[1]


@pytest.mark.parametrize(
    ("once", "again"),
    [("rank: 3", "rank: 3"), ("chip: 0", "chip: switch"), ("link: 0", "link: switch--d0")],
)
def test_a_part_has_one_fault(tmp_path: Path, once: str, again: str) -> None:
    good = f"faults: [{{{once}, capacity: 50%}}, {{rank: 2, capacity: 50%}}]"
    assert len(built(tmp_path, ("seed: 0", good)).topology.faults) == 2
    twice = f"faults: [{{{once}, capacity: 50%}}, {{{again}, capacity: 60%}}]"
    (problem,) = refused(tmp_path, ("seed: 0", twice))
    assert "has a fault already, faults.0" in problem.message
    assert (problem.line, problem.column) == (11, twice.rindex("{") + 1)


def test_stores_to_every_rank_end_with_the_scale_up_domain(tmp_path: Path) -> None:
    edits = [("protocol: nccl-alltoall", "protocol: trtllm-onesided")]
    assert len(built(tmp_path, *edits).strategies) == 2
    fabric = next(line for line in TEXT.splitlines() if line.startswith("  fabric:"))
    edits += [(fabric, "  name: h100-ib"), ("place: packed", "place: spread")]
    told = [problem for problem in refused(tmp_path, *edits) if "peer-memory" in problem.message]
    assert [problem.line for problem in told] == [9]
    assert "over several scale-up domains" in told[0].message
    assert "assume: [peer-memory]" in (told[0].legal or "")


@pytest.mark.parametrize(
    ("edits", "warning"),
    [
        ([("place: packed", "place: spread")], "ranks.place has no effect"),
        ([("ep: 4, place: packed", "ep: 1, place: [0]")], "ranks.place has no effect"),
        ([("place: packed", "place: [1, 0, 2, 3]")], None),
        ([("place: packed", "place: packed")], None),
        ([("phase: decode", "phase: train")], None),
        ([("phase: decode", "phase: prefill")], None),
        ([("tokens_per_rank: 16", "tokens_per_rank: 0")], "`routing` has no effect"),
        ([("tokens_per_rank: 16", "tokens_per_rank: 0"), ("seed: 0", "seed: 1")], "seed has no effect"),
        ([("kind: lognormal, sigma: 0.7", "kind: balanced"), ("seed: 0", "seed: 1")], "seed has no effect"),
        (
            [("kind: lognormal, sigma: 0.7", "kind: balanced"), ("steps: 1", "steps: 2")],
            "steps has no effect",
        ),
        ([("kind: lognormal, sigma: 0.7", "kind: balanced")], None),
        ([("seed: 0", "seed: 1"), ("steps: 1", "steps: 2")], None),
        (
            [
                ("kind: lognormal, sigma: 0.7", "kind: balanced"),
                ("seed: 0", "seed: 1"),
                ("{name: base, ", "{name: base, balancer: random, "),
            ],
            None,
        ),
    ],
)
def test_an_input_without_effect_is_named_and_no_other(
    tmp_path: Path, edits: list[tuple[str, str]], warning: str | None
) -> None:
    told = [text for text in built(tmp_path, *edits).warnings if "describes no device" not in text]
    assert any(warning in text for text in told) if warning else told == []


def test_an_override_that_is_overridden_is_named(tmp_path: Path) -> None:
    built(tmp_path)
    one = scenario.load(tmp_path / "s.yaml", ["ranks.ep=1", "seed=3", "ranks={ep: 2}"], seed=4)
    told = [text for text in build(one).warnings if "override" in text]
    assert told == [
        "the override ranks.ep=1 has no effect: ranks={ep: 2} replaces it",
        "the override seed=3 has no effect: seed=4 replaces it",
    ]
    later = one.edited(["ranks.ep=4"])
    assert [text for text in build(later).warnings if "override" in text] == told


def test_a_trace_of_another_model_is_refused_where_it_is_named(tmp_path: Path) -> None:
    recorded = "{kind: recorded, trace: deepseek-v2-lite_esft-law}"
    one = built(tmp_path, ("{kind: lognormal, sigma: 0.7}", recorded), ("layers: all", "layers: 1"))
    with pytest.raises(InputError) as caught:
        _ = one.trace
    assert {(problem.line, problem.column) for problem in caught.value.problems} == {(7, 34)}
    assert "experts 64" in str(caught.value)
    assert "8 in the model mixtral-8x7b" in str(caught.value)


def test_a_trace_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.npz").write_bytes(b"PK\x03\x04 cut")
    recorded = "{kind: recorded, trace: t.npz}"
    one = built(tmp_path, ("{kind: lognormal, sigma: 0.7}", recorded), ("layers: all", "layers: 1"))
    with pytest.raises(InputError, match=r"t\.npz"):
        _ = one.trace
