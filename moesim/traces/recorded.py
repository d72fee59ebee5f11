"""Routing that was recorded from a real model, composed into batches of any size.

One recorded sequence is one request. Requests are drawn with replacement by the seed, each from a random
offset of its sequence. Decode: a slot of the batch holds one request, which gives a token a step; a finished
one is replaced. Prefill and training: consecutive tokens of one request after another fill the tokens of each
rank.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moesim import resources
from moesim.errors import InputError, Problem
from moesim.moe import MoEModel
from moesim.traces import recording, requests
from moesim.traces.recording import Recording
from moesim.traces.source import KINDS, Batch, Drawn, TraceParams, TraceSource

Ints = NDArray[np.int64]


class RecordedParams(TraceParams):
    """``trace``: the name of a shipped recording, or the path of an .npz file."""

    trace: str


@KINDS.register("recorded")
class Recorded(TraceSource):
    """Tokens of a recording, as they stand there."""

    Params = RecordedParams

    def __init__(self, params: TraceParams, base: Path | None = None) -> None:
        super().__init__(params)
        assert isinstance(params, RecordedParams)
        self.trace = params.trace
        self.path = resources.find("trace", params.trace, base)

    def fingerprint(self, batch: Batch) -> str:
        """The content of the recording."""
        return recording.digest(self.path)

    def draw(self, batch: Batch) -> Drawn:
        """See :class:`TraceSource`."""
        wanted = "decode" if batch.phase == "decode" else "prefill"
        found = recording.load(self.path, wanted)
        self._check(found, batch)
        rows, schedule, used = _decode(found, batch) if wanted == "decode" else _prefill(found, batch)
        model = batch.model
        ids = np.empty((batch.steps, len(batch.layers), batch.tokens, model.top_k), dtype=np.uint16)
        for index, layer in enumerate(batch.layers):
            ids[:, index] = found.ids[rows, layer]
        notes = (_reuse(used, len(found.start)), *_stand_ins(found, batch, wanted))
        origin = f"recorded: {self.trace} ({found.model}; {found.origin})"
        return Drawn(ids, schedule.requests, origin, notes)

    def _check(self, found: Recording, batch: Batch) -> None:
        model = batch.model
        problems = []
        for word, has, wants in (
            ("experts", found.experts, model.experts),
            ("top_k", found.top_k, model.top_k),
        ):
            if has != wants:
                text = f"{word} {has} in this recording of {found.model}, {wants} in the model {model.name}"
                problems.append(Problem(text, path=str(self.path), legal="a recording of the same model"))
        beyond = [layer for layer in batch.layers if layer >= found.layers]
        if beyond:
            text = f"MoE layer {beyond[0]} is asked for, but only {found.layers} layers were recorded"
            legal = f"layers 0 to {found.layers - 1}; or layers: {found.layers}"
            problems.append(Problem(text, path=str(self.path), legal=legal))
        if problems:
            raise InputError(problems)


def _drawn(found: Recording, stream: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    """``count`` requests: the sequence of each, and the row of the recording where it begins."""
    chance = stream.random((count, 2))
    sequence = (chance[:, 0] * len(found.start)).astype(np.int64)
    length = (found.end - found.start)[sequence]
    return sequence, found.start[sequence] + (chance[:, 1] * length).astype(np.int64)


def _decode(found: Recording, batch: Batch) -> tuple[Ints, requests.Schedule, Ints]:
    """Rows (steps, tokens), the schedule, and how often each sequence was drawn."""
    rows = np.empty((batch.steps, batch.tokens), dtype=np.int64)
    starts = np.ones(rows.shape, dtype=np.bool_)
    sequence, row = _drawn(found, batch.stream("request", 0), batch.tokens)
    used = np.bincount(sequence, minlength=len(found.start))
    for step in range(batch.steps):
        if step:
            row = row + 1
            starts[step] = row == found.end[sequence]
            other, first = _drawn(found, batch.stream("request", step), batch.tokens)
            sequence, row = np.where(starts[step], other, sequence), np.where(starts[step], first, row)
            used += np.bincount(other[starts[step]], minlength=len(used))
        rows[step] = row
    return rows, requests.slots(starts), used


def _prefill(found: Recording, batch: Batch) -> tuple[Ints, requests.Schedule, Ints]:
    """The same for prefill: rank by rank, request after request."""
    begun: dict[tuple[int, int], tuple[Ints, Ints]] = {}

    def lengths(step: int, turn: int) -> Ints:
        begun[step, turn] = _drawn(found, batch.stream("request", step, turn), batch.ep)
        sequence, row = begun[step, turn]
        return found.end[sequence] - row

    schedule = requests.fill(batch, lengths)
    rows = np.empty((batch.steps, batch.tokens), dtype=np.int64)
    used = np.zeros(len(found.start), dtype=np.int64)
    for step in range(batch.steps):
        first = (schedule.positions[step] == 0).reshape(batch.ep, -1)
        turn = (np.cumsum(first, axis=1) - 1).ravel()
        rank = np.repeat(np.arange(batch.ep), batch.tokens_per_rank)
        for number in range(int(turn.max(initial=-1)) + 1):
            sequence, row = begun[step, number]
            here = turn == number
            rows[step, here] = row[rank[here]] + schedule.positions[step, here]
            used += np.bincount(sequence[np.unique(rank[here])], minlength=len(used))
    return rows, schedule, used


def _reuse(used: Ints, sequences: int) -> str:
    drawn, different = int(used.sum()), int((used > 0).sum())
    most = int(used.max(initial=0))
    again = f", one of them {most} times" if most > 1 else ""
    return (
        f"{drawn} requests were drawn from {sequences} recorded sequences: {different} different ones{again}"
    )


def _stand_ins(found: Recording, batch: Batch, wanted: str) -> list[str]:
    notes = []
    if found.phase != wanted:
        notes.append(f"tokens recorded in {found.phase} stand in for {batch.phase}")
    if not _same_model(found.model, batch.model):
        notes.append(f"routing recorded from {found.model} stands in for {batch.model.name}")
    return notes


def _same_model(recorded: str, model: MoEModel) -> bool:
    def plain(text: str) -> str:
        return "".join(letter for letter in text.lower() if letter.isalnum())

    names = [model.name, *model.title.split(" / ")]
    return any(plain(name.split("(")[0]) in plain(recorded) for name in names)
