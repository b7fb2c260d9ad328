"""Where an episode ends, by the rules of the environment where they are known.

Rules are known for gymnasium's MuJoCo tasks and the pendulum; they look at the next state. Elsewhere, and where the
data lack the next states of most ends, a network learns which states and actions end an episode; where the data have no
ends, no episode ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mildly.data.dataset import Dataset
from mildly.data.tasks import task_of_env
from mildly.dynamics.split import unknown_ends

LEARNED, NEVER = "learned", "never"
_FAR = 100.0  # no sound state of these robots has a larger number


class Rule(NamedTuple):
    """When a task ends: a function of the next states, and the sizes of an observation that it is for."""

    ends: Callable[[Tensor], Tensor]
    sizes: tuple[int, ...]


def _never(states: Tensor) -> Tensor:
    return torch.zeros(len(states), dtype=torch.bool, device=states.device)


def _outside(values: Tensor, low: float, high: float) -> Tensor:
    """Whether a number, or any of a row, leaves the open interval; NaN does."""
    outside = ~((values > low) & (values < high))
    return outside.any(dim=-1) if values.ndim > 1 else outside


def _hopper(states: Tensor) -> Tensor:
    fallen = ~(states[:, 0] > 0.7) | _outside(states[:, 1], -0.2, 0.2)
    return fallen | _outside(states[:, 1:], -_FAR, _FAR)


def _walker(states: Tensor) -> Tensor:
    fallen = _outside(states[:, 0], 0.8, 2.0) | _outside(states[:, 1], -1.0, 1.0)
    return fallen | _outside(states, -_FAR, _FAR)


def _height(low: float, high: float) -> Callable[[Tensor], Tensor]:
    def ends(states: Tensor) -> Tensor:
        height = states[:, 0]
        return ~((height >= low) & (height <= high)) | ~states.isfinite().all(dim=-1)

    return ends


def _cheetah(states: Tensor) -> Tensor:
    """The task itself never ends; a model that has lost it does."""
    return _outside(states, -_FAR, _FAR)


def _pole(states: Tensor) -> Tensor:
    return ~(states[:, 1].abs() <= 0.2) | ~states.isfinite().all(dim=-1)


RULES = {
    NEVER: Rule(_never, ()),
    "hopper": Rule(_hopper, (11,)),
    "walker2d": Rule(_walker, (17,)),
    "halfcheetah": Rule(_cheetah, (17,)),
    "ant": Rule(_height(0.2, 1.0), (27, 105, 111)),
    "humanoid": Rule(_height(1.0, 2.0), (348, 376)),
    "invertedpendulum": Rule(_pole, (4,)),
    "pendulum": Rule(_never, (3,)),
    "swimmer": Rule(_never, (8,)),
    "reacher": Rule(_never, (10, 11)),
}
"""By the name of the environment without its version, in lower case."""


def rule_for(data: Dataset) -> str:
    """The name of the rule by which episodes of these data end, or `learned`."""
    env_id = data.meta.env_id or ""
    name = re.sub(r"-v\d+$", "", env_id.split("/")[-1]).lower()
    seen = not data.terminated.any() or len(unknown_ends(data)) <= data.terminated.sum() / 2
    if name in RULES and data.observation_size in RULES[name].sizes and seen:
        return name
    task = task_of_env(env_id)
    endless = task is not None and not task.terminates
    return NEVER if endless or not data.terminated.any() else LEARNED
