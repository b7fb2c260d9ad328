"""Registries that other packages add to: by an entry point, or in Python by `mildly.register`.

A package that is installed beside this one says in its `pyproject.toml` what it brings:

    [project.entry-points."mildly.algorithms"]
    td3-near = "my_package.td3_near:TD3Near"

Entry points are looked for when a name is asked for that is not known here, or when all names are. Only packages that
the user has installed are asked: a file can name what they bring, and make nothing else be imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mildly.errors import MildlyError, tell, unknown_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """What there is of a kind, by name: the package's own, and what other packages bring."""

    def __init__(self, kind: str, group: str, own: Mapping[str, T], fault: Callable[[Any], str]) -> None:
        """A registry.

        Args:
            kind: what its things are called in messages.
            group: the group of entry points.
            own: those of this package.
            fault: what is wrong with a thing, in words; nothing where it may be registered.
        """
        self.kind, self.group, self.fault = kind, group, fault
        self.complete = False
        """Whether other packages were asked."""
        self._known = dict(own)

    def __getitem__(self, name: str) -> T:
        if name not in self._known:
            self._ask_packages()
        return self._known[name]

    def __setitem__(self, name: str, thing: T) -> None:
        self._known[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        self._ask_packages()
        return iter(self._known)

    def __len__(self) -> int:
        self._ask_packages()
        return len(self._known)

    def named(self, name: str) -> T:
        """The thing of a name, or an error that lists those there are."""
        if name not in self:
            raise unknown_name(self.kind, name, self)
        return self[name]

    def add(self, name: str, thing: Any) -> None:
        """Register what somebody else has written; a name is given once."""
        fault = self.fault(thing)
        if fault:
            raise MildlyError(f"{self.kind} '{name}': {fault}.")
        if self._known.get(name, thing) is not thing:
            raise MildlyError(f"{self.kind} '{name}': there is one of this name already. Take another.")
        self._known[name] = thing

    def _ask_packages(self) -> None:
        """Add what is installed. A package that fails is told and left out, so that the others can be used."""
        if self.complete:
            return
        self.complete = True
        for package, entry in _entry_points(self.group):
            try:
                self.add(entry.name, entry.load())
            except (Exception, SystemExit) as error:  # whatever a package's own code raises
                reason = str(error) if isinstance(error, MildlyError) else f"{type(error).__name__}: {error}"
                tell(f"warning: the {self.kind} '{entry.name}' of the package {package} is left out ({reason})")


class OneOf(NamedTuple):
    """Marks a field of a config whose value is a name in a registry: `Annotated[str, OneOf(REGISTRY)]`."""

    registry: Registry[Any]

    @property
    def metavar(self) -> str:
        """The names, as help shows them."""
        return "|".join(self.registry)


def _entry_points(group: str) -> Iterator[tuple[str, EntryPoint]]:
    """Those of a group, with their packages' names.

    The folder that the command runs in is left out: `python -m` has it among its paths, and it may hold the files of a
    stranger, which nobody has installed.
    """
    from importlib.metadata import distributions  # slow to import, and seldom needed

    here, seen = Path.cwd(), set[str]()
    places = [place for place in sys.path if place and not _is(Path(place), here)]
    for package in distributions(path=places):
        name = package.metadata["Name"]
        if name not in seen:  # the first on the path is the one that is imported
            seen.add(name)
            yield from ((name, entry) for entry in package.entry_points if entry.group == group)


def _is(place: Path, folder: Path) -> bool:
    try:
        return os.path.samefile(place, folder)
    except OSError:
        return False
