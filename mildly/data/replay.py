"""Replay: minibatches of transitions as tensors, drawn with a generator whose state a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mildly.data.dataset import Dataset
from mildly.data.normalise import Scaling


class Batch(NamedTuple):
    """A minibatch. `terminated` is 1 where the value ends there, else 0; a time-out is not such an end."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminated: Tensor


class Replay:
    """Uniform draws with replacement from transitions held as tensors, one a column of the schema.

    On a CPU the data stay where they are, in memory or in a mapped file, and each batch gathers its rows; on
    another device they are copied there once.
    """

    def __init__(self, columns: Mapping[str, Tensor], size: int, scaling: Scaling | None = None) -> None:
        self.columns = dict(columns)
        self.size = size
        self.scaling = scaling
        self.device = self.columns["rewards"].device

    @classmethod
    def of(cls, dataset: Dataset, device: torch.device, scaling: Scaling | None = None) -> Replay:
        """All transitions of a data set."""
        columns = {name: torch.from_numpy(getattr(dataset, name)).to(device) for name in Batch._fields}
        return cls(columns, len(dataset), scaling)

    @classmethod
    def empty(cls, capacity: int, observation_size: int, action_size: int, device: torch.device) -> Replay:
        """Room for transitions that are still to come, added one by one with `add`."""
        widths = {"observations": (observation_size,), "next_observations": (observation_size,)}
        widths |= {"actions": (action_size,)}
        columns = {name: torch.zeros((capacity, *widths.get(name, ())), device=device) for name in Batch._fields}
        return cls(columns, 0)

    def add(self, transition: Mapping[str, Any]) -> None:
        """Append one transition."""
        for name, column in self.columns.items():
            column[self.size] = torch.as_tensor(transition[name])
        self.size += 1

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """`batch_size` transitions, drawn uniformly."""
        rows = torch.randint(self.size, (batch_size,), generator=generator, device=self.device)
        picked = {name: column.index_select(0, rows) for name, column in self.columns.items()}
        if self.scaling is not None:
            for name in ("observations", "next_observations"):
                picked[name] = self.scaling.apply(picked[name])
        picked["terminated"] = picked["terminated"].to(torch.float32)
        return Batch(**picked)
