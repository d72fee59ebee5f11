"""What a protocol says and the engine runs: a small DAG of phases in the field's words.

A phase is *local* (a duration for each rank) or a *transfer* (flows over the fabric). It starts, for each rank by
itself, when its dependencies let it; a bulk-synchronous protocol and an asynchronous one differ only in those.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FlowSet:
    """Flows of one transfer, one row a flow; all columns have shape (F,).

    ``src``, ``dst``: ranks. ``payload`` [B]: what the user asked to move. ``wire`` [B]: payload plus scales, flags and
    padding, before the link's own packet headers. ``messages``: remote writes it takes. ``release`` [s]: delay after
    its source rank starts the transfer. ``core``: the send engine of the source that carries it, -1 for none.
    ``core_s`` [s]: time of that core it takes (copying and issuing). Flows with ``src == dst`` never enter a
    FlowSet: an own-rank copy is a local matter.
    """

    src: IntArray
    dst: IntArray
    payload: FloatArray
    wire: FloatArray
    messages: FloatArray
    release: FloatArray
    core: IntArray
    core_s: FloatArray

    def __len__(self) -> int:
        return len(self.src)

    @staticmethod
    def of(
        src: IntArray,
        dst: IntArray,
        payload: FloatArray,
        *,
        wire: FloatArray | None = None,
        messages: FloatArray | None = None,
        release: FloatArray | None = None,
        core: IntArray | None = None,
        core_s: FloatArray | None = None,
    ) -> FlowSet:
        """A FlowSet with the usual defaults: wire = payload, one message a flow, no release, no core."""
        n = len(src)
        return FlowSet(
            src=np.asarray(src, dtype=np.int64),
            dst=np.asarray(dst, dtype=np.int64),
            payload=np.asarray(payload, dtype=np.float64),
            wire=np.asarray(payload if wire is None else wire, dtype=np.float64),
            messages=np.ones(n) if messages is None else np.asarray(messages, dtype=np.float64),
            release=np.zeros(n) if release is None else np.asarray(release, dtype=np.float64),
            core=np.full(n, -1, dtype=np.int64) if core is None else np.asarray(core, dtype=np.int64),
            core_s=np.zeros(n) if core_s is None else np.asarray(core_s, dtype=np.float64),
        )


class When(Enum):
    """What about an earlier phase a phase waits for."""

    MINE = "my own phase has ended"
    ALL = "all ranks' phases have ended"
    INBOUND = "all flows of the transfer towards me have arrived"
    OUTBOUND = "all my flows of the transfer have arrived at their destinations"
    STREAM = "my inbound flows arrive: start with the transfer; if local, end no sooner than the last flow plus a chunk"


@dataclass(frozen=True)
class After:
    """A dependency on the phase called ``phase``."""

    phase: str
    when: When = When.MINE


@dataclass(frozen=True, eq=False)
class Local:
    """A local phase: ``duration`` (R,) [s]. ``chunks``, at least 1 and perhaps no whole number, matters only behind a
    streaming dependency.
    """

    name: str
    label: str
    duration: FloatArray
    after: tuple[After, ...] = ()
    chunks: float = 1


@dataclass(frozen=True, eq=False)
class Transfer:
    """Flows over the fabric. Ends, for a rank, when its outbound flows have arrived (MINE means OUTBOUND here)."""

    name: str
    label: str
    flows: FlowSet
    after: tuple[After, ...] = ()


Phase = Local | Transfer


@dataclass(frozen=True)
class Beside:
    """Phases that nothing of their own layer waits for, and how long other work hides them.

    They may take the whole layer and ``layers`` more, and then as long as ``stage`` of the next one takes and
    ``seconds``; what outlasts that lengthens the layer under ``label``. Other layers and stages count with their
    closed form.
    """

    phases: tuple[str, ...]
    label: str
    layers: int = 0
    stage: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Plan:
    """A DAG of phases in topological order, with the phase whose end closes each stage.

    ``ends`` maps ``dispatch``, ``expert`` and ``combine``, and in training the same three with ``backward_`` before, in
    the order in which they follow each other, to a phase name. ``ranks``: R. ``beside``: see :class:`Beside`.
    """

    ranks: int
    phases: tuple[Phase, ...]
    ends: dict[str, str] = field(default_factory=dict)
    beside: tuple[Beside, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for phase in self.phases:
            if phase.name in seen:
                raise ValueError(f"phase {phase.name!r} appears twice")
            missing = [dep.phase for dep in phase.after if dep.phase not in seen]
            if missing:
                raise ValueError(f"phase {phase.name!r} waits for {missing}, which do not come before it")
            seen.add(phase.name)
        absent = [name for name in (*self.ends.values(), *self.aside) if name not in seen]
        if absent:
            raise ValueError(f"stage ends {absent} are not phases of the plan")

    @property
    def last(self) -> str:
        """The phase that closes the layer."""
        return list(self.ends.values())[-1]

    @property
    def aside(self) -> frozenset[str]:
        """Names of the phases that run beside the layer."""
        return frozenset(name for one in self.beside for name in one.phases)
