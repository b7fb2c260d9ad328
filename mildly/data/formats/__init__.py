"""The formats that people keep logs in. Each module reads a file into a `Log`; most can write a Dataset, too.

Other packages add theirs by the entry point `mildly.formats`, named by the ending of their files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mildly.data.assemble import Log
from mildly.data.options import TABLE_OPTIONS, ImportOptions, refuse
from mildly.errors import MildlyError
from mildly.plugins import Registry

_MODULES = {
    ".hdf5": "d4rl",
    ".h5": "d4rl",
    ".npz": "arrays",
    ".csv": "table",
    ".csv.gz": "table",
    ".tsv": "table",
    ".tsv.gz": "table",
    ".parquet": "table",
    ".pq": "table",
}
SUFFIXES = tuple(_MODULES)
"""What the files that can be read and written end in."""
_READ_ONLY = {".json": "json_lines", ".jsonl": "json_lines"}


class _Formats(Registry[Any]):
    def add(self, name: str, thing: Any) -> None:
        """Register a format under the ending of its files, whether or not that is given with its dot."""
        ending = f".{name.removeprefix('.').lower()}"
        if ending in _MODULES | _READ_ONLY:
            raise MildlyError(f"{self.kind} '{ending}': such files are read already. Take another ending.")
        super().add(ending, thing)


def _fault(thing: Any) -> str:
    return "" if callable(getattr(thing, "read", None)) else "it has no function read(path, options)"


FORMATS = _Formats("format", "mildly.formats", {}, _fault)
"""What other packages read, and perhaps write, by the ending of files."""


def endings(*, written: bool = False) -> tuple[str, ...]:
    """What the files end in that can be read, this package's own first; or those that can be written."""
    others = (ending for ending, module in FORMATS.items() if not written or hasattr(module, "write"))
    return (*SUFFIXES, *others)


def _module(name: str) -> ModuleType:
    from importlib import import_module

    return import_module(f"mildly.data.formats.{name}")


def module_for(path: Path) -> Any:
    """The module that reads and writes files with this ending."""
    return _by_ending(path, _MODULES)


def _by_ending(path: Path, modules: Mapping[str, str]) -> Any:
    name = path.name.lower()
    for suffix, module in modules.items():
        if name.endswith(suffix):
            return _module(module)
    for suffix, module in FORMATS.items():
        if name.endswith(suffix):
            return module
    raise MildlyError(f"{path}: do not know this kind of file. Known endings are {', '.join([*modules, *FORMATS])}.")


def read(path: Path, options: ImportOptions) -> Log:
    """A log in any format but the native one, told by its ending or, for a folder, by what is in it."""
    module = _module_of(path)
    if not getattr(module, "__name__", "").endswith((".table", ".lerobot")):
        refuse(options, TABLE_OPTIONS, str(path), "is no table:")
    log: Log = module.read(path, options)
    return log


def texts(path: Path, name: str, rows: Sequence[int]) -> list[str] | None:
    """What a column of text holds in some rows of a table; None for a column of numbers, and for other formats."""
    found: list[str] | None = getattr(_module_of(path), "texts", lambda *_: None)(path, name, rows)
    return found


def _module_of(path: Path) -> Any:
    return _folder_module(path) if path.is_dir() else _by_ending(path, _MODULES | _READ_ONLY)


def is_known_folder(path: Path) -> bool:
    """Whether a folder is, by the names in it, a data set of another library."""
    return any(_module(name).is_folder(path) for name in ("minari", "lerobot"))


def _folder_module(path: Path) -> ModuleType:
    for name in ("minari", "lerobot", "rllib"):
        module = _module(name)
        if module.is_folder(path):
            return module
    if any(path.glob("*.npy")):
        return _module("arrays")
    table, json_lines = _module("table"), _module("json_lines")
    if table.tables_in(path):
        return table
    if not json_lines.files_in(path):
        raise MildlyError(
            f"{path}: no dataset.json, no .npy files, no tables and no JSON lines in this folder: it is not a data set."
        )
    return json_lines
