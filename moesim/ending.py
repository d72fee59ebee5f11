"""How a command ends: what is said of an error, which exit code goes with it, and signals that end it early."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import click

from moesim.errors import InputError, InvariantError, MoesimError
from moesim.layout import printable
from moesim.outfile import SIGNALS

PATIENCE = 2.0
"""Seconds in which a second signal to stop adds nothing to the first."""


def complain(error: MoesimError) -> None:
    """Print the problems of ``error`` on stderr."""
    for text in error.told() if isinstance(error, InputError) else [str(error)]:
        say(f"{'no: ' if error.exit_code == 1 else ''}{text}")


def say(text: str) -> None:
    """Print ``text`` on stderr, as moesim's."""
    for line in f"moesim: {text}".split("\n"):
        click.echo(printable(line), err=True)


@contextlib.contextmanager
def stopped_gently() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does, so that half-written files are cleared away.

    Once one has, others do nothing until the process ends: they must not disturb the clearing away. Only after
    `PATIENCE` may another try, in case the first was lost.
    """
    first: list[float] = []

    def stop(_number: int, _frame: object) -> None:
        if not first or time.monotonic() > first[-1] + PATIENCE:
            first.append(time.monotonic())
            raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    ours = threading.current_thread() is threading.main_thread()
    usual = (signal.SIG_DFL, signal.default_int_handler)
    old = {n: signal.signal(n, stop) for n in numbers if ours and signal.getsignal(n) in usual}
    try:
        yield
    finally:
        if not first:
            for number, handler in old.items():
                signal.signal(number, handler)


def failed(error: Exception) -> int:
    """Report an error on stderr; the exit code that goes with it."""
    if os.environ.get("MOESIM_DEBUG"):
        import traceback

        traceback.print_exc()
    if isinstance(error, MoesimError) and not isinstance(error, InvariantError):
        complain(error)
        return error.exit_code
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        say(f"{place}{error.strerror or error}")
        return InputError.exit_code
    if isinstance(error, MemoryError):
        say("out of memory: fewer steps, layers, tokens or ranks take less")
        return InputError.exit_code
    if isinstance(error, UnicodeEncodeError):
        name = error.object[max(0, error.start - 40) : error.end].encode("utf-8", "backslashreplace").decode()
        say(f"the name of a file or folder is not UTF-8 text: ...{name}")
        return InputError.exit_code
    what = " ".join(f"{type(error).__name__}: {error}".split())
    say(f"a bug of moesim, please report it with the command and its files: {what}")
    return InvariantError.exit_code
