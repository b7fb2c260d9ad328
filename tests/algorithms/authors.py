"""What the authors' own code made of given weights, batches and draws, kept as arrays so that it need not be here.

A file of `golden/` has weights by the names of our state, `before.NAME` and `after.NAME`, and for each update u
between them a batch, `batch.u.COLUMN`, and normal numbers in the order in which we ask for them, `draw.u.i`.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mildly import actors
from mildly.algorithms.base import Algorithm
from mildly.data.batches import Batch

Arrays = dict[str, Tensor]


def recorded(name: str) -> Arrays:
    """The arrays of one comparison."""
    with np.load(Path(__file__).parent / "golden" / f"{name}.npz") as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def below(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays whose names begin so, by the rest of their names."""
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}


def differences(learner: Algorithm, arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Repeat the authors' updates; the largest difference of a weight, by network."""
    learner.load_state_dict({**learner.state_dict(), **below(arrays, "before.")})
    for update in range(len({key.split(".")[1] for key in arrays if key.startswith("batch.")})):
        draws = iter([value for _, value in sorted(below(arrays, f"draw.{update}.").items())])
        monkeypatch.setattr(actors, "normal", lambda shape, like, generator, draws=draws: next(draws).view(shape))
        learner.update(Batch(**below(arrays, f"batch.{update}.")))
        assert next(draws, None) is None
    state, largest = learner.state_dict(), defaultdict[str, float](float)
    for name, theirs in below(arrays, "after.").items():
        assert not torch.equal(theirs, arrays[f"before.{name}"])  # their code has moved it
        network = name.split(".")[0]
        largest[network] = max(largest[network], (state[name] - theirs).abs().max().item())
    return dict(largest)
