"""Random plans at any tolerance: the fluid keeps every closed-form bound, and bytes arrive."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_cases import layer, placed, stages

from moesim import bounds, execution
from moesim.balancers import BALANCERS
from moesim.contention import Resources
from moesim.plan import After, FlowSet, Local, Phase, Plan, Transfer, When
from moesim.protocols import PROTOCOLS

TOLERANCES = st.sampled_from([0.001, 0.003, 0.02, 0.1, 0.5])


@pytest.fixture(scope="module", autouse=True)
def merge_always() -> Iterator[None]:
    """Small plans take merged steps as large ones do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moesim.fluid.FEW", 1)
        yield


def _flows(rng: np.random.Generator, ranks: int, cores: int) -> FlowSet:
    count = int(rng.integers(0, 60))
    src = rng.integers(0, ranks, count)
    wire = rng.lognormal(10, 2, count) * rng.choice([0.0, 1.0, 1.0, 1.0], count)
    return FlowSet.of(
        src,
        (src + rng.integers(1, ranks, count)) % ranks,
        wire,
        messages=rng.integers(0, 4, count),
        release=rng.choice([0.0, 0.0, 2e-6], count),
        core=rng.integers(-1, cores, count),
        core_s=rng.uniform(0, 1e-6, count),
    )


def _after(rng: np.random.Generator, earlier: list[Phase], local: bool) -> tuple[After, ...]:
    found = []
    for at in rng.permutation(len(earlier))[: rng.integers(0, 3)]:
        whens = [When.MINE, When.ALL]
        if isinstance(earlier[at], Transfer):
            whens += [When.INBOUND, When.OUTBOUND, *([When.STREAM] if local and not found else [])]
        found.append(After(earlier[at].name, whens[rng.integers(len(whens))]))
    return tuple(found)


def _plan(seed: int, ranks: int, cores: int) -> Plan:
    """Up to six phases, each behind up to two others."""
    rng = np.random.default_rng(seed)
    phases: list[Phase] = []
    for number in range(int(rng.integers(1, 7))):
        local = rng.random() < 0.4
        after = _after(rng, phases, local)
        if local:
            duration = rng.uniform(0, 5e-6, ranks) * rng.integers(0, 2)
            phases.append(Local(f"p{number}", "work", duration, after, chunks=int(rng.integers(1, 4))))
        else:
            phases.append(Transfer(f"p{number}", "send", _flows(rng, ranks, cores), after))
    return Plan(ranks, tuple(phases))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    pod=st.sampled_from([("crossbar", 5), ("clos", 8), ("rails", 8)]),
    tolerance=TOLERANCES,
)
def test_no_phase_of_a_plan_ends_before_its_bound(seed: int, pod: tuple[str, int], tolerance: float) -> None:
    name, ranks = pod
    resources = Resources(placed(name, ranks, "packed", "store"), 2)
    plan = _plan(seed, ranks, 2)
    ran = execution.run(plan, resources, tolerance=tolerance)
    closed = bounds.run(plan, resources)
    last = max(span.end.max() for span in ran.spans.values())
    for phase in plan.phases:
        found, least = ran.spans[phase.name], closed.spans[phase.name]
        assert (found.start >= least.start - 1e-9 * last).all(), phase.name
        assert (found.end >= least.end - 1e-9 * last).all(), phase.name
        if isinstance(phase, Transfer):
            assert (found.moment(When.INBOUND) >= least.moment(When.INBOUND) - 1e-9 * last).all(), phase.name
            assert ((found.last < 0) == (least.last < 0)).all()
    np.testing.assert_allclose(ran.load, closed.load, rtol=1e-9, atol=1e-12)
    # What all phases together take of a resource takes that long.
    arrived = max([last, *(span.arrived.max() for span in ran.spans.values() if span.arrived is not None)])
    assert (closed.load <= resources.capacity * arrived * (1 + 1e-9)).all()


@pytest.mark.parametrize("protocol", PROTOCOLS.names())
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 999),
    pod_name=st.sampled_from(["crossbar", "clos", "rails"]),
    balancer=st.sampled_from(BALANCERS.names()),
    tolerance=TOLERANCES,
)
def test_no_stage_of_a_layer_is_below_its_bound(
    protocol: str, seed: int, pod_name: str, balancer: str, tolerance: float
) -> None:
    one = layer(protocol, balancer, pod_name=pod_name, ep=8, tokens=40, skew=seed % 3, seed=seed)
    ran = stages(one.fluid(tolerance))
    ranked, largest = bounds.stages(one.bound(), one.resources)
    for stage, times in ran.items():
        assert (times >= ranked[stage] - 1e-9 * times.max()).all(), stage
        assert times.max() >= largest[stage] * (1 - 1e-9), stage
