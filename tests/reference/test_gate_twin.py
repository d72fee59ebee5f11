"""The vectorised gate against its slow twin, and against known counts of hosts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from moesim.traces import gate

_SPEC = importlib.util.spec_from_file_location("gate_twin", Path(__file__).with_name("gate_twin.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
twin = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(twin)


@pytest.mark.parametrize(
    ("experts", "k", "n_group", "topk_group"),
    [
        (256, 8, 8, 4),
        (64, 6, 1, 1),
        (160, 6, 8, 3),
        (16, 4, 16, 5),
        (16, 4, 8, 2),
        (12, 12, 3, 3),
        (8, 1, 4, 1),
    ],
)
def test_the_gate_picks_what_its_definition_says(experts: int, k: int, n_group: int, topk_group: int) -> None:
    rng = np.random.default_rng(experts + k)
    gates = rng.standard_normal((200, experts))
    picked = gate.pick(np.exp(-gates).astype(np.float32), k, n_group, topk_group)
    for row, values in zip(picked, gates, strict=True):
        assert set(row.tolist()) == twin.chosen(values.tolist(), k, n_group, topk_group)


# Distinct hosts a token reaches, E 256, k 8, 4 of 8 groups, by Monte Carlo over Gaussian gates.
HOSTS = {2: (1.993, 1.967), 4: (3.614, 3.118), 8: (5.295, 3.954)}


@pytest.mark.parametrize("noise", ["gaussian", "gumbel"])
def test_hosts_reached_with_and_without_groups(noise: str) -> None:
    rng = np.random.default_rng(3)
    tokens = 20_000
    for limited in (False, True):
        if noise == "gaussian":
            times = np.exp(-rng.standard_normal((tokens, 256))).astype(np.float32)
        else:
            times = gate.race(rng, tokens, np.ones(256, dtype=np.float32))
        picked = gate.pick(times, 8, *((8, 4) if limited else (1, 1)))
        for hosts, expected in HOSTS.items():
            host = np.sort(picked // (256 // hosts), axis=1)
            reached = 1 + (np.diff(host, axis=1) != 0).sum(axis=1).mean()
            assert reached == pytest.approx(expected[limited], rel=0.01)


def test_the_race_draws_without_replacement_in_proportion_to_weights() -> None:
    weights = np.array([5, 3, 1, 1], dtype=np.float32)
    times = gate.race(np.random.default_rng(1), 200_000, weights)
    first = np.argmin(times, axis=1)
    assert np.bincount(first) / len(first) == pytest.approx([0.5, 0.3, 0.1, 0.1], abs=0.004)
    pair = np.sort(gate.pick(times, 2), axis=1)
    both = ((pair[:, 0] == 0) & (pair[:, 1] == 1)).mean()
    assert both == pytest.approx(0.5 * 3 / 5 + 0.3 * 5 / 7, abs=0.004)


def test_experts_of_weight_zero_come_last_but_before_other_groups() -> None:
    weights = np.array([1, 0, 0, 0, 0.1, 0.1, 0.1, 0.1], dtype=np.float32) + 0
    rng = np.random.default_rng(2)
    picked = gate.pick(gate.race(rng, 500, weights), 3, 2, 1)
    assert (np.sort(picked // 4, axis=1)[:, 0] == np.sort(picked // 4, axis=1)[:, -1]).all()
    assert all(len(set(row)) == 3 for row in picked.tolist())
