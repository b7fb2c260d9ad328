"""From a name or a path to a Dataset: built-in sets, official names, files of any known format, folders."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mildly.data import formats
from mildly.data.assemble import Log, Memory, Steps, assemble
from mildly.data.dataset import FIELDS, Dataset, blocks
from mildly.data.formats import discrete
from mildly.data.memory import memory_limit
from mildly.data.official import cached, checked, fetch, name_of_file, official_files
from mildly.data.options import COLUMN_OPTIONS, TABLE_OPTIONS, ImportOptions, refuse
from mildly.environments import trust_env
from mildly.errors import MildlyError, unknown_name
from mildly.files import read_object

DATA_VARIABLE = "MILDLY_DATA"
MINARI = "minari:"
_FIELDS_KNOWN = "is a data set whose fields are known, and no raw log (a table, arrays, HDF5):"


def load_dataset(
    source: str | os.PathLike[str] | Dataset,
    options: ImportOptions | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    verify: bool = True,
    trusted: bool = True,
    **given: Any,
) -> Dataset:
    """Load a data set.

    Args:
        source: a name (`pendulum-mixed`, `hopper-medium-v2`, `minari:D4RL/pen/human-v2`); a file (`.csv`, `.parquet`,
            `.hdf5`, `.npz`); or a folder (written by `Dataset.save`, of `.npy` files, or Minari's).
        options: how to read a file, such as which columns are the observation.
        data_dir: folder in which names are looked for first; the environment variable MILDLY_DATA names it, too.
        verify: look for NaN and actions beyond the bounds, and refuse them. Without it they are in the data set.
        trusted: whether the options are the user's own words, and not a file's.
        given: fields of `ImportOptions`, for convenience: `load_dataset("log.csv", obs="sensor_*", action="u")`.
    """
    options = _with_fields(options or ImportOptions(), given)
    if isinstance(source, Dataset):
        if options != ImportOptions(max_memory=options.max_memory):
            raise MildlyError(f"'{source.meta.name}' is in memory already: options of reading would have no effect.")
        return source
    if not os.fspath(source).startswith(MINARI) and options == ImportOptions(max_memory=options.max_memory):
        path = find(source, data_dir)
        if (path / "dataset.json").is_file():
            return Dataset.load(path, verify=verify)
    limit, log = memory_limit(options.max_memory), open_log(source, options, data_dir, trusted=trusted)
    if log.size is not None:
        limit.check_whole(log.where, log.size)
    return assemble(log, options, Memory(limit, log.where), verify=verify)


def _with_fields(options: ImportOptions, given: dict[str, Any]) -> ImportOptions:
    """Options with some fields replaced; bounds may be lists or a single number."""
    for name, value in given.items():
        if name not in ImportOptions.__dataclass_fields__:
            raise unknown_name("option", name, ImportOptions.__dataclass_fields__)
        if name in ("action_low", "action_high") and value is not None:
            value = tuple(float(x) for x in np.atleast_1d(value))
        elif isinstance(value, (list, tuple)):
            value = ",".join(value)
        given[name] = value
    return dataclasses.replace(options, **given)


def open_log(
    source: str | os.PathLike[str],
    options: ImportOptions,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    trusted: bool = True,
) -> Log:
    """The rows of any source, to be read block by block. `trusted`: the options are the user's own words."""
    if trusted:
        trust_env(options.env)
    name = os.fspath(source)
    if name.startswith(MINARI):
        from mildly.data.formats import minari

        refuse(options, (*COLUMN_OPTIONS, *TABLE_OPTIONS), name, _FIELDS_KNOWN)
        return minari.read(name, options)
    log = _open_path(find(source, data_dir), options)
    if discrete.settled(options):
        log.notes[:] = discrete.without(log.notes)
    return log


def _open_path(path: Path, options: ImportOptions) -> Log:
    if not (path / "dataset.json").is_file():
        return formats.read(path, options)
    refuse(options, (*COLUMN_OPTIONS, *TABLE_OPTIONS), str(path), _FIELDS_KNOWN)
    data = Dataset.load(path, verify=False)
    steps = (Steps(**{name: np.array(getattr(data, name)[rows]) for name in FIELDS}) for rows in blocks(len(data)))
    size = sum(int(getattr(data, name).nbytes) for name in FIELDS)
    return Log(data.meta, steps, where=str(path), scaled=True, size=size, gaps=data.gaps, notes=list(data.meta.notes))


def find(source: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder or file that a name or path means.

    Built-in names come first, then paths, then names in `data_dir` (or else in the folder that MILDLY_DATA names).
    An official name that is not there is looked for among the files downloaded before, and downloaded if need be.
    """
    name = os.fspath(source)
    path = find_local(name, data_dir)
    if path is not None:
        return path
    if name in official_files():
        here = cached(name)
        return fetch(name) if here is None else checked(name, here)
    raise _unknown_dataset(name, data_dir)


def name_of(source: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> str:
    """The name that a data set will have once loaded, without reading its content or downloading it."""
    name = os.fspath(source)
    if name.startswith(MINARI):
        return name.removeprefix(MINARI)
    path = find_local(name, data_dir)
    if path is None:
        if name in official_files():
            return name
        raise _unknown_dataset(name, data_dir)
    if (path / "dataset.json").is_file():
        return Dataset.describe(path).name
    try:
        return formats.read(path, ImportOptions()).meta.name
    except MildlyError:  # loading it reports what is wrong
        return _entry_name(path)


def is_raw_log(source: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether a source is a file or a folder of somebody's own, which does not say what it is."""
    path = None if os.fspath(source).startswith(MINARI) else find_local(os.fspath(source), data_dir)
    return path is not None and not (path / "dataset.json").is_file() and name_of_file(path.name) is None


def stable_source(source: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> str:
    """A name or absolute path by which the same data are found from any folder, as `run.json` records it."""
    name = os.fspath(source)
    if name.startswith(MINARI) or name in builtin_names():
        return name
    path = find_local(name, data_dir)
    return name if path is None else str(path.resolve())


def find_local(name: str, data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The built-in set, path or entry of the data folder that a name means; None if it is in none of them."""
    if name in builtin_names():
        return _builtin_folder(name)
    path = Path(name).expanduser()
    if path.exists():
        return path
    folder = data_folder(data_dir)
    entries = _entries(folder) if folder else []
    exact = [entry for known, entry in entries if known == name]
    alike = [entry for known, entry in entries if known.replace("_", "-") == name.replace("_", "-")]
    return next(iter(exact + alike), None)


def _unknown_dataset(name: str, data_dir: str | os.PathLike[str] | None) -> MildlyError:
    folder = data_folder(data_dir)
    path = Path(name)
    alike = _beside(path)
    if len(path.parts) > 1 or path.name.lower().endswith(formats.endings()):
        return MildlyError(f"{name}: no such file or folder.{_hint(path.name, alike)}")
    local = [known for known, _ in _entries(folder)] if folder else []
    alike |= {known: known for known in (*official_files(), *local, *builtin_names())}
    where = (
        f"It is not in {folder}, either." if folder else f"--data-dir or {DATA_VARIABLE} names a folder of your own."
    )
    return MildlyError(f"unknown data set '{name}'.{_hint(name, alike)} 'mildly data list' shows them all. {where}")


def _beside(path: Path) -> dict[str, str]:
    """Folders, and files that can be read, in the folder in which a path should be: what to write, by their names.

    A file is known by its name without its ending as well.
    """
    found = [each for each in _visible(path.expanduser().parent) if each.is_dir() or _suffix(each)]
    names = {each.name: str(path.parent / each.name) for each in found}
    return {name.removesuffix(_suffix(Path(name))): shown for name, shown in names.items()} | names


def _hint(name: str, alike: Mapping[str, str]) -> str:
    near = get_close_matches(name, alike, n=1)
    return f" Did you mean '{alike[near[0]]}'?" if near else ""


def builtin_names() -> list[str]:
    """The sets shipped with the package."""
    folder = Path(str(files("mildly.data") / "builtin"))
    return sorted(entry.name for entry in folder.iterdir() if (entry / "dataset.json").is_file())


@dataclass(frozen=True)
class Listing:
    """A line of `mildly data list`."""

    name: str
    where: Literal["built in", "data folder", "cache", "to download"]
    path: Path | None = None
    transitions: int | None = None
    size: int | None = None


def list_datasets(data_dir: str | os.PathLike[str] | None = None) -> list[Listing]:
    """Every data set with a name, once: where `find` would take it from."""
    rows = {name: _listed(name, "built in", _builtin_folder(name)) for name in builtin_names()}
    folder = data_folder(data_dir)
    for name, path in _entries(folder) if folder else []:
        rows.setdefault(name, _listed(name, "data folder", path))
    for name, entry in official_files().items():
        path_here = cached(name)
        missing = Listing(name, "to download", size=entry.size)
        rows.setdefault(name, _listed(name, "cache", path_here) if path_here else missing)
    return list(rows.values())


def _listed(name: str, where: Literal["built in", "data folder", "cache"], path: Path) -> Listing:
    if path.is_file():
        return Listing(name, where, path, size=path.stat().st_size)
    try:
        transitions = int(read_object(path / "dataset.json")["transitions"])
    except (OSError, ValueError, KeyError, TypeError):  # a folder of .npy files; loading it reports damage
        transitions = None
    return Listing(name, where, path, transitions)


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder in which names are looked for: the one given, or the one that MILDLY_DATA names, or none."""
    given = os.fspath(data_dir) if data_dir is not None else os.environ.get(DATA_VARIABLE)
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        by = DATA_VARIABLE if data_dir is None else "--data-dir"
        raise MildlyError(f"{folder}: no such folder; {by} must name the one in which your data sets are.")
    return folder


def _entries(folder: Path) -> list[tuple[str, Path]]:
    """Names and paths of the data sets in a folder and its sub-folders, the better ones first where names are equal.

    Better is: not in a sub-folder; a folder rather than a file; the formats in their order; the official file name.
    """

    def rank(path: Path) -> tuple[bool, int, bool, str]:
        ending = -1 if path.is_dir() else formats.endings().index(_suffix(path))
        return path.parent != folder, ending, name_of_file(path.name) is None, str(path)

    found, below = [], []
    for path in _visible(folder):
        if _is_dataset(path):
            found.append(path)
        elif path.is_dir():
            below += [inner for inner in _visible(path) if _is_dataset(inner)]
    return [(_entry_name(path), path) for path in sorted(found + below, key=rank)]


def _visible(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:  # a folder that may not be read holds nothing for us
        return []


def _is_dataset(path: Path) -> bool:
    if path.is_dir():
        return (path / "dataset.json").is_file() or any(path.glob("*.npy")) or formats.is_known_folder(path)
    return bool(_suffix(path)) and path.is_file()


def _suffix(path: Path) -> str:
    """The longest known ending of a file's name, which gives the format; empty if there is none."""
    return max((known for known in formats.endings() if path.name.lower().endswith(known)), key=len, default="")


def _entry_name(path: Path) -> str:
    """The name by which a file or folder is found in its folder."""
    suffix = _suffix(path)
    official = name_of_file(path.name) if suffix in (".hdf5", ".h5") else None
    stem = path.name[: len(path.name) - len(suffix)]
    dashed = stem.replace("_", "-")
    return official or (dashed if dashed in official_files() else stem)


def _builtin_folder(name: str) -> Path:
    return Path(str(files("mildly.data") / "builtin" / name))
