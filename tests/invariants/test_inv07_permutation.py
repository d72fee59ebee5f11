"""Invariant 7: permuting the flows of a transfer permutes their finish times."""

from __future__ import annotations

import numpy as np
import pytest

from moesim.network import finish_times


@pytest.mark.parametrize("tolerance", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_the_flows_does_not_matter(seed: int, tolerance: float) -> None:
    rng = np.random.default_rng(seed)
    flows, resources = 300, 24
    path = np.argsort(rng.random((flows, resources)), axis=1)[:, :2]
    capacity, size = rng.uniform(1, 2, resources), rng.lognormal(0, 1, flows)
    start = rng.choice([0.0, 1.0, 4.0], flows)

    def run(order: np.ndarray) -> np.ndarray:
        indptr = np.arange(0, 2 * flows + 1, 2)
        ones = np.ones(2 * flows)
        return finish_times(
            indptr, path[order].ravel(), ones, capacity, size[order], start[order], tolerance
        ).finish

    order = rng.permutation(flows)
    np.testing.assert_allclose(run(order), run(np.arange(flows))[order], rtol=1e-9)
