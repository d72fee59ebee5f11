"""A checked scenario -> the things it names: pod, placed ranks, model, demand. Checks that they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from moesim import compute, footprint, idle, moe, resources, strategy, units
from moesim.balancers import BALANCERS, Balancer
from moesim.checking import in_order
from moesim.errors import InputError, Problem
from moesim.moe import MoEModel
from moesim.protocols import PROTOCOLS, Protocol, check_sms
from moesim.protocols.pool import REACH
from moesim.routing import Routes, routes
from moesim.schema import ScenarioKeys
from moesim.strategy import Strategy
from moesim.yamlio import Document, Loc

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from moesim.scenario import Scenario
    from moesim.schema import Strategy as Spec
    from moesim.topology import Topology
    from moesim.traces import Trace

T = TypeVar("T")

_HOLDS = {"demand": "the routing of all steps and layers", "batch": "the one under way", "results": "results"}


@dataclass(frozen=True, eq=False)
class Built:
    """A scenario with its pod (faults applied), ``devices`` (R,) of its ranks, its model and MoE ``layers``.

    ``strategies``: each with its constants. ``routes``: between the ranks, by access of the strategies.
    ``warnings``: inputs that have no effect.
    """

    scenario: Scenario
    topology: Topology
    devices: NDArray[np.int64]
    model: MoEModel
    layers: tuple[int, ...]
    strategies: tuple[Strategy, ...]
    routes: Mapping[str, Routes]
    warnings: tuple[str, ...]

    @property
    def expert_dtype(self) -> str:
        """Number format of the expert weights: the scenario's, else the model's own."""
        return self.scenario.workload.expert_dtype or self.model.expert_dtype

    @property
    def train(self) -> bool:
        """Whether a layer has a backward pass."""
        return self.scenario.workload.phase == "train"

    @cached_property
    def groups(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Host and domain of each rank (R,), numbered from 0 in the order of the pod."""
        import numpy as np

        vertices = self.topology.devices[self.devices]
        _, host = np.unique(self.topology.host[vertices], return_inverse=True)
        _, domain = np.unique(self.topology.domain[vertices], return_inverse=True)
        return host, domain

    @cached_property
    def trace(self) -> Trace:
        """The demand, logical experts (steps, layers, tokens, k). Composed when first asked for.

        Raises :class:`InputError` if the routing does not fit the model or cannot give so much.
        """
        from moesim import traces

        one = self.scenario
        collect = _Collector(one.document)
        trace = collect.attempt(
            ("routing", "trace"),
            lambda: traces.compose(
                one.routing.spec(),
                self.model,
                ep=one.ranks.ep,
                tokens_per_rank=one.workload.tokens_per_rank,
                phase=one.workload.phase,
                layers=list(self.layers),
                steps=one.workload.steps,
                seed=one.seed,
                base=one.base,
            ),
        )
        collect.finish()
        assert trace is not None
        return trace


