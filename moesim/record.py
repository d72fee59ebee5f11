"""What one strategy did, gathered case by case, and the outcome made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from moesim import balancing, strategy, timing, traffic
from moesim.contention import Resources
from moesim.outcome import StrategyOutcome
from moesim.plan import FloatArray, IntArray, Plan, Transfer
from moesim.protocols import Case
from moesim.strategy import Strategy
from moesim.timing import Timing
from moesim.traffic import Traffic


@dataclass(eq=False)
class Record:
    """What one strategy has done so far."""

    strategy: Strategy
    cases: list[tuple[int, int]] = field(default_factory=list)
    times: list[dict[str, FloatArray]] = field(default_factory=list)
    bound: list[dict[str, float]] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    load: FloatArray = field(default_factory=lambda: np.zeros(0))
    beside: FloatArray = field(default_factory=lambda: np.zeros(0))
    others: FloatArray | None = None
    gemm: list[FloatArray] = field(default_factory=list)
    sizes: list[dict[str, float]] = field(default_factory=list)
    before: list[dict[str, float]] = field(default_factory=list)
    after: list[dict[str, float]] = field(default_factory=list)
    crossed: list[dict[str, dict[str, float]]] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    costs: list[dict[str, float]] = field(default_factory=list)
    entries: list[tuple[IntArray, IntArray]] = field(default_factory=list)
    moved: list[dict[str, FloatArray]] = field(default_factory=list)
    phases: list[dict[str, object]] = field(default_factory=list)
    buffers: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    solves: int = 0
    error_estimate: float = 0.0
    dropped: list[float] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def add(
        self,
        where: tuple[int, int],
        case: Case,
        closed: Timing,
        ran: Timing,
        times: dict[str, FloatArray],
        largest: dict[str, float],
        home: Traffic,
    ) -> None:
        """Add a case that ``ran``, ``closed`` itself where the closed form is the answer.

        ``times``, ``largest``: stages of each rank, and their bounds, without what outlasts the layer.
        """
        plan, parts = ran.plan, timing.breakdown(ran)
        beside, least = timing.exposed(ran, closed), sum(timing.exposed(closed, closed).values())
        times = times | {"layer": times["layer"] + sum(beside.values())}
        largest = largest | {"layer": max(largest["layer"], float(closed.last.max(initial=0.0)) + least)}
        for label, seconds in beside.items():
            parts[label] = parts.get(label, 0.0) + seconds
        if ran is closed:
            missing = largest["layer"] - float(times["layer"].max(initial=0.0))
            if missing > 0.0:
                parts[timing.WIRE] = parts.get(timing.WIRE, 0.0) + missing
            # Whose time the largest is no closed form knows, so the slowest rank carries it.
            times = {stage: _lifted(own, largest[stage]) for stage, own in times.items()}
        self.cases.append(where)
        self.times.append(times)
        self.bound.append(largest)
        self.parts.append(parts)
        self.load = ran.load if not len(self.load) else self.load + ran.load
        self.beside = ran.beside if not len(self.beside) else self.beside + ran.beside
        if ran.others is not None:
            self.others = ran.others if self.others is None else self.others + ran.others
        gemms = (ran.spans[name] for stage, name in plan.ends.items() if stage.endswith("expert"))
        self.gemm.append(sum((gemm.end - gemm.start for gemm in gemms), np.zeros(case.ranks)))
        self.sizes.append(_traffic(self.strategy, case))
        forward = (*_moving(plan, "dispatch"), *_moving(plan, "combine"))
        self.crossed.append(traffic.crossed(forward, case.routes.tier))
        self.weights.append(_weights(plan))
        self.costs.append(balancing.costs(case, ran, parts))
        self.entries.append((home.load, case.traffic.load))
        self.before.append(_imbalance(home))
        self.after.append(_imbalance(case.traffic))
        self.moved.append(
            {
                stage: np.array(
                    [*_bytes_moved(self.strategy, case, plan, stage), times[stage].max(initial=0.0)]
                )
                for stage in ("dispatch", "combine")
            }
        )
        self.phases.extend(_phase_rows(where, plan, ran))
        self.solves += ran.solves
        self.error_estimate = max(self.error_estimate, ran.error_estimate)
        self.dropped.append(self.strategy.protocol.dropped(case))
        # They are about pod, group and constants, so those of the first case are those of all.
        self.notes = self.notes or strategy.notes(self.strategy, case)

    def outcome(self, shared: Resources) -> StrategyOutcome:
        stages = {stage: np.array([times[stage] for times in self.times]) for stage in self.times[0]}
        labels = list(dict.fromkeys(label for parts in self.parts for label in parts))
        links = _links(shared, self.load, self.beside, self.others, float(stages["layer"].max(axis=1).sum()))
        before, after = _mean(self.before), _mean(self.after)
        return StrategyOutcome(
            name=self.strategy.name,
            protocol=self.strategy.protocol.kind,
            balancer=self.strategy.balancer.name,
            assumed=self.strategy.assumed,
            cases=np.array(self.cases, dtype=np.int64).reshape(-1, 2),
            stages=stages,
            bound={stage: np.array([one[stage] for one in self.bound]) for stage in stages},
            breakdown={label: np.array([parts.get(label, 0.0) for parts in self.parts]) for label in labels},
            bottleneck=_bottleneck(links, np.array(self.gemm), stages["layer"]),
            imbalance={**before, "after": after},
            formats=dict(zip(("dispatch", "combine"), self.strategy.protocol.formats, strict=True)),
            traffic_B=_mean(self.sizes),
            crossed_B={what: _mean([one[what] for one in self.crossed]) for what in self.crossed[0]},
            weights_B=float(np.mean(self.weights)),
            balancing=_mean(self.costs),
            entries=dict(zip(("home", "placed"), np.array(self.entries).swapaxes(0, 1), strict=True)),
            buffers_B=self.buffers,
            memory_B=self.memory,
            bandwidth_Bps={**self._bandwidth("dispatch"), "combine": self._bandwidth("combine")},
            phases=tuple(self.phases),
            links=tuple(links),
            solves=self.solves,
            error_estimate=self.error_estimate,
            cited=self.strategy.cited,
            warnings=self._warnings(),
        )

    def _warnings(self) -> tuple[str, ...]:
        most = max(self.dropped)
        if most == 0.0:
            return self.notes
        mean = float(np.mean(self.dropped))
        return (
            *self.notes,
            f"drops {mean:.1%} of the entries ({most:.1%} in the worst layer): it computes something else than the "
            "others, raise capacity_factor",
        )

    def _bandwidth(self, stage: str) -> dict[str, object]:
        """Bytes over time of all cases together [B/s]."""
        logical, wire, library, seconds = np.sum([moved[stage] for moved in self.moved], axis=0)
        if seconds == 0.0:
            seconds = np.inf
        return {
            "logical": float(logical / seconds),
            "wire": float(wire / seconds),
            "library": {"name": self.strategy.protocol.bandwidth_name, "value": float(library / seconds)},
        }


def _lifted(times: FloatArray, largest: float) -> FloatArray:
    """``times`` (R,), its largest raised to ``largest``, and with it what differs from it by rounding only."""
    return np.where(times >= times.max() * (1 - 1e-9), np.maximum(times, largest), times)


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def _imbalance(counted: Traffic) -> dict[str, float]:
    return {
        "rank_max_over_mean": traffic.rank_imbalance(counted.load),
        "rows_max_over_mean": traffic.rows_imbalance(counted),
        "maxvio": traffic.maxvio(counted.expert_counts),
    }


def _weights(plan: Plan) -> float:
    """Bytes of expert weights that a balancer pushes in one layer, over all ranks."""
    pushes = (phase for phase in plan.phases if isinstance(phase, Transfer) and phase.label == "weights")
    return float(sum(phase.flows.wire.sum() for phase in pushes))


def _traffic(one: Strategy, case: Case) -> dict[str, float]:
    """Payload bytes of dispatch and combine by the tier between owner and expert's rank, over all ranks."""
    rows = one.protocol.rows(case).astype(np.float64)
    each = sum(case.model.payload_bytes(form) for form in one.protocol.formats)
    return traffic.by_tier(rows * each, case.routes.tier)


