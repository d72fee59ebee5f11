"""Run a scenario: each strategy on each step and layer, in SimPy or in closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moesim import __version__, bounds, execution, fabrics, resources, strategy, timing, traffic, units
from moesim.balancers import BALANCERS, Balancer, Context, static_assignment
from moesim.build import Built, build, check_type
from moesim.contention import Resources, demand
from moesim.placement import Assignment, Placement
from moesim.plan import FloatArray, FlowSet, IntArray, Local
from moesim.protocols import Case
from moesim.record import Record
from moesim.result import Result, sources_of
from moesim.routing import Routes, routes, same_ways
from moesim.scenario import Scenario
from moesim.strategy import Strategy
from moesim.traffic import Traffic

Progress = Callable[[int, int, str], None]


def run(scenario: Scenario, progress: Progress | None = None) -> Result:
    """Simulate ``scenario`` at its own fidelity.

    ``progress(done, all, what)`` is called before each (strategy, step, layer). Raises :class:`InputError` for what
    does not fit together.
    """
    built = build(scenario)
    pod = _Pod(built)
    records = [Record(one) for one in built.strategies]
    total, done = len(records) * built.trace.steps * len(built.layers), 0
    for step, layer, batch in _batches(built, pod):
        for record in records:
            if progress is not None:
                progress(done, total, f"{record.strategy.name}: step {step}, layer {layer}")
            _simulate(built, pod, record, batch, (step, layer))
            done += 1
    outcomes = tuple(record.outcome(pod.resources(record.strategy)) for record in records)
    return Result(
        scenario=scenario.resolved(),
        seed=scenario.seed,
        fidelity=scenario.fidelity,
        tolerance=scenario.tolerance if scenario.fidelity == "fluid" else 0.0,
        strategies=outcomes,
        sources=sources_of(
            [*(item for one in outcomes for item in one.cited), *built.topology.cited],
            [source for one in built.strategies for source in one.sources],
        ),
        cited=built.topology.cited,
        warnings=(*built.warnings, *built.trace.notes, *_idle_inputs(built, pod, records)),
        version=__version__,
        applied=scenario.applied,
        inputs=_hashes(built, built.strategies),
    )


def bound(scenario: Scenario, progress: Progress | None = None) -> Result:
    """The same in closed form, whatever the scenario's own fidelity."""
    check_type(scenario)
    return run(scenario.edited(["fidelity=bound"]), progress)


class _Pod:
    """The resources of the placed pod, made when first asked for."""

    def __init__(self, built: Built) -> None:
        self.built = built
        self._resources: dict[tuple[str, int], Resources] = {}

    def routes(self, access: str) -> Routes:
        return self.built.routes[access]

    def resources(self, one: Strategy) -> Resources:
        access, engines = one.costs.access, one.engines
        if (access, engines) not in self._resources:
            self._resources[access, engines] = Resources(self.routes(access), engines)
        return self._resources[access, engines]


@dataclass(frozen=True, eq=False)
class _Batch:
    """One step of one layer: its tokens' experts, and the traffic with experts at home for comparison."""

    ids: IntArray
    context: Context
    home: Traffic
    seed: tuple[int, int]
    placed: dict[tuple[str, str], tuple[Assignment, Traffic]]
    """What each balancer made of it: strategies with the same one share it."""


def _batches(built: Built, pod: _Pod) -> Iterator[tuple[int, int, _Batch]]:
    ranks, model = len(built.devices), built.model
    none, at_home = BALANCERS.get("none")(), Placement.contiguous(model.experts, ranks)
    past = np.zeros((len(built.layers), built.trace.steps, model.experts), dtype=np.int64)
    for step in range(built.trace.steps):
        for index, layer in enumerate(built.layers):
            ids = built.trace.ids[step, index].astype(np.int64)
            assignment = static_assignment(at_home, ids)
            home = _count(assignment, built)
            placed = {_balancing(none): (assignment, home)}
            context = Context(step, layer, model.moe_layers, past[index, :step], *built.groups)
            yield step, layer, _Batch(ids, context, home, (built.scenario.seed, layer), placed)
            past[index, step] = home.expert_counts


