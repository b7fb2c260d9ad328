"""JSON lines: what RLlib's `JsonWriter` leaves, a batch of rows a line, or a folder of such files. Also a step a line.

By default RLlib packs observations as pickles, which are never loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mildly.data.assemble import Log
from mildly.data.dataset import Array
from mildly.data.formats.arrays import damaged
from mildly.data.formats.fields import WIDE, check_numbers, check_width, choose, clean, natural
from mildly.data.formats.fragments import log_of
from mildly.data.memory import Limit, memory_limit
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError
from mildly.files import parse_json
from mildly.words import counted

SUFFIXES = (".json", ".jsonl")
_LINE_BYTES = 1 << 26
_UNPACKED = 8  # what a letter of a line becomes in memory, about
_NO_COLUMNS = ("type", "count")


def files_in(folder: Path) -> list[Path]:
    """The files of a folder, in the order in which a person would count them; only RLlib's if it has written any."""
    found = [path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and path.is_file()]
    found = [path for path in found if not path.name.startswith(".")]
    of_rllib = [path for path in found if path.name.startswith("output-")]
    return sorted(of_rllib or found, key=lambda path: natural(path.name))


def read(path: Path, options: ImportOptions) -> Log:
    """A file, or a folder of them."""
    paths = files_in(path) if path.is_dir() else [path]
    limit = memory_limit(options.max_memory)
    first = next((columns for file in paths for _, columns in _lines(file, limit)), None)
    if first is None:
        raise MildlyError(f"{path}: is empty; expected a JSON object a line.")
    names = choose(first, path, options)
    return log_of(path, f"JSON lines {path.name}", names, first, _blocks(paths, names, limit), options)


def _lines(path: Path, limit: Limit) -> Iterator[tuple[str, dict[str, Any]]]:
    """The columns of each line, and where it is."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_LINE_BYTES + 1):
                number += 1
                where = f"{path}: line {number}"
                if len(line) > _LINE_BYTES:
                    raise MildlyError(f"{where} is longer than {_LINE_BYTES >> 20} MB, which is no log.")
                limit.check_piece(str(path), f"line {number}", _UNPACKED * len(line))
                if line.strip():
                    yield where, _columns(parse_json(line), where)
    except FileNotFoundError as error:
        raise MildlyError(f"{path}: no such file.") from error
    except ValueError as error:
        raise MildlyError(
            f"{where} is no JSON ({error}). Expected are JSON lines: an object a line, with a list for each column, or "
            "with the values of one step."
        ) from error
    except OSError as error:
        raise damaged(path, error) from error


def _columns(line: Any, where: str) -> dict[str, Any]:
    """The columns in a line; a batch of several agents must be that of one policy."""
    if not isinstance(line, dict):
        raise MildlyError(f"{where} holds no JSON object; expected one with a list for each column.")
    if line.get("type") == "MultiAgentBatch":
        policies = line.get("policy_batches")
        if not isinstance(policies, dict) or len(policies) != 1 or not isinstance(next(iter(policies.values())), dict):
            names = ", ".join(policies) if isinstance(policies, dict) else "none"
            raise MildlyError(f"{where} holds the batches of several policies ({names}). Write those of each apart.")
        (line,) = policies.values()
    return {name: value for name, value in line.items() if name not in _NO_COLUMNS}


def _blocks(paths: list[Path], names: Mapping[str, str], limit: Limit) -> Iterator[dict[str, Array]]:
    """The fields of each line, all with as many rows; episodes as texts."""
    widths: dict[str, int] = {}
    for path in paths:
        for where, columns in _lines(path, limit):
            absent = [name for name in names.values() if name not in columns]
            if absent:
                raise MildlyError(f"{where} lacks '{absent[0]}', which the first line has.")
            single = not isinstance(columns[names["rewards"]], list)
            block = {}
            for field, name in names.items():
                if field in WIDE:
                    _check_not_packed(columns[name], name, where)
                values = [columns[name]] if single else columns[name]
                block[field] = _array(values, field, name, where, path)
            for field, values in block.items():
                if len(values) != len(block["rewards"]):
                    raise MildlyError(f"{where}: '{names[field]}' has {len(values)} rows, the rewards have others.")
                check_width(widths, field, values, f"{where}: '{names[field]}'")
            if len(block["rewards"]):
                yield block


def _check_not_packed(values: Any, name: str, where: str) -> None:
    if isinstance(values, str) or (isinstance(values, list) and any(isinstance(value, str) for value in values)):
        raise MildlyError(
            f"{where}: column '{name}' is packed (a pickle, compressed), and pickle is never loaded. Let RLlib write "
            "it plainly, with JsonWriter(..., compress_columns=[]) or output_compress_columns=[] in "
            "AlgorithmConfig.offline_data; its JsonReader can read the packed file for that."
        )


def _array(values: Any, field: str, name: str, where: str, path: Path) -> Array:
    if field == "episodes":
        if not isinstance(values, list) or not all(isinstance(value, int | float | str) for value in values):
            raise MildlyError(f"{where}: '{name}' must hold a number or a name a row.")
        return np.array([str(value) for value in values], dtype=object)
    try:
        array = np.asarray(values)
        array = array.astype(np.float64) if array.dtype.hasobject else array  # null is NaN
    except (ValueError, TypeError, OverflowError) as error:
        raise MildlyError(f"{where}: the rows of '{name}' are no numbers, or differ in how many they are.") from error
    check_numbers(array.dtype, name, path)
    most = 2 if field in WIDE else 1
    if not 1 <= array.ndim <= most or (field in WIDE and array.size == 0 and len(array)):
        raise MildlyError(f"{where}: '{name}' has shape {array.shape}, expected {counted(most, 'dimension')}.")
    return clean(array, field, f"{where}: '{name}'") if len(array) else array.reshape(0, 1) if most == 2 else array