def _moving(plan: Plan, stage: str) -> list[Transfer]:
    """Transfers of dispatch or combine, but for those of a balancer."""
    names = [phase.name for phase in plan.phases]
    before = names.index(plan.ends["expert"]) if stage == "combine" else -1
    phases = plan.phases[before + 1 : names.index(plan.ends[stage]) + 1]
    return [one for one in phases if isinstance(one, Transfer) and one.label not in timing.BALANCING]


def _bytes_moved(one: Strategy, case: Case, plan: Plan, stage: str) -> tuple[float, float, float]:
    """Of one dispatch or combine [B]: payload of the busiest owner of tokens, its wire bytes, the library's count.

    What an owner sends in dispatch, its own rank included in the payload, comes back to it in combine.
    """
    wire = np.zeros(case.ranks)
    for phase in _moving(plan, stage):
        owner = phase.flows.dst if stage == "combine" else phase.flows.src
        wire += np.bincount(owner, weights=phase.flows.wire, minlength=case.ranks)
    protocol = one.protocol
    return (
        protocol.payload_bytes(case, stage),
        float(wire.max(initial=0.0)),
        protocol.logical_bytes(case, stage),
    )


def _phase_rows(where: tuple[int, int], plan: Plan, ran: Timing) -> Iterator[dict[str, object]]:
    spans = [ran.spans[phase.name] for phase in plan.phases]
    start, end = (np.array([getattr(span, edge) for span in spans]) for edge in ("start", "end"))
    # Of a transfer each rank's own sending counts; what it waits for from others is in the next phase's start.
    duration = end - start
    columns = {
        "start_s": start.min(axis=1),
        "end_s": end.max(axis=1),
        "mean_s": duration.mean(axis=1),
        "max_s": duration.max(axis=1),
    }
    for number, phase in enumerate(plan.phases):
        yield {
            "step": where[0],
            "layer": where[1],
            "phase": phase.name,
            "label": phase.label,
            **{name: float(column[number]) for name, column in columns.items()},
        }


