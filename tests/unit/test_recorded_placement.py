"""Placements from files: every format, the shipped plans, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from moesim import resources, scenario, simulate
from moesim.balancers import Context
from moesim.balancers import _placement_files as files
from moesim.balancers.recorded import Recorded
from moesim.errors import InputError

# Two ranks of five slots, experts 0 and 5 twice: the second copy of 0 on the rank of the first.
LAYERS = [[[0, 1, 2, 3, 0], [4, 5, 6, 7, 5]], [[0, 1, 2, 3, 5], [4, 5, 6, 7, 0]]]
FLAGS = np.array([[np.bincount(row, minlength=8).clip(max=1) for row in layer] for layer in LAYERS]).swapaxes(
    0, 1
)
SHIPPED = {"deepseek-v3_16dies_prefill-rearranged": 16, "deepseek-v3_32dies_decode-redundant": 32}


def write(folder, suffix, layers=LAYERS, flags=FLAGS):
    path = folder / f"one{suffix}"
    if suffix == ".npz":
        np.savez(path, placed=flags)
    elif suffix == ".npy":
        np.save(path, flags)
    elif suffix == ".txt":
        path.write_text(f"{' '.join(map(str, flags.shape))}\n{' '.join(map(str, flags.ravel()))}\n")
    elif suffix == ".json":
        device = [[{"device_id": d, "device_expert": row} for d, row in enumerate(layer)] for layer in layers]
        layer_list = [{"layer_id": n, "device_count": 2, "device_list": one} for n, one in enumerate(device)]
        path.write_text(json.dumps({"moe_layer_count": 2, "layer_list": layer_list[::-1]}))
    else:
        rows = "".join(f"  {n + 3}: {[e for row in layer for e in row]}\n" for n, layer in enumerate(layers))
        path.write_text(f"num_slots: 10\ninitial_global_assignments:\n{rows}layer_updates_per_iter: 0\n")
    return path


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".txt", ".json", ".yaml"])
def test_formats(tmp_path, suffix):
    found = files.load(write(tmp_path, suffix), 2, 8)
    if suffix in (".json", ".yaml"):
        assert [layer.tolist() for layer in found] == LAYERS
    else:  # flags know no order, and no second copy on the same rank
        assert found[0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert found[1].tolist() == [[0, 1, 2, 3, 5], [0, 4, 5, 6, 7]]


def test_ranks_with_fewer_experts_have_empty_slots(tmp_path):
    flags = FLAGS.copy()
    flags[1, 1, 0] = 0
    layer = files.load(write(tmp_path, ".npy", flags=flags), 2, 8)[1]
    assert layer.tolist() == [[0, 1, 2, 3, 5], [4, 5, 6, 7, -1]]


def test_copies_share_evenly_layer_by_layer(tmp_path):
    one = Recorded(Recorded.Params(placement="one.yaml"), tmp_path)
    write(tmp_path, ".yaml")
    ids = np.array([[0, 5], [0, 5], [0, 5], [0, 5], [0, 1], [2, 5]])
    context = Context.first(2, 8)
    for layer, slots in enumerate(LAYERS):
        at = replace(context, layer=layer, layers=2)
        found = one.balance(ids, 2, 8, np.random.default_rng(0), at)
        assert found.placement.slot_expert.tolist() == np.ravel(slots).tolist()
        assert sorted(found.gemm_rows[found.placement.slot_expert == 0].tolist()) == [2, 3]
        assert sorted(found.gemm_rows[found.placement.slot_expert == 5].tolist()) == [2, 3]
        assert len(found.moves) == 0
    with pytest.raises(InputError) as refused:
        one.balance(ids, 2, 8, np.random.default_rng(0), replace(context, layer=2, layers=3))
    assert "MoE layer 2 is asked for, but the placement has 2" in str(refused.value)


@pytest.mark.parametrize(("name", "ranks"), SHIPPED.items())
def test_shipped_plans(name, ranks):
    layers = files.load(resources.find("placement", name), ranks, 256)
    assert len(layers) == 58
    copies = [number for number, layer in enumerate(layers) if layer.size > 256]
    if ranks == 16:
        assert copies == []
    else:
        assert copies == [0, 1, 2, 4, 8, 12, 24, 45, 47, 55]
        assert {layers[number].shape for number in copies} == {(32, 9)}
    assert not any((layer < 0).any() for layer in layers)


def test_all_that_is_shipped_is_known():
    assert resources.names("placement") == sorted(SHIPPED)


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        (".csv", b"", "a .csv file is no placement"),
        ("", b"", "a file without suffix is no placement"),
        (".npz", b"PK", "is damaged"),
        (".npy", b"\x93NUMPY", "is damaged"),
        (".npy", b"", "is damaged"),
        (".txt", b"2 2", "not a placement"),
        (".txt", b"2 2 8 1 0", "2 flags, not 2 x 2 x 8"),
        (".txt", b"1 1 1 7", "not an array of flags"),
        (".txt", b"0 0 0", "no layer in it"),
        (".json", b"{}", "not an expert map"),
        (".json", b'{"layer_list": [{"layer_id": 0, "device_list": 3}]}', "not an expert map"),
        (".json", b'{"layer_list": []}', "no layer in it"),
        (".yaml", b"num_slots: 3\n", "not a load-balancer configuration"),
        (".yaml", b"initial_global_assignments: {0: [0, x]}\n", "not a load-balancer configuration"),
        (".yaml", b"initial_global_assignments: {0: [0, 1, 2]}\n", "3 slots are not the same number"),
        (
            ".yaml",
            b"initial_global_assignments: {0: [0, 1, 2, 9]}\n",
            "holds 4 experts, not those from 0 to 7",
        ),
    ],
)
def test_what_is_no_placement(tmp_path, suffix, content, message):
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        files.load(path, 2, 8)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)


def test_objects_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "bad.npz", placed=np.array([{}], dtype=object))
    np.save(tmp_path / "bad.npy", np.array([{}], dtype=object))
    for name in ("bad.npz", "bad.npy"):
        with pytest.raises(InputError, match="is damaged"):
            files.load(tmp_path / name, 2, 8)


def test_a_placement_of_other_ranks_or_another_model(tmp_path):
    path = write(tmp_path, ".npz")
    with pytest.raises(InputError, match=r"ranks\.ep of 2"):
        files.load(path, 4, 8)
    with pytest.raises(InputError, match="not those from 0 to 15"):
        files.load(path, 2, 16)


TEXT = """\
moesim: 1
topology: cloudmatrix384
ranks: {ep: 2}
model: {hidden: 1024, layers: 2, moe_layers: 2, experts: 8, top_k: 2, intermediate: 256, expert_dtype: int8}
workload: {phase: decode, tokens_per_rank: 8}
routing: {kind: uniform}
strategies:
  - {name: a, protocol: cann-ep, balancer: {kind: recorded, placement: one.npz}}
