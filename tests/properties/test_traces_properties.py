"""What every kind owes: distinct experts, the gate's groups, demand that only the seed decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim import moe
from moesim.moe import MoEModel
from moesim.traces import Batch, Trace, compose, requests

SPECS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "lognormal": {"sigma": 1.0, "drift": {"tau": 2}},
    "zipf": {"exponent": 1.2, "drift": {"domain_switch": 2}},
    "dirichlet": {"alpha": 0.5},
    "realistic": {
        "sigma": 1.2,
        "domains": 2,
        "alpha0": 20,
        "keep": 0.4,
        "request_tokens": 5,
        "drift": {"tau": 9},
    },
}
PHASES = ("decode", "prefill", "train")


@st.composite
def models(draw: st.DrawFn) -> MoEModel:
    groups = draw(st.sampled_from([1, 2, 4]))
    size = draw(st.integers(1, 8))
    kept = draw(st.integers(1, groups))
    top_k = draw(st.integers(1, kept * size))
    return moe.load(
        {
            "hidden": 8,
            "layers": 3,
            "moe_layers": 3,
            "experts": groups * size,
            "top_k": top_k,
            "intermediate": 8,
            "n_group": groups,
            "topk_group": kept,
        }
    )


def drawn(kind: str, model: MoEModel, **changes: Any) -> Trace:
    options: dict[str, Any] = {
        "ep": 3,
        "tokens_per_rank": 7,
        "phase": "decode",
        "layers": [0, 1, 2],
        "steps": 2,
        "seed": 5,
        "cache": False,
    }
    return compose({"kind": kind, **SPECS[kind]}, model, **(options | changes))


@pytest.mark.parametrize("kind", SPECS)
@settings(max_examples=30, deadline=None)
@given(
    model=models(),
    ep=st.integers(1, 5),
    tokens=st.integers(0, 9),
    phase=st.sampled_from(PHASES),
    steps=st.integers(1, 3),
    seed=st.integers(0, 2**70),
)
def test_picks_are_distinct_experts_of_the_model_within_its_groups(
    kind: str, model: MoEModel, ep: int, tokens: int, phase: str, steps: int, seed: int
) -> None:
    trace = drawn(kind, model, ep=ep, tokens_per_rank=tokens, phase=phase, steps=steps, seed=seed)
    assert trace.ids.shape == (steps, 3, ep * tokens, model.top_k)
    assert trace.ids.dtype == np.uint16
    ordered = np.sort(trace.ids, axis=-1)
    assert (ordered[..., 1:] != ordered[..., :-1]).all()
    assert (trace.ids < model.experts).all()
    group = np.sort(trace.ids // (model.experts // model.n_group), axis=-1)
    if trace.ids.size:
        assert (1 + (np.diff(group, axis=-1) != 0).sum(axis=-1)).max() <= model.topk_group
    assert (trace.counts().sum(axis=2) == ep * tokens * model.top_k).all()


LITE = moe.load("deepseek-v2-lite")
ALL = {**SPECS, "recorded": {"trace": "deepseek-v2-lite_esft-intent"}}


def of_lite(kind: str, **changes: Any) -> Trace:
    options: dict[str, Any] = {
        "ep": 64,
        "tokens_per_rank": 40,
        "phase": "decode",
        "layers": [0, 4],
        "steps": 3,
        "seed": 11,
        "cache": False,
    }
    return compose({"kind": kind, **ALL[kind]}, LITE, **(options | changes))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("phase", PHASES)
def test_a_smaller_ep_is_a_prefix_of_a_larger_one(kind: str, phase: str) -> None:
    large, small = of_lite(kind, phase=phase), of_lite(kind, phase=phase, ep=32)
    assert (large.ids[:, :, : small.tokens] == small.ids).all()
    assert (large.requests[:, : small.tokens] == small.requests).all()
    one = of_lite(kind, phase=phase, ep=1)
    assert (large.ids[:, :, : one.tokens] == one.ids).all()


@pytest.mark.parametrize("kind", ALL)
def test_decode_demand_is_the_same_however_many_ranks_share_it(kind: str) -> None:
    assert (
        of_lite(kind, ep=64, tokens_per_rank=20).ids == of_lite(kind, ep=8, tokens_per_rank=160).ids
    ).all()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("phase", PHASES)
def test_a_layer_does_not_depend_on_the_others_nor_a_step_on_those_after_it(kind: str, phase: str) -> None:
    both = of_lite(kind, phase=phase)
    alone = of_lite(kind, phase=phase, layers=[4])
    assert (both.ids[:, 1] == alone.ids[:, 0]).all()
    shorter = of_lite(kind, phase=phase, steps=2)
    assert (both.ids[:2] == shorter.ids).all()


@pytest.mark.parametrize("kind", ALL)
def test_the_seed_decides(kind: str) -> None:
    assert (of_lite(kind).ids == of_lite(kind).ids).all()
    other = of_lite(kind, seed=12)
    assert (of_lite(kind).ids != other.ids).mean() > 0.5


@settings(max_examples=60, deadline=None)
@given(
    ep=st.integers(1, 4),
    tokens=st.integers(0, 30),
    steps=st.integers(1, 3),
    mean=st.floats(1, 12),
    phase=st.sampled_from(PHASES),
    seed=st.integers(0, 99),
)
def test_a_schedule_deals_every_token_once_after_the_one_before_it(
    ep: int, tokens: int, steps: int, mean: float, phase: Any, seed: int
) -> None:
    batch = Batch(LITE, ep, tokens, phase, (0,), steps, seed)
    schedule = requests.geometric(batch, mean)
    for step in range(steps):
        seen: list[int] = []
        last: dict[int, int] = {}
        for wave in schedule.waves(step):
            assert len(set(wave.slots.tolist())) == len(wave.slots)
            for token, slot, starts in zip(wave.tokens, wave.slots, wave.starts, strict=True):
                seen.append(int(token))
                assert slot < schedule.slots(step)
                assert starts == (schedule.positions[step, token] == 0)
                if phase != "decode" and not starts:
                    assert last[int(slot)] == token - 1
                    assert schedule.requests[step, token] == schedule.requests[step, token - 1]
                last[int(slot)] = int(token)
        assert sorted(seen) == list(range(ep * tokens))
        if phase != "decode" and tokens:
            # Every rank begins with a request of its own.
            assert (schedule.positions[step].reshape(ep, tokens)[:, 0] == 0).all()


def test_request_lengths_have_their_mean() -> None:
    batch = Batch(LITE, 64, 4000, "prefill", (0,), 1, 0)
    begun = (requests.geometric(batch, 25).positions == 0).sum()
    assert batch.tokens / begun == pytest.approx(25, rel=0.05)
    batch = Batch(LITE, 64, 40, "decode", (0,), 200, 0)
    begun = (requests.geometric(batch, 25).positions[1:] == 0).sum()
    assert batch.tokens * 199 / begun == pytest.approx(25, rel=0.05)
