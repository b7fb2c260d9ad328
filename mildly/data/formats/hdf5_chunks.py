"""Chunks of HDF5 files that unpack to more than their array says: the library would allocate all of it.

Only what could pass the limit on memory is looked at, which in ordinary files is nothing.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import h5py

from mildly.data.memory import Limit

_MOST_PACKED = 1032  # times that deflate can make a text smaller
_CHECKSUM_BYTES = 4


def check_chunks(array: h5py.Dataset, limit: Limit) -> None:
    """Raise ValueError where a packed chunk of an array is not what it claims to be."""
    settings = array.id.get_create_plist()
    filters = [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]
    if h5py.h5z.FILTER_DEFLATE not in filters:
        return
    if len(set(filters)) < len(filters):
        raise ValueError(f"'{array.name}' is packed twice")
    place = filters.index(h5py.h5z.FILTER_DEFLATE)
    behind = filters[place + 1 :]
    if set(behind) - {h5py.h5z.FILTER_FLETCHER32}:
        raise ValueError(f"'{array.name}' is packed in an unknown way")
    claimed = math.prod(array.chunks) * array.dtype.itemsize + _CHECKSUM_BYTES
    suspects: list[tuple[int, ...]] = []
    _each_chunk(array, lambda chunk: suspects.append(chunk.chunk_offset) if _could_pass(chunk, limit) else None)
    for offset in suspects:
        skipped, packed = array.id.read_direct_chunk(offset)
        if not skipped >> place & 1 and len(zlib.decompressobj().decompress(packed, claimed + 1)) > claimed:
            raise ValueError(f"a chunk of '{array.name}' unpacks to more than the {claimed:,} bytes that it claims")


def _could_pass(chunk: Any, limit: Limit) -> bool:
    return bool(chunk.size * _MOST_PACKED > limit.bytes)


def _each_chunk(array: h5py.Dataset, take: Callable[[Any], None]) -> None:
    if hasattr(array.id, "chunk_iter"):
        array.id.chunk_iter(take)
        return
    for i in range(array.id.get_num_chunks()):  # with HDF5 before 1.12.3
        take(array.id.get_chunk_info(i))