"""


def test_a_scenario_finds_the_file_beside_it_and_repeats_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "study"
    folder.mkdir()
    path = write(folder, ".npz")
    (folder / "s.yaml").write_text(TEXT)
    asked = scenario.load(folder / "s.yaml")
    assert asked.resolved()["strategies"][0]["balancer"] == {"kind": "recorded", "placement": str(path)}
    result = simulate.bound(asked)
    assert result.inputs[str(path)] == resources.digest(path)
    again = simulate.bound(scenario.from_mapping(asked.resolved()))
    assert again.strategies[0].metrics() == result.strategies[0].metrics()


@pytest.mark.parametrize(
    ("sets", "message", "column"),
    [
        ("ranks.ep=4", "one.npz: a placement on 2 ranks", None),
        ("strategies.a.balancer.placement=two.npz", "placement file not found: two.npz", 33),
        ("strategies.a.balancer.placement=deepseek-v3_16dies", "unknown placement", 33),
    ],
)
def test_a_file_that_does_not_fit_is_told_where_it_is_named(tmp_path, sets, message, column):
    write(tmp_path, ".npz")
    (tmp_path / "s.yaml").write_text(TEXT)
    with pytest.raises(InputError) as refused:
        simulate.bound(scenario.load(tmp_path / "s.yaml", [sets]))
    (problem,) = refused.value.problems
    assert message in problem.message
    assert problem.legal is not None
    assert (problem.line, problem.column) == ((1, column) if column else (8, 44))
