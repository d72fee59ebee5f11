"""What a command gave that a test ran in this process: the type of the fixture ``moesim``."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Moesim = Callable[..., Ran]
