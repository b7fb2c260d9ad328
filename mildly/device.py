"""Which device to compute on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mildly.errors import MildlyError

_TOO_LARGE = (
    *("allocate memory", "enough memory", "out of memory"),
    *("Storage size calculation overflowed", "Overflow when unpacking"),
)
"""What torch says of sizes that it cannot have, or not even count."""


class OutOfMemory(MildlyError):
    """Something did not fit into the memory of the machine, or of its GPU."""


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Where memory is not enough, an error says for what, and what to lower."""
    try:
        yield
    except (RuntimeError, TypeError, MemoryError) as error:
        if isinstance(error, MemoryError) or any(words in str(error) for words in _TOO_LARGE):
            raise OutOfMemory(f"out of memory {what}") from error
        raise


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Let torch compute with so many CPU threads for a while: bits depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resolve_device(name: str) -> str:
    """The device's name, `auto` being a GPU where there is one; an unusable one is an error now, not a crash later."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).split("\n")[0]
        raise MildlyError(f"device '{name}' cannot be used here: {first}") from error
    return name


def peak_megabytes(device: torch.device) -> float:
    """The most memory used so far: the GPU's by tensors, or else the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":  # has no such count
        return 0.0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # macOS counts bytes, Linux kilobytes


def memory_bytes() -> int:
    """The machine's memory; 0 where it cannot be asked."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
