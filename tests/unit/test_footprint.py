from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moesim import footprint, moe
from moesim.traces import KINDS, Batch


def test_the_machine_has_no_more_than_its_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(footprint, "_LIMIT", limit)
    whole = footprint.machine()
    assert 2**28 < whole < 2**50
    for text, expected in (("max\n", whole), ("1048576\n", 2.0**20), (f"{10**18}\n", whole)):
        limit.write_text(text)
        assert footprint.machine() == expected


def test_every_part_grows_with_what_it_holds() -> None:
    base = {"tokens": 64, "top_k": 8, "cases": 4, "ranks": 8, "strategies": 2}
    once = footprint.parts(1e6, **base)
    assert footprint.parts(2e6, **base)["demand"] == 2 * once["demand"]
    assert footprint.parts(1e6, **base | {"tokens": 128})["batch"] == 2 * once["batch"]
    assert footprint.parts(1e6, **base | {"cases": 8})["results"] == 2 * once["results"]


@pytest.mark.parametrize("kind", ["uniform", "lognormal", "realistic"])
def test_what_a_source_says_is_not_below_what_its_arrays_take(kind: str) -> None:
    import tracemalloc

    model = moe.load("deepseek-v3")
    params = KINDS.get(kind).Params(**({} if kind != "lognormal" else {"sigma": 0.7}))
    batch = Batch(model, 8, 1000, "decode", (0, 1), 2, 0)
    source = KINDS.get(kind)(params)
    tracemalloc.start()
    source.draw(batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rows = 1024 * model.experts * np.dtype(np.float64).itemsize * 4  # drawn at once, whatever the batch
    assert peak < source.memory(batch) + rows
