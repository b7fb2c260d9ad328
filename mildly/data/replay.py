"""Replay: minibatches of transitions as tensors, drawn with a generator whose state a checkpoint keeps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mildly.data.dataset import FIELDS, Dataset
from mildly.data.normalise import Scaling


class Batch(NamedTuple):
    """A minibatch. `terminated` is 1 where the value ends there, else 0; a time-out is not such an end."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminated: Tensor


class Replay:
    """Uniform draws with replacement from a data set.

    On a CPU the data stay where they are, in memory or in a mapped file, and each batch gathers its rows; on
    another device they are copied there once.
    """

    def __init__(self, dataset: Dataset, device: torch.device, scaling: Scaling | None = None) -> None:
        self.columns = {
            name: torch.from_numpy(getattr(dataset, name)).to(device) for name in FIELDS if name != "truncated"
        }
        self.size = len(dataset)
        self.device = device
        self.scaling = scaling

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """`batch_size` transitions, drawn uniformly."""
        rows = torch.randint(self.size, (batch_size,), generator=generator, device=self.device)
        picked = {name: column.index_select(0, rows) for name, column in self.columns.items()}
        if self.scaling is not None:
            for name in ("observations", "next_observations"):
                picked[name] = self.scaling.apply(picked[name])
        picked["terminated"] = picked["terminated"].to(torch.float32)
        return Batch(**picked)
