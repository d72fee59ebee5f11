"""Synthetic routing with the statistics of real recordings, for models that have no public one.

A popularity a layer, independent between layers; requests that prefer some experts (Dirichlet shares around
the popularity of their domain); tokens that keep some experts of the token before them. The presets were
fitted to public recordings, whose statistics they meet within about a tenth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from moesim import limits
from moesim.errors import InputError, Problem
from moesim.traces import gate, requests
from moesim.traces.popularity import ROWS, Drift, Floats, PopularParams, PopularSource, entry_weights
from moesim.traces.source import KINDS, Batch

Shares = NDArray[np.float32]


@dataclass(frozen=True)
class Preset:
    """``law`` of popularity, and the parameters' ``sigma``, ``alpha0``, ``keep`` and ``request_tokens``.

    Law "lognormal": exp(sigma z). Law "bounded": x^(sigma / 1.17) with x ~ Beta(1, 3), whose logarithm has
    standard deviation 1.17: many cold experts and no very hot one, as in gpt-oss.
    """

    law: Literal["lognormal", "bounded"]
    sigma: float
    alpha0: float
    keep: float
    request_tokens: float
    fitted_to: str


# request_tokens of chat: prompts have 117 tokens on average, but the prompt of a random token has 905, and
# that is what makes chunks uneven. Under a geometric law the latter is twice the mean: 450.
PRESETS: Mapping[str, Preset] = {
    "balanced-chat": Preset("lognormal", 0.2, 118, 0.15, 450, "DeepSeek-V2-Lite, mixed chat prompts"),
    "serving-r1": Preset("lognormal", 0.7, 120, 0.14, 1000, "DeepSeek-R1 serving totals, tokens as in chat"),
    "single-domain": Preset("lognormal", 0.8, 1000, 0.15, 150, "DeepSeek-V2-Lite, one task (ESFT)"),
    "gpt-oss": Preset("bounded", 1.0, 18, 0.16, 300, "gpt-oss-20b decode"),
    "concentrated-top1": Preset("lognormal", 1.7, 120, 0.25, 117, "Llama-4-Maverick decode"),
}


class RealisticParams(PopularParams):
    """A preset, and what is to differ from it.

    ``sigma``: standard deviation of the logarithm of popularity. ``alpha0``: a request's shares are
    Dirichlet(alpha0 p), smaller is more peculiar. ``keep``: probability that a token keeps an expert of the
    one before it. ``request_tokens``: mean length of a request. ``domains``: independent popularities that
    requests belong to in equal shares. ``group_sigma``: lognormal effect of the group of experts (the model's
    groups, else 8), .35 in DeepSeek-R1's totals.
    """

    preset: Literal["balanced-chat", "serving-r1", "single-domain", "gpt-oss", "concentrated-top1"] = (
        "serving-r1"
    )
    sigma: Annotated[float, Field(ge=0, le=10)] | None = None
    alpha0: Annotated[PositiveFloat, Field(le=limits.FACTOR)] | None = None
    keep: Annotated[float, Field(ge=0, lt=1)] | None = None
    request_tokens: Annotated[float, Field(ge=1, le=limits.TOKENS)] | None = None
    domains: Annotated[PositiveInt, Field(le=64)] = 1
    group_sigma: Annotated[float, Field(ge=0, le=3)] = 0.0

    @property
    def resolved(self) -> Preset:
        """The preset with what differs from it."""
        base = PRESETS[self.preset]
        return Preset(
            law=base.law,
            sigma=base.sigma if self.sigma is None else self.sigma,
            alpha0=self.alpha0 or base.alpha0,
            keep=base.keep if self.keep is None else self.keep,
            request_tokens=self.request_tokens or base.request_tokens,
            fitted_to=base.fitted_to,
        )

    def spread(self) -> float | None:
        """sigma, of the preset if it is not given."""
        return None if self.target() is not None else self.resolved.sigma

    @model_validator(mode="after")
    def _one_way(self) -> RealisticParams:
        given = [self.sigma, self.maxvio, self.rank_imbalance]
        if sum(value is not None for value in given) > 1:
            raise ValueError("give one of sigma, maxvio and rank_imbalance")
        return self


@KINDS.register("realistic")
class Realistic(PopularSource):
    """Requests with their own taste, tokens that resemble the one before, popularity as in real gates."""

    Params = RealisticParams

    def schedule(self, batch: Batch) -> requests.Schedule:
        """Requests of geometric length."""
        return requests.geometric(batch, self.params.resolved.request_tokens)

    def memory(self, batch: Batch) -> float:
        """See :class:`TraceSource`; every request in progress has a share of each expert and its last picks."""
        model, domains = batch.model, int(self.params.domains)
        popularity = 40.0 * batch.steps * model.experts * (domains - 1)
        return (
            super().memory(batch) + popularity + float(batch.tokens) * (4 * model.experts + 16 * model.top_k)
        )

    def describe(self) -> str:
        """The kind, every parameter that holds, and what they were fitted to."""
        held = self.params.resolved
        target = self.params.target()
        aim = f"sigma {held.sigma:g}" if target is None else f"{target.key} {target.value:g}"
        others = {"domains", "group_sigma", "drift", "n_group", "topk_group"}
        given = self.params.model_dump(include=others, exclude_none=True, exclude_defaults=True)
        more = "".join(f", {key} {value}" for key, value in given.items())
        return (
            f"synthetic: realistic ({held.law} {aim}, alpha0 {held.alpha0:g}, keep {held.keep:g}, requests "
            f"of {held.request_tokens:g} tokens{more}; preset {self.params.preset}: {held.fitted_to})"
        )

    def latent(self, batch: Batch, layer: int) -> Floats:
        """z (steps, domains, experts)."""
        drift = self.params.drift or Drift(domain_switch=batch.steps)
        return np.stack([drift.latent(batch, layer, d) for d in range(self.params.domains)], axis=1)

    def popularity(self, z: Floats, spread: float) -> Floats:
        """The preset's law with standard deviation ``spread`` of the logarithm."""
        if self.params.resolved.law == "lognormal":
            return np.exp(spread * z)
        from scipy.special import log_ndtr

        # Quantile of Beta(1, 3): 1 - (1 - u)^(1/3), u = ndtr(z).
        return np.asarray((-np.expm1(log_ndtr(-z) / 3)) ** (spread / 1.167), dtype=np.float64)

    def layer(
        self, batch: Batch, schedule: requests.Schedule, layer: int, spread: float
    ) -> NDArray[np.uint16]:
        """ids (steps, tokens, k) of one layer."""
        popularity = self.popularity(self.latent(batch, layer), spread) * self._group_effect(batch, layer)
        weights = entry_weights(popularity, batch.model.top_k)
        ids = np.empty((batch.steps, batch.tokens, batch.model.top_k), dtype=np.uint16)
        state: _Requests | None = None
        for step in range(batch.steps):
            if state is None or not schedule.carries:
                state = _Requests(self.params, batch, layer, schedule.slots(step), weights[step])
            state.move_to(weights[step])
            for wave in schedule.waves(step):
                ids[step, wave.tokens] = state.tokens(wave, step)
        return ids

    def notes(self, batch: Batch) -> tuple[str, ...]:
        """What has no effect here."""
        idle = [key for key in ("keep", "request_tokens") if getattr(self.params, key) is not None]
        if idle and batch.phase == "decode" and batch.steps == 1:
            return (*super().notes(batch), f"no effect on a single decode step: {', '.join(idle)}")
        return super().notes(batch)

    def _group_effect(self, batch: Batch, layer: int) -> Floats:
        model = batch.model
        if not self.params.group_sigma:
            return np.ones(model.experts)
        groups = model.n_group if model.n_group > 1 else 8
        if model.experts % groups:
            text = f"routing.group_sigma: {groups} groups do not divide {model.experts} experts"
            raise InputError(Problem(text))
        effect = np.exp(self.params.group_sigma * batch.stream("group", layer).standard_normal(groups))
        return np.repeat(effect, model.experts // groups)


class _Requests:
    """What the requests in progress remember in one layer: their shares and their last token's experts."""

    def __init__(self, params: Any, batch: Batch, layer: int, slots: int, weights: Shares) -> None:
        model = batch.model
        self._held = params.resolved
        self._groups = params.groups(batch)
        self._batch, self._layer = batch, layer
        self._weights = weights
        self._domain = np.zeros(slots, dtype=np.int64)
        self._shares = np.ones((slots, model.experts), dtype=np.float32)
        self._last = np.zeros((slots, model.top_k), dtype=np.int64)

    def move_to(self, weights: Shares) -> None:
        """Popularity is now ``weights`` (domains, experts): tastes stay, relative to it."""
        if weights is not self._weights and not np.array_equal(weights, self._weights):
            self._shares *= (weights / self._weights)[self._domain]
        self._weights = weights

    def tokens(self, wave: requests.Wave, step: int) -> NDArray[np.intp]:
        """The experts (rows, k) of the tokens of ``wave``."""
        batch, key = self._batch, (self._layer, step, wave.number)
        self._begin(wave.slots[wave.starts], key)
        race = batch.stream("gate", *key)
        keep = batch.stream("keep", *key)
        picks = np.empty((len(wave.slots), batch.model.top_k), dtype=np.intp)
        for start in range(0, len(wave.slots), ROWS):
            chunk = slice(start, start + ROWS)
            slots = wave.slots[chunk]
            times = gate.race(race, len(slots), self._shares[slots])
            kept = keep.random((len(slots), batch.model.top_k)) < self._held.keep
            kept &= ~wave.starts[chunk, None]
            row, column = np.nonzero(kept)
            # Time 0 wins the race, and makes its group the best: a kept expert stays, whatever the others do.
            times[row, self._last[slots[row], column]] = 0
            picks[chunk] = gate.pick(times, batch.model.top_k, *self._groups)
        self._last[wave.slots] = picks
        return picks

    def _begin(self, slots: NDArray[np.int64], key: tuple[int, ...]) -> None:
        domains = len(self._weights)
        if domains > 1:
            self._domain[slots] = self._batch.stream("domain", *key[1:]).integers(domains, size=len(slots))
        taste = self._batch.stream("taste", *key)
        concentration = np.float32(self._held.alpha0) * self._weights
        for start in range(0, len(slots), ROWS):
            chunk = slots[start : start + ROWS]
            shape = concentration[self._domain[chunk]]
            self._shares[chunk] = taste.standard_gamma(shape, dtype=np.float32)
