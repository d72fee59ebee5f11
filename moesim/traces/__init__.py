"""Which tokens go to which experts, by layer and step: recorded and synthetic routing.

A kind of routing is one file here, a :class:`TraceSource` registered in :data:`KINDS`.
"""

from moesim.traces.compose import compose
from moesim.traces.source import KINDS, Batch, Drawn, TraceParams, TraceSource
from moesim.traces.trace import Trace

__all__ = ["KINDS", "Batch", "Drawn", "Trace", "TraceParams", "TraceSource", "compose"]
