"""What a batch is: transitions, windows of trajectories, or several sources at given shares.

An algorithm says what it samples from (`Algorithm.batches`). Whatever happens to rows on their way into a batch happens
here, once: observations are normalized, rewards scaled, actions clipped. A sampler draws with a generator whose state a
checkpoint keeps, and its own state, if it has any, is kept there too.
"""

from __future__ import annotations

import mmap
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mildly.data.dataset import Array, Dataset
from mildly.data.normalize import Normalizer
from mildly.state import Stateful

_LARGE = 1 << 28  # bytes; mapped sets beyond this may not fit memory, and are read ahead


class Batch(NamedTuple):
    """A minibatch of transitions.

    `terminated` is 1 where the value ends there, else 0; a time-out is not such an end. Where returns are mixed into
    the targets it may lie between. `rows` are the rows of the data that these transitions are, for algorithms that know
    more about each, and -1 where a transition is none of them; it is empty where there is no such data.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminated: Tensor
    rows: Tensor = torch.empty(0, dtype=torch.int64)


COLUMNS = tuple(name for name in Batch._fields if name != "rows")


@dataclass(frozen=True)
class Preprocessing:
    """What happens to every transition that a learner sees, wherever it comes from."""

    normalizer: Normalizer | None = None
    """Normalizes observations."""
    reward_scale: float = 1.0
    """What rewards are multiplied with."""
    action_limit: float | None = None
    """Actions are clipped to plus or minus this."""
    ignore_terminals: bool = False
    """Learn as if no state were terminal."""

    def scaled(self, dataset: Dataset) -> Dataset:
        """The data with their rewards scaled."""
        if self.reward_scale == 1:
            return dataset
        scale = np.float32(self.reward_scale)
        return Dataset(**{**vars(dataset), "rewards": np.asarray(dataset.rewards) * scale})

    def apply(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The columns of a batch; rewards are scaled, and terminals ignored, where they are stored."""
        done = dict(columns)
        for name in ("observations", "next_observations") if self.normalizer else ():
            done[name] = self.normalizer.apply(done[name])  # type: ignore[union-attr]
        if self.action_limit is not None:
            done["actions"] = done["actions"].clamp(-self.action_limit, self.action_limit)
        done["terminated"] = done["terminated"].to(torch.float32)
        return done


class Sampler(Stateful):
    """Gives batches."""

    batch_size: int

    @abstractmethod
    def sample(self, generator: torch.Generator, size: int | None = None) -> Any:
        """The next batch: `batch_size` draws, or `size` of them."""

    @abstractmethod
    def __len__(self) -> int:
        """How many there are to draw from."""


class Transitions(Sampler):
    """Uniform draws with replacement from the transitions of a data set.

    On a CPU the data stay where they are, in memory or in a mapped file, and each batch gathers its rows; on another
    device they are copied there once.
    """

    DERIVED: ClassVar = frozenset({"columns", "size", "batch_size", "preprocessing", "device", "ahead", "first_row"})

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        device: torch.device,
        preprocessing: Preprocessing | None = None,
        relabeled: Mapping[str, Tensor] | None = None,
        first_row: int | None = 0,
    ) -> None:
        """Columns in `relabeled` take the place of the data's own; relabeled rewards are scaled already.

        Where the data come after others of which an algorithm knows the rows, `first_row` is how many those are; None
        where it knows nothing of these.
        """
        self.first_row = first_row
        self.batch_size, self.preprocessing = batch_size, preprocessing or Preprocessing()
        scaled = self.preprocessing.scaled(dataset)
        arrays = {name: getattr(scaled, name) for name in COLUMNS}
        if self.preprocessing.ignore_terminals:
            arrays["terminated"] = np.zeros(len(dataset), dtype=bool)  # a mapped array's like would pass for mapped
        self.columns = {name: _tensor(array, device) for name, array in arrays.items()} | dict(relabeled or {})
        self.size, self.device = len(dataset), self.columns["rewards"].device
        mapped = [array for array in arrays.values() if isinstance(array, np.memmap)]
        large = device.type == "cpu" and sum(array.nbytes for array in mapped) > _LARGE
        self.ahead = _Ahead(self._gather, mapped) if large else None

    def __len__(self) -> int:
        return self.size

    def sample(self, generator: torch.Generator, size: int | None = None) -> Batch:
        """Draws from all rows alike."""
        rows = torch.randint(self.size, (size or self.batch_size,), generator=generator, device=self.device)
        picked = self._gather(rows) if self.ahead is None else self.ahead.gather(rows, self.size, generator)
        batch = self.preprocessing.apply(picked)
        return Batch(**batch) if self.first_row is None else Batch(**batch, rows=rows + self.first_row)

    def _gather(self, rows: Tensor) -> dict[str, Tensor]:
        return {name: column.index_select(0, rows) for name, column in self.columns.items()}


