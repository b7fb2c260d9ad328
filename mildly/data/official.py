"""D4RL's official files: which file a data set's name means, where it is kept, and how it gets there.

`official.tsv` lists them with address, size and sha256. For maze2d's four files size and sum are not known.

Files are downloaded into the folder that MILDLY_CACHE names (else `mildly` in the user's cache). Where D4RL's server is
out of reach, MILDLY_MIRROR names another: with `https://host/d4rl`, a file is `https://host/d4rl/offline_rl/...`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from mildly.errors import MildlyError

CACHE_VARIABLE = "MILDLY_CACHE"
MIRROR_VARIABLE = "MILDLY_MIRROR"


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
    """An official data set's file if it was downloaded before. It is whole: it got its name after it was checked."""
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
    try:
        return download(address_of(entry), folder / entry.file, size=entry.size, sha256=entry.sha256)
    except MildlyError as error:
        raise MildlyError(
            f"{name}: {error} You can also put {entry.file} into {folder} by hand, or into a folder that --data-dir "
            "or the environment variable MILDLY_DATA names."
        ) from error
