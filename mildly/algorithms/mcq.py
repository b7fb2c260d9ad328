"""MCQ: Mildly Conservative Q-learning (Lyu et al., NeurIPS 2022), Algorithm 1 of the paper: on SAC.

One step on a batch (s, a, r, s', d):

    behavior model   train mu_hat, the paper's being a CVAE, on (s, a)
    target            y = r + gamma (1 - d) [min_j Q'_j(s', a') - alpha log pi(a'|s')]           (SAC's)
    pseudo target     y'(s_in) = min_j max_i Q_j(s_in, b_i),  b_1..b_N ~ mu_hat(.|s_in),  s_in in {s, s'}
    critics           minimize lam * mean (Q_j(s, a) - y)^2
                             + (1 - lam) * mean (Q_j(s_in, u) - y'(s_in))^2,  u_1..u_N ~ pi(.|s_in)
    actor, targets    as SAC

The one change to SAC is the second term of the critics' loss (`mild.py`). The preset `paper` is the printed method;
`official` is what the authors' code does, `fast` the same method at a fraction of the cost, and `robust` the one to
begin with: it starts from the data's actions, and its critics learn from the data's returns as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mildly.algorithms.mild import MildConfig, MildlyConservative
from mildly.algorithms.sac import SAC, SACConfig

FAST: dict[str, Any] = {
    "ood_actions": 1,
    "behavior_steps": 5_000,
    "cache_actions": True,
    "level_start": True,
}
"""What makes either form of MCQ fast."""
ROBUST: dict[str, Any] = {
    **FAST,
    "behavior_hidden": (128, 128),
    "behavior_steps": 2_000,
    "num_actions": 5,
    "lam": "auto",
    "behavior": "flow",
    "normalize_observations": True,
    "layer_norm": True,
    "return_mix": 0.1,
    "cloning_steps": 6_000,
    "cloning_weight": 0.4,
    "policy_ema": 0.001,
}
"""What keeps either form from falling below behavior cloning on the way, with the networks of the preset `small`."""


@dataclass(frozen=True)
class MCQConfig(MildConfig, SACConfig):
    """Hyperparameters of MCQ; the defaults are the paper's."""


class MCQ(MildlyConservative, SAC):
    """SAC whose critics also learn, mildly conservatively, the values of actions the data does not show."""

    Config = MCQConfig
    config: MCQConfig
    FORM = "sac"
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "official": {
            "hidden": (400, 400, 400),
            "log_std_min": -5.0,
            "pseudo_floor": 0.0,
            "independent_samples": True,
        },
        "fast": FAST,
        "robust": {**SAC.PRESETS["small"], **ROBUST, "initial_alpha": 0.01, "alpha_lr": 0.0},
        "small": {**SAC.PRESETS["small"], "behavior_hidden": (128, 128)},
    }
