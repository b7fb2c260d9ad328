"""Models of the policy that made the data, mu_hat(.|s), behind one interface: `loss` to train, `sample` to draw.

    cvae   the paper's. At the paper's weights it proposes little more than the mean action of a state.
    flow   keeps several ways to act apart, on all data we tried; the one to take where the CVAE averages.
    cgan   the paper's other suggestion: quickest to draw from, but it can lose a whole mode. Look at what it draws.

`docs/behaviour.md` compares them.
"""

from typing import Any

from mildly.behaviour.cgan import CGAN
from mildly.behaviour.cvae import CVAE
from mildly.behaviour.flow import Flow

BEHAVIOUR_MODELS: dict[str, type[Any]] = {
    "cvae": CVAE,
    "cgan": CGAN,
    "flow": Flow,
}
"""The models there are, by the name that the config field `behaviour` takes."""
