"""HDF5 files whose packed chunks are larger than their arrays say: the limit on memory holds."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from measuring import LIMIT, measured

from mildly.data.registry import load_dataset

ROWS = 40_000


def zeros(megabytes: int, *, twice: bool = False) -> bytes:
    """Zeros as deflate packs them, a thousand to one; or a million to one."""
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(10**6)) for _ in range(megabytes)) + packer.flush()
    return zlib.compress(packed, 9) if twice else packed


def log(path: Path, **packed: Any) -> Path:
    """A log of zeros whose arrays are one chunk each."""
    shapes = {"observations": (ROWS, 5), "actions": (ROWS, 1), "rewards": (ROWS,), "terminals": (ROWS,)}
    with h5py.File(path, "w") as file:
        for name, shape in shapes.items():
            file.create_dataset(name, shape, "f4", chunks=shape, **packed)[...] = 0
    return path


@pytest.mark.parametrize(
    "options", [{}, *(pytest.param({name: True}, marks=pytest.mark.slow) for name in ("shuffle", "fletcher32"))]
)
def test_a_chunk_that_unpacks_to_more_than_its_array_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    path = log(tmp_path / "log.hdf5", compression="gzip", **options)
    assert len(load_dataset(path, max_memory=LIMIT)) == ROWS - 1
    with h5py.File(path, "r+") as file:
        file["observations"].id.write_direct_chunk((0, 0), zeros(200))
    assert path.stat().st_size < 500_000
    megabytes, said = measured("load", path)
    assert said.startswith(f"{path}: damaged")
    assert "unpacks to more" in said
    assert megabytes < LIMIT


def test_an_array_that_is_packed_twice_is_refused(tmp_path: Path) -> None:
    path = log(tmp_path / "log.hdf5")
    with h5py.File(path, "r+") as file:
        del file["observations"]
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((ROWS, 5))
        for _ in range(2):
            settings.set_deflate(9)
        space = h5py.h5s.create_simple((ROWS, 5))
        made = h5py.h5d.create(file.id, b"observations", h5py.h5t.IEEE_F32LE, space, settings)
        if made.get_create_plist().get_nfilters() == 1:
            pytest.skip("this version of HDF5 packs only once")
        made.write_direct_chunk((0, 0), zeros(200, twice=True))
    megabytes, said = measured("load", path)
    assert "packed twice" in said
    assert megabytes < LIMIT


def test_chunks_that_were_not_packed_are_read(tmp_path: Path) -> None:
    """A writer may leave a chunk as it is; its mask says so."""
    path = log(tmp_path / "log.hdf5", compression="gzip")
    with h5py.File(path, "r+") as file:
        ones = np.ones((ROWS, 5), np.float32)
        file["observations"].id.write_direct_chunk((0, 0), ones.tobytes(), filter_mask=1)
    assert (load_dataset(path, max_memory=LIMIT).observations == 1).all()
