"""Files that a command writes: whole or not at all, and never over what is not ours to replace."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from moesim.errors import InputError, Problem

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""What ends a command early."""


def ready(output: str | Path, inputs: Iterable[str | Path]) -> None:
    """Raise :class:`InputError` if writing to ``output`` would destroy what is not ours to replace.

    That is one of the ``inputs``, and anything that is there and no regular file: a folder, a device.
    """
    target = Path(output)
    if target.exists() and not target.is_file():
        raise InputError(
            Problem("is no regular file", path=str(output), legal="a new file, or one to replace")
        )
    for name in inputs:
        if target.exists() and Path(name).exists() and target.samefile(name):
            raise InputError(
                Problem("is also an input of this command", path=str(output), legal="another file")
            )


def beside(target: Path) -> Path:
    """A hidden name of its own in the folder of ``target``, for what will take its place."""
    return target.parent / f".{target.name}.{secrets.token_hex(4)}.part"


@contextlib.contextmanager
def replaced(output: str | Path) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of ``output`` if the block ends well, and vanishes if not."""
    target = Path(output)
    fresh = beside(target)
    try:
        try:
            with fresh.open("xb") as stream:
                yield stream
            os.replace(fresh, target)
        except BaseException:
            with undisturbed():
                fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(Problem(f"cannot write: {error.strerror}", path=str(target))) from error


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that have a handler wait until the block is through: what it makes or clears away is whole."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread only
        return
    waiting: list[int] = []
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in numbers}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in held:
            signal.signal(number, lambda number, _: waiting.append(number))
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])
