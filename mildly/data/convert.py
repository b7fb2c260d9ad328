"""From any format to any other. Nothing is ever half-written, and no step holds the whole set in memory."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path

from mildly.data import formats
from mildly.data.assemble import assemble
from mildly.data.dataset import Dataset
from mildly.data.formats.minari import PREFIX
from mildly.data.options import ImportOptions
from mildly.data.registry import open_log
from mildly.data.tasks import task_of
from mildly.data.writer import Writer
from mildly.errors import MildlyError
from mildly.files import replacing


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    options: ImportOptions | None = None,
    *,
    data_dir: str | None = None,
) -> Dataset:
    """Read a log in any format and write it in another; the new set is returned.

    Args:
        source: whatever `load_dataset` takes.
        target: a folder to be made (the native form), or a file whose ending says the format, or `minari:NAME`.
        options: how to read the source.
        data_dir: folder in which names are looked for first.
    """
    options = options or ImportOptions()
    name = os.fspath(target)
    path = Path(name).expanduser()
    if not name.startswith(PREFIX):
        if path.exists():
            raise MildlyError(f"{path}: exists already. Give another name, or remove it first.")
        if not path.name.lower().endswith(formats.SUFFIXES):
            return _into_folder(source, path, options, data_dir, name=path.name)
    beside = path.parent if path.parent.is_dir() and not name.startswith(PREFIX) else None
    with tempfile.TemporaryDirectory(prefix=".mildly-", dir=beside) as folder:  # files are written from a mapped set
        data = _into_folder(source, Path(folder) / "set", options, data_dir)
        export(data, target)
    return data


def _into_folder(
    source: str | os.PathLike[str], folder: Path, options: ImportOptions, data_dir: str | None, name: str | None = None
) -> Dataset:
    log = open_log(source, options, data_dir)
    if log.meta.name == Path(log.where).stem and task_of(log.meta.name) is None and options.name is None:
        options = dataclasses.replace(options, name=name)  # the file's name says no more than the new one does
    with Writer(folder) as writer:
        data = assemble(log, options, writer)
        writer.finish(data.meta)
    return Dataset.load(folder, verify=False)


def export(data: Dataset, target: str | os.PathLike[str]) -> None:
    """Write a data set as a file of the format that its ending says, or as Minari's with `minari:NAME`."""
    name = os.fspath(target)
    if name.startswith(PREFIX):
        from mildly.data.formats import minari

        minari.write(data, name)
        return
    path = Path(name).expanduser()
    module = formats.module_for(path)
    description = json.dumps(dataclasses.asdict(data.meta))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            module.write(data, unfinished, description)
    except OSError as error:
        raise MildlyError(f"{path}: cannot be written ({error}).") from error
