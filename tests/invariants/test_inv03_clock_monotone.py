"""Invariant 3: the clock never runs backwards, and never past an event."""

from __future__ import annotations

import numpy as np
import pytest

from moesim.fluid import Fluid
from moesim.rates import columns


@pytest.mark.parametrize("tolerance", [0.0, 0.01])
def test_steps_go_forward_and_end_at_starts(tolerance: float) -> None:
    rng = np.random.default_rng(4)
    flows, resources = 400, 20
    path, taken = columns(np.arange(flows + 1), rng.integers(0, resources, flows), np.ones(flows), resources)
    start = rng.choice(rng.uniform(0, 30, 7), flows)
    engine = Fluid(rng.uniform(1, 2, resources), tolerance)
    engine.add(path, taken, rng.lognormal(0, 1, flows), start)
    ends = [0.0]
    while not engine.idle:
        engine.plan()
        _, times = engine.finishing()
        assert times.tolist() == sorted(times)
        assert ((times >= engine.now) & (times <= engine.end)).all()
        engine.commit(engine.end)
        ends.append(engine.now)
    assert ends == sorted(ends)
    assert set(start) <= set(ends)
    assert (engine.finish >= engine.release).all()
