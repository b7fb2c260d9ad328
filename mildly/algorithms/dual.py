"""The dual variable of a constraint: a weight that grows while the constraint is broken and shrinks while it holds."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from mildly.optimizer import Adam, minimize
from mildly.state import Stateful


class DualVariable(Stateful):
    """exp(v) for the constraint "excess at most 0", by steps of Adam up exp(v) * excess; v starts at 0, in bounds."""

    DERIVED: ClassVar = frozenset({"log_min", "log_max"})

    def __init__(self, lr: float, log_min: float, log_max: float, device: torch.device) -> None:
        self.log_min, self.log_max = log_min, log_max
        self.log = torch.zeros((), device=device, requires_grad=True)
        self.optimizer = Adam([self.log], lr=lr)

    @property
    def value(self) -> Tensor:
        """The weight, without gradients."""
        return self.log.detach().exp()

    def update(self, excess: Tensor) -> None:
        """One step; an excess of several numbers counts by its mean, and no gradient reaches it."""
        minimize(-self.log.exp() * excess.detach().mean(), self.optimizer)
        self.log.data.clamp_(self.log_min, self.log_max)
