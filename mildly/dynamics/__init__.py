"""Models of the environment: what follows a state and an action, learned from logged transitions.

    model = load_dynamics("runs/model")                        # left by `mildly model fit` or `mildly train mopo`
    means, stds = model.predict(states, actions)               # of every member, (members, n, o + 1)
    step = model.step(states, actions, generator)              # one draw: next_states, rewards, terminated
    for batch in model.rollout(states, act, 5, generator): ...

Units are the data's: observations and rewards as logged, actions in [-1, 1] as data sets store them. Tensors come in
and go out. `docs/dynamics.md` says how good such a model is, and how to find out.
"""

from mildly.dynamics.config import DynamicsConfig
from mildly.dynamics.ensemble import DynamicsEnsemble, Prediction, Step, load_dynamics
from mildly.dynamics.learner import DynamicsLearner

__all__ = ["DynamicsConfig", "DynamicsEnsemble", "DynamicsLearner", "Prediction", "Step", "load_dynamics"]
