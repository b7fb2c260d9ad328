"""The registry of behavior models. Other packages add theirs by the entry point `mildly.behavior`."""

from __future__ import annotations

from typing import Any

from mildly.behavior.base import BehaviorModel
from mildly.behavior.cgan import CGAN
from mildly.behavior.cvae import CVAE
from mildly.behavior.flow import Flow
from mildly.plugins import Registry


def _fault(thing: Any) -> str:
    if not (isinstance(thing, type) and issubclass(thing, BehaviorModel)):
        return "it is no subclass of BehaviorModel"
    missing = [name for name in ("HIDDEN_DIMS", "ADAM") if not hasattr(thing, name)]
    return f"it does not say its {' and '.join(missing)}" if missing else ""


_OWN: dict[str, type[Any]] = {"cvae": CVAE, "cgan": CGAN, "flow": Flow}
BEHAVIOR_MODELS = Registry("behavior model", "mildly.behavior", _OWN, _fault)
"""The models there are, by the name that the config field `behavior.model` takes."""
