"""Deterministic MCQ (Lyu et al., NeurIPS 2022), Algorithm 2 of the paper's appendix: on TD3.

One step on a batch (s, a, r, s', d):

    behavior model   train mu_hat, the paper's being a CVAE, on (s, a)
    target            y = r + gamma (1 - d) min_j Q'_j(s', pi'(s'))                               (TD3's)
    pseudo target     y'(s_in) = min_j max_i Q_j(s_in, b_i),  b_1..b_N ~ mu_hat(.|s_in),  s_in in {s, s'}
    critics           minimize lam * mean (Q_j(s, a) - y)^2
                             + (1 - lam) * mean (Q_j(s_in, pi(s_in)) - y'(s_in))^2
    actor             maximize mean Q_1(s, pi(s))
    targets           theta' <- tau theta + (1 - tau) theta', for the critics and the actor

As printed there is neither noise on the target's actions nor a delay of the actor: `policy_noise` and `policy_delay`
bring TD3's own back. The paper does not say how large its networks are; these are MCQ's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mildly.algorithms.mcq import FAST, ROBUST
from mildly.algorithms.mild import MildConfig, MildlyConservative
from mildly.algorithms.td3 import TD3, TD3Config


@dataclass(frozen=True)
class MCQTD3Config(MildConfig, TD3Config):
    """Hyperparameters of deterministic MCQ; the defaults are the paper's."""

    hidden: tuple[int, ...] = (400, 400)
    """Widths of the hidden layers of actor and critics."""
    policy_noise: float = 0.0
    """Standard deviation of the noise on the target policy's actions, which smooths the values; TD3's is 0.2."""
    policy_delay: int = 1
    """Critic steps for each step of the actor and of the targets; TD3's is 2."""


class MCQTD3(MildlyConservative, TD3):
    """TD3 whose critics also learn, mildly conservatively, the value of the policy's own action."""

    Config = MCQTD3Config
    config: MCQTD3Config
    FORM = "td3"
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "fast": FAST,
        # its anchor is of squared distances, which are a tenth of a likelihood's loss
        "robust": {**TD3.PRESETS["small"], **ROBUST, "cloning_weight": 4.0},
        "small": {**TD3.PRESETS["small"], "behavior_hidden": (128, 128)},
    }
