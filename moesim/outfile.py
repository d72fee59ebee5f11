"""Files that a command writes: whole or not at all, and never over what is not ours to replace."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from moesim.errors import InputError, Problem


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


@contextlib.contextmanager
def replaced(output: str | Path) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of ``output`` if the block ends well, and vanishes if not."""
    target = Path(output)
    try:
        handle, name = tempfile.mkstemp(
            dir=target.parent or Path(), prefix=f".{target.name}.", suffix=".part"
        )
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise InputError(Problem(f"cannot write: {error.strerror}", path=str(target))) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
