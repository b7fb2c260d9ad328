"""Files made wrong: bytes that were changed, JSON, TOML, arrays and tensors of other types, shapes and sizes."""

from __future__ import annotations

import gzip
import io
import json
import random
import tomllib
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from safetensors.numpy import load_file, save

from mildly.training import checkpoint

DEEP, DIGITS, SURROGATE = "[" * 100_000 + "]" * 100_000, "9" * 400, '"\\ud800"'
VALUES: tuple[Any, ...] = (None, True, -1, 1e308, 2**62, "text", "", [], {}, [[1]], {"a": {"b": 1}}, [None], "\x1b[2J")
STRANGE = (
    np.zeros(()),
    np.zeros(7),
    np.zeros((2, 0)),
    np.array("x"),
    np.array(["a", "b"]),
    np.full(3, np.nan),
    np.zeros((1, 2, 3)),
    np.array([1 + 2j]),
    np.zeros(2, "datetime64[s]"),
    np.array(b"x"),
    np.zeros(4, "V3"),
)
"""Arrays that no log, network or description consists of."""

_WORSE: tuple[Any, ...] = (
    0,
    10**300,
    float("nan"),
    float("-inf"),
    "x" * 100_000,
    "\ud800",
    [0] * 10_000,
    "module:Id-v0",
)
_TEXTS = (DEEP, DIGITS, SURROGATE, "", "null", "3", "[]", "\x00", '{"a": ' * 2000)
_CELLS = (
    b"",
    b"nan",
    b"1e400",
    b"9" * 400,
    b"x" * 100_000,
    b'"',
    b'"a',
    b"true",
    b"1;5",
    b"\x00",
    b"\x1b[2J",
    b"\xff\xfe",
    b"obs_0",
)
_ENTRIES: tuple[Any, ...] = (
    "text",
    b"bytes",
    True,
    2**62,
    float("nan"),
    [1.0, 2.0],
    [[1.0]],
    {"a": 1},
    Decimal("1.5"),
    date(2020, 1, 1),
)
_PLACEHOLDER = "a value of its own spelling"


def mutated(values: Any, draw: random.Random) -> Any:
    """The values with one of them replaced, left out or doubled, somewhere."""
    if isinstance(values, dict | list) and values and draw.random() < 0.8:
        changed = values.copy()
        keys = list(changed) if isinstance(changed, dict) else list(range(len(changed)))
        key = draw.choice(keys)
        if draw.random() < 0.1:
            del changed[key]
        elif draw.random() < 0.1 and isinstance(changed, list):
            changed += changed
        else:
            changed[key] = mutated(changed[key], draw)
        return changed
    return draw.choice((*VALUES, *_WORSE, _PLACEHOLDER))


def json_mutant(values: Any, draw: random.Random) -> bytes:
    """JSON of changed values, among them some that only a text can spell."""
    if draw.random() < 0.1:
        return draw.choice(_TEXTS).encode()
    for _ in range(draw.choice((1, 1, 2, 5))):
        values = mutated(values, draw)
    text = json.dumps(values)
    return text.replace(f'"{_PLACEHOLDER}"', draw.choice((DEEP, DIGITS, "1e999", "-0.0"))).encode()


def lines_mutant(content: bytes, draw: random.Random) -> bytes:
    """JSON lines with one of them changed."""
    lines = content.splitlines()
    place = draw.randrange(len(lines))
    lines[place] = json_mutant(json.loads(lines[place]), draw)
    return b"\n".join(lines) + b"\n" * draw.choice((1, 1, 1, 0, 2))


def toml_mutant(values: dict[str, Any], draw: random.Random) -> bytes:
    """A sweep's file of changed values."""
    changed = mutated(values, draw)
    text = toml_text(changed if isinstance(changed, dict) else {"algorithms": changed})
    return text.replace(f'"{_PLACEHOLDER}"', draw.choice((DEEP, DIGITS, "2020-01-01", "[1, 2]"))).encode()


def toml_text(values: dict[str, Any]) -> str:
    """TOML, every table in a line of its own."""
    return "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in values.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return str(value)
    return '"None"' if value is None else json.dumps(value)


