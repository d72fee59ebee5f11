"""Exactly balanced routing: a round robin over ranks."""

from __future__ import annotations

import numpy as np

from moesim.errors import InputError, Problem
from moesim.traces import requests
from moesim.traces.source import KINDS, Batch, Drawn, TraceParams, TraceSource


@KINDS.register("balanced")
class Balanced(TraceSource):
    """MoonEP's sigma 0: entry n = token * k + pick goes to rank n mod ep, to its local expert (n // ep) mod
    local.

    With experts at home in contiguous blocks every rank gets exactly tokens_per_rank * k entries, the experts
    of a rank differ by at most one, and the picks of a token are distinct (k consecutive entries of a round
    of E). All layers and steps are alike. The only kind whose demand depends on ep, which must divide the
    experts.
    """

    Params = TraceParams
    draws = False

    def draw(self, batch: Batch) -> Drawn:
        """See :class:`TraceSource`."""
        model, ep = batch.model, batch.ep
        if model.experts % ep:
            text = f"routing kind balanced: ep {ep} does not divide {model.experts} experts"
            raise InputError(Problem(text))
        local = model.experts // ep
        entry = np.arange(batch.tokens * model.top_k)
        ids = (entry % ep) * local + (entry // ep) % local
        shape = (batch.steps, len(batch.layers), batch.tokens, model.top_k)
        every = np.broadcast_to(ids.reshape(shape[2:]).astype(np.uint16), shape)
        schedule = requests.independent(batch)
        return Drawn(every, schedule.requests, "synthetic: balanced round robin", self._notes(batch, ids))

    @staticmethod
    def _notes(batch: Batch, ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> tuple[str, ...]:
        model = batch.model
        if model.topk_group == model.n_group or not len(ids):
            return ()
        group = np.sort(ids.reshape(-1, model.top_k) // (model.experts // model.n_group), axis=1)
        reached = 1 + (np.diff(group, axis=1) != 0).sum(axis=1).max()
        if reached <= model.topk_group:
            return ()
        return (f"balanced routing reaches {reached} groups of experts, the model's gate {model.topk_group}",)
