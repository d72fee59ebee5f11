"""The realistic generator against statistics of real recordings.

Numbers with an origin in a comment are of public recordings that are not shipped here; the others are
computed from the shipped ones. The tolerance is a tenth unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from moesim import moe, resources
from moesim.traces import Batch, Trace, compose, recording
from moesim.traces.realistic import Realistic, RealisticParams
from moesim.traces.requests import Schedule
from moesim.traces.statistics import imbalance, overlap, ranks_hit, zipf_slope

TENTH = 0.10


@cache
def prefill(model: str, tokens: int, layers: int, **spec: Any) -> Trace:
    """One long stream of requests."""
    return compose(
        {"kind": "realistic", **spec},
        moe.load(model),
        ep=1,
        tokens_per_rank=tokens,
        phase="prefill",
        layers=range(layers),
        steps=1,
        seed=0,
        cache=False,
    )


def chunks(trace: Trace, size: int) -> np.ndarray[Any, Any]:
    """Entries of each expert (chunks, layers, experts) in consecutive chunks of ``size`` tokens."""
    whole = trace.tokens // size * size
    ids = trace.ids[0, :, :whole].reshape(len(trace.layer_ids), whole // size, -1)
    count = [[np.bincount(part, minlength=trace.experts) for part in layer] for layer in ids]
    return np.moveaxis(np.array(count, dtype=float), 1, 0)


# DeepSeek-R1 serving totals, decode 2000 -> 100, experts placed at random (sgl-project/sglang issue 6017).
R1 = {8: 1.23, 16: 1.43, 32: 1.77, 64: 2.42, 256: 6.07}


def test_deepseek_r1_imbalance_at_every_ep() -> None:
    trace = compose(
        {"kind": "realistic", "sigma": 0.7},
        moe.load("deepseek-v3"),
        ep=64,
        tokens_per_rank=64,
        phase="decode",
        layers=range(58),
        steps=1,
        seed=0,
        cache=False,
    )
    counts = trace.counts()[0].astype(float)
    for ep, real in R1.items():
        assert imbalance(counts, ep) == pytest.approx(real, rel=TENTH), ep
    logs = np.log(counts + 0.5)
    # Ranges over the eight workloads of the same source.
    assert 0.59 < logs.std(axis=1).mean() < 0.82
    assert 0.57 < zipf_slope(logs) < 0.80
    # The gate's groups lower the ranks that a token reaches: 8 hosts of 32 experts, 4 of them at most.
    assert ranks_hit(trace, 8) == pytest.approx(3.85, abs=0.15)


# DeepSeek-V2-Lite, mixed chat (ngavhane/moe-beyond@4dca2eac), all layers: chunks of consecutive tokens.
CHAT = {
    64: {8: 1.46, 32: 2.65},
    256: {8: 1.35, 32: 2.25, 64: 3.37},
    1024: {8: 1.25, 32: 1.87, 64: 2.66},
    4096: {8: 1.17, 32: 1.59, 64: 2.13},
    8192: {8: 1.15, 32: 1.52},
}
# Hottest expert of the smallest and the largest chunks: the tail of a single real gate is a little longer.
CHAT_TAIL = {64: 4.12, 8192: 2.02}


def test_mixed_chat_chunks_are_as_uneven_as_real_ones() -> None:
    trace = prefill("deepseek-v2-lite", 32_000, 26, preset="balanced-chat")
    for size, by_ep in CHAT.items():
        counts = chunks(trace, size)
        for ep, real in by_ep.items():
            assert imbalance(counts, ep) == pytest.approx(real, rel=TENTH), (size, ep)
    for size, real in CHAT_TAIL.items():
        assert imbalance(chunks(trace, size), 64) == pytest.approx(real, rel=0.15), size
    total = trace.counts()[0].astype(float)
    for ep, real in {8: 1.12, 16: 1.20, 32: 1.38, 64: 1.72}.items():
        assert imbalance(total, ep) == pytest.approx(real, rel=TENTH), ep


def test_mixed_chat_tokens_resemble_their_neighbours_as_real_ones_do() -> None:
    trace = prefill("deepseek-v2-lite", 32_000, 26, preset="balanced-chat")
    # The same recording, first 8 layers.
    assert overlap(trace, 1) == pytest.approx(0.245, rel=TENTH)
    assert overlap(trace, 4) == pytest.approx(0.144, rel=TENTH)
    assert overlap(trace, 16) == pytest.approx(0.138, rel=TENTH)
    for ep, real in {8: 4.55, 16: 5.33, 32: 5.77}.items():
        assert ranks_hit(trace, ep) == pytest.approx(real, rel=0.02), ep


class WithPopularity(Realistic):
    """The generator on the popularity of a real recording, so that only requests and tokens are synthetic."""

    real: np.ndarray[Any, Any]

    def layer(self, batch: Batch, schedule: Schedule, layer: int, spread: float) -> Any:
        self.now = layer
        return super().layer(batch, schedule, layer, spread)

    def popularity(self, z: Any, spread: float) -> Any:
        return np.broadcast_to(self.real[self.now], z.shape)


@cache
def gpt_oss() -> Trace:
    """80 recorded sequences, 8 layers, one after another."""
    found = recording.load(resources.find("trace", "gpt-oss-20b_decode"), "decode")
    end = int(found.end[79])
    request = np.repeat(np.arange(80), (found.end - found.start)[:80]).astype(np.int32)
    ids = np.moveaxis(found.ids[:end, :8], 1, 0)[None]
    return Trace(ids, found.experts, np.arange(8), request[None], "prefill", "recorded")


def test_requests_and_tokens_on_real_popularity_are_like_the_recording() -> None:
    real = gpt_oss()
    source = WithPopularity(RealisticParams(preset="gpt-oss"))
    source.real = real.counts()[0].astype(float)
    batch = Batch(moe.load("gpt-oss-20b"), 1, real.tokens, "prefill", tuple(range(8)), 1, 0)
    drawn = source.draw(batch)
    mine = Trace(drawn.ids, 32, np.arange(8), drawn.requests, "prefill", drawn.origin)
    for lag in (1, 2, 4, 16):
        assert overlap(mine, lag) == pytest.approx(overlap(real, lag), rel=TENTH), lag
    for size in (64, 1024, 4096):
        for ep in (8, 32):
            wanted = imbalance(chunks(real, size), ep)
            assert imbalance(chunks(mine, size), ep) == pytest.approx(wanted, rel=TENTH), (size, ep)
    assert ranks_hit(mine, 8) == pytest.approx(ranks_hit(real, 8), rel=0.05)


# gpt-oss-20b decode, composed as a continuous batch of B sequences (all layers of the shipped recording).
BATCHES = {16: {8: 1.69, 32: 3.65}, 64: {8: 1.49, 32: 2.91}, 256: {8: 1.45, 32: 2.75}}
KEPT = {16: 0.715, 64: 0.874, 256: 0.961}


@pytest.mark.parametrize("size", BATCHES)
def test_a_synthetic_gpt_oss_batch_is_like_a_continuous_batch_of_the_real_one(size: int) -> None:
    trace = compose(
        {"kind": "realistic", "preset": "gpt-oss"},
        moe.load("gpt-oss-20b"),
        ep=1,
        tokens_per_rank=size,
        phase="decode",
        layers=range(24),
        steps=40,
        seed=0,
        cache=False,
    )
    counts = trace.counts().astype(float)
    for ep, real in BATCHES[size].items():
        assert imbalance(counts, ep) == pytest.approx(real, rel=TENTH), ep
    following = [
        np.corrcoef(counts[t, layer], counts[t + 1, layer])[0, 1]
        for t in range(0, 39, 3)
        for layer in range(24)
    ]
    assert np.mean(following) == pytest.approx(KEPT[size], rel=TENTH)


# Max/mean over ranks: mean of the three ESFT tasks (shipped); Llama-4-Maverick decode, MMLU
# (andronius-yang/cse223b-proj@c5a3d172).
OTHERS: Mapping[str, tuple[str, Mapping[int, float]]] = {
    "single-domain": ("deepseek-v2-lite", {8: 1.506, 16: 1.952, 32: 2.779, 64: 4.320}),
    "concentrated-top1": ("llama-4-maverick", {8: 2.36, 16: 3.76, 32: 6.63, 64: 12.6, 128: 24.7}),
}


@pytest.mark.parametrize("preset", OTHERS)
def test_the_other_presets_are_as_uneven_as_what_they_were_fitted_to(preset: str) -> None:
    model, by_ep = OTHERS[preset]
    trace = prefill(model, 12_000, moe.load(model).moe_layers, preset=preset)
    for ep, real in by_ep.items():
        assert imbalance(trace.counts()[0].astype(float), ep) == pytest.approx(real, rel=TENTH), ep


def test_a_single_token_of_a_request_has_the_popularity_of_its_domain() -> None:
    # A Dirichlet's shares without one of them are again Dirichlet: however peculiar the requests are, one
    # token of each is drawn as from the popularity itself.
    def counts(alpha0: float) -> Any:
        trace = compose(
            {"kind": "realistic", "sigma": 0.7, "alpha0": alpha0},
            moe.load("qwen3-235b-a22b"),
            ep=16,
            tokens_per_rank=2048,
            phase="decode",
            layers=[0],
            steps=1,
            seed=0,
            cache=False,
        )
        return trace.counts()[0, 0]

    even, peculiar = counts(1e6), counts(8)
    assert np.abs(even - peculiar).max() < 5 * np.sqrt(2 * even.max())


def test_kept_experts_are_kept_with_the_stated_probability() -> None:
    def lag_one(keep: float) -> float:
        trace = prefill("deepseek-v3", 4000, 1, preset="balanced-chat", alpha0=1e6, keep=keep)
        found = overlap(trace, 1)
        assert found is not None
        return found

    by_chance = lag_one(0.0)
    assert lag_one(0.5) == pytest.approx(0.5 + 0.5 * by_chance, abs=0.03)


def test_kept_experts_stay_within_the_groups() -> None:
    trace = prefill("deepseek-v3", 2000, 1, keep=0.6, alpha0=5.0)
    group = np.sort(trace.ids // 32, axis=-1)
    assert (1 + (np.diff(group, axis=-1) != 0).sum(axis=-1)).max() <= 4
    ordered = np.sort(trace.ids, axis=-1)
    assert (ordered[..., 1:] != ordered[..., :-1]).all()
