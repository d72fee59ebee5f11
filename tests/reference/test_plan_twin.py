"""Transfers that overlap share the fabric as the twin says: two launches, weights under a dispatch, two batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from reference import maxmin_twin
from small_cases import layer, placed

from moesim import execution
from moesim.contention import Resources, demand
from moesim.plan import After, FlowSet, Local, Phase, Plan, Transfer
from moesim.timing import Timing


def _check(ran: Timing, resources: Resources, background: tuple[FlowSet, np.ndarray] | None = None) -> None:
    """Each rank's ends of all transfers, given when each rank began them, are those of the twin."""
    sent = [
        (phase.flows, ran.spans[phase.name].start[phase.flows.src] + phase.flows.release)
        for phase in ran.plan.phases
        if isinstance(phase, Transfer)
    ]
    parts = [demand(flows, resources) for flows, _ in [*sent, *([background] if background else [])]]
    start = [begun for _, begun in [*sent, *([background] if background else [])]]
    takes = np.zeros((sum(len(part.size) for part in parts), len(resources.capacity)))
    first = np.cumsum([0, *(len(part.size) for part in parts)])
    for offset, part in zip(first, parts, strict=False):
        np.add.at(takes, (offset + part.flow, part.index), part.weight)
    used = takes.any(axis=0)
    size = np.concatenate([part.size for part in parts])
    finish = maxmin_twin.finish_times_of_late_flows(
        takes[:, used], resources.capacity[used], size, np.concatenate(start)
    )
    transfers = [phase for phase in ran.plan.phases if isinstance(phase, Transfer)]
    for phase, part, offset in zip(transfers, parts, first, strict=False):
        arrival = finish[offset : offset + len(part.size)] + part.latency
        span = ran.spans[phase.name]
        for end, found in ((phase.flows.src, span.end), (phase.flows.dst, span.arrived)):
            expected = np.full(ran.plan.ranks, -np.inf)
            np.maximum.at(expected, end, arrival)
            has = np.isfinite(expected)
            np.testing.assert_allclose(found[has], expected[has], rtol=1e-9, err_msg=phase.name)


def _overlap(ran: Timing, one: str, other: str) -> bool:
    """Whether flows of both are under way at some time."""
    under_way = []
    for phase in ran.plan.phases:
        if isinstance(phase, Transfer) and phase.name in (one, other):
            span = ran.spans[phase.name]
            under_way.append((span.start[phase.flows.src].min(), span.end[phase.flows.src].max()))
    (a, b), (c, d) = under_way
    return bool(max(a, c) < min(b, d))


def _random_flows(rng: np.random.Generator, ranks: int) -> FlowSet:
    count = int(rng.integers(5, 30))
    src = rng.integers(0, ranks, count)
    return FlowSet.of(
        src,
        (src + rng.integers(1, ranks, count)) % ranks,
        rng.lognormal(11, 1, count) * rng.choice([0.0, 1.0, 1.0], count),
        messages=rng.integers(0, 3, count),
        release=rng.choice([0.0, 1e-6], count),
        core=rng.integers(-1, 2, count),
        core_s=rng.uniform(0, 1e-6, count),
    )


@pytest.mark.parametrize(("pod", "ranks"), [("crossbar", 5), ("clos", 8), ("rails", 8)])
@pytest.mark.parametrize("seed", range(8))
def test_two_transfers_and_a_background_share_as_in_the_twin(pod: str, ranks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    resources = Resources(placed(pod, ranks, "packed", "store"), 2)
    phases: list[Phase] = []
    for name in ("one", "two"):
        launch = Local(f"{name}.launch", "launch", rng.choice([0.0, 1e-6, 2.5e-6], ranks))
        phases += [launch, Transfer(name, "send", _random_flows(rng, ranks), (After(launch.name),))]
    background = FlowSet.of([0, 1], [2, 3], [1e5, 2e5]), np.array([0.0, 3e-6])
    ran = execution.run(Plan(ranks, tuple(phases)), resources, tolerance=0.0, background=background)
    assert _overlap(ran, "one", "two")
    _check(ran, resources, background)


@pytest.mark.parametrize(("pod", "seed"), [("crossbar", 0), ("crossbar", 2), ("clos", 0)])
def test_weights_pushed_under_a_dispatch_share_as_in_the_twin(pod: str, seed: int) -> None:
    """A rank that has its tokens pushes weights while others still dispatch."""
    one = layer(
        "ubep", "moonep", pod_name=pod, ep=4, experts=8, top_k=2, tokens=400, skew=3.0, hidden=7168, seed=seed
    )
    ran = one.fluid()
    assert _overlap(ran, "weights.push", "dispatch.send")
    _check(ran, one.resources)


def test_two_batches_at_different_times_share_as_in_the_twin() -> None:
    """The second starts while the first is on its way, on each rank by itself."""
    one = layer("ubep", ep=4, experts=8, top_k=2, tokens=30, hidden=7168)
    alone = one.fluid()
    later = Local("later", "wait", alone.end("dispatch") / 4)
    second = [
        replace(
            phase,
            name=f"second {phase.name}",
            after=tuple(replace(dep, phase=f"second {dep.phase}") for dep in phase.after)
            or (After("later"),),
        )
        for phase in one.plan.phases
    ]
    plan = Plan(4, (*one.plan.phases, later, *second), one.plan.ends)
    ran = execution.run(plan, one.resources, tolerance=0.0)
    assert _overlap(ran, "dispatch.send", "second dispatch.send")
    assert ran.end("dispatch").max() > alone.end("dispatch").max()
    _check(ran, one.resources)
