"""Models of the policy that made the data, mu_hat(.|s), behind one interface: `loss` to train, `sample` to draw.

    cvae   the paper's. At the paper's weights it proposes little more than the mean action of a state.
    flow   keeps several ways to act apart, on all data we tried; the one to take where the CVAE averages.
    cgan   the paper's other suggestion: quickest to draw from, but it can lose a whole mode. Look at what it draws.

`docs/behavior.md` compares them. An algorithm holds a `BehaviorConfig` and gets its model from `make_behavior`.
"""

from mildly.behavior.config import BehaviorConfig
from mildly.behavior.learner import BehaviorLearner, draw_sets, make_behavior
from mildly.behavior.models import BEHAVIOR_MODELS

__all__ = ["BEHAVIOR_MODELS", "BehaviorConfig", "BehaviorLearner", "draw_sets", "make_behavior"]
