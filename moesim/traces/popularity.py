"""Synthetic routing: what all kinds share that draw tokens from a popularity of experts.

Popularity is an expert's share of the entries. It is a function of one standard normal number z an expert and
of one *spread*, so that it can drift (z changes) and be tuned to a target imbalance (the spread changes).
Layers are independent of each other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from moesim import limits
from moesim.errors import InputError, Problem
from moesim.traces import gate, requests
from moesim.traces.source import Batch, Drawn, TraceParams, TraceSource
from moesim.traces.targets import Target

Floats = NDArray[np.float64]
ROWS = 1024
"""Tokens that are drawn at once: small enough for the cache of a core."""


class Drift(TraceParams):
    """How popularity changes from step to step.

    z(t+1) = rho z(t) + sqrt(1 - rho^2) N(0, 1), rho = exp(-1/tau): ``tau`` is the correlation time in steps
    (without it nothing changes between switches). Every ``domain_switch`` steps all z are drawn afresh.
    """

    tau: Annotated[PositiveFloat, Field(le=limits.STEPS)] | None = None
    domain_switch: Annotated[PositiveInt, Field(le=limits.STEPS)] | None = None

    @model_validator(mode="after")
    def _something(self) -> Drift:
        if self.tau is None and self.domain_switch is None:
            raise ValueError("drift needs tau, domain_switch, or both")
        return self

    def latent(self, batch: Batch, layer: int, domain: int) -> Floats:
        """z (steps, experts)."""
        rng = batch.stream("latent", layer, domain)
        rho = 1.0 if self.tau is None else float(np.exp(-1 / self.tau))
        z = np.empty((batch.steps, batch.model.experts))
        for step in range(batch.steps):
            fresh = rng.standard_normal(batch.model.experts)
            if step == 0 or (self.domain_switch and step % self.domain_switch == 0):
                z[step] = fresh
            else:
                z[step] = rho * z[step - 1] + np.sqrt(1 - rho**2) * fresh
        return z


class Grouped(TraceParams):
    """Group-limited routing: by default the model's own."""

    n_group: Annotated[PositiveInt, Field(le=limits.EXPERTS)] | None = None
    topk_group: Annotated[PositiveInt, Field(le=limits.EXPERTS)] | None = None

    def groups(self, batch: Batch) -> tuple[int, int]:
        """(n_group, topk_group) that hold; raises :class:`InputError` if they do not fit the model."""
        model = batch.model
        n_group = model.n_group if self.n_group is None else self.n_group
        topk_group = self.topk_group
        if topk_group is None:
            topk_group = model.topk_group if n_group == model.n_group else n_group
        if model.experts % n_group:
            raise InputError(Problem(f"routing.n_group {n_group} does not divide {model.experts} experts"))
        if topk_group > n_group:
            raise InputError(Problem(f"routing.topk_group {topk_group} exceeds n_group {n_group}"))
        if (reach := topk_group * model.experts // n_group) < model.top_k:
            text = f"routing: {topk_group} of {n_group} groups hold {reach} experts, top_k is {model.top_k}"
            raise InputError(Problem(text))
        return n_group, topk_group


class PopularParams(Grouped):
    """Common parameters: one of the kind's own spread, ``maxvio`` and ``rank_imbalance``; drift.

    ``maxvio``: max over experts / mean - 1. ``rank_imbalance``: max over ranks / mean, experts at home in
    contiguous blocks. Both hold in every layer, on the entries that were drawn, as a mean over the steps.
    """

    own: ClassVar[str] = "sigma"
    """Name of the kind's own spread."""

    maxvio: Annotated[float, Field(gt=0, le=limits.FACTOR)] | None = None
    rank_imbalance: Annotated[float, Field(gt=1, le=limits.FACTOR)] | None = None
    drift: Drift | None = None

    def spread(self) -> float | None:
        """The spread that is asked for; ``None`` if a target is."""
        value: float | None = getattr(self, self.own)
        return value

    @model_validator(mode="after")
    def _one_way(self) -> PopularParams:
        given = [getattr(self, key) for key in (self.own, "maxvio", "rank_imbalance")]
        if sum(value is not None for value in given) != 1:
            raise ValueError(f"give one of {self.own}, maxvio and rank_imbalance")
        return self

    def target(self) -> Target | None:
        """The imbalance to reach, if one is asked for."""
        return Target.of(self.maxvio, self.rank_imbalance)


def entry_weights(popularity: Floats, k: int) -> NDArray[np.float32]:
    """Race weights (..., E) under which experts get shares ``popularity`` (..., E) of the entries, k a token.

    A token that draws k distinct experts takes expert e with probability about 1 - exp(-lambda w_e), so w_e =
    -log(1 - k p_e) makes that k p_e. Experts that would be taken more than once a token are capped just below
    one, and the others get what is left.
    """
    if k == popularity.shape[-1]:
        return np.ones(popularity.shape, dtype=np.float32)
    cap = 0.99
    taken = k * popularity / popularity.sum(axis=-1, keepdims=True)
    while (taken > cap).any():
        full = taken >= cap
        rest = np.where(full, 0, taken)
        left = k - cap * full.sum(axis=-1, keepdims=True)
        taken = np.where(full, cap, rest * left / np.maximum(rest.sum(axis=-1, keepdims=True), 1e-300))
    weights = -np.log1p(-taken)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float32)


