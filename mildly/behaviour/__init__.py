"""Models of the policy that made the data, mu_hat(.|s), behind one interface: `loss` to train, `sample` to draw."""

from typing import Any

from mildly.behaviour.cvae import CVAE

BEHAVIOUR_MODELS: dict[str, type[Any]] = {
    "cvae": CVAE,
}
"""The models there are, by the name that the config field `behaviour` takes."""
