"""Models of the policy that made the data, mu_hat(.|s), behind one interface: `loss` to train, `sample` to draw.

    cvae   the paper's. At the paper's weights it proposes little more than the mean action of a state.
    flow   keeps several ways to act apart, on all data we tried; the one to take where the CVAE averages.
    cgan   the paper's other suggestion: quickest to draw from, but it can lose a whole mode. Look at what it draws.

`docs/behavior.md` compares them.
"""

from typing import Any

from mildly.behavior.cgan import CGAN
from mildly.behavior.cvae import CVAE
from mildly.behavior.flow import Flow

BEHAVIOR_MODELS: dict[str, type[Any]] = {
    "cvae": CVAE,
    "cgan": CGAN,
    "flow": Flow,
}
"""The models there are, by the name that the config field `behavior` takes."""
