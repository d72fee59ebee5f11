"""How far a long run is, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from moesim.layout import printable

EVERY = 10.0
"""Seconds between two lines where stderr is no terminal; what takes less long says nothing."""


class Progress:
    """Context manager; gives a function ``advance(done, all, what)`` to call before each part of the work."""

    def __init__(self) -> None:
        self._state: tuple[int, int, str] = (0, 0, "drawing the routing")
        self._over = threading.Event()
        self._bar: Any = None

    def __enter__(self) -> Callable[[int, int, str], None]:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task(self._state[2], total=None)
            self._bar.start()
        else:
            # A case may take minutes and reports only at its beginning, so the clock has a thread of its own.
            self._clock = threading.Thread(target=self._tell, args=(EVERY,), daemon=True)
            self._clock.start()
        return self._advance

    def _advance(self, done: int, total: int, what: str) -> None:
        what = printable(what)
        self._state = (done, total, what)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=what)

    def _tell(self, every: float) -> None:
        begun = time.monotonic()
        while not self._over.wait(every):
            done, total, what = self._state
            seconds = time.monotonic() - begun
            count = f"{done} of {total} cases" if total else "no case yet"
            print(f"moesim: {count} after {seconds:.0f} s, now {what}", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        else:
            self._over.set()
            self._clock.join()


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
