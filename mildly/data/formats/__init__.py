"""The formats that people keep logs in. Each module reads a file into a `Log`; most can write a Dataset, too."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from mildly.data.assemble import Log
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError

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
"""What the files that can be read end in."""


def _module(name: str) -> ModuleType:
    from importlib import import_module

    return import_module(f"mildly.data.formats.{name}")


def module_for(path: Path) -> ModuleType:
    """The module that reads and writes files with this ending."""
    for suffix, module in _MODULES.items():
        if path.name.lower().endswith(suffix):
            return _module(module)
    raise MildlyError(f"{path}: do not know this kind of file. Known endings are {', '.join(SUFFIXES)}.")


def read(path: Path, options: ImportOptions) -> Log:
    """A log in any format but the native one, told by its ending or, for a folder, by what is in it."""
    module = _folder_module(path) if path.is_dir() else module_for(path)
    log: Log = module.read(path, options)
    return log


def _folder_module(path: Path) -> ModuleType:
    minari = _module("minari")
    if minari.is_folder(path):
        return minari
    if any(path.glob("*.npy")):
        return _module("arrays")
    table = _module("table")
    if not table.tables_in(path):
        raise MildlyError(f"{path}: no dataset.json, no .npy files and no tables in this folder: it is not a data set.")
    return table
