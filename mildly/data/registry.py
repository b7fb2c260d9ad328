"""From a name or a path to a Dataset: built-in sets, D4RL names, HDF5 files and native folders."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from mildly.data.dataset import Dataset
from mildly.data.tasks import PAPER_DATASETS
from mildly.errors import MildlyError, unknown_name

DATA_VARIABLE = "MILDLY_DATA"


def load_dataset(source: str | os.PathLike[str] | Dataset) -> Dataset:
    """Load a data set.

    Args:
        source: a built-in set's name (`pendulum-mixed`), a D4RL name (`hopper-medium-v2`, whose file is looked
            for in the folder that the environment variable MILDLY_DATA names), the path of a D4RL HDF5 file,
            or the folder of a data set saved by `Dataset.save`.
    """
    if isinstance(source, Dataset):
        return source
    path = find(source)
    if path.is_dir():
        return Dataset.load(path)
    from mildly.data.formats import d4rl

    return d4rl.read(path)


def find(source: str | os.PathLike[str]) -> Path:
    """The folder or file that a name or path means: built-in sets first, then paths, then D4RL's names."""
    name = os.fspath(source)
    if name in builtin_names():
        return _builtin_folder(name)
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name in PAPER_DATASETS:
        return _in_data_folder(name)
    if path.suffix or len(path.parts) > 1:
        raise MildlyError(f"{name}: no such file or folder.")
    raise unknown_name("data set", name, [*builtin_names(), *PAPER_DATASETS], listing="mildly data list")


def name_of(source: str | os.PathLike[str]) -> str:
    """The name that a data set will have once loaded, without reading its content."""
    path = find(source)
    if path.is_dir():
        return Dataset.describe(path).name
    from mildly.data.formats import d4rl

    return d4rl.dataset_name(path)


def reference(source: str | os.PathLike[str]) -> str:
    """What to write down so that the data are found again from another folder: names as they are, paths absolute."""
    name = os.fspath(source)
    if name in builtin_names() or not Path(name).expanduser().exists():
        return name
    return str(Path(name).expanduser().resolve())


def builtin_names() -> list[str]:
    """The sets shipped with the package."""
    folder = Path(str(files("mildly.data") / "builtin"))
    return sorted(entry.name for entry in folder.iterdir() if (entry / "dataset.json").is_file())


@dataclass(frozen=True)
class Listing:
    """A line of `mildly data list`."""

    name: str
    transitions: int | None
    where: str


def list_datasets() -> list[Listing]:
    """Every data set with a name, and whether it is here."""
    rows = []
    for name in builtin_names():
        description = json.loads((_builtin_folder(name) / "dataset.json").read_text())
        rows.append(Listing(name, description["transitions"], "built in"))
    for name in PAPER_DATASETS:
        found = _official_file(name)
        rows.append(Listing(name, None, str(found) if found else "not here"))
    return rows


def _builtin_folder(name: str) -> Path:
    return Path(str(files("mildly.data") / "builtin" / name))


def _file_names(name: str) -> list[str]:
    """The names under which a D4RL set's file is commonly kept."""
    base, version = name.rsplit("-v", 1)
    task, kind = base.split("-", 1)
    underscored = f"{task}_{kind.replace('-', '_')}-v{version}"
    return [f"{stem}.hdf5" for stem in (name, underscored)]


def _official_file(name: str) -> Path | None:
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        return None
    candidates = (Path(folder).expanduser() / file for file in _file_names(name))
    return next((path for path in candidates if path.is_file()), None)


def _in_data_folder(name: str) -> Path:
    found = _official_file(name)
    if found is None:
        folder = os.environ.get(DATA_VARIABLE)
        where = f"not in {folder} ({DATA_VARIABLE})" if folder else f"and {DATA_VARIABLE} is not set"
        raise MildlyError(
            f"{name}: the file {' or '.join(_file_names(name))} is needed, {where}. Put D4RL's file into a folder "
            f"and set {DATA_VARIABLE} to it, or give the file's path."
        )
    return found
