"""From any format to any other. Nothing is ever half-written, and no step holds the whole set in memory."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mildly.data import formats
from mildly.data.assemble import assemble
from mildly.data.dataset import FIELDS, Dataset, Meta
from mildly.data.formats.minari import PREFIX
from mildly.data.options import ImportOptions
from mildly.data.registry import open_log
from mildly.data.scratch import Scratch, check_room
from mildly.data.tasks import task_of
from mildly.data.writer import Writer
from mildly.errors import MildlyError
from mildly.files import atomic_write, remove_leftovers
from mildly.words import counted

_NOT_PACKED = (".npz", ".hdf5", ".h5")  # as large as the arrays are
_PLAIN_TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz")  # without a place for a description
_FOREIGN = {
    *(".txt", ".dat", ".xlsx", ".xls", ".ods", ".json", ".jsonl", ".pkl", ".pickle", ".feather", ".arrow", ".mat"),
    *(".npy", ".hdf", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".db", ".sqlite", ".pt", ".bag"),
}
"""Endings of files that somebody might expect; a folder of such a name would be a surprise."""


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    options: ImportOptions | None = None,
    *,
    data_dir: str | None = None,
    overwrite: bool = False,
    tell: Callable[[str], None] = lambda note: None,
) -> Dataset:
    """Read a log in any format and write it in another; the new set is returned.

    Args:
        source: whatever `load_dataset` takes.
        target: a folder to be made (the native form), or a file whose ending says the format, or `minari:NAME`.
        options: how to read the source.
        data_dir: folder in which names are looked for first.
        overwrite: replace the target, if it is a data set or a file that can be written here. Until the new one is
            complete the old one stays.
        tell: called with each sentence on what was done now; the set's notes have those of earlier conversions, too.
    """
    options = options or ImportOptions()
    name = os.fspath(target)
    path = Path(name).expanduser()
    if name.startswith(PREFIX):
        if overwrite:
            raise MildlyError(
                f"{name}: --overwrite is for files and folders. Remove the set with minari's own command."
            )
    else:
        _check_free(path, overwrite)
        endings = formats.endings(written=True)
        if not path.name.lower().endswith(endings):
            if path.suffix.lower() in _FOREIGN:
                raise MildlyError(
                    f"{path}: cannot write {path.suffix} files. Known endings are {', '.join(endings)}; "
                    "a name without one is a folder's."
                )
            if not path.exists():
                return _into_folder(source, path, options, data_dir, tell, name=path.name)
            with _scratch(path.parent, path) as folder:
                _into_folder(source, folder / "set", options, data_dir, tell, name=path.name, shown=str(path))
                _replace(path, folder / "set")
            return Dataset.load(path, verify=False)
    beside = path.parent if path.parent.is_dir() and not name.startswith(PREFIX) else Path(tempfile.gettempdir())
    with _scratch(beside, path) as folder:  # files are written from a mapped set
        data = _into_folder(source, folder / "set", options, data_dir, tell, shown=name)
        export(data, target)
    if data.gaps is not None:
        tell(
            f"Rows are missing inside {counted(int((data.gaps.rows > 0).sum()), 'episode')}, which {name} cannot tell: "
            "their parts are episodes of their own there. A folder keeps them whole."
        )
    if path.name.lower().endswith(_PLAIN_TEXT):
        tell(f"{path.name} cannot say what its actions mean: read it back with {_way_back(data.meta)}")
    return data


def _check_free(path: Path, overwrite: bool) -> None:
    """Nothing is overwritten that was not meant: only with leave, and only what a conversion may have made."""
    if not path.exists() and not path.is_symlink():
        return
    if not overwrite:
        raise MildlyError(f"{path}: exists already. Give another name, or replace it with --overwrite.")
    if path.name.lower().endswith(formats.endings(written=True)):
        known = path.is_file()
    else:
        known = (path / "dataset.json").is_file() and all(
            entry.name == "dataset.json" or entry.suffix == ".npy" for entry in path.iterdir()
        )
    if path.is_symlink() or not known:
        raise MildlyError(
            f"{path}: is no data set, or holds more than one, and is not overwritten. Remove it yourself."
        )


def _replace(old: Path, new: Path) -> None:
    """A folder in the place of another, which stays beside it until then."""
    aside = old.with_name(f"{old.name}.old-{os.getpid()}")
    try:
        old.rename(aside)
        try:
            new.rename(old)
        except OSError:
            aside.rename(old)
            raise
        shutil.rmtree(aside)
    except OSError as error:
        raise MildlyError(f"{old}: cannot be replaced ({error}).") from error


@contextmanager
def _scratch(parent: Path, target: Path) -> Iterator[Path]:
    try:
        scratch = Scratch(parent, f"convert-{target.name}")
    except OSError as error:
        raise MildlyError(f"{target}: cannot be written ({error}).") from error
    try:
        yield scratch.path
    finally:
        scratch.remove()


def _way_back(meta: Meta) -> str:
    """The options with which a table without a description is read as it was."""
    words = ["--scaled"]
    if meta.action_space is not None:
        for option, bounds in (("--action-low", meta.action_space.low), ("--action-high", meta.action_space.high)):
            numbers = [np.format_float_positional(bound, trim="-") for bound in bounds]
            words += [option, *(numbers[:1] if len(set(numbers)) == 1 else numbers)]
    return " ".join(words)


def _into_folder(
    source: str | os.PathLike[str],
    folder: Path,
    options: ImportOptions,
    data_dir: str | None,
    tell: Callable[[str], None],
    name: str | None = None,
    shown: str | None = None,
) -> Dataset:
    log = open_log(source, options, data_dir)
    if log.meta.name == Path(log.where).stem and task_of(log.meta.name) is None and options.name is None:
        options = dataclasses.replace(options, name=name)  # the file's name says no more than the new one does
    with Writer(folder, expected=log.size or 0, shown=shown) as writer:
        data = assemble(log, options, writer)
        writer.finish(data.meta, data.gaps)
    for note in data.meta.notes[len(log.meta.notes) :]:
        tell(note)
    return Dataset.load(folder, verify=False)


def data_bytes(data: Dataset) -> int:
    """What its arrays hold."""
    return sum(int(getattr(data, name).nbytes) for name in FIELDS)


def export(data: Dataset, target: str | os.PathLike[str]) -> None:
    """Write a data set as a file of the format that its ending says, or as Minari's with `minari:NAME`."""
    name = os.fspath(target)
    if name.startswith(PREFIX):
        from mildly.data.formats import minari

        minari.write(data, name)
        return
    path = Path(name).expanduser()
    module = formats.module_for(path)
    description = json.dumps(data.meta.to_json())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        if path.name.lower().endswith(_NOT_PACKED):
            check_room(path.parent, data_bytes(data), str(path))
        with atomic_write(path) as unfinished:
            module.write(data, unfinished, description)
    except OSError as error:
        raise MildlyError(f"{path}: cannot be written ({error}).") from error
