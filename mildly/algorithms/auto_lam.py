"""lam = "auto": MCQ's weight finds itself.

OOD values may differ from the pseudo targets as much as the values of the data's actions do:

    ratio  = OOD term, mean (Q(s_in, u) - y'(s_in))^2, over mean (Q(s, a) - y'(s))^2
    lam   <- clip(lam + rate * clip(1 - ratio, -1, 1), 0.3, 0.99)

Where they differ more, their term gains weight; where they are in hand, the data's does. Data whose actions differ much
in value have shown what good actions look like, and a policy's may look as good.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mildly.data.batches import Batch
from mildly.networks import Critics
from mildly.state import Stateful

START, RANGE, RATE = 0.7, (0.3, 0.99), 2e-4
"""Where lam begins, where it may go (about the paper's grid), and the most that it moves in a step."""


class AutoLam(Stateful):
    """The weight as it stands."""

    def __init__(self, device: torch.device) -> None:
        self.lam = torch.full((), START, device=device)

    @torch.no_grad()
    def update(self, critics: Critics, batch: Batch, target: Tensor, ood_loss: Tensor) -> dict[str, Tensor]:
        """Move lam by one step, before that of the critics; its new value and the two sides of the ratio."""
        of_data = critics(batch.observations, batch.actions)
        ood_gap = (ood_loss.detach() / critics.ensemble).sqrt()
        data_gap = (of_data - target[: len(batch.actions)]).square().mean().sqrt()
        room = 1 - (ood_gap / data_gap.clamp(min=1e-6)).square()
        self.lam.add_(RATE * room.clamp(-1, 1)).clamp_(*RANGE)
        return {"lam": self.lam.clone(), "ood_gap": ood_gap, "data_gap": data_gap}
