"""D4RL's official files: which file a data set's name means, where it is kept, and how it gets there.

`official.tsv` lists them with address, size and sha256. For maze2d's four files size and sum are not known: their sum
is recorded beside the file at first use, in `FILE.sha256`, and compared from then on.

Files are downloaded into the folder that MILDLY_CACHE names (else `mildly` in the user's cache). Where D4RL's server is
out of reach, MILDLY_MIRROR names another: with `https://host/d4rl`, a file is `https://host/d4rl/offline_rl/...`.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from mildly.errors import MildlyError, tell
from mildly.files import atomic_write, sha256

CACHE_VARIABLE = "MILDLY_CACHE"
MIRROR_VARIABLE = "MILDLY_MIRROR"
_RECORD_BYTES = 1000
_OLD_PART = 30 * 24 * 3600.0  # seconds


@dataclass(frozen=True)
class OfficialFile:
    """One file of D4RL's."""

    name: str
    file: str
    address: str
    size: int | None
    sha256: str | None


@cache
def official_files() -> dict[str, OfficialFile]:
    """All of D4RL's files by the name of the data set, newest versions of a task first."""
    lines = (files("mildly.data") / "official.tsv").read_text().splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return {
        name: OfficialFile(name, file, address, int(size) if size else None, sha256 or None)
        for name, file, address, size, sha256 in rows
    }


@cache
def _names_by_stem() -> dict[str, str]:
    return {Path(entry.file).stem: entry.name for entry in official_files().values()}


def name_of_file(file_name: str) -> str | None:
    """The data set that a file with an official name holds; None for any other name. The suffix does not matter.

    `hopper_mixed.hdf5` is hopper-medium-replay-v0, `pen-demos-v0-bc-combined.hdf5` is pen-cloned-v0.
    """
    return _names_by_stem().get(Path(file_name).stem)


def cache_folder() -> Path:
    """Where downloaded files are kept: MILDLY_CACHE, or mildly in XDG_CACHE_HOME, or ~/.cache/mildly."""
    own, common = os.environ.get(CACHE_VARIABLE), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser().absolute()
    return (Path(common) if common else Path("~/.cache")).expanduser().absolute() / "mildly"


def cached(name: str) -> Path | None:
    """An official data set's file if it was downloaded before. It is whole: it got its name after it arrived."""
    path = cache_folder() / official_files()[name].file
    return path if path.is_file() else None


def address_of(entry: OfficialFile) -> str:
    """Where to download a file: D4RL's address, or MILDLY_MIRROR, a folder in which `offline_rl/` is."""
    mirror = os.environ.get(MIRROR_VARIABLE)
    if not mirror:
        return entry.address
    return f"{mirror.rstrip('/')}/offline_rl/{entry.address.split('/offline_rl/', 1)[1]}"


def fetch(name: str) -> Path:
    """Download an official data set's file into the cache."""
    from mildly.data.download import download  # loads much that reading a file on disk does not need

    entry, folder = official_files()[name], cache_folder()
    path = folder / entry.file
    _remove_old_parts(folder)
    try:
        found = download(address_of(entry), path, size=entry.size, sha256=entry.sha256 or _recorded(path))
    except MildlyError as error:
        by_record = entry.sha256 is None and _record_of(path).exists()
        where = f" The sum expected is that of its first download, in {_record_of(path)}." if by_record else ""
        raise MildlyError(
            f"{name}: {error}{where} You can also put {entry.file} into {folder} by hand, or into a folder that "
            "--data-dir or the environment variable MILDLY_DATA names."
        ) from error
    return checked(name, found)


def checked(name: str, path: Path) -> Path:
    """A file of the cache, once it is known to be what it was at first use, where no official sum is known."""
    if official_files()[name].sha256 is not None:
        return path
    expected, record = _recorded(path), _record_of(path)
    found = sha256(path)
    if expected is None:
        tell(
            f"WARNING: {path}: D4RL publishes no checksum of this file, so nobody can tell whether it is the one that "
            f"was published. Its sha256 is {found}; it is kept in {record.name}, and compared from now on."
        )
        try:
            with atomic_write(record) as unfinished:
                unfinished.write_text(f"{found}  {path.name}\n")
        except OSError as error:  # a cache that may be read only
            tell(f"WARNING: {record}: cannot be written ({error}).")
    elif found != expected:
        raise MildlyError(
            f"{path}: is not the file that it was at first use: its sha256 is {found}, but {record} says {expected}. "
            f"Remove the file to download it again; if you have changed it on purpose, remove {record.name}."
        )
    return path


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _recorded(path: Path) -> str | None:
    """The sum at first use, if there was one."""
    record = _record_of(path)
    try:
        with record.open("rb") as file:
            words = file.read(_RECORD_BYTES).split()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MildlyError(f"{record}: cannot be read ({error}).") from error
    if not words or not re.fullmatch(rb"[0-9a-f]{64}", words[0]):
        raise MildlyError(f"{record}: does not hold a sha256. Remove it if you trust {path.name}.")
    return words[0].decode()


def _remove_old_parts(folder: Path) -> None:
    """Parts of downloads that nobody has gone on with for a month, or whose file has arrived by another way."""
    for entry in official_files().values():
        part = folder / f"{entry.file}.part"
        with contextlib.suppress(OSError):
            left = part.with_suffix(".lock").exists()  # a process may be at it
            old = time.time() - part.stat().st_mtime > _OLD_PART
            if old or (not left and (folder / entry.file).exists()):
                part.unlink()