def changed_arrays(arrays: dict[str, Any], draw: random.Random, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Arrays of which one is missing, or another than before: strange, cut, of another type, or not finite."""
    changed = dict(arrays)
    name = draw.choice([*arrays, *more])
    if draw.random() < 0.3 or name not in arrays:
        changed.pop(name, None)
        if name in more:
            changed[name] = draw.choice(STRANGE)
        return changed
    array = np.asarray(arrays[name])
    kind = draw.choice(("strange", "cut", "type", "value", "swap"))
    if kind == "strange" or array.dtype.kind not in "biuf" or not array.size:
        changed[name] = draw.choice(STRANGE)
    elif kind == "cut":
        changed[name] = array.reshape(-1)[: draw.randrange(array.size)]
    elif kind == "type":
        changed[name] = array.astype(draw.choice(("i1", "u8", "f2", "f8", "c8", "U5", "S2", "?")))
    elif kind == "value":
        array = array.astype(np.float64)
        array.reshape(-1)[draw.randrange(array.size)] = draw.choice((np.nan, np.inf, 1e308, -1e308, 1e-320))
        changed[name] = array
    else:
        changed[name] = array.T.copy() if array.ndim > 1 else array[..., None]
    return changed


def npz_mutant(arrays: dict[str, Any], draw: random.Random, more: tuple[str, ...] = ()) -> bytes:
    """A `.npz` file of changed arrays."""
    content = io.BytesIO()
    np.savez(content, **changed_arrays(arrays, draw, more))
    return content.getvalue()


def of_json(path: Path, draw: random.Random) -> bytes:
    return json_mutant(json.loads(path.read_bytes()), draw)


def of_lines(path: Path, draw: random.Random) -> bytes:
    return lines_mutant(path.read_bytes(), draw)


def of_toml(path: Path, draw: random.Random) -> bytes:
    return toml_mutant(tomllib.loads(path.read_text()), draw)


def of_npz(path: Path, draw: random.Random) -> bytes:
    with np.load(path) as arrays:
        return npz_mutant(dict(arrays), draw, ("mildly", "episodes", "timeouts", "Wls", "W2", "W9"))


def of_npy(path: Path, draw: random.Random) -> bytes:
    content = io.BytesIO()
    np.save(content, changed_arrays({"": np.load(path)}, draw).get("", np.zeros((0, 3), "f4")))
    return content.getvalue()


def of_weights(path: Path, draw: random.Random) -> bytes:
    return save(_storable(changed_arrays(load_file(path), draw, ("other",))))


def of_checkpoint(path: Path, draw: random.Random) -> bytes:
    """With a digest that is right."""
    tensors, facts = checkpoint.load(path)
    if draw.random() < 0.5:
        facts = mutated(facts, draw)
    else:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        changed = _storable(changed_arrays(arrays, draw, ("other",)))
        tensors = {name: torch.tensor(array) for name, array in changed.items()}
    checkpoint.save(path, tensors, facts)
    return path.read_bytes()


def _storable(arrays: dict[str, Any]) -> dict[str, Any]:
    """Without the types that safetensors does not have."""
    return {name: np.ascontiguousarray(array) for name, array in arrays.items() if array.dtype.kind in "biuf"}


def of_hdf5(path: Path, draw: random.Random) -> bytes:
    with h5py.File(path, "r+") as file:
        arrays = {name: found[()] for name, found in file.items() if isinstance(found, h5py.Dataset)}
        changed = changed_arrays(arrays, draw, ("timeouts", "episodes"))
        for name in {*arrays, *changed}:
            if name not in changed or changed[name] is not arrays.get(name):
                if name in file:
                    del file[name]
                if name in changed:
                    array = np.asarray(changed[name])
                    file[name] = array.astype("S") if array.dtype.kind in "UM" else array
        for name in list(file.attrs):
            if draw.random() < 0.2:
                file.attrs[name] = json_mutant(json.loads(file.attrs[name]), draw)
        if draw.random() < 0.1:
            file.create_group(draw.choice(("observations ", "mildly", "x"))).create_group("inside")
    return path.read_bytes()


def of_csv(path: Path, draw: random.Random) -> bytes:
    packed = path.suffix == ".gz"
    lines = (gzip.decompress(path.read_bytes()) if packed else path.read_bytes()).split(b"\n")
    for _ in range(draw.choice((1, 1, 3, 50))):
        place = draw.choice((0, draw.randrange(len(lines))))
        cells = lines[place].split(b",")
        cells[draw.randrange(len(cells))] = draw.choice(_CELLS)
        cells = cells[: draw.randrange(len(cells)) + 1] if draw.random() < 0.1 else cells
        lines[place] = b",".join(cells)
    content = draw.choice((b"\n", b"\n", b"\r\n", b"\r", b";\n")).join(lines)
    return gzip.compress(content, 1) if packed else content


def of_parquet(path: Path, draw: random.Random) -> bytes:
    import pyarrow as arrow
    import pyarrow.parquet

    table = arrow.parquet.read_table(path)
    rows, place = table.num_rows, draw.randrange(table.num_columns)
    name, kind = table.column_names[place], draw.choice(("drop", "twice", "name", "null", "value", "about"))
    if kind == "drop":
        table = table.remove_column(place)
    elif kind == "twice":
        table = table.append_column(name, table.column(place))
    elif kind == "name":
        names = list(table.column_names)
        names[place] = draw.choice(("", "x" * 5000, "\x1b[2J", "obs", "a.b", "episode"))
        table = table.rename_columns(names)
    elif kind == "about":
        table = table.replace_schema_metadata(
            {"mildly": json_mutant(json.loads(table.schema.metadata[b"mildly"]), draw)}
        )
    else:
        value = None if kind == "null" else draw.choice(_ENTRIES)
        table = table.set_column(place, name, arrow.array([value] * rows))
    content = io.BytesIO()
    arrow.parquet.write_table(table, content, compression=draw.choice(("snappy", "none", "gzip")))
    return content.getvalue()


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The bytes with some flipped, cut out, put in, moved or overwritten; often near an end, where headers are."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 5, 30))):
        size = len(data)
        place = draw.choice(
            (draw.randrange(size + 1), draw.randrange(min(size, 200) + 1), size - draw.randrange(min(size, 400) + 1))
        )
        length = draw.choice((1, 2, 4, 8, 16, 256))
        kind = draw.choice(("flip", "flip", "cut", "put", "move", "number", "end"))
        if kind == "flip" and place < size:
            data[place] ^= 1 << draw.randrange(8)
        elif kind == "cut":
            del data[place : place + length]
        elif kind == "put":
            data[place:place] = draw.randbytes(length)
        elif kind == "move":
            start = draw.randrange(size + 1)
            data[place:place] = data[start : start + length]
        elif kind == "number":
            data[place : place + 8] = draw.choice(
                (b"\xff" * 8, b"\x00" * 8, b"\xff" * 7 + b"\x7f", b"9" * 8, b'"[{,}]"\n')
            )
        elif kind == "end" and draw.random() < 0.3:
            del data[place:]
    return bytes(data)
