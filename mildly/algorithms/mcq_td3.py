"""Deterministic MCQ (Lyu et al., NeurIPS 2022), Algorithm 2 of the paper's appendix: on TD3.

One step on a batch (s, a, r, s', d), with the paper's numbers of lines:

    5    behavior model   train mu_hat, the paper's being a CVAE, on (s, a)
    6    target           y = r + gamma (1 - d) min_j Q'_j(s', pi'(s'))
    7    pseudo target    y'(s_in) = min_j max_i Q_j(s_in, b_i),  b_1..b_N ~ mu_hat(.|s_in),  s_in in {s, s'}
    8    critics          minimize lam * mean (Q_j(s, a) - y)^2
                                 + (1 - lam) * mean (Q_j(s_in, pi(s_in)) - y'(s_in))^2
    9    actor            maximize mean Q_1(s, pi(s))
    10   targets          theta' <- tau theta + (1 - tau) theta', for the critics and the actor

As printed there is neither noise on the target's actions nor a delay of the actor: `policy_noise` and `policy_delay`
bring TD3's own back. The paper does not say how large its networks are; these are MCQ's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mildly.algorithms.base import Metrics
from mildly.algorithms.config import require
from mildly.algorithms.mcq import TABLE, MildConfig, MildlyConservative
from mildly.algorithms.td3 import TD3, TD3Config
from mildly.data.batches import Batch


@dataclass(frozen=True)
class MCQTD3Config(MildConfig, TD3Config):
    """Hyperparameters of deterministic MCQ; the defaults are the paper's."""

    hidden_dims: tuple[int, ...] = (400, 400)
    """Widths of the hidden layers of actor and critics."""
    policy_noise: float = 0.0
    """Standard deviation of the noise on the target policy's actions, which smooths the values; TD3's is 0.2."""
    policy_delay: int = 1
    """Critic steps for each step of the actor and of the targets; TD3's is 2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.ood_actions in (None, 1), "ood_actions", "1, the policy's one action per state", self.ood_actions)


class MCQTD3(MildlyConservative, TD3):
    """TD3 whose critics also learn, mildly conservatively, the value of the policy's own action."""

    Config = MCQTD3Config
    config: MCQTD3Config
    FORM = "td3"
    PRESETS: ClassVar = TABLE["td3"]["presets"]
    PRESET_NOTES: ClassVar = TABLE["notes"]
    KEY_FIELDS = ("lam", "num_actions", *TD3.KEY_FIELDS)

    def update(self, batch: Batch) -> Metrics:
        """One step of Algorithm 2."""
        self.updates += 1
        metrics = self.behavior.update(batch) if self.joint else {}  # line 5
        metrics |= self.update_critics(batch)  # lines 6 to 8
        if self.updates % self.config.policy_delay == 0:
            self.update_actor(batch)  # line 9
            self.update_targets()  # line 10
        return self.last_actor_metrics() | metrics

    def policy_actions(self, observations: Tensor, n: int) -> Tensor:
        """The one action per state, (states, 1, a)."""
        with torch.no_grad():
            actions: Tensor = self.actor(observations)
        return actions.unsqueeze(1)
