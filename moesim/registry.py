"""The one way to name a kind of thing, find it, and suggest a near name."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from moesim.errors import InputError, Problem

T = TypeVar("T")


def nearest(name: str, names: list[str]) -> str:
    """Say which names are legal, the likely one first: the ``legal`` text of an error."""
    likely, listing = near(name, names), ", ".join(names)
    return f"{likely} one of: {listing}" if likely else f"one of: {listing}"


def near(name: str, names: list[str]) -> str:
    """Asks for the likely one of ``names``; empty if none is."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else ""


class Registry(Generic[T]):
    """Names -> things of one kind.

    Built-in things live one a file in ``package`` and register themselves when that package's modules are
    imported; third-party ones come from the entry-point group ``moesim.<plural>``. Both are found at the first
    look-up, so that importing moesim stays cheap.

    >>> colours: Registry[str] = Registry("colour", package=None, group=None)
    >>> _ = colours.register("red")("#f00")
    >>> colours.get("red")
    '#f00'
    """

    def __init__(self, kind: str, package: str | None, group: str | None) -> None:
        self.kind = kind
        self._package = package
        self._group = group
        self._things: dict[str, T] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: add a thing under ``name``. A second thing of the same name is a bug."""

        def add(thing: T) -> T:
            if name in self._things:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._things[name] = thing
            return thing

        return add

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        if self._package is not None:
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._package}.{module.name}")
        if self._group is not None:
            for entry in entry_points(group=self._group):
                if entry.name not in self._things:
                    self._things[entry.name] = entry.load()

    def get(self, name: str) -> T:
        """The thing called ``name``; raises :class:`InputError` with the near names otherwise."""
        self._load()
        try:
            return self._things[name]
        except KeyError:
            problem = Problem(f"unknown {self.kind} {name!r}", legal=nearest(name, self.names()))
            raise InputError(problem) from None

    def names(self) -> list[str]:
        """All names, sorted."""
        self._load()
        return sorted(self._things)

    def __iter__(self) -> Iterator[tuple[str, T]]:
        for name in self.names():
            yield name, self._things[name]