class PopularSource(TraceSource):
    """A kind whose tokens are drawn independently from a popularity; :class:`Realistic` adds requests."""

    Params: ClassVar[type[TraceParams]] = PopularParams
    params: Any

    @abstractmethod
    def popularity(self, z: Floats, spread: float) -> Floats:
        """Popularity (..., E), not normalised, from standard normal ``z`` (..., E) and a spread."""

    def schedule(self, batch: Batch) -> requests.Schedule:
        """Which token belongs to which request."""
        return requests.independent(batch)

    def memory(self, batch: Batch) -> float:
        """See :class:`TraceSource`; popularity and weights of one layer at all steps come on top."""
        return super().memory(batch) + 40.0 * batch.steps * batch.model.experts

    def describe(self) -> str:
        """One line for the result: the kind and its parameters."""
        given = ", ".join(
            f"{key} {value}" for key, value in self.params.model_dump(exclude_none=True).items()
        )
        return f"synthetic: {type(self).__name__.lower()}" + (f" ({given})" if given else "")

    def draw(self, batch: Batch) -> Drawn:
        """See :class:`TraceSource`."""
        self.params.groups(batch)
        schedule = self.schedule(batch)
        model = batch.model
        ids = np.empty((batch.steps, len(batch.layers), batch.tokens, model.top_k), dtype=np.uint16)
        target: Target | None = self.params.target()
        for index, layer in enumerate(batch.layers):

            def drawn(spread: float, layer: int = layer) -> NDArray[np.uint16]:
                return self.layer(batch, schedule, layer, spread)

            if target is None:
                ids[:, index] = drawn(self.params.spread())
            else:
                ids[:, index] = target.reach(batch, layer, self.expected(batch, layer), drawn)
        return Drawn(ids, schedule.requests, self.describe(), self.notes(batch))

    def notes(self, batch: Batch) -> tuple[str, ...]:
        """What has no effect here, or must be known."""
        drift: Drift | None = self.params.drift
        if drift is None:
            return ()
        if batch.steps == 1:
            return ("drift has no effect on a single step",)
        if drift.domain_switch and drift.domain_switch >= batch.steps:
            return (f"no domain switch happens within {batch.steps} steps",)
        return ()

    def latent(self, batch: Batch, layer: int) -> Floats:
        """Standard normal z (steps, 1, experts); a kind with domains has more of them on the second axis."""
        return (self.params.drift or Drift(domain_switch=batch.steps)).latent(batch, layer, 0)[:, None]

    def expected(self, batch: Batch, layer: int) -> Callable[[float], Floats]:
        """spread -> shares (steps, experts) without sampling noise: where the search for a target starts."""
        z = self.latent(batch, layer)

        def shares(spread: float) -> Floats:
            popularity = self.popularity(z, spread)
            return np.asarray((popularity / popularity.sum(axis=-1, keepdims=True)).mean(axis=1))

        return shares

    def layer(
        self, batch: Batch, schedule: requests.Schedule, layer: int, spread: float
    ) -> NDArray[np.uint16]:
        """ids (steps, tokens, k) of one layer."""
        model = batch.model
        weights = entry_weights(self.popularity(self.latent(batch, layer), spread), model.top_k)[:, 0]
        ids = np.empty((batch.steps, batch.tokens, model.top_k), dtype=np.uint16)
        groups = self.params.groups(batch)
        for step in range(batch.steps):
            rng = batch.stream("gate", layer, step)
            for start in range(0, batch.tokens, ROWS):
                rows = ids[step, start : start + ROWS]
                rows[:] = gate.pick(gate.race(rng, len(rows), weights[step]), model.top_k, *groups)
        return ids
