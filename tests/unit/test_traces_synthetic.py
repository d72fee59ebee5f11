"""Synthetic routing: popularity laws, targets, drift, domains, groups, the balanced round robin, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moesim import moe
from moesim.errors import InputError
from moesim.traces import Batch, Trace, compose
from moesim.traces.popularity import Drift, entry_weights
from moesim.traces.statistics import imbalance, ranks_hit

V3 = moe.load("deepseek-v3")
QWEN = moe.load("qwen3-235b-a22b")


def batch(model: moe.MoEModel = QWEN, /, **spec: Any) -> Trace:
    options: dict[str, Any] = {
        "ep": 16,
        "tokens_per_rank": 128,
        "phase": "decode",
        "layers": range(4),
        "steps": 1,
        "seed": 1,
        "cache": False,
    }
    for key in list(options):
        if key in spec:
            options[key] = spec.pop(key)
    return compose(spec, model, **options)


def shares(trace: Trace) -> np.ndarray[Any, Any]:
    """Share of the entries of each expert, (layers, experts), over all steps."""
    counts = trace.counts().sum(axis=0)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def test_entry_weights_give_every_expert_its_share_of_the_entries() -> None:
    trace = batch(kind="zipf", exponent=1.0, tokens_per_rank=2048, layers=[0])
    expected = 1 / np.arange(1, 129)
    expected /= expected.sum()
    got = np.sort(shares(trace)[0])[::-1]
    # The hottest would take 1.47 entries of a token's 8; what is over goes to the others in proportion.
    capped = np.minimum(8 * expected, 0.99)
    capped[capped < 0.99] *= (8 - 0.99) / capped[capped < 0.99].sum()
    assert got[:20] == pytest.approx(capped[:20] / 8, rel=0.05)


def test_entry_weights_of_impossible_popularity_are_capped() -> None:
    weights = entry_weights(np.array([1e6, 1e6, 1.0, 1.0]), 3)
    assert np.isfinite(weights).all()
    assert weights[0] == weights[1] > weights[2] == weights[3] > 0
    assert (entry_weights(np.array([5.0, 1.0]), 2) == 1).all()


def test_uniform_is_uniform() -> None:
    trace = batch(kind="uniform", tokens_per_rank=1024)
    counts = trace.counts()[0]
    mean = trace.tokens * 8 / 128
    # Binomial: 8 of 128 without replacement.
    assert counts.std() == pytest.approx(np.sqrt(mean * (1 - 8 / 128)), rel=0.1)
    assert counts.mean() == mean


def test_lognormal_and_dirichlet_have_the_spread_that_is_asked_for() -> None:
    logs = np.log(shares(batch(kind="lognormal", sigma=0.7, tokens_per_rank=1024, layers=range(20))))
    assert logs.std(axis=1).mean() == pytest.approx(0.7, rel=0.05)
    share = 128 * shares(batch(kind="dirichlet", alpha=2, tokens_per_rank=1024, layers=range(20)))
    # Gamma(2) / 2 has variance 1 / 2.
    assert share.var(axis=1).mean() == pytest.approx(0.5, rel=0.15)


def test_layers_are_independent_of_each_other() -> None:
    logs = np.log(shares(batch(kind="lognormal", sigma=0.7, layers=range(6))) + 1e-5)
    off = np.corrcoef(logs)[~np.eye(6, dtype=bool)]
    assert np.abs(off).max() < 0.35


@pytest.mark.parametrize("kind", ["lognormal", "zipf", "dirichlet", "realistic"])
@pytest.mark.parametrize(
    ("model", "target"), [(QWEN, {"maxvio": 2.5}), (QWEN, {"rank_imbalance": 1.6}), (V3, {"maxvio": 10})]
)
def test_a_target_is_met_in_every_layer(kind: str, model: moe.MoEModel, target: dict[str, float]) -> None:
    trace = batch(model, kind=kind, layers=range(3), **target)
    for layer in trace.counts()[0].astype(float):
        got = imbalance(layer, 16) if "rank_imbalance" in target else imbalance(layer, trace.experts) - 1
        wanted = next(iter(target.values()))
        assert abs(got - wanted) <= max(0.02 * wanted, 0.005)


def test_a_target_holds_as_the_mean_over_steps() -> None:
    trace = batch(kind="lognormal", rank_imbalance=1.5, steps=5, layers=[2], drift={"tau": 2})
    assert imbalance(trace.counts().astype(float), 16) == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"maxvio": 16}, "at most 15.000 is possible"),
        ({"maxvio": 0.01}, "the nearest in layer 0 is 0."),
        ({"rank_imbalance": 17}, "at most 16.000 is possible"),
        ({"rank_imbalance": 1.001}, "the nearest in layer 0 is 1.0"),
        ({"rank_imbalance": 1.5, "ep": 24}, "ep 24 does not divide 128 experts"),
        ({"maxvio": 1, "tokens_per_rank": 0}, "there are no tokens"),
    ],
)
def test_a_target_out_of_reach_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=r"routing\.(maxvio|rank_imbalance) .* cannot be reached") as error:
        batch(kind="lognormal", **spec)
    assert message in str(error.value)


def test_groups_are_the_model_s_unless_the_kind_says_otherwise() -> None:
    def groups(**spec: Any) -> int:
        trace = batch(V3, kind="lognormal", sigma=0.5, layers=[0], **spec)
        group = np.sort(trace.ids // 32, axis=-1)
        return int(1 + (np.diff(group, axis=-1) != 0).sum(axis=-1).max())

    assert groups() == 4
    assert groups(topk_group=2) == 2
    assert groups(n_group=1) > 4


def test_drift_follows_its_correlation_time() -> None:
    one = Batch(V3, 1, 1, "decode", (0,), 400, 3)
    z = Drift(tau=20).latent(one, 0, 0)
    assert z.std() == pytest.approx(1, abs=0.02)
    for lag in (1, 10, 40):
        assert (z[lag:] * z[:-lag]).mean() == pytest.approx(np.exp(-lag / 20), abs=0.03)


def test_domain_switches_draw_popularity_afresh_and_nothing_changes_between() -> None:
    one = Batch(V3, 1, 1, "decode", (0,), 12, 3)
    z = Drift(domain_switch=5).latent(one, 0, 0)
    assert [bool((z[t] == z[t - 1]).all()) for t in range(1, 12)] == [True] * 4 + [False] + [True] * 4 + [
        False,
        True,
    ]
    assert abs(np.corrcoef(z[0], z[5])[0, 1]) < 0.2


@pytest.mark.parametrize("kind", ["lognormal", "realistic"])
def test_drift_moves_the_demand(kind: str) -> None:
    def correlation(**spec: Any) -> float:
        counts = batch(kind=kind, sigma=1, layers=[0], steps=12, **spec).counts()[:, 0].astype(float)
        return float(np.corrcoef(np.log(counts[0] + 1), np.log(counts[11] + 1))[0, 1])

    assert correlation() > 0.9
    assert 0.3 < correlation(drift={"tau": 20}) < 0.85
    assert abs(correlation(drift={"domain_switch": 11})) < 0.3


def test_what_has_no_effect_is_named() -> None:
    assert batch(kind="zipf", exponent=1, drift={"tau": 3}).notes == ("drift has no effect on a single step",)
    notes = batch(kind="zipf", exponent=1, steps=3, drift={"domain_switch": 3}).notes
    assert notes == ("no domain switch happens within 3 steps",)
    notes = batch(kind="realistic", keep=0.2, request_tokens=9).notes
    assert notes == ("no effect on a single decode step: keep, request_tokens",)
    assert batch(kind="realistic", keep=0.2, phase="prefill").notes == ()


@pytest.mark.parametrize(("ep", "tokens"), [(16, 128), (128, 5), (1, 7), (32, 3), (8, 1)])
def test_balanced_gives_every_rank_exactly_the_same(ep: int, tokens: int) -> None:
    trace = batch(kind="balanced", ep=ep, tokens_per_rank=tokens)
    counts = trace.counts()
    assert (counts.reshape(1, 4, ep, -1).sum(axis=-1) == tokens * 8).all()
    local = counts.reshape(1, 4, ep, -1)
    assert (local.max(axis=-1) - local.min(axis=-1)).max() <= 1
    if ep >= 8:
        assert ranks_hit(trace, ep) == 8


def test_balanced_says_when_it_leaves_the_model_s_groups() -> None:
    assert batch(V3, kind="balanced", ep=64).notes == ()
    (note,) = batch(V3, kind="balanced", ep=8).notes
    assert note == "balanced routing reaches 8 groups of experts, the model's gate 4"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "routing: kind is missing"),
        ({"kind": "lognrmal"}, "did you mean 'lognormal'"),
        ({"kind": "lognormal"}, "give one of sigma, maxvio and rank_imbalance"),
        ({"kind": "lognormal", "sigma": 1, "maxvio": 2}, "give one of sigma, maxvio and rank_imbalance"),
        ({"kind": "zipf", "maxvio": 1, "rank_imbalance": 2}, "give one of exponent, maxvio"),
        ({"kind": "realistic", "sigma": 1, "maxvio": 2}, "give one of sigma"),
        ({"kind": "lognormal", "sigma": -1}, "routing: sigma cannot be -1"),
        ({"kind": "lognormal", "sigma": float("nan")}, "sigma cannot be NaN"),
        ({"kind": "lognormal", "sigma": 1, "sgma": 1}, "unknown key 'sgma'\n  legal: did you mean 'sigma'"),
        ({"kind": "lognormal", "sigma": 1, "drift": {}}, "drift needs tau"),
        ({"kind": "lognormal", "sigma": 1, "drift": {"tau": 0}}, "drift.tau cannot be 0"),
        ({"kind": "lognormal", "sigma": 1, "drift": {"tua": 3}}, "unknown key 'tua'"),
        ({"kind": "uniform", "drift": {"tau": 3}}, "unknown key 'drift'"),
        ({"kind": "uniform", "n_group": 3}, "n_group 3 does not divide 128 experts"),
        ({"kind": "uniform", "n_group": 2, "topk_group": 3}, "topk_group 3 exceeds n_group 2"),
        ({"kind": "uniform", "n_group": 128, "topk_group": 7}, "7 of 128 groups hold 7 experts, top_k is 8"),
        ({"kind": "realistic", "preset": "serving"}, 'preset cannot be "serving"'),
        ({"kind": "realistic", "keep": 1}, "keep cannot be 1"),
        ({"kind": "balanced", "ep": 3}, "ep 3 does not divide 128 experts"),
        ({"kind": "uniform", "layers": [94]}, "layers must lie in 0..93"),
        ({"kind": "uniform", "layers": []}, "layers must not be empty"),
        ({"kind": "uniform", "layers": [1, 1]}, "layers must differ"),
        ({"kind": "uniform", "steps": 0, "ep": 0}, "ep 0 must be at least 1"),
        ({"kind": "uniform", "seed": -1}, "seed -1 must not be negative"),
        ({"kind": "uniform", "phase": "decoding"}, "phase 'decoding' must be one of decode, prefill, train"),
    ],
)
def test_a_bad_spec_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        batch(**spec)
    assert message in str(error.value)


def test_a_group_effect_needs_groups_that_divide() -> None:
    odd = moe.load({"hidden": 8, "layers": 1, "moe_layers": 1, "experts": 12, "top_k": 2, "intermediate": 8})
    with pytest.raises(InputError, match="8 groups do not divide 12 experts"):
        batch(odd, kind="realistic", group_sigma=0.3, layers=[0])


def test_the_group_effect_makes_groups_uneven() -> None:
    def spread(effect: float) -> float:
        share = shares(batch(kind="realistic", group_sigma=effect, layers=range(8)))
        return float(share.reshape(8, 8, 16).sum(axis=2).std(axis=1).mean())

    assert spread(0.5) > 1.7 * spread(0)


def test_domains_make_requests_differ() -> None:
    one = batch(kind="realistic", sigma=1.5, alpha0=1e5, layers=[0])
    many = batch(kind="realistic", sigma=1.5, alpha0=1e5, domains=6, layers=[0])
    assert imbalance(many.counts().astype(float), 128) < 0.7 * imbalance(one.counts().astype(float), 128)
