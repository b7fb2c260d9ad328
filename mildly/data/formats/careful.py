"""A file for the HDF5 library to write to, which it believes never fails.

The library does not survive a write that fails: it may crash when it closes the file, or at the end of the process.
So the first failure is kept for the caller, and from then on everything is accepted and thrown away.
"""

from __future__ import annotations

import os
from io import FileIO


class CarefulFile:
    """What h5py needs of a file object, around a file opened without a buffer."""

    def __init__(self, file: FileIO) -> None:
        self.file = file
        self.place = 0
        self.error: OSError | None = None

    def check(self) -> None:
        """Raise the first failure, if there was one."""
        if self.error is not None:
            raise self.error

    def write(self, data: bytes | memoryview) -> int:
        """Write all of it, or remember why not."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest and self.error is None:
                written = os.pwrite(self.file.fileno(), rest, self.place + size - len(rest))
                rest = rest[written:]
        except OSError as error:
            self.error = error
        self.place += size
        return size

    def readinto(self, data: memoryview) -> int:
        """Fill all of it, with zeros behind the file's end: after a failure the library may look for what is lost."""
        view = memoryview(data).cast("B")
        found = b""
        try:
            found = os.pread(self.file.fileno(), len(view), self.place)
        except OSError as error:
            self.error = self.error or error
        view[: len(found)] = found
        view[len(found) :] = bytes(len(view) - len(found))
        self.place += len(view)
        return len(view)

    def read(self, size: int) -> bytes:
        """As `readinto`; by this method h5py tells a file object."""
        data = bytearray(size)
        self.readinto(memoryview(data))
        return bytes(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.place}.get(whence)
        self.place = (os.fstat(self.file.fileno()).st_size if start is None else start) + offset
        return self.place

    def tell(self) -> int:
        """The place."""
        return self.place

    def truncate(self, size: int | None = None) -> int:
        """Set the file's length."""
        length = self.place if size is None else size
        try:
            if self.error is None:
                os.ftruncate(self.file.fileno(), length)
        except OSError as error:
            self.error = error
        return length

    def flush(self) -> None:
        """Nothing is held back."""
