"""Making gymnasium environments quietly: no warnings about versions, no MUJOCO_LOG.TXT in the user's folder.

The environments of gymnasium-robotics, and D4RL's maze2d and Adroit tasks built on it (`d4rl/maze2d-umaze-v1`,
`d4rl/pen-v0`, ...), are registered when the first of them is asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mildly.errors import MildlyError

_HORIZONS = {
    "maze2d-umaze-v0": 150,
    "maze2d-umaze-v1": 300,
    "maze2d-medium-v0": 250,
    "maze2d-medium-v1": 600,
    "pen-v0": 100,
    "door-v0": 200,
    "hammer-v0": 200,
    "relocate-v0": 200,
}
_ROBOTICS = ("d4rl/", "AdroitHand", "PointMaze", "AntMaze", "Fetch", "FrankaKitchen", "HandReach", "HandManipulate")
"""How the names of environments begin that need gymnasium-robotics."""


def make_env(env_id: str) -> gym.Env[Any, Any]:
    """One environment with flat Box observations and actions, or an error that says what is missing.

    Observations of several parts, or of several dimensions, are laid out as one vector in gymnasium's order.
    """
    _silence_mujoco()
    if env_id.startswith(_ROBOTICS):
        _register_robotics(env_id)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gym.make(env_id)
    except gym.error.Error as error:
        raise MildlyError(f"environment '{env_id}' cannot be made: {error}") from error
    except ImportError as error:
        raise MildlyError(f"environment '{env_id}' needs a package that is not installed: {error}") from error
    except Exception as error:  # whatever an environment's own code raises (a package too new for it, say)
        reason = f"{type(error).__name__} {error}".strip()
        # Seen: gymnasium-robotics 1.4.2's Fetch, kitchen and Shadow hand fail with MuJoCo 3.12 and later.
        hint = " MuJoCo may be too new for it: pip install 'mujoco<3.12'." if env_id.startswith(_ROBOTICS) else ""
        raise MildlyError(f"environment '{env_id}' cannot be made: its own code fails with {reason}.{hint}") from error
    if _is_made_of_boxes(env.observation_space) and not _is_flat(env.observation_space):
        env = gym.wrappers.FlattenObservation(env)
    for kind, space in (("observation", env.observation_space), ("action", env.action_space)):
        if not _is_flat(space):
            raise MildlyError(f"environment '{env_id}': its {kind} space is {space}; a Box is needed.")
    return env


def _is_flat(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 1


def _is_made_of_boxes(space: gym.Space[Any]) -> bool:
    if isinstance(space, gym.spaces.Dict):
        return all(_is_made_of_boxes(part) for part in space.spaces.values())
    if isinstance(space, gym.spaces.Tuple):
        return all(_is_made_of_boxes(part) for part in space.spaces)
    return isinstance(space, gym.spaces.Box)


def _register_robotics(env_id: str) -> None:
    """Register gymnasium-robotics' environments, and ours which stand on it; once is enough."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # on import it prints news of its versions
            robotics = importlib.import_module("gymnasium_robotics")
    except ImportError as error:
        raise MildlyError(
            f"environment '{env_id}' needs gymnasium-robotics, which is not installed: "
            f"pip install 'mildly[robotics]' ({error})."
        ) from error
    gym.register_envs(robotics)
    if "d4rl/pen-v0" in gym.registry:
        return
    for name, horizon in _HORIZONS.items():
        task, version = name.rsplit("-", 1)
        if not task.startswith("maze2d-"):
            _register(name, horizon, "adroit:Hand", task=task)
            continue
        maze = task.removeprefix("maze2d-")
        _register(name, horizon, "maze2d:Maze", maze=maze, dense=False)
        _register(f"{task}-dense-{version}", horizon, "maze2d:Maze", maze=maze, dense=True)


def _register(name: str, horizon: int, where: str, **arguments: Any) -> None:
    gym.register(f"d4rl/{name}", f"{__name__}.{where}", max_episode_steps=horizon, kwargs=arguments)


Bounds = tuple[tuple[float, ...] | None, tuple[float, ...] | None]
"""Lower and upper action bounds of a data set or policy; none where they are -1 and 1."""


def check_fit(env_id: str, observation_size: int, action_size: int, whose: str, bounds: Bounds | None = None) -> None:
    """The environment exists and fits a data set or policy, known before anything runs or is written.

    Sizes must be equal, and actions within the environment's bounds: a policy in percent or degrees would otherwise be
    clipped to nonsense without a word.
    """
    env = make_env(env_id)
    observation, action = env.observation_space.shape, env.action_space.shape
    lowest, highest = action_bounds(env)
    env.close()
    if observation != (observation_size,) or action != (action_size,):
        raise MildlyError(
            f"environment '{env_id}' has observations {observation} and actions {action}, but {whose} "
            f"has ({observation_size},) and ({action_size},)."
        )
    if bounds is None:
        return
    low = np.array(bounds[0] or [-1.0] * action_size)
    high = np.array(bounds[1] or [1.0] * action_size)
    slack = 1e-3 * (high - low)
    if (low < lowest - slack).any() or (high > highest + slack).any():
        i = int(np.argmax((low < lowest - slack) | (high > highest + slack)))
        raise MildlyError(
            f"environment '{env_id}' takes actions between {lowest[i]:g} and {highest[i]:g} (number {i}), but {whose} "
            f"acts between {low[i]:g} and {high[i]:g}, in other units. Bring the actions into the environment's units, "
            "or do without an environment."
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