def _count(assignment: Assignment, built: Built) -> Traffic:
    return traffic.count(assignment, len(built.devices), *built.groups)


def _balancing(balancer: Balancer) -> tuple[str, str]:
    return balancer.name, repr(balancer.params)


def _case(built: Built, pod: _Pod, one: Strategy, batch: _Batch, off: frozenset[str]) -> Case:
    key = _balancing(one.balancer)
    if key not in batch.placed:
        # One generator a layer, the same at every step: a placement by chance stays where it is.
        rng = np.random.default_rng(batch.seed)
        ranks, experts = len(built.devices), built.model.experts
        assignment = one.balancer.balance(batch.ids, ranks, experts, rng, batch.context)
        batch.placed[key] = assignment, _count(assignment, built)
    assignment, counted = batch.placed[key]
    return Case(
        model=built.model,
        device=built.topology.device,
        routes=pod.routes(one.costs.access),
        traffic=counted,
        assignment=assignment,
        calibration=one.costs,
        capacity=built.scenario.workload.tokens_per_rank,
        off=off,
    )


def _simulate(built: Built, pod: _Pod, record: Record, batch: _Batch, where: tuple[int, int]) -> None:
    scenario, one = built.scenario, record.strategy
    case = _case(built, pod, one, batch, frozenset(scenario.switch_off))
    plan = strategy.plan(one, case, built.expert_dtype, built.train)
    shared = pod.resources(one)
    closed = bounds.run(plan, shared)
    ranked, largest = bounds.stages(closed, shared)
    if scenario.fidelity == "bound":
        times, ran = ranked, closed
    else:
        ran = execution.run(plan, shared, tolerance=scenario.tolerance, background=_background(built))
        times = timing.stages(ran)
    record.add(where, case, closed, ran, times, largest, batch.home)
    sizes = strategy.buffers(one, case, built.expert_dtype, built.train)
    # Buffers that follow the demand have to hold the largest of all cases.
    record.buffers = {kind: max(size, record.buffers.get(kind, 0.0)) for kind, size in sizes.items()}
    record.memory = strategy.memory(case, built.model, built.expert_dtype, record.buffers)


def _background(built: Built) -> tuple[FlowSet, FloatArray] | None:
    flows = built.scenario.background
    if not flows:
        return None
    src, dst = np.array([flow.src for flow in flows]), np.array([flow.dst for flow in flows])
    return FlowSet.of(src, dst, np.array([flow.size for flow in flows])), np.array(
        [flow.start for flow in flows]
    )


def _idle_inputs(built: Built, pod: _Pod, records: list[Record]) -> Iterator[str]:
    """Inputs that had no effect on the answer."""
    scenario, chosen = built.scenario, [record.strategy for record in records]
    yield from _idle_faults(built, pod, {one.costs.access for one in chosen})
    if scenario.fidelity == "bound":
        if scenario.tolerance != units.parse(Scenario.model_fields["tolerance"].default, "share"):
            yield "tolerance has no effect on a bound"
        if scenario.background:
            yield "background has no effect on a bound: it knows no sharing"
    else:
        yield from _idle_background(built, pod, records)
    if not scenario.switch_off:
        return
    _, _, batch = next(_batches(built, pod))
    off = frozenset(scenario.switch_off)
    for term in scenario.switch_off:
        if all(_same(built, pod, one, batch, (off, off - {term})) for one in chosen):
            yield f"switch_off: {term} has no effect on these strategies"


