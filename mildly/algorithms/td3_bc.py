"""TD3+BC: TD3 with a squared distance to the data's actions in the actor's loss (Fujimoto and Gu, NeurIPS 2021).

One step on a batch (s, a, r, s', d), observations normalized to zero mean and unit variance:

    target    y = r + gamma (1 - d) min_j Q'_j(s', a'),  a' = clip(pi'(s') + clip(noise, -c, c), -1, 1)   (TD3's)
    critics   minimize mean (Q_j(s, a) - y)^2                                                              (TD3's)
    actor     minimize -w mean Q_1(s, pi(s)) + mean (pi(s) - a)^2,  w = alpha / mean |Q_1(s, pi(s))|,
              both means over the batch and the second over the action's dimensions too; no gradient through w
    targets   as TD3

w takes the unit out of the values, so that one alpha suits any rewards.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mildly.algorithms.base import Metrics
from mildly.algorithms.config import require
from mildly.algorithms.td3 import TD3, TD3Config
from mildly.data.batches import Batch


@dataclass(frozen=True)
class TD3BCConfig(TD3Config):
    """Hyperparameters of TD3+BC; the defaults are its authors'."""

    normalize_observations: bool = True
    """Normalize observations to zero mean and unit variance. The policy keeps the normalization."""
    alpha: float = 2.5
    """Weight of the values against the distance to the data's actions; towards 0 it is behavior cloning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha >= 0, "alpha", "at least 0", self.alpha)


class TD3BC(TD3):
    """TD3 whose actor stays near the data's actions."""

    Config = TD3BCConfig
    config: TD3BCConfig
    KEY_FIELDS = ("alpha", *TD3.KEY_FIELDS)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """-w mean Q_1(s, pi(s)) + mean (pi(s) - a)^2, and the anchor if asked for."""
        actions = self.actor(batch.observations)
        values: Tensor = self.critics(batch.observations, actions, freeze=True)  # (critics, batch)
        weight = self.config.alpha / values[0].detach().abs().mean()
        squares = (actions - batch.actions).square()  # (batch, a)
        loss = squares.mean() - weight * values[0].mean()
        if self.extras.anchored:
            loss = loss + self.extras.anchor(squares.sum(-1), batch, weight)
        return loss, {"q_ood": values.detach().mean(), "policy_distance": squares.detach().sum(-1).mean()}
