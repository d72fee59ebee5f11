"""Finds shipped and user files: one resolver for topologies, scenarios, models, traces, calibrations, measurements.

A name is looked up in what moesim ships: the folders ``topologies/`` and ``scenarios/`` beside the package in
a checkout, or their copies inside an installed wheel. Anything with a path separator or a file suffix is a
path.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from moesim.errors import InputError, Problem
from moesim.registry import nearest

_PACKAGE = Path(__file__).resolve().parent

# kind -> (shipped folder, suffix of its files)
_FOLDERS = {
    "topology": ("topologies", ".yaml"),
    "sources": ("topologies", ".yaml"),
    "calibration": ("topologies/calibrations", ".yaml"),
    "scenario": ("scenarios", ".yaml"),
    "models": ("scenarios", ".yaml"),
    "trace": ("scenarios/traces", ".npz"),
    "placement": ("scenarios/placements", ".npz"),
    "measurements": ("topologies/measurements", ".csv"),
}
# Files which share a folder with another kind.
_SINGLE = {"sources": "sources", "models": "models"}
_SUFFIXES = (".yaml", ".yml", ".npz", ".npy", ".csv", ".json", ".jsonl", ".gz", ".txt")


def shipped(folder: str) -> Path:
    """The shipped ``folder`` ("topologies", "scenarios"): of the checkout, else of the installed wheel."""
    top, _, rest = folder.partition("/")
    checkout = _PACKAGE.parent / top
    # A checkout is recognised by its project file: site-packages may hold any folder called "scenarios".
    root = checkout if (_PACKAGE.parent / "pyproject.toml").is_file() else _PACKAGE / "shipped" / top
    return root / rest if rest else root


def is_path(name: str) -> bool:
    """True if ``name`` is a path (has a separator or a file suffix) and not the name of something shipped."""
    return "/" in name or "\\" in name or name.endswith(_SUFFIXES)


def names(kind: str) -> list[str]:
    """Shipped names of ``kind``, sorted; a calibration is called ``pod/protocol``."""
    folder, suffix = _FOLDERS[kind]
    root = shipped(folder)
    pattern = f"*/*{suffix}" if kind == "calibration" else f"*{suffix}"
    found = sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.glob(pattern))
    if kind in _SINGLE:
        return [name for name in found if name == _SINGLE[kind]]
    return [name for name in found if name not in _SINGLE.values()]


def name_of(kind: str, path: Path) -> str | None:
    """The shipped name of the file of ``kind`` at ``path``; None if it is another file."""
    folder, suffix = _FOLDERS[kind]
    root, file = shipped(folder).resolve(), path.resolve()
    if file.suffix != suffix or not file.is_relative_to(root):
        return None
    name = file.relative_to(root).with_suffix("").as_posix()
    return name if name in names(kind) else None


def find(kind: str, name: str | Path, base: Path | None = None) -> Path:
    """The file of ``kind`` called ``name``: a shipped name, or a path from the current folder or ``base``.

    ``base``: the folder of the file that names it. Raises :class:`InputError` with the near names, or with
    the places looked at.

    >>> find("topology", "cloudmatrix384").name
    'cloudmatrix384.yaml'
    """
    text = str(name)
    folder, suffix = _FOLDERS[kind]
    if kind == "calibration" or not is_path(text):
        if text in names(kind):
            return shipped(folder) / f"{text}{suffix}"
        if not is_path(text):
            near = "pod/protocol" if kind == "calibration" else nearest(text, names(kind))
            legal = f"{near}; or a path to a {suffix} file"
            raise InputError(Problem(f"unknown {kind} {text!r}", legal=legal))
    places = [Path(text)] if base is None else [Path(text), base / text]
    for place in places:
        if _exists(place):
            return place
    looked = ", ".join(dict.fromkeys(str(place) for place in places))
    close = nearest(Path(text).stem, names(kind)) if names(kind) else "nothing is shipped"
    if kind == "calibration":
        close = f"pod/protocol, such as {names(kind)[0]}"  # too many to list
    legal = f"an existing file, or a shipped name: {close}"
    raise InputError(Problem(f"{kind} file not found: {looked}", legal=legal))


def digest(path: Path) -> str:
    """SHA-256 of the file at ``path``; raises ``OSError`` if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long a name, a NUL in it
        return False