def _idle_faults(built: Built, pod: _Pod, accesses: set[str]) -> Iterator[str]:
    """Faults without which all ways between the ranks would be what they are."""
    scenario = built.scenario
    if not scenario.faults:
        return
    whole = fabrics.load(scenario.topology, base=scenario.base)
    specs = [fault.spec() for fault in scenario.faults]
    for number, fault in enumerate(scenario.faults):
        if fault.capacity == 1:
            continue  # that is said of the input itself
        without = whole.with_faults(specs[:number] + specs[number + 1 :], built.devices)
        ways = ((routes(without, built.devices, access), pod.routes(access)) for access in sorted(accesses))
        if all(same_ways(one, other) for one, other in ways):
            yield f"faults.{number} has no effect: the ranks' flows do not cross what it hits"


def _idle_background(built: Built, pod: _Pod, records: list[Record]) -> Iterator[str]:
    """Background flows that could slow nobody."""
    background = _background(built)
    if background is None:
        return
    flows, start = background
    longest = max(float(times["layer"].max(initial=0.0)) for record in records for times in record.times)
    for number in np.flatnonzero((start >= longest) & (flows.wire > 0)):
        end = units.format(longest, "time")
        yield f"background.{number} has no effect: it starts when the longest layer has ended, after {end}"
    alone = np.ones(len(flows), dtype=bool)
    for record in records:
        taken = demand(flows, pod.resources(record.strategy))
        crossed = np.bincount(taken.index[taken.amount > 0], minlength=len(record.load))
        # What nobody else crosses, neither the strategy nor another of these flows, is nobody's loss.
        shared = (taken.amount > 0) & ((record.load[taken.index] > 0) | (crossed[taken.index] > 1))
        alone[taken.flow[shared]] = False
    for number in np.flatnonzero(alone & (start < longest) & (flows.wire > 0)):
        yield f"background.{number} has no effect: nobody else's flows cross what it crosses"


def _same(
    built: Built, pod: _Pod, one: Strategy, batch: _Batch, terms: tuple[frozenset[str], frozenset[str]]
) -> bool:
    """Whether a strategy's answer for ``batch`` is the same with either of ``terms`` switched off.

    That is when its stages end, in the bound and to within the tolerance in ``fluid``, what its phases take, its
    buffers.
    """
    plans, answers = [], []
    for off in terms:
        case = _case(built, pod, one, batch, off)
        plan = strategy.plan(one, case, built.expert_dtype, built.train)
        ranked, largest = bounds.stages(bounds.run(plan, pod.resources(one)), pod.resources(one))
        local = [phase.duration for phase in plan.phases if isinstance(phase, Local)]
        sizes = strategy.buffers(one, case, built.expert_dtype, built.train)
        plans.append(plan)
        answers.append(np.concatenate([*ranked.values(), *local, [*largest.values()], [*sizes.values()]]))
    equal = np.array_equal(answers[0], answers[1])
    if not equal or built.scenario.fidelity == "bound":
        return equal
    tolerance, background, times = built.scenario.tolerance, _background(built), []
    for plan in plans:
        ran = execution.run(plan, pod.resources(one), tolerance=tolerance, background=background)
        times.append(np.concatenate(list(timing.stages(ran).values())))
    return np.allclose(times[0], times[1], rtol=max(tolerance, 1e-9), atol=0)


def _hashes(built: Built, chosen: Sequence[Strategy]) -> dict[str, str]:
    """SHA-256 of every file that the answer stands on."""
    paths = [
        built.topology.path,
        str(resources.find("models", "models")),
        str(resources.find("sources", "sources")),
    ]
    calibrations = [costs for one in chosen for costs in (one.costs, one.planning) if costs is not None]
    paths += [path for costs in calibrations for path in (costs.path, *costs.inherited)]
    paths += [str(path) for one in chosen for path in one.balancer.files()]
    recorded = built.scenario.routing.written.get("trace")
    if recorded is not None:
        paths.append(str(resources.find("trace", recorded, built.scenario.base)))
    files = {Path(path).resolve() for path in paths if path is not None}
    return {str(path): resources.digest(path) for path in sorted(files) if path.is_file()}
