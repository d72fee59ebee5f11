"""Recordings: the shipped files against published sums, bad files, composition."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moesim import moe, resources
from moesim.errors import InputError
from moesim.traces import Trace, compose, recording
from moesim.traces.statistics import imbalance

V2_LITE = moe.load("deepseek-v2-lite")


def load(name: str, phase: str = "prefill") -> recording.Recording:
    return recording.load(resources.find("trace", name), phase)


def batch(trace: str | Path, model: moe.MoEModel = V2_LITE, **changes: Any) -> Trace:
    options: dict[str, Any] = {
        "ep": 8,
        "tokens_per_rank": 16,
        "phase": "decode",
        "layers": [0, 1],
        "steps": 1,
        "seed": 0,
        "cache": False,
    }
    return compose({"kind": "recorded", "trace": str(trace)}, model, **(options | changes))


# Computed apart from this code: entries, expert max/mean, imbalance at EP 8, 16, 32 (contiguous homes, mean
# over layers), hottest expert of the first layer and its entries.
PUBLISHED = {
    "deepseek-v2-lite_esft-intent": (1_282_632, 3.814, 1.441, 1.803, 2.451, 8, 3219),
    "deepseek-v2-lite_esft-law": (1_299_012, 3.521, 1.385, 1.697, 2.348, 12, 1594),
    "deepseek-v2-lite_esft-translation": (1_287_156, 5.624, 1.692, 2.356, 3.538, 35, 4015),
    "gpt-oss-20b_decode": (13_509_120, 2.595, 1.425, 1.896, 2.595, 17, 34_931),
    "flame-moe-290m_prefill": (98_304, 1.525, 1.113, 1.192, 1.320, 38, 358),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shipped_recording_has_the_published_sums(name: str) -> None:
    entries, expert, *by_ep, hottest, copies = PUBLISHED[name]
    found = load(name)
    assert found.ids.size == entries
    layers = np.moveaxis(found.ids, 1, 0).reshape(found.layers, -1)
    counts = np.array([np.bincount(layer, minlength=found.experts) for layer in layers], dtype=float)
    assert imbalance(counts, found.experts) == pytest.approx(expert, abs=6e-4)
    assert [imbalance(counts, ep) for ep in (8, 16, 32)] == pytest.approx(by_ep, abs=6e-4)
    assert (counts[0].argmax(), counts[0].max()) == (hottest, copies)


def test_every_shipped_recording_is_listed_with_its_licence() -> None:
    readme = resources.shipped("scenarios/traces") / "README.md"
    text = readme.read_text(encoding="utf-8")
    assert set(resources.names("trace")) == set(PUBLISHED)
    for name in PUBLISHED:
        assert f"`{name}.npz`" in text


# -- bad files -------------------------------------------------------------------------------------

META = {"kind": "token", "model": "tiny", "experts": 8, "topk": 2, "phase": "decode"}


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    ids = np.array([[rng.permutation(8)[:2] for _ in range(3)] for _ in range(10)], dtype=np.uint8)
    return {"meta": np.array(json.dumps(META)), "ids": ids, "seq_start": np.array([0, 4, 10])}


def meta(**changes: Any) -> np.ndarray[Any, Any]:
    return np.array(json.dumps(META | changes))


def with_ids(at: tuple[int, ...], value: int, dtype: str = "i8") -> np.ndarray[Any, Any]:
    ids = arrays()["ids"].astype(dtype)
    ids[at] = value
    return np.asarray(ids)


NAN = np.full((10, 3, 2), 0.5)
NAN[3, 1, 0] = np.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": arrays()["ids"].astype(float)}, "array 'ids': is float64"),
        ({"ids": arrays()["ids"][:, :, 0]}, "array 'ids': is uint8 (10, 3)"),
        ({"ids": arrays()["ids"][:0]}, "array 'ids': is empty"),
        ({"ids": arrays()["ids"][:, :, :1]}, "has 1 experts a token, meta says topk 2"),
        ({"ids": with_ids((2, 1, 0), 8)}, "ids[2, 1, 0] is 8"),
        ({"ids": with_ids((2, 1, 0), -1)}, "ids[2, 1, 0] is -1"),
        ({"ids": with_ids((2, 1), 5)}, "ids[2, 1] has an expert twice: [5, 5]"),
        ({"ids": np.array([[[None, 1]]], dtype=object)}, "array 'ids': holds Python objects"),
        ({"seq_start": np.array([0, 4, 9])}, "runs from 0 to 9, not from 0 to 10"),
        ({"seq_start": np.array([1, 4, 10])}, "runs from 1 to 10"),
        ({"seq_start": np.array([0, 7, 4, 10])}, "falls after sequence 1"),
        ({"seq_start": np.array([0.0, 10.0])}, "array 'seq_start': is float64"),
        ({"seq_start": np.array([10])}, "array 'seq_start'"),
        ({"meta": np.array([1, 2])}, "array 'meta': is int64 (2,)"),
        ({"meta": np.array("not json")}, "array 'meta': is not JSON"),
        ({"meta": np.array("[1]")}, "array 'meta': is not a JSON object"),
        ({"meta": meta(kind="counts")}, "array 'meta': kind is 'counts'"),
        ({"meta": meta(experts="8")}, "array 'meta': experts is '8'"),
        ({"meta": meta(topk=9)}, "experts 8 and topk 9 are impossible"),
        ({"meta": meta(phase="both")}, "array 'meta': phase is 'both'"),
        ({"meta": meta(moe_layers=4)}, "has 3 layers, meta says moe_layers 4"),
        ({"weights": NAN}, "array 'weights': holds NaN"),
        ({"weights": -np.ones((10, 3, 2))}, "array 'weights': holds negative"),
        ({"weights": np.ones((10, 3))}, "array 'weights': is float64 (10, 3)"),
        ({"layer_ids": np.array([3, 2, 1])}, "array 'layer_ids': does not rise"),
        ({"layer_ids": np.array([1, 2])}, "array 'layer_ids'"),
        ({"pos": np.arange(9)}, "array 'pos'"),
        ({"seq_name": np.array(["a"])}, "array 'seq_name'"),
        ({"phase": np.full(10, 2, dtype=np.uint8)}, "array 'phase': holds other numbers"),
        ({"phase": np.array([1, 0, 0, 0] + [1] * 6)}, "array 'phase': has prefill after decode"),
    ],
)
def test_a_bad_array_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **(arrays() | change))
    with pytest.raises(InputError) as error:
        recording.load(path, "decode")
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("missing", ["ids", "seq_start", "meta"])
def test_a_missing_array_is_named(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **{name: array for name, array in arrays().items() if name != missing})
    with pytest.raises(InputError, match=f"no array '{missing}' in it"):
        recording.load(path, "decode")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-400])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = content.index(b"NUMPY") + 300
    content[at : at + 8] = bytes(byte ^ 0xFF for byte in content[at : at + 8])
    path.write_bytes(bytes(content))


def text(path: Path) -> None:
    path.write_text("ids: 3\n")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def not_npy(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("ids", "seq_start", "meta"):
            archive.writestr(f"{name}.npy", b"hello")


def remove(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [cut, flip, text, empty, not_npy, remove])
def test_a_damaged_file_is_an_input_error(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays())
    damage(path)
    with pytest.raises(InputError) as error:
        recording.load(path, "decode")
    assert str(path) in str(error.value)
    with pytest.raises(InputError):
        batch(path)


def test_a_zip_bomb_is_refused_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 26, 6), }".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ids.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(InputError, match="takes more than 1024 MiB when unpacked"):
        recording.load(path, "decode")


def test_a_zip_bomb_with_a_modest_header_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, **arrays(), weights=np.zeros((10, 3, 2)))
    monkeypatch.setattr(recording, "LARGEST", 700)
    with pytest.raises(InputError, match="takes more than 0 MiB"):
        recording.load(path, "decode")


# -- composition -----------------------------------------------------------------------------------


def test_a_recording_of_another_model_is_refused() -> None:
    with pytest.raises(InputError) as error:
        batch("gpt-oss-20b_decode")
    assert "experts 32 in this recording of gpt-oss-20b, 64 in the model deepseek-v2-lite" in str(error.value)
    assert "top_k 4 in this recording" in str(error.value)


def test_a_recording_with_too_few_layers_says_how_many_it_has() -> None:
    with pytest.raises(InputError, match="only 8 layers were recorded"):
        batch("flame-moe-290m_prefill", layers=range(26))


def tiny(tmp_path: Path, **changes: Any) -> tuple[Path, moe.MoEModel, np.ndarray[Any, Any]]:
    """A recording in which every token can be recognised: its first expert pair spells its number."""
    pairs = [(a, b) for a in range(16) for b in range(16) if a != b]
    ids = np.array(pairs, dtype=np.uint8)[:, None, :].repeat(2, axis=1)
    edges = np.array([0, 40, 41, 120, 240])
    path = tmp_path / "tiny.npz"
    content = {"meta": meta(experts=16, **changes), "ids": ids, "seq_start": edges}
    np.savez(path, **content)
    shape = {"hidden": 8, "layers": 2, "moe_layers": 2, "experts": 16, "top_k": 2, "intermediate": 8}
    return path, moe.load(shape), edges


def rows(trace: Trace) -> np.ndarray[Any, Any]:
    """Row of the recording of each token (steps, tokens), from its expert pair."""
    first, second = trace.ids[:, 0, :, 0].astype(int), trace.ids[:, 0, :, 1].astype(int)
    return first * 15 + second - (second > first)


def test_decode_slots_walk_through_their_sequence_and_are_replaced_at_its_end(tmp_path: Path) -> None:
    path, model, edges = tiny(tmp_path)
    trace = batch(path, model, tokens_per_rank=8, steps=60, layers=[0, 1])
    row = rows(trace)
    sequence = np.searchsorted(edges, row, side="right") - 1
    follows = row[1:] == row[:-1] + 1
    ended = row[:-1] + 1 == edges[sequence[:-1] + 1]
    assert ((follows & ~ended) | ended).all()
    assert ended.sum() > 20
    # A request number changes exactly where a sequence ends.
    assert ((trace.requests[1:] != trace.requests[:-1]) == ended).all()
    # Both layers are the same token.
    assert (trace.ids[:, 0] == trace.ids[:, 1]).all()
    drawn = trace.tokens + ended.sum()
    assert f"{drawn} requests were drawn from 4 recorded sequences: 4 different ones" in trace.notes[0]
    assert len(trace.notes) == 2  # reuse, and the recorded model has another name
    assert "recorded from tiny stands in for inline" in trace.notes[1]


def test_requests_start_at_random_offsets_of_random_sequences(tmp_path: Path) -> None:
    path, model, edges = tiny(tmp_path)
    row = rows(batch(path, model, ep=64, tokens_per_rank=64))[0]
    sequence = np.searchsorted(edges, row, side="right") - 1
    share = np.bincount(sequence, minlength=4) / row.size
    assert share == pytest.approx([0.25] * 4, abs=0.03)
    offset = (row - edges[sequence])[sequence == 3]
    assert offset.mean() == pytest.approx(59.5, abs=4)
    assert set(offset) == set(range(120))


def test_prefill_fills_each_rank_with_consecutive_tokens_of_requests(tmp_path: Path) -> None:
    path, model, edges = tiny(tmp_path)
    trace = batch(path, model, tokens_per_rank=100, phase="prefill", steps=2)
    row = rows(trace).reshape(2, 8, 100)
    request = trace.requests.reshape(2, 8, 100)
    same = request[..., 1:] == request[..., :-1]
    assert (row[..., 1:][same] == row[..., :-1][same] + 1).all()
    # A request ends only where its sequence does.
    assert np.isin(row[..., :-1][~same] + 1, edges).all()
    assert len(np.unique(request)) == 16 + (~same).sum()
    assert any("tokens recorded in decode stand in for prefill" in note for note in trace.notes)


def test_a_recording_of_both_phases_gives_each_its_own_rows(tmp_path: Path) -> None:
    path, model, edges = tiny(tmp_path)
    border = np.array([10, 40, 100, 120])
    with np.load(path) as file:
        content = dict(file)
    decoded = np.concatenate(
        [np.arange(a, b) >= c for a, b, c in zip(edges[:-1], edges[1:], border, strict=True)]
    )
    np.savez(path, **content, phase=decoded.astype(np.uint8))
    for phase in ("decode", "prefill"):
        trace = batch(path, model, phase=phase, tokens_per_rank=64)
        assert (decoded[rows(trace)] == (phase == "decode")).all()
        assert not any("stand in for " + phase in note for note in trace.notes)


def test_prefill_rows_standing_in_for_decode_are_named() -> None:
    notes = batch("deepseek-v2-lite_esft-law").notes
    assert notes[1:] == ("tokens recorded in prefill stand in for decode",)


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    path, model, _ = tiny(tmp_path)
    assert batch("tiny.npz", model, base=tmp_path).tokens == 128
    with pytest.raises(InputError, match="not found"):
        batch("tiny.npz", model)
    assert path.exists()


# Continuous batches of B sequences of the same recording, by other code: max/mean at EP 8 and 32, correlation
# of an expert's entries with the step before, share of the four hottest experts that stay so.
CONTINUOUS = {64: (1.49, 2.91, 0.874, 0.63), 256: (1.45, 2.75, 0.961, 0.76), 400: (1.44, 2.69, 0.976, 0.81)}


@pytest.mark.parametrize("size", CONTINUOUS)
def test_a_continuous_batch_changes_from_step_to_step_as_published(size: int) -> None:
    trace = batch(
        "gpt-oss-20b_decode",
        moe.load("gpt-oss-20b"),
        ep=1,
        tokens_per_rank=size,
        layers=range(24),
        steps=100,
    )
    counts = trace.counts().astype(float)
    pairs = [(counts[t, layer], counts[t + 1, layer]) for t in range(0, 99, 3) for layer in range(24)]
    correlation = np.mean([np.corrcoef(before, after)[0, 1] for before, after in pairs])
    kept = np.mean([len({*np.argsort(a)[-4:]} & {*np.argsort(b)[-4:]}) / 4 for a, b in pairs])
    found = (imbalance(counts, 8), imbalance(counts, 32), correlation, kept)
    assert found == pytest.approx(CONTINUOUS[size], rel=0.05)


def test_a_header_with_any_byte_changed_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    meta = {"kind": "token", "model": "m", "phase": "decode", "experts": 4, "topk": 2}
    ids = np.array([[[0, 1]], [[1, 2]]])
    np.savez(path, ids=ids, seq_start=np.array([0, 2]), meta=np.array(json.dumps(meta)))
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        try:
            recording.load(path, "decode")
        except InputError as error:
            refused += str(path) in str(error)
    assert refused > len(whole) // 2  # the rest are time stamps, attributes and padding


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (2L,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': ('a',), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",), }",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<U99999999999', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (2,), }",
        "(" * 300 + ")" * 300,
        "{" * 9000,
        "",
    ],
)
def test_a_malformed_header_is_refused(tmp_path: Path, header: str) -> None:
    path = tmp_path / "t.npz"
    text = header.encode() + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("ids", "seq_start", "meta"):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(InputError, match=r"t\.npz"):
        recording.load(path, "decode")


def test_half_of_a_character_in_the_facts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    meta = {"kind": "token", "model": "\ud800", "phase": "decode", "experts": 4, "topk": 2}
    ids = np.array([[[0, 1]], [[1, 2]]])
    np.savez(path, ids=ids, seq_start=np.array([0, 2]), meta=np.array(json.dumps(meta)))
    with pytest.raises(InputError, match="half of a character"):
        recording.load(path, "decode")
