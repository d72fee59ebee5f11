"""Which request each token of a batch belongs to, and where in it the token stands.

Decode: a slot of the batch holds a request and gives one token a step; a finished request is replaced at
once. Prefill and training: each rank is filled with the tokens of one request after another, the last one cut
where the rank is full; every step brings new requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesim.traces.source import Batch

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Wave:
    """Tokens that can be drawn together, at most one of each request.

    ``tokens``: where in the step they stand. ``slots``: which state each continues. ``starts``: whether it is
    the first token of its request. ``number``: the wave within its step.
    """

    number: int
    tokens: Ints
    slots: Ints
    starts: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Schedule:
    """``requests`` and ``positions`` (steps, tokens): request number, and position of the token in its
    request.

    ``carries``: whether a request goes on in the same slot of the next step (decode).
    """

    requests: NDArray[np.int32]
    positions: Ints
    carries: bool

    def slots(self, step: int) -> int:
        """States that the waves of ``step`` refer to."""
        return self.positions.shape[1] if self.carries else int((self.positions[step] == 0).sum())

    def waves(self, step: int) -> Iterator[Wave]:
        """The tokens of ``step`` in an order that lets each follow the one before it in its request."""
        position = self.positions[step]
        everyone = np.arange(len(position))
        if self.carries:
            yield Wave(0, everyone, everyone, position == 0)
            return
        slot = np.cumsum(position == 0) - 1
        order = np.argsort(position, kind="stable")
        ends = np.cumsum(np.bincount(position))
        for number, tokens in enumerate(np.split(order, ends[:-1]) if len(order) else []):
            yield Wave(number, tokens, slot[tokens], np.full(len(tokens), number == 0))


def independent(batch: Batch) -> Schedule:
    """Every token by itself: no request reaches beyond one token."""
    return slots(np.ones((batch.steps, batch.tokens), dtype=np.bool_))


def geometric(batch: Batch, mean: float) -> Schedule:
    """Requests of geometric length with ``mean`` tokens: what is left of one has the same law."""
    if batch.phase == "decode":
        starts = np.ones((batch.steps, batch.tokens), dtype=np.bool_)
        for step in range(1, batch.steps):
            starts[step] = batch.stream("finished", step).random(batch.tokens) < 1 / mean
        return slots(starts)

    def lengths(step: int, turn: int) -> Ints:
        if mean == 1:
            return np.ones(batch.ep, dtype=np.int64)
        chance = batch.stream("length", step, turn).random(batch.ep)
        counted: Ints = np.ceil(np.log1p(-chance) / np.log1p(-1 / mean)).astype(np.int64)
        return np.maximum(1, counted)

    return fill(batch, lengths)


def slots(starts: NDArray[np.bool_]) -> Schedule:
    """The decode schedule in which a new request starts in a slot where ``starts`` (steps, tokens) says
    so.
    """
    steps, tokens = starts.shape
    turn = np.cumsum(starts, axis=0) - 1
    requests = np.arange(tokens)[None, :] * steps + turn
    step = np.arange(steps)[:, None]
    begun = np.maximum.accumulate(np.where(starts, step, 0), axis=0)
    return Schedule(requests.astype(np.int32), step - begun, carries=True)


def fill(batch: Batch, lengths: Callable[[int, int], Ints]) -> Schedule:
    """The prefill schedule: rank r takes requests of ``lengths(step, turn)[r]`` tokens, turn by turn."""
    size = batch.tokens_per_rank
    shape = (batch.steps, batch.ep, size)
    requests = np.zeros(shape, dtype=np.int32)
    positions = np.zeros(shape, dtype=np.int64)
    ranks, column = np.arange(batch.ep), np.arange(size)
    for step in range(batch.steps if size else 0):
        begins = np.zeros((batch.ep, size), dtype=np.bool_)
        begin, turn = np.zeros(batch.ep, dtype=np.int64), 0
        while (open_ := begin < size).any():
            begins[ranks[open_], begin[open_]] = True
            begin, turn = begin + lengths(step, turn), turn + 1
        turns = np.cumsum(begins, axis=1) - 1
        requests[step] = (ranks[:, None] * batch.steps + step) * size + turns
        positions[step] = column - np.maximum.accumulate(np.where(begins, column, 0), axis=1)
    flat = (batch.steps, batch.tokens)
    return Schedule(requests.reshape(flat), positions.reshape(flat), carries=False)
