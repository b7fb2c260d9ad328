"""Mildly: offline reinforcement learning that people can use, built around Mildly Conservative Q-learning.

Each command is a function here as well:

    run = mildly.train("mcq", "pendulum-mixed", preset="small", steps=6_000)
    policy = mildly.load_policy(run.path)
    action = policy.act(observation)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mildly.action_space import ActionSpace as ActionSpace
    from mildly.algorithms import ALGORITHMS as ALGORITHMS
    from mildly.data.dataset import Dataset as Dataset, Meta as Meta
    from mildly.data.registry import load_dataset as load_dataset
    from mildly.dynamics import load_dynamics as load_dynamics
    from mildly.errors import MildlyError as MildlyError
    from mildly.evaluation.evaluate import evaluate as evaluate
    from mildly.extend import register as register
    from mildly.observation_space import UnseenError as UnseenError, UnseenWarning as UnseenWarning
    from mildly.ope.choose import choose as choose
    from mildly.policy import Policy as Policy, load_policy as load_policy
    from mildly.portfolio.solve import resume_solve as resume_solve, solve as solve
    from mildly.training.finetune import finetune as finetune
    from mildly.training.offline import resume as resume, train as train

__version__ = "0.1.0"

_HOMES = {
    "ALGORITHMS": "mildly.algorithms",
    "ActionSpace": "mildly.action_space",
    "Dataset": "mildly.data.dataset",
    "Meta": "mildly.data.dataset",
    "MildlyError": "mildly.errors",
    "Policy": "mildly.policy",
    "UnseenError": "mildly.observation_space",
    "UnseenWarning": "mildly.observation_space",
    "choose": "mildly.ope.choose",
    "evaluate": "mildly.evaluation.evaluate",
    "finetune": "mildly.training.finetune",
    "load_dataset": "mildly.data.registry",
    "load_dynamics": "mildly.dynamics",
    "load_policy": "mildly.policy",
    "register": "mildly.extend",
    "resume": "mildly.training.offline",
    "resume_solve": "mildly.portfolio.solve",
    "solve": "mildly.portfolio.solve",
    "train": "mildly.training.offline",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import mildly` and `mildly --help` are quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mildly' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, for those who look with the tab key."""
    return sorted(__all__)
