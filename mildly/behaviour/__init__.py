"""Models of the policy that made the data, mu_hat(.|s), behind one interface: `loss` to train, `sample` to draw.

    cvae   the paper's. At the paper's weights it proposes little more than the mean action of a state.
    flow   keeps several ways to act apart and stays closest to the data; for data from several policies.
    cgan   the paper's other suggestion: one pass a draw, but two networks in a contest that may go wrong.

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
