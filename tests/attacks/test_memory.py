"""Small files that unpack to more than a machine has: refused by what they claim, before anything is unpacked."""

from __future__ import annotations

import gzip
import io
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import Refused
from measuring import LIMIT, measured

from mildly.cli import main
from mildly.data import memory
from mildly.data.convert import convert
from mildly.data.dataset import Dataset
from mildly.data.memory import VARIABLE, machine_memory, memory_limit
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError

ROWS, WIDTH = 400_000, 50
MEGABYTES = ROWS * (4 * (2 * WIDTH + 2) + 2) / 1e6


def shapes(rows: int = ROWS) -> dict[str, tuple[int, ...]]:
    return {"observations": (rows, WIDTH), "actions": (rows, 1), "rewards": (rows,), "terminals": (rows,)}


def hdf5(path: Path, *, packed: bool = True) -> Path:
    """Chunks of zeros: compressed, or none at all."""
    path = path / "log.hdf5"
    with h5py.File(path, "w") as file:
        for name, shape in shapes().items():
            kind = {"compression": "gzip", "shuffle": True} if packed else {}
            column = file.create_dataset(name, shape, "f4", chunks=(50_000, *shape[1:]), **kind)
            if packed:
                for start in range(0, ROWS, 50_000):
                    column[start : start + 50_000] = 0.0
    return path


def npz(path: Path) -> Path:
    path = path / "log.npz"
    np.savez_compressed(path, **{name: np.zeros(shape, np.float32) for name, shape in shapes().items()})
    return path


def parquet(path: Path) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros = arrow.array(np.zeros(ROWS, np.float32))
    names = [*(f"obs_{i}" for i in range(WIDTH)), "action", "reward"]
    parquet.write_table(arrow.table(dict.fromkeys(names, zeros)), path / "log.parquet")
    return path / "log.parquet"


def parquet_lists(path: Path) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros = arrow.array(np.zeros(ROWS, np.float32))
    lists = arrow.ListArray.from_arrays(
        arrow.array(np.arange(0, ROWS * WIDTH + 1, WIDTH, dtype=np.int32)), arrow.array(np.zeros(ROWS * WIDTH, "f4"))
    )
    table = arrow.table({"obs": lists, "action": zeros, "reward": zeros})
    parquet.write_table(table, path / "log.parquet", row_group_size=20_000)
    return path / "log.parquet"


