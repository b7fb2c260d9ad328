"""Adding to the package in Python, for as long as the process lives. Entry points (`plugins.py`) add for good."""

from __future__ import annotations

from typing import Any

from mildly.actors import Actor
from mildly.algorithms import ALGORITHMS
from mildly.algorithms.base import Algorithm
from mildly.behavior import BEHAVIOR_MODELS
from mildly.behavior.base import BehaviorModel
from mildly.data.formats import FORMATS
from mildly.policy import ACTORS


def register(name: str, thing: Any) -> None:
    """Make an algorithm, a behavior model, an actor or a data format known under a name.

    Another process does not know it: the command, and the workers of a sweep. A package with an entry point is found by
    all of them.

    Args:
        name: what users call it; for a format, the ending of its files, such as `.rec`.
        thing: a subclass of `Algorithm`, of `BehaviorModel` or of `Actor`, or a module with a function `read`.
    """
    registries: dict[type, Any] = {Algorithm: ALGORITHMS, BehaviorModel: BEHAVIOR_MODELS, Actor: ACTORS}
    fitting = (registries[kind] for kind in registries if isinstance(thing, type) and issubclass(thing, kind))
    next(fitting, FORMATS).add(name, thing)