def _links(
    shared: Resources, load: FloatArray, beside: FloatArray, others: FloatArray | None, seconds: float
) -> list[dict[str, object]]:
    """A row for each resource of the fabric, and one for the busiest core of each rank.

    A resource is busy with the ``load`` of the strategy and with what the background put on it while a layer ran, less
    what runs ``beside`` the layer, in its time and in that of others.
    """
    capacity = shared.capacity
    others = np.zeros(len(load)) if others is None else others
    busy = (load - beside + others) / capacity
    cores = load[shared.fabric :].reshape(-1, shared.cores)
    chosen = [*range(shared.fabric)]
    chosen += [
        shared.fabric + rank * shared.cores + int(row.argmax()) for rank, row in enumerate(cores) if row.any()
    ]
    return [
        {
            "resource": shared.name(index),
            "kind": shared.kind(index),
            "load_B": float(load[index]) if shared.is_link(index) else float("nan"),
            "background_B": float(others[index]) if shared.is_link(index) else float("nan"),
            "capacity_Bps": float(capacity[index]) if shared.is_link(index) else float("nan"),
            "busy_s": float(busy[index]),
            "utilisation": float(busy[index] / seconds) if seconds else 0.0,
        }
        for index in chosen
    ]


def _bottleneck(links: list[dict[str, object]], gemm: FloatArray, layer: FloatArray) -> tuple[str, float]:
    """The resource that is busy for the largest share of the layers' time: of the fabric, a core, or a rank's GEMMs."""
    seconds = float(layer.max(axis=1).sum())
    if seconds == 0.0:
        return "nothing", 0.0
    busy = gemm.sum(axis=0) / seconds
    rank = int(busy.argmax())
    best = (f"rank {rank} expert GEMM", float(busy[rank]))
    for row in links:
        if float(row["utilisation"]) > best[1]:  # type: ignore[arg-type]
            best = (str(row["resource"]), float(row["utilisation"]))  # type: ignore[arg-type]
    return best