class Buffer(Sampler):
    """Transitions that come while training goes on (online, or made by a model), with draws from those there are.

    Room is made as it is needed; with a `capacity` the oldest transitions give way. What is added is preprocessed as
    logged data are.
    """

    DERIVED: ClassVar = frozenset({"batch_size", "preprocessing", "capacity"})

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        batch_size: int,
        device: torch.device,
        preprocessing: Preprocessing | None = None,
        capacity: int | None = None,
    ) -> None:
        self.batch_size, self.preprocessing, self.capacity = batch_size, preprocessing or Preprocessing(), capacity
        widths = {"observations": (observation_size,), "next_observations": (observation_size,)}
        widths |= {"actions": (action_size,)}
        room = 1024 if capacity is None else min(capacity, 1024)
        self.columns = {name: torch.zeros((room, *widths.get(name, ())), device=device) for name in COLUMNS}
        self.added = 0

    def __len__(self) -> int:
        return self.added if self.capacity is None else min(self.added, self.capacity)

    def add(self, transitions: Mapping[str, Any]) -> None:
        """Append transitions, given as columns of n rows in the environment's own observations and rewards."""
        count = len(transitions["rewards"])
        self._make_room(count)
        device = self.columns["rewards"].device
        skipped = 0 if self.capacity is None else max(count - self.capacity, 0)  # so that no row is written twice
        rows = torch.arange(self.added + skipped, self.added + count, device=device)
        rows = rows if self.capacity is None else rows % self.capacity
        for name, column in self.columns.items():
            values = torch.as_tensor(transitions[name], dtype=torch.float32, device=device)[skipped:]
            if name == "rewards":
                values = values * self.preprocessing.reward_scale
            column[rows] = values * 0 if name == "terminated" and self.preprocessing.ignore_terminals else values
        self.added += count

    def sample(self, generator: torch.Generator, size: int | None = None) -> Batch:
        """Draws from all transitions alike."""
        device = self.columns["rewards"].device
        rows = torch.randint(len(self), (size or self.batch_size,), generator=generator, device=device)
        picked = {name: column.index_select(0, rows) for name, column in self.columns.items()}
        return Batch(**self.preprocessing.apply(picked))

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore; a saved buffer may have grown."""
        for name, column in self.columns.items():
            saved, width = state[f"columns.{name}"], tuple(column.shape[1:])
            if tuple(saved.shape[1:]) != width:
                raise ValueError(f"{name} of shape {tuple(saved.shape[1:])} where {width} is expected")
            self.columns[name] = saved.to(column.device, copy=True)
        self.added = int(state["added"].item())

    def _make_room(self, count: int) -> None:
        """Double the columns until so many more fit, or the capacity is reached."""
        needed = self.added + count if self.capacity is None else min(self.added + count, self.capacity)
        room = len(self.columns["rewards"])
        while room < needed:
            room = 2 * room if self.capacity is None else min(2 * room, self.capacity)
        for name, column in self.columns.items():
            if len(column) < room:
                wider = column.new_zeros((room, *column.shape[1:]))
                wider[: len(column)] = column
                self.columns[name] = wider


class Mixture(Sampler):
    """Batches of several sources at given shares, such as half logged and half online transitions.

    A source that is still empty gives its share to the others. Without shares all transitions of all sources are alike,
    as if they were in one buffer.
    """

    DERIVED: ClassVar = frozenset({"batch_size", "keep_rows"})

    def __init__(
        self,
        sources: Mapping[str, Sampler],
        shares: Mapping[str, float] | None,
        batch_size: int,
        *,
        keep_rows: bool = False,
    ) -> None:
        """With `keep_rows` a batch tells which rows of the data it holds, and -1 for what is none of them."""
        given = dict.fromkeys(sources, 1.0) if shares is None else shares
        numbers = all(0 <= share < float("inf") for share in given.values()) and sum(given.values()) > 0
        if set(sources) != set(given) or not numbers:
            raise ValueError(f"every source needs a share of at least 0, got {dict(given)} for {', '.join(sources)}")
        self.sources, self.batch_size, self.keep_rows = dict(sources), batch_size, keep_rows
        self.shares = None if shares is None else dict(shares)

    def __len__(self) -> int:
        return sum(len(source) for source in self.sources.values())

    def sample(self, generator: torch.Generator, size: int | None = None) -> Batch:
        """Draws of each source, one source behind the other."""
        size = size or self.batch_size
        counts = self.counts(size) if self.shares is not None else self._drawn_counts(size, generator)
        parts = [self.sources[name].sample(generator, count) for name, count in counts.items() if count]
        if len(parts) == 1:
            only: Batch = parts[0]
            return only._replace(rows=_rows(only)) if self.keep_rows else only
        columns = [torch.cat(column) for column in list(zip(*parts, strict=True))[:-1]]
        return Batch(*columns, *([torch.cat([_rows(part) for part in parts])] if self.keep_rows else []))

    def counts(self, size: int) -> dict[str, int]:
        """How many draws of each source make a batch of a size: the shares, rounded so that they add up."""
        shares = {name: share for name, share in (self.shares or {}).items() if len(self.sources[name])}
        if not any(shares.values()):
            raise ValueError(f"nothing to draw from yet: every source with a share is empty, of {self.shares}")
        exact = np.array(list(shares.values())) / sum(shares.values()) * size
        ends = np.rint(np.cumsum([0.0, *exact])).astype(int)
        return dict(zip(shares, np.diff(ends).tolist(), strict=True))

    def _drawn_counts(self, size: int, generator: torch.Generator) -> dict[str, int]:
        """How many of so many draws from all transitions alike fall on each source."""
        ends = torch.tensor([len(source) for source in self.sources.values()]).cumsum(0)
        drawn = torch.randint(int(ends[-1]), (size,), generator=generator, device=generator.device).cpu()
        counts = torch.bincount(torch.searchsorted(ends, drawn, right=True), minlength=len(ends))
        return dict(zip(self.sources, counts.tolist(), strict=True))


def _rows(batch: Batch) -> Tensor:
    """The rows of a batch, -1 where they are none of the data."""
    known = len(batch.rows) > 0
    return batch.rows if known else torch.full_like(batch.rewards, -1, dtype=torch.int64)


class WindowBatch(NamedTuple):
    """Stretches of trajectories, (batch, length, ...); after the end of an episode rows are 0 and `mask` is 0."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    returns_to_go: Tensor
    """The sum of rewards from this row to the end of the episode, as far as they are logged."""
    timesteps: Tensor
    """The row's number within its episode."""
    mask: Tensor
    """1 where there is a row, else 0."""


