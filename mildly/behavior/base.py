"""The contract of behavior models. Adding one is one file and one line in the registry."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class BehaviorModel(nn.Module):
    """mu_hat(.|s), a model of the data's actions in [-1, 1].

    It is built as `Model(observation_size, action_size, hidden_dims, **options)`.
    """

    HIDDEN_DIMS: ClassVar[tuple[int, ...]]
    """Widths of its hidden layers where the user gives none."""
    ADAM: ClassVar[dict[str, Any]]
    """Adam's settings that suit it: `lr`, and `betas` where they are not the usual ones."""

    @abstractmethod
    def loss(
        self, observations: Tensor, actions: Tensor, generator: torch.Generator | None = None, step: int = 0
    ) -> Tensor:
        """What one optimizer over all parameters minimizes. `step` counts the calls, for models that take turns."""

    @abstractmethod
    def sample(self, observations: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """N actions for each state, (batch, n, action), without gradients."""
