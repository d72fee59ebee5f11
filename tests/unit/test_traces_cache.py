"""The cache of composed traces: what hits, what misses, and that nothing about it can stop a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moesim import moe, resources
from moesim.traces import Trace, cache, compose
from moesim.traces.lognormal import Lognormal

MODEL = moe.load("qwen3-30b-a3b")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "moesim" / "traces"


def batch(spec: dict[str, Any] | None = None, model: moe.MoEModel = MODEL, **changes: Any) -> Trace:
    options: dict[str, Any] = {
        "ep": 8,
        "tokens_per_rank": 4,
        "phase": "decode",
        "layers": [0, 1],
        "steps": 2,
        "seed": 0,
    }
    given = spec or {"kind": "lognormal", "sigma": 0.5, "drift": {"tau": 3}}
    return compose(given, model, **(options | changes))


def forbid_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(Lognormal, "draw", refuse)


def equal(a: Trace, b: Trace) -> bool:
    facts = [(t.experts, t.phase, t.origin, t.notes) for t in (a, b)]
    arrays = [(a.ids, b.ids), (a.requests, b.requests), (a.layer_ids, b.layer_ids)]
    return facts[0] == facts[1] and all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in arrays)


def test_the_second_time_the_same_comes_from_the_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = batch()
    assert [path.suffix for path in home.iterdir()] == [".npz"]
    forbid_drawing(monkeypatch)
    second = batch()
    assert equal(first, second)
    for trace in (first, second):
        with pytest.raises(ValueError, match="read-only"):
            trace.ids[0, 0, 0, 0] = 1


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"ep": 4},
        {"tokens_per_rank": 5},
        {"phase": "prefill"},
        {"layers": [0, 2]},
        {"steps": 3},
        {"spec": {"kind": "lognormal", "sigma": 0.6, "drift": {"tau": 3}}},
        {"spec": {"kind": "lognormal", "sigma": 0.5, "drift": {"tau": 4}}},
        {"model": moe.load("qwen3-235b-a22b")},
        {"cache": False},
    ],
)
def test_anything_else_is_drawn_anew(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    batch()
    forbid_drawing(monkeypatch)
    with pytest.raises(AssertionError, match="drawn again"):
        batch(**change)


def test_another_version_of_the_code_is_another_trace(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch()
    monkeypatch.setattr(cache, "_code", lambda: "other")
    batch()
    assert len(list(home.iterdir())) == 2


def test_a_changed_recording_under_the_same_name_is_another_trace(home: Path, tmp_path: Path) -> None:
    model = moe.load("deepseek-v2-lite")
    path = tmp_path / "mine.npz"
    traces = []
    for name in ("deepseek-v2-lite_esft-law", "deepseek-v2-lite_esft-intent"):
        shutil.copy(resources.find("trace", name), path)
        traces.append(batch({"kind": "recorded", "trace": str(path)}, model))
    assert not np.array_equal(traces[0].ids, traces[1].ids)
    assert len(list(home.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 and so on", None])
def test_a_damaged_entry_is_ignored_and_replaced(home: Path, damage: bytes | None) -> None:
    first = batch()
    (entry,) = home.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert equal(first, batch())
    assert entry.read_bytes() == whole


@pytest.mark.parametrize("changed", ["ids", "requests", "layer_ids", "facts", "name"])
def test_an_entry_that_is_not_what_was_kept_is_ignored(home: Path, changed: str) -> None:
    first = batch()
    (entry,) = home.iterdir()
    if changed == "name":
        other = batch(seed=1)
        (fresh,) = set(home.iterdir()) - {entry}
        shutil.copy(fresh, entry)
        assert not equal(first, other)
    else:
        with np.load(entry) as file:
            arrays = dict(file)
        if changed == "facts":
            arrays["facts"] = np.array(str(arrays["facts"]).replace("lognormal", "zipf"))
        else:
            arrays[changed] = arrays[changed] + 60_000  # of the right shape and type, and out of range
        np.savez(entry, **arrays)
    assert equal(first, batch())


def test_a_cache_that_cannot_be_made_or_read_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert batch().tokens == 32
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert batch().tokens == 32

    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(cache.Path, "expanduser", no_home)
    assert batch().tokens == 32


def test_an_interrupted_save_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache.np, "savez", interrupt)
    with pytest.raises(KeyboardInterrupt):
        batch()
    assert list(home.iterdir()) == []


def test_the_oldest_entries_go_when_the_cache_is_full(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch(seed=0)
    size = next(home.iterdir()).stat().st_size
    monkeypatch.setattr(cache, "CAPACITY", int(2.5 * size))
    for seed in (1, 2, 3):
        batch(seed=seed)
    assert len(list(home.iterdir())) == 2
    forbid_drawing(monkeypatch)
    batch(seed=3)


def test_a_trace_that_is_too_large_is_not_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LARGEST", 10)
    batch()
    assert not home.exists()


def test_without_the_variable_it_lies_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "moesim" / "traces"
