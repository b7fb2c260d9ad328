"""Making gymnasium environments quietly: no warnings about versions, no MUJOCO_LOG.TXT in the user's folder."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mildly.errors import MildlyError


def make_env(env_id: str) -> gym.Env[Any, Any]:
    """One environment with Box observations and actions, or an error that says what is missing."""
    _silence_mujoco()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gym.make(env_id)
    except gym.error.Error as error:
        raise MildlyError(f"environment '{env_id}' cannot be made: {error}") from error
    except ImportError as error:
        raise MildlyError(f"environment '{env_id}' needs a package that is not installed: {error}") from error
    for kind, space in (("observation", env.observation_space), ("action", env.action_space)):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise MildlyError(f"environment '{env_id}': its {kind} space is {space}; a flat Box is needed.")
    return env


def check_fit(env_id: str, observation_size: int, action_size: int, whose: str) -> None:
    """The environment exists and has the sizes of a data set or policy, known before anything runs or is written."""
    env = make_env(env_id)
    observation, action = env.observation_space.shape, env.action_space.shape
    env.close()
    if observation != (observation_size,) or action != (action_size,):
        raise MildlyError(
            f"environment '{env_id}' has observations {observation} and actions {action}, but {whose} "
            f"has ({observation_size},) and ({action_size},)."
        )


def _silence_mujoco() -> None:
    """MuJoCo's warnings (an unstable simulation, say) go nowhere; its default handler writes a file."""
    try:
        import mujoco
    except ImportError:
        return
    mujoco.set_mju_user_warning(_ignore)


def _ignore(message: object) -> None:
    """Take a warning and do nothing."""


def stored_bounds(env_id: str) -> tuple[tuple[float, ...], tuple[float, ...]] | tuple[None, None]:
    """The bounds that a data set must remember to act in an environment; none where they are -1 and 1, or endless."""
    env = make_env(env_id)
    low, high = action_bounds(env)
    env.close()
    if not np.isfinite([low, high]).all() or ((low == -1).all() and (high == 1).all()):
        return None, None
    return tuple(low.tolist()), tuple(high.tolist())


def action_bounds(env: gym.Env[Any, Any]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The environment's own lower and upper action bounds."""
    space = env.action_space
    assert isinstance(space, gym.spaces.Box)
    return space.low.astype(np.float32), space.high.astype(np.float32)