def csv_gz(path: Path) -> Path:
    pytest.importorskip("pyarrow")
    with gzip.open(path / "log.csv.gz", "wb", compresslevel=1) as file:
        file.write(b",".join([*(b"obs_%d" % i for i in range(WIDTH)), b"action", b"reward"]) + b"\n")
        block = (b",".join([b"0"] * (WIDTH + 2)) + b"\n") * 10_000
        for _ in range(ROWS // 10_000):
            file.write(block)
    return path / "log.csv.gz"


def unpacked(path: Path) -> Path:
    return hdf5(path, packed=False)


BOMBS = [hdf5, unpacked, npz, parquet, parquet_lists, csv_gz]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_that_grows_is_refused_with_sizes_and_option(tmp_path: Path, bomb: Callable[[Path], Path]) -> None:
    path = bomb(tmp_path)
    assert path.stat().st_size < 2e6
    megabytes, said = measured("load", path)
    assert said.startswith(f"{path}: ")
    assert "60.0 MB" in said
    assert "--max-memory" in said
    if bomb is not csv_gz:  # of which only counting tells
        assert f"{MEGABYTES:.1f} MB" in said
        assert megabytes < 40
    assert megabytes < LIMIT + 120  # what a reader has in hand


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_set_larger_than_the_limit_can_be_converted(
    tmp_path: Path, bomb: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(LIMIT))
    _, said = measured("convert", bomb(tmp_path), tmp_path / "set")
    assert int(said) in (ROWS, ROWS - 1)
    assert len(Dataset.load(tmp_path / "set", verify=False)) == int(said)
    load_dataset(tmp_path / "set", verify=False)  # a folder is mapped: no limit


def test_every_command_knows_the_option(tmp_path: Path, refused: Refused) -> None:
    path = unpacked(tmp_path)
    for command in (
        ["data", "info", str(path)],
        ["data", "check", str(path)],
        ["train", "bc", "--dataset", str(path), "--out", str(tmp_path / "run")],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "mildly", *command, "--max-memory", "60"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "limit of 60.0 MB (" in done.stderr
    assert not (tmp_path / "run").exists()


def test_convert_limits_what_must_be_read_at_once(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "log.hdf5"
    with h5py.File(path, "w") as file:
        for name, shape in shapes().items():
            file.create_dataset(name, shape, "f4", chunks=shape)
    options = ImportOptions(max_memory=LIMIT)
    words = ("a piece of 'observations' can only be read at once", "84.8 MB", "60.0 MB", "--max-memory")
    refused(lambda: convert(path, tmp_path / "set", options), *words)
    assert sorted(tmp_path.iterdir()) == [path]


def test_arrays_by_columns_are_limited_in_convert(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "log.npz"
    arrays = {name: np.asfortranarray(np.zeros(shape, np.float32)) for name, shape in shapes().items()}
    np.savez_compressed(path, **arrays)
    refused(lambda: convert(path, tmp_path / "set", ImportOptions(max_memory=LIMIT)), "80.0 MB", "read at once")


def npy(shape: str, dtype: str = "<f4", version: int = 1, length: int | None = None) -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    count = struct.pack("<H" if version == 1 else "<I", len(header) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + count + header


HEADERS = {
    "rows": npy("(1000000000000, 3)"),
    "columns": npy("(3, 1000000000000)"),
    "overflow": npy("(4294967296, 4294967296, 4294967296)"),
    "negative": npy("(-1, 3)"),
    "wide": npy("(3, 3)", "<U1000000000"),
    "header": npy("(3, 3)", version=2, length=4_000_000_000),
}


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("kind", ["npz", "folder", "native"])
def test_an_absurd_header_is_damage(tmp_path: Path, refused: Refused, header: str, kind: str) -> None:
    good = {name: np.zeros(shape, np.float32) for name, shape in shapes(3).items()}
    if kind == "npz":
        path = tmp_path / "log.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in good.items():
                content = io.BytesIO()
                np.save(content, array)
                archive.writestr(f"{name}.npy", HEADERS[header] if name == "observations" else content.getvalue())
    elif kind == "folder":
        path = tmp_path / "log"
        path.mkdir()
        for name, array in good.items():
            np.save(path / f"{name}.npy", array)
        (path / "observations.npy").write_bytes(HEADERS[header])
    else:
        path = load_dataset("pendulum-mixed").save(tmp_path / "log")
        (path / "observations.npy").write_bytes(HEADERS[header])
    refused.dataset(path)


def test_a_header_of_gigabytes_in_an_archive_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "log.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("observations.npy", "w") as member:
        member.write(npy("(3, 3)", version=2, length=500_000_000))
        for _ in range(500):
            member.write(b" " * 1_000_000)
    megabytes, said = measured("load", path)
    assert "header claims 500,000,000 bytes" in said
    assert megabytes < 40


def test_an_archive_of_countless_arrays_is_refused(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "log.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(1001):
            archive.writestr(f"{i}.npy", b"")
    refused.dataset(path, "1,001 arrays")


def test_a_long_text_that_all_rows_share_is_refused(tmp_path: Path) -> None:
    arrow, parquet_ = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros = np.zeros(20_000, np.float32)
    names = arrow.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["a" * 20_000])
    table = arrow.table({"obs": zeros, "action": zeros, "reward": zeros, "episode": names})
    parquet_.write_table(table, tmp_path / "log.parquet", store_schema=False)
    assert (tmp_path / "log.parquet").stat().st_size < 100_000
    megabytes, said = measured("load", tmp_path / "log.parquet")
    assert "no episode's name" in said
    assert megabytes < 100


def test_missing_lists_of_a_fixed_length_are_counted_in_full(tmp_path: Path, refused: Refused) -> None:
    arrow, parquet_ = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros = np.zeros(1000, np.float32)
    lists = arrow.array([None] * 1000, arrow.list_(arrow.float32(), 100_000))
    parquet_.write_table(arrow.table({"obs": lists, "action": zeros, "reward": zeros}), tmp_path / "log.parquet")
    refused(lambda: load_dataset(tmp_path / "log.parquet", max_memory=LIMIT), "800.0 MB", "60.0 MB")


def test_where_the_limit_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: Refused) -> None:
    assert memory_limit(3).bytes == 3_000_000
    monkeypatch.delenv(VARIABLE, raising=False)
    assert memory_limit().bytes == machine_memory() // 2
    group = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_CGROUPS", (group,))
    group.write_text("max\n")
    assert machine_memory() > 1 << 28
    group.write_text("1000000\n")
    assert machine_memory() == 1_000_000
    monkeypatch.setenv(VARIABLE, "7")
    assert memory_limit().bytes == 7_000_000
    assert memory_limit(3).bytes == 3_000_000
    for wrong in ("none", "-1", "nan", "inf", "0"):
        monkeypatch.setenv(VARIABLE, wrong)
        refused(memory_limit, VARIABLE)
    with pytest.raises(MildlyError, match="max-memory"):
        ImportOptions(max_memory=0)


def test_the_option_alone_leaves_a_native_folder_mapped() -> None:
    data = load_dataset("pendulum-mixed", max_memory=0.001)
    assert isinstance(data.observations, np.memmap)
    assert main(["data", "info", "pendulum-mixed", "--max-memory", "0.001"]) == 0


def test_an_episode_of_minari_s_that_grows_is_refused(tmp_path: Path, refused: Refused) -> None:
    minari = pytest.importorskip("minari")
    from gymnasium.spaces import Box
    from minari.data_collector import EpisodeBuffer

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        episode = EpisodeBuffer(
            id=0,
            observations=np.zeros((4, 3), np.float32),
            actions=np.zeros((3, 1), np.float32),
            rewards=np.zeros(3),
            terminations=np.array([False, False, True]),
            truncations=np.zeros(3, bool),
        )
        spaces = {"observation_space": Box(-1, 1, (3,), np.float32), "action_space": Box(-1, 1, (1,), np.float32)}
        minari.create_dataset_from_buffers("grown/set-v0", [episode], **spaces)
        assert len(load_dataset("minari:grown/set-v0")) == 3
        with h5py.File(next(tmp_path.rglob("main_data.hdf5")), "r+") as file:
            group = file["episode_0"]
            del group["observations"]
            group.create_dataset("observations", (30_000_000, 3), "f4", chunks=(1000, 3))
        for call in (
            load_dataset,
            lambda **given: convert(given["source"], tmp_path / "set", ImportOptions(max_memory=60)),
        ):
            refused(lambda call=call: call(source="minari:grown/set-v0", max_memory=60), "'episode_0'", "360.0 MB")
