"""Bad files of every format: always one clear error (or a good data set), never a hang, a pickle run, or a leftover."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import resource
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attempts import LOG, attempt, attempt_bytes
from conftest import Refused, make_dataset
from hypothesis import given, settings, strategies as st

from mildly.data import formats
from mildly.data.convert import export
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError

pytestmark = pytest.mark.timeout(60)

NAMES = ("log.npz", "log.hdf5", "log.parquet", "log.csv", "log.tsv.gz")


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """A file that claims too much must not get it."""
    if not Path("/proc/self/statm").is_file():  # where the present size is not known
        yield
        return
    limits = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (3 << 30), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def valid(name: str) -> bytes:
    """A good file, ours or somebody's."""
    if name not in _VALID:
        with tempfile.TemporaryDirectory() as folder:
            export(make_dataset(40), Path(folder) / name)
            _VALID[name] = (Path(folder) / name).read_bytes()
    return _VALID[name]


_VALID: dict[str, bytes] = {}


# Any bytes


@pytest.mark.parametrize("name", NAMES)
@given(share=st.floats(0, 1))
def test_a_file_cut_at_any_byte(name: str, share: float) -> None:
    content = valid(name)
    data = attempt_bytes(name, content[: int(share * len(content))])
    if share < 0.9 and name != "log.csv":  # a table of text cut between two lines is a shorter table
        assert data is None


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_file_with_changed_bytes(name: str, changes: list[tuple[float, int]]) -> None:
    content = bytearray(valid(name))
    for place, byte in changes:
        content[int(place * (len(content) - 1))] = byte
    attempt_bytes(name, bytes(content))


@pytest.mark.parametrize("name", ["log.npz", "log.hdf5", "log.parquet"])
@settings(max_examples=60)
@given(end=st.booleans(), place=st.integers(0, 1500), change=st.binary(min_size=1, max_size=8))
def test_a_file_whose_headers_are_changed(name: str, end: bool, place: int, change: bytes) -> None:
    content = bytearray(valid(name))
    start = max(0, len(content) - 1500) if end else 0
    content[start + place : start + place + len(change)] = change
    attempt_bytes(name, bytes(content))


@pytest.mark.parametrize("ending", formats.SUFFIXES)
@settings(max_examples=15)
@given(content=st.binary(max_size=400))
def test_random_bytes_under_every_ending(ending: str, content: bytes) -> None:
    attempt_bytes(f"log{ending}", content)
    if ending.endswith(".gz"):
        attempt_bytes(f"log{ending}", gzip.compress(content))


@pytest.mark.parametrize("ending", formats.SUFFIXES)
@pytest.mark.parametrize("other", NAMES)
def test_a_file_of_one_format_under_the_ending_of_another(tmp_path: Path, ending: str, other: str) -> None:
    path = tmp_path / f"log{ending}"
    path.write_bytes(valid(other))
    data = attempt(path)
    same = {
        "log.hdf5": (".hdf5", ".h5"),
        "log.parquet": (".parquet", ".pq"),
        "log.csv": (".csv", ".tsv"),  # which are told apart by their first line
        "log.tsv.gz": (".csv.gz", ".tsv.gz"),
    }
    assert (data is not None) == (ending in same.get(other, (other.removeprefix("log"),)))


@pytest.mark.parametrize("ending", formats.SUFFIXES)
@pytest.mark.parametrize("kind", ["empty", "folder", "folder with a file", "link to nowhere"])
def test_no_file_under_a_file_s_name(tmp_path: Path, ending: str, kind: str) -> None:
    path = tmp_path / f"log{ending}"
    if kind == "empty":
        path.touch()
    elif kind == "link to nowhere":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.mkdir()
        if kind != "folder":
            (path / "rewards.npy").write_bytes(b"")
    with pytest.raises(MildlyError, match=str(path)):
        load_dataset(path)


# Arrays


def save(path: Path, columns: dict[str, Any]) -> Path:
    """A .npz, or an HDF5 file."""
    if path.suffix == ".npz":
        np.savez(path, **columns)
        return path
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file[name] = values
    return path


dtypes = st.sampled_from(["f4", "f8", "i1", "u8", "?", "c8", "S3", "U2", "M8[s]", "m8[s]", "V4", "f4,i2", ">f8", "f2"])
shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)


@settings(max_examples=150)
@given(
    ending=st.sampled_from([".npz", ".hdf5"]),
    columns=st.dictionaries(
        st.sampled_from([*LOG, "timeouts", "next_observations", "episodes", "obs", "mildly", "other"]),
        st.tuples(dtypes, shapes),
        max_size=6,
    ),
)
def test_arrays_of_any_type_and_shape_under_any_name(ending: str, columns: dict[str, Any]) -> None:
    arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in columns.items()}
    if ending == ".hdf5":  # which cannot hold these
        arrays = {name: array for name, array in arrays.items() if array.dtype.kind not in "UMm"}
    with tempfile.TemporaryDirectory() as folder:
        attempt(save(Path(folder) / f"log{ending}", {**LOG, **arrays}))