class Windows(Sampler):
    """Stretches of consecutive rows of one episode, each row of the data being as likely a first one as any other."""

    DERIVED: ClassVar = frozenset({"batch_size", "length", "preprocessing", "columns", "first", "stop", "to_go"})

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        length: int,
        device: torch.device,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        self.batch_size, self.length, self.preprocessing = batch_size, length, preprocessing or Preprocessing()
        scaled = self.preprocessing.scaled(dataset)
        self.columns = {name: _tensor(getattr(scaled, name), device) for name in ("observations", "actions", "rewards")}
        first, stop = np.empty(len(dataset), np.int64), np.empty(len(dataset), np.int64)
        to_go = np.empty(len(dataset))
        for segment in dataset.segments():  # a window never crosses a gap
            stop[segment] = segment.stop
        for episode in dataset.episodes():
            first[episode] = episode.start
            to_go[episode] = np.cumsum(np.asarray(scaled.rewards[episode], dtype=np.float64)[::-1])[::-1]
        self.first, self.stop = torch.from_numpy(first).to(device), torch.from_numpy(stop).to(device)
        self.to_go = torch.from_numpy(to_go.astype(np.float32)).to(device)

    def __len__(self) -> int:
        return len(self.first)

    def sample(self, generator: torch.Generator, size: int | None = None) -> WindowBatch:
        """Stretches that begin at rows drawn uniformly."""
        device = self.first.device
        begin = torch.randint(len(self), (size or self.batch_size, 1), generator=generator, device=device)
        rows = begin + torch.arange(self.length, device=device)  # (batch, length)
        mask = (rows < self.stop[begin]).float()
        rows = torch.minimum(rows, self.stop[begin] - 1)
        observations, actions, rewards = (column[rows] for column in self.columns.values())
        if self.preprocessing.normalizer is not None:
            observations = self.preprocessing.normalizer.apply(observations)
        if self.preprocessing.action_limit is not None:
            actions = actions.clamp(-self.preprocessing.action_limit, self.preprocessing.action_limit)
        return WindowBatch(
            observations * mask.unsqueeze(-1),
            actions * mask.unsqueeze(-1),
            rewards * mask,
            self.to_go[rows] * mask,
            (rows - self.first[begin]) * mask.long(),
            mask,
        )


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
