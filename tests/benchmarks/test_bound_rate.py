"""How many cases a second the closed form answers on one core, as a study asks it: for one layer at EP64.

    pytest tests/benchmarks -m benchmark_works -s

A case is one strategy on one batch of one layer whose pod is built and whose routing is drawn: place the experts, count
the traffic, plan, bound, stages, and note it all down. Counts are asserted, rates only printed. One tiny case always
runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from small_cases import gate, placed, pod, together

import moesim
from moesim import bounds, moe, scenario, strategy, traffic
from moesim.contention import Resources
from moesim.protocols import Case
from moesim.record import Record

# Protocol -> pod, tokens a rank.
STUDIES = {
    "cann-ep": ("cloudmatrix384", 64),
    "ubep": ("cloudmatrix384", 64),
    "deepep-ll": ("gb200-nvl72", 128),
    "nccl-alltoall": ("gb200-nvl72", 128),
    "rank-dedup-push": ("gb200-nvl72", 128),
}


class Study:
    """One protocol, not balanced, with DeepSeek-V3 on ranks side by side, and a few batches to ask about."""

    def __init__(self, protocol: str, pod_name: str, ranks: int, tokens: int, batches: int) -> None:
        self.one = together(f'"{protocol}"', "none", pod_name, ranks, moe.load("deepseek-v3").experts)
        self.ranks, self.tokens, self.device = ranks, tokens, pod(pod_name).device
        self.ways = placed(pod_name, ranks, "packed", self.one.costs.access)
        self.resources = Resources(self.ways, self.one.engines)
        self.groups = [np.unique(part, return_inverse=True)[1] for part in (self.ways.host, self.ways.domain)]
        self.model = moe.load("deepseek-v3")
        rng, entries = np.random.default_rng(0), (self.model.experts, self.model.top_k)
        drawn = (gate(rng, ranks * tokens, *entries, skew=0.7) for _ in range(batches))
        self.batches = [ids.copy() for ids in drawn]  # of its own, as in a trace

    def answer(self) -> Record:
        """Each batch once."""
        record = Record(self.one)
        for number, ids in enumerate(self.batches):
            chance = np.random.default_rng(number)
            assignment = self.one.balancer.balance(ids, self.ranks, self.model.experts, chance)
            case = Case(
                model=self.model,
                device=self.device,
                routes=self.ways,
                traffic=traffic.count(assignment, self.ranks, *self.groups),
                assignment=assignment,
                calibration=self.one.costs,
                capacity=self.tokens,
            )
            plan = strategy.plan(self.one, case, "fp8")
            ran = bounds.run(plan, self.resources)
            times, largest = bounds.stages(ran, self.resources)
            record.add((0, number), case, ran, ran, times, largest, case.traffic)
        return record


def _seconds(work: Callable[[], object], rounds: int) -> np.ndarray:
    """(rounds,) [s] of processor time of each round, one before them left out."""
    work()
    took = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return np.array(took)


def _check(study: Study, record: Record) -> None:
    """Every batch has an answer, and it carries all of its entries."""
    count = len(study.batches)
    assert record.cases == [(0, number) for number in range(count)]
    assert [times["layer"].shape for times in record.times] == [(study.ranks,)] * count
    each = sum(study.model.payload_bytes(form) for form in study.one.protocol.formats)
    entries = study.ranks * study.tokens * study.model.top_k
    # What is de-duplicated by rank sends a row for several entries.
    rows = [sum(sizes.values()) / each for sizes in record.sizes]
    assert all(entries / study.model.top_k < one <= entries for one in rows)
    assert (max(rows) < entries) == (study.one.protocol.kind == "rank-dedup-push")


@pytest.mark.parametrize("protocol", list(STUDIES))
def test_a_small_case_of_each_is_answered(protocol: str) -> None:
    study = Study(protocol, STUDIES[protocol][0], ranks=8, tokens=4, batches=2)
    _check(study, study.answer())


@pytest.mark.benchmark_works
@pytest.mark.parametrize("protocol", list(STUDIES))
def test_cases_a_second(protocol: str) -> None:
    pod_name, tokens = STUDIES[protocol]
    study = Study(protocol, pod_name, 64, tokens, batches=10)
    rate = len(study.batches) / _seconds(study.answer, 20)
    _check(study, study.answer())
    print(
        f"\n{protocol:>16} EP64 on {pod_name}: {rate.max():4.0f} cases/s at best, {np.median(rate):4.0f} in the median",
        end="",
    )


@pytest.mark.benchmark_works
def test_another_layer_of_a_whole_run() -> None:
    """58 layers against 8, with drawing the routing, tables and everything else that a run does for a layer."""
    asked = scenario.load("decode-cloudmatrix384")
    count = len(asked.strategies)
    few, all_of_them = (asked.edited([f"workload.layers={layers}", "fidelity=bound"]) for layers in (8, 58))
    assert [len(one.cases) for one in moesim.run(all_of_them).strategies] == [58] * count
    took = [_seconds(partial(moesim.run, one), 3).min() for one in (few, all_of_them)]
    each = (took[1] - took[0]) / 50
    print(
        f"\n58 layers x {count} strategies: {took[1]:.2f} s; a layer more {each * 1e3:.1f} ms, "
        f"{each / count * 1e3:.1f} ms a strategy",
        end="",
    )