def test_names_that_are_exchanged_are_noticed_by_their_shapes(tmp_path: Path, refused: Refused) -> None:
    columns = {**LOG, "rewards": LOG["observations"], "observations": LOG["rewards"]}
    refused.dataset(save(tmp_path / "log.npz", columns), "'rewards' has shape (6, 2)")


class Hostile:
    """A pickle that leaves a file behind if anything ever unpickles it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("kind", ["npz", "npz beside", "npy", "bare pickle", "description"])
def test_a_hostile_pickle_never_runs(tmp_path: Path, kind: str) -> None:
    trace = tmp_path / "trace"
    hostile = np.array([Hostile(trace)] * 6, dtype=object)
    inside = tmp_path / "inside"
    inside.mkdir()
    if kind == "npy":
        path = inside / "log"
        path.mkdir()
        for name, values in LOG.items():
            np.save(path / f"{name}.npy", values)
        np.save(path / "rewards.npy", hostile, allow_pickle=True)
    elif kind == "bare pickle":
        path = inside / "log.npz"
        path.write_bytes(pickle.dumps(Hostile(trace)))
    else:
        name = {"npz": "rewards", "npz beside": "infos", "description": "mildly"}[kind]
        path = inside / "log.npz"
        np.savez(path, **{**LOG, name: hostile}, allow_pickle=True)
    assert attempt(path) is None
    assert not trace.exists()
    pickle.loads(pickle.dumps(Hostile(trace)))  # the trap does work
    assert trace.exists()


def header(shape: tuple[int, ...], dtype: str = "<f4", by_column: bool = False) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": by_column, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("shape", [(10**12, 3), (10**12,), (2**40, 2**40), (6, 10**12), (2**62, 4), (-6, 3), (6, -3)])
def test_an_archive_that_claims_a_universe_of_rows(tmp_path: Path, shape: tuple[int, ...], by_column: bool) -> None:
    path = tmp_path / "log.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in LOG:
            wide = name in ("observations", "actions")
            own = shape if wide or len(shape) == 1 else shape[:1]
            archive.writestr(f"{name}.npy", header(own, by_column=by_column) + bytes(100))
    assert attempt(path) is None


def test_an_archive_with_names_that_lead_elsewhere_writes_nothing(tmp_path: Path, refused: Refused) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    with zipfile.ZipFile(inside / "log.npz", "w") as archive:
        for name, values in LOG.items():
            file = io.BytesIO()
            np.save(file, values)
            archive.writestr(f"../../{name}.npy", file.getvalue())
            archive.writestr(f"/tmp/{name}-mildly-test.npy", file.getvalue())
    refused.dataset(inside / "log.npz", "lacks observations")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("change", ["encrypted", "method", "comment", "twice"])
def test_archives_of_other_kinds(tmp_path: Path, change: str) -> None:
    path = save(tmp_path / "log.npz", LOG)
    content = bytearray(path.read_bytes())
    if change == "twice":
        with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
            archive.writestr("rewards.npy", b"nothing")
        assert attempt(path) is None
        return
    if change == "comment":
        path.write_bytes(content + b"x")
        attempt(path)
        return
    for place in (i for i in range(len(content)) if content[i : i + 4] in (b"PK\x03\x04", b"PK\x01\x02")):
        offset = place + (6 if content[place + 2] == 3 else 8)
        content[offset if change == "encrypted" else offset + 2] = 1 if change == "encrypted" else 14
    path.write_bytes(content)
    assert attempt(path) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", '{"name": 3}', '{"name": "x", "action_low": 3}', '{"name": "x", "notes": 3}', "{}"],
)
@pytest.mark.parametrize("ending", ["npz", "hdf5", "parquet"])
def test_a_damaged_description_of_ours_is_told(tmp_path: Path, ending: str, text: str, refused: Refused) -> None:
    path = tmp_path / f"log.{ending}"
    if ending == "parquet":
        columns = {"x": [1.0, 2.0, 3.0], "action": [0.5] * 3, "reward": [0.0] * 3}
        pq.write_table(pa.table(columns).replace_schema_metadata({"mildly": text or " "}), path)
    elif ending == "npz":
        np.savez(path, **LOG, mildly=np.array(text or " "))
    else:
        save(path, LOG)
        with h5py.File(path, "a") as file:
            file.attrs["mildly"] = np.bytes_(text or " ")
    refused.dataset(path, "the description in it is damaged")


# HDF5


def with_hdf5(folder: Path, change: Callable[[h5py.File], None]) -> Path:
    path = save(folder / "log.hdf5", LOG)
    with h5py.File(path, "a") as file:
        change(file)
    return path


def test_links_that_lead_nowhere_or_in_circles_matter_only_where_they_are_needed(tmp_path: Path) -> None:
    def add(file: h5py.File) -> None:
        file["nowhere"] = h5py.SoftLink("/no/such/thing")
        file["outside"] = h5py.ExternalLink("absent.hdf5", "/x")
        file["circle"] = file["/"]
        file["loop"] = h5py.SoftLink("/loop")
        file.create_group("infos/deep/deeper")["qpos"] = np.zeros(3)

    assert attempt(with_hdf5(tmp_path, add)) is not None


@pytest.mark.parametrize("kind", ["soft", "external", "external through a group", "loop", "group", "type"])
def test_a_needed_array_that_is_a_link_or_something_else_is_refused(
    tmp_path: Path, kind: str, refused: Refused
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    save(tmp_path / "other.hdf5", {"values": LOG["rewards"]})

    def change(file: h5py.File) -> None:
        del file["rewards"]
        if kind == "soft":
            file["rewards"] = h5py.SoftLink("/nowhere")
        elif kind == "external":
            file["rewards"] = h5py.ExternalLink("../other.hdf5", "/values")
        elif kind == "external through a group":
            file.create_group("g")["x"] = h5py.ExternalLink("../other.hdf5", "/values")
            file["rewards"] = h5py.SoftLink("/g/x")
        elif kind == "loop":
            file["rewards"] = h5py.SoftLink("/rewards")
        elif kind == "group":
            file["rewards"] = file["/"]
        else:
            file["rewards"] = np.dtype("f4")

    refused.dataset(with_hdf5(inside, change), "rewards")


def test_a_soft_link_within_the_file_is_followed(tmp_path: Path) -> None:
    def change(file: h5py.File) -> None:
        file.create_group("deep")["r"] = LOG["rewards"]
        del file["rewards"]
        file["rewards"] = h5py.SoftLink("/deep/r")

    data = attempt(with_hdf5(tmp_path, change))
    assert data is not None
    assert data.rewards.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("there", [True, False])
def test_arrays_that_are_kept_in_other_files_are_refused(tmp_path: Path, there: bool, refused: Refused) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    other = tmp_path / "other.hdf5"
    if there:
        save(other, {"values": LOG["rewards"]})

    def virtual(file: h5py.File) -> None:
        del file["rewards"]
        layout = h5py.VirtualLayout((6,), "f8")
        layout[:] = h5py.VirtualSource(str(other), "values", (6,))
        file.create_virtual_dataset("rewards", layout)  # where the other file is absent, all is zero

    refused.dataset(with_hdf5(inside, virtual), "'rewards' is kept in other files")
    (inside / "log.hdf5").unlink()

    def external(file: h5py.File) -> None:
        del file["rewards"]
        file.create_dataset("rewards", (6,), "f8", external=[(str(other), 0, 48)])

    refused.dataset(with_hdf5(inside, external), "'rewards' is kept in other files")


def test_a_shape_that_the_file_cannot_hold_is_refused_at_once(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "log.hdf5"
    with h5py.File(path, "w") as file:
        for name, values in LOG.items():
            file.create_dataset(name, (10**12, *values.shape[1:]), "f4", chunks=(1024, *values.shape[1:]))
    refused.dataset(path, "far more than the file can hold")


def test_flags_that_were_never_written_are_false(tmp_path: Path) -> None:
    def change(file: h5py.File) -> None:
        del file["terminals"]
        file.create_dataset("terminals", (6,), "?")

    data = attempt(with_hdf5(tmp_path, change))
    assert data is not None
    assert not data.terminated.any()


@pytest.mark.parametrize("values", [["a", "b"], h5py.Empty("f4"), np.zeros(2), b"\xff\xfe"])
def test_descriptions_of_other_kinds_are_not_ours(tmp_path: Path, values: Any) -> None:
    def change(file: h5py.File) -> None:
        file.attrs["mildly"] = values

    attempt(with_hdf5(tmp_path, change))


def test_a_description_whose_heap_is_damaged_does_not_keep_hdf5_busy_for_ever(tmp_path: Path) -> None:
    def change(file: h5py.File) -> None:
        file.attrs["mildly"] = "text of variable length"

    path = with_hdf5(tmp_path, change)
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL") + 16  # the first object's number, references, reserved bytes, and size
    content[heap : heap + 16] = bytes(16)
    path.write_bytes(content)
    assert attempt(path) is not None


# Folders


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from([f"{name}.npy" for name in LOG]), st.binary(max_size=200), min_size=1),
    st.booleans(),
)
def test_folders_of_damaged_arrays(content: dict[str, bytes], keep_start: bool) -> None:
    with tempfile.TemporaryDirectory() as parent:
        path = Path(parent) / "log"
        path.mkdir()
        for name, values in LOG.items():
            np.save(path / f"{name}.npy", values)
        for name, noise in content.items():
            start = (path / name).read_bytes()[: 100 if keep_start else 0]
            (path / name).write_bytes(start + noise)
        attempt(path)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"format": 1}', json.dumps({"format": 1, "meta": {"name": 1}})]
)
def test_a_damaged_native_folder(tmp_path: Path, text: str, refused: Refused) -> None:
    path = tmp_path / "log"
    make_dataset(20).save(path)
    (path / "dataset.json").write_text(text)
    refused.dataset(path, "dataset.json")
