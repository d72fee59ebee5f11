"""Discrete-event simulator of MoE expert-parallel communication on superpods.

>>> import moesim
>>> scenario = moesim.load("decode-nvl72", sets=["workload.layers=1"])
>>> result = moesim.bound(scenario)
>>> [outcome.name for outcome in result.strategies]
['all-to-all', 'deepep-ll', 'ubep', 'moonep']

Names are imported when they are first used, so that ``import moesim`` costs nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moesim.comparison import compare
    from moesim.errors import InputError
    from moesim.outcome import StrategyOutcome
    from moesim.result import Result
    from moesim.scenario import Scenario, from_mapping, load
    from moesim.simulate import bound, run

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "Result",
    "Scenario",
    "StrategyOutcome",
    "__version__",
    "bound",
    "compare",
    "from_mapping",
    "load",
    "run",
]

_HOMES = {
    "InputError": "errors",
    "Result": "result",
    "Scenario": "scenario",
    "StrategyOutcome": "outcome",
    "bound": "simulate",
    "compare": "comparison",
    "from_mapping": "scenario",
    "load": "scenario",
    "run": "simulate",
}

# The matrices here are small: threads of the linear algebra library only get into each other's way, and a
# study runs a process a core as it is. Set before that library is loaded, and only if the user has not chosen.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
