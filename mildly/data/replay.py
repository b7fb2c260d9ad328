"""Replay: minibatches of transitions as tensors, drawn with a generator whose state a checkpoint keeps."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mildly.data.dataset import Array, Dataset
from mildly.data.normalize import Scaling

_LARGE = 1 << 28  # bytes; mapped sets beyond this may not fit memory, and are read ahead


class Batch(NamedTuple):
    """A minibatch. `terminated` is 1 where the value ends there, else 0; a time-out is not such an end.

    `rows` are the rows of the data that these transitions are, for algorithms that know more about each; it is empty
    where there is no such data.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminated: Tensor
    rows: Tensor = torch.empty(0, dtype=torch.int64)


_COLUMNS = tuple(name for name in Batch._fields if name != "rows")


class Replay:
    """Uniform draws with replacement from transitions held as tensors, one a column of the schema.

    On a CPU the data stay where they are, in memory or in a mapped file, and each batch gathers its rows; on
    another device they are copied there once.
    """

    def __init__(
        self, columns: Mapping[str, Tensor], size: int, scaling: Scaling | None = None, mapped: Sequence[Array] = ()
    ) -> None:
        self.columns = dict(columns)
        self.size = size
        self.scaling = scaling
        self.device = self.columns["rewards"].device
        self.ahead = _Ahead(self._gather, mapped) if mapped else None

    @classmethod
    def of(cls, dataset: Dataset, device: torch.device, scaling: Scaling | None = None) -> Replay:
        """All transitions of a data set."""
        arrays = {name: getattr(dataset, name) for name in _COLUMNS}
        columns = {name: _tensor(array, device) for name, array in arrays.items()}
        mapped = [array for array in arrays.values() if isinstance(array, np.memmap)]
        large = device.type == "cpu" and sum(array.nbytes for array in mapped) > _LARGE
        return cls(columns, len(dataset), scaling, mapped if large else ())

    @classmethod
    def empty(cls, capacity: int, observation_size: int, action_size: int, device: torch.device) -> Replay:
        """Room for transitions that are still to come, added one by one with `add`."""
        widths = {"observations": (observation_size,), "next_observations": (observation_size,)}
        widths |= {"actions": (action_size,)}
        columns = {name: torch.zeros((capacity, *widths.get(name, ())), device=device) for name in _COLUMNS}
        return cls(columns, 0)

    def add(self, transition: Mapping[str, Any]) -> None:
        """Append one transition."""
        for name, column in self.columns.items():
            column[self.size] = torch.as_tensor(transition[name])
        self.size += 1

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """`batch_size` transitions, drawn uniformly."""
        rows = torch.randint(self.size, (batch_size,), generator=generator, device=self.device)
        picked = self._gather(rows) if self.ahead is None else self.ahead.gather(rows, self.size, generator)
        if self.scaling is not None:
            for name in ("observations", "next_observations"):
                picked[name] = self.scaling.apply(picked[name])
        picked["terminated"] = picked["terminated"].to(torch.float32)
        return Batch(**picked, rows=rows)

    def _gather(self, rows: Tensor) -> dict[str, Tensor]:
        return {name: column.index_select(0, rows) for name, column in self.columns.items()}


class _Ahead:
    """Reads the next batch from the disk while the learner works on this one.

    Which rows come next is told by a copy of the generator. Should the guess be wrong, the rows are read when they are
    asked for, so what a batch holds never depends on this.
    """

    def __init__(self, gather: Callable[[Tensor], dict[str, Tensor]], mapped: Sequence[Array]) -> None:
        self.pick, self.mapped = gather, mapped
        self.worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self.guess: tuple[Tensor, Future[dict[str, Tensor]]] | None = None

    def gather(self, rows: Tensor, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The columns at these rows; the reading of the next begins."""
        guess, self.guess = self.guess, None
        picked = guess[1].result() if guess is not None and torch.equal(guess[0], rows) else self._read(rows)
        copy = torch.Generator().set_state(generator.get_state())
        following = torch.randint(size, rows.shape, generator=copy)
        self.guess = following, self.worker.submit(self._read, following)
        return picked

    def _read(self, rows: Tensor) -> dict[str, Tensor]:
        """Ask for all pages first, so that the disk fetches them side by side instead of one by one."""
        if hasattr(mmap, "MADV_WILLNEED"):
            for array in self.mapped:
                start = array.offset + rows.numpy() * array.strides[0]  # type: ignore[attr-defined]
                pages = np.unique(np.concatenate([start, start + array.strides[0] - 1]) // mmap.PAGESIZE)
                first = array.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY  # type: ignore[attr-defined]
                for page in (pages * mmap.PAGESIZE - first).tolist():
                    array._mmap.madvise(mmap.MADV_WILLNEED, page, mmap.PAGESIZE)  # type: ignore[attr-defined]
        return self.pick(rows)


def _tensor(array: Array, device: torch.device) -> Tensor:
    """The array's own memory where the device can read it: a mapped file is never copied into memory as a whole.

    Batches touch rows at random, so the system is told not to read ahead.
    """
    if isinstance(array, np.memmap) and hasattr(mmap.mmap, "madvise"):
        array._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the array is read-only, and so is our use of it
        return torch.from_numpy(array).to(device)