class _Collector:
    """Gathers the problems of independent steps, each with a place in the scenario."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []

    def attempt(self, loc: Loc, step: Callable[[], T]) -> T | None:
        """What ``step`` gives; None, its problems noted, if it refuses."""
        try:
            return step()
        except InputError as error:
            self.problems += [self._placed(problem, loc) for problem in error.problems]
            return None

    def _placed(self, problem: Problem, loc: Loc) -> Problem:
        if problem.path is not None and problem.line is None:
            # A whole file that does not fit, such as a recording: what names it is the place to look at.
            problem = Problem(f"{problem.path}: {problem.message}", legal=problem.legal)
        return self.document.place(problem, loc)

    def finish(self) -> None:
        """Raise all problems, if there are any."""
        if self.problems:
            raise InputError(in_order(self.problems))


def check_type(scenario: object) -> None:
    """Raise :class:`TypeError` for what is no scenario."""
    if not isinstance(scenario, ScenarioKeys):
        raise TypeError(f"a Scenario is built, as moesim.load gives it, not a {type(scenario).__name__}")


def build(scenario: Scenario) -> Built:
    """Load what ``scenario`` names and check that it fits together.

    Raises :class:`InputError` with every misfit: ranks that the pod has no room for, experts that ``ep`` does
    not divide, layers that the model does not have, a property that a strategy needs and the pod lacks.
    """
    from moesim import fabrics

    check_type(scenario)
    collect = _Collector(scenario.document)
    model = collect.attempt(("model",), lambda: moe.load(scenario.model))
    within = (scenario.document, ("topology",))
    pod = collect.attempt(
        ("topology",), lambda: fabrics.load(scenario.topology, base=scenario.base, within=within)
    )
    devices = None if pod is None else _placed(scenario, pod, collect)
    pairs = tuple(_pair(one, scenario.base) for one in scenario.strategies)
    layers: tuple[int, ...] = ()
    if model is not None:
        layers = _layers(scenario, model, collect)
        room = None if pod is None else len(pod.devices)
        collect.problems += _misfits(scenario, model, pairs, room)
        if layers:
            collect.problems += _too_large(scenario, model, layers)
    if pod is not None:
        collect.problems += _lacking(scenario, pod, devices, pairs)
        device = pod.device
        for number, (protocol, _) in enumerate(pairs):
            sms = getattr(protocol.params, "sms", None)
            at: Loc = ("strategies", number, "protocol", "sms")
            collect.attempt(at, lambda: check_sms(sms, device))  # noqa: B023
    collect.finish()
    assert model is not None
    assert pod is not None
    assert devices is not None
    pod = replace(pod, properties=properties(pod, devices))
    pods = _with_faults(scenario, pod, devices, collect)
    chosen = _strategies(scenario, pod, pairs, collect)
    ways = _routes(pods, devices, chosen, collect)
    collect.finish()
    warnings = (
        *_stand_in(scenario, pod, model),
        *_of_other_pods(scenario, pod, chosen),
        *idle.inputs(scenario, pod, devices, chosen),
    )
    return Built(scenario, pods[-1], devices, model, layers, chosen, ways, warnings)


def _pair(spec: Spec, base: Path | None) -> tuple[Protocol, Balancer]:
    protocol, balancer = spec.protocol, spec.balancer
    return PROTOCOLS.get(protocol.kind)(protocol.params), BALANCERS.get(balancer.kind)(balancer.params, base)  # type: ignore[arg-type]


def _strategies(
    scenario: Scenario, pod: Topology, pairs: tuple[tuple[Protocol, Balancer], ...], collect: _Collector
) -> tuple[Strategy, ...]:
    found: list[Strategy] = []
    for number, (spec, pair) in enumerate(zip(scenario.strategies, pairs, strict=True)):
        # What has no place of its own is the number of send cores.
        loc: Loc = ("strategies", number, "protocol", "cores")
        file = None
        if spec.calibration is not None:
            loc = ("strategies", number, "calibration")
            file = resources.find("calibration", spec.calibration, scenario.base)
        one = collect.attempt(loc, lambda: strategy.build(spec.name, *pair, spec.assume, pod, file))  # noqa: B023
        found += [] if one is None else [one]
    return tuple(found)


def _routes(
    pods: list[Topology], devices: NDArray[np.int64], chosen: tuple[Strategy, ...], collect: _Collector
) -> dict[str, Routes]:
    """Routes of the last of ``pods``; where there are none, the first fault that cuts the ranks apart is told."""
    found: dict[str, Routes] = {}
    for access in dict.fromkeys(one.costs.access for one in chosen):
        try:
            found[access] = routes(pods[-1], devices, access)
        except InputError:
            for number, pod in enumerate(pods):
                loc: Loc = ("faults", number - 1) if number else ("topology",)
                if collect.attempt(loc, lambda: routes(pod, devices, access)) is None:  # noqa: B023
                    break
            return found
    return found


def _placed(scenario: Scenario, pod: Topology, collect: _Collector) -> NDArray[np.int64] | None:
    from moesim import ranks

    ep, place = scenario.ranks.ep, scenario.ranks.place
    if isinstance(place, str):
        return collect.attempt(("ranks", "ep"), lambda: ranks.place(pod, ep, place))
    return collect.attempt(("ranks", "place"), lambda: ranks.place(pod, ep, list(place)))


def _with_faults(
    scenario: Scenario, pod: Topology, devices: NDArray[np.int64], collect: _Collector
) -> list[Topology]:
    """``pod``, and what each fault in turn leaves of it."""
    pods = [pod]
    first: dict[tuple[str, bytes], int] = {}

    def struck(number: int, fault: Mapping[str, object]) -> Topology:
        part = pod.part(fault, devices)
        earlier = first.setdefault(part, number)
        if earlier != number:
            message = f"this {part[0]} has a fault already, faults.{earlier}"
            raise InputError(Problem(message, legal="one fault for each part"))
        return pods[-1].with_faults([fault], devices)

    for number, fault in enumerate(scenario.faults):
        # One at a time, so that each has its place.
        changed = collect.attempt(("faults", number), lambda: struck(number, fault.spec()))  # noqa: B023
        pods.append(changed or pods[-1])
    return pods


def _layers(scenario: Scenario, model: MoEModel, collect: _Collector) -> tuple[int, ...]:
    """MoE layer numbers from 0."""
    wanted, count = scenario.workload.layers, model.moe_layers
    if wanted == "all":
        chosen = tuple(range(count))
    elif isinstance(wanted, int):
        chosen = tuple(range(wanted))
    else:
        chosen = tuple(sorted(wanted))
    loc: Loc = ("workload", "layers")
    if chosen[-1] >= count:
        message = f"{model.name} has {count} MoE layers"
        legal = f"all, 1 to {count}, or a list of numbers from 0 to {count - 1}"
        collect.problems.append(scenario.document.problem(loc, message, legal))
        return ()
    return chosen


def _too_large(scenario: Scenario, model: MoEModel, layers: tuple[int, ...]) -> Iterator[Problem]:
    """A run that this machine has not the memory for."""
    from moesim.traces import KINDS, Batch

    work, ep = scenario.workload, scenario.ranks.ep
    batch = Batch(model, ep, work.tokens_per_rank, work.phase, layers, work.steps, scenario.seed)
    source = KINDS.get(scenario.routing.kind)(scenario.routing.params, scenario.base)  # type: ignore[arg-type]
    cases = work.steps * len(layers)
    taken = footprint.parts(
        source.memory(batch),
        tokens=batch.tokens,
        top_k=model.top_k,
        cases=cases,
        ranks=ep,
        strategies=len(scenario.strategies),
    )
    needed, has = sum(taken.values()), footprint.machine()
    if needed <= has:
        return
    sizes = {"tokens_per_rank": work.tokens_per_rank, "steps": work.steps, "layers": len(layers)}
    if max(taken, key=lambda part: taken[part]) == "batch":
        blamed = "tokens_per_rank"
    else:
        blamed = max(sizes, key=lambda key: sizes[key])
    what = ", ".join(f"{units.format(size, 'bytes')} for {_HOLDS[part]}" for part, size in taken.items())
    message = (
        f"the run takes about {units.format(needed, 'bytes')}, this machine has {units.format(has, 'bytes')}"
    )
    legal = f"fewer steps, layers, tokens or ranks: {what}"
    yield scenario.document.problem(("workload", blamed), message, legal)


def _misfits(
    scenario: Scenario,
    model: MoEModel,
    strategies: tuple[tuple[Protocol, Balancer], ...],
    room: int | None,
) -> Iterator[Problem]:
    """``room``: devices of the pod, if it could be read."""
    document, ep = scenario.document, scenario.ranks.ep
    if model.experts % ep:
        most = min(model.experts, room or model.experts)
        legal = ", ".join(str(n) for n in range(1, most + 1) if model.experts % n == 0)
        message = f"{ep} ranks do not divide the {model.experts} experts of {model.name}"
        yield document.problem(("ranks", "ep"), message, legal)
        return  # what follows would only say it again
    for number, (protocol, balancer) in enumerate(strategies):
        loc: Loc = ("strategies", number)
        for problem in balancer.problems(ep, model.experts, model.top_k):
            yield document.place(problem, (*loc, "balancer"))
        try:
            protocol.check(model, ep)
        except InputError as error:
            yield from (document.place(problem, (*loc, "protocol")) for problem in error.problems)


def _needs(protocol: Protocol, balancer: Balancer) -> dict[str, str]:
    """Property -> the key that needs it."""
    return dict.fromkeys(balancer.needs, "balancer") | dict.fromkeys(protocol.needs(), "protocol")


def _lacking(
    scenario: Scenario,
    pod: Topology,
    devices: NDArray[np.int64] | None,
    strategies: tuple[tuple[Protocol, Balancer], ...],
) -> Iterator[Problem]:
    has = properties(pod, devices)
    for number, (one, pair) in enumerate(zip(scenario.strategies, strategies, strict=True)):
        for name, key in sorted(_needs(*pair).items()):
            if name not in has and name not in one.assume:
                kind = getattr(one, key).kind
                message = f"{kind} needs {name}, which {pod.name} is not known to have"
                if name in pod.properties or name == REACH:
                    message += " over several scale-up domains"
                legal = f"`assume: [{name}]` in this strategy"
                yield scenario.document.problem(("strategies", number, key), message, legal)


def properties(pod: Topology, devices: NDArray[np.int64] | None) -> frozenset[str]:
    """What the pod offers to these ranks: multicast, and stores to every rank, end where a scale-up domain does."""
    if devices is None or len(set(pod.domain[pod.devices[devices]].tolist())) == 1:
        return pod.properties | {REACH}
    return pod.properties - {"multicast"}


def _of_other_pods(scenario: Scenario, pod: Topology, chosen: tuple[Strategy, ...]) -> Iterator[str]:
    """Says which constants were taken from a calibration that was made for another pod."""
    pods = resources.names("topology")
    for spec, one in zip(scenario.strategies, chosen, strict=True):
        fit = one.costs.fit
        folder = one.costs.pod if one.costs.pod in pods else pod.name
        made_for = fit.pod if fit is not None and fit.pod else folder
        if spec.calibration is not None and made_for != pod.name:
            yield f"{one.name}: the constants in {spec.calibration} are those of {made_for}, used on {pod.name}"


def _stand_in(scenario: Scenario, pod: Topology, model: MoEModel) -> Iterator[str]:
    """Says in which type the experts are multiplied where the device lacks that of the weights."""
    name = scenario.workload.expert_dtype or model.expert_dtype
    used = compute.compute_dtype(pod.device, name)
    if not pod.device.compute:
        yield f"{pod.name} describes no device: experts and copies take no time, memory is not checked"
    elif used != moe.dtype(name).compute:
        yield f"{pod.device.name} has no {moe.dtype(name).compute}: {name} expert weights are multiplied in {used}"
