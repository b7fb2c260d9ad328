"""Making gymnasium environments quietly: no warnings about versions, no MUJOCO_LOG.TXT in the user's folder.

Gymnasium is an extra and is loaded when the first environment is made: training and acting do without.
The environments of gymnasium-robotics, and D4RL's maze2d and Adroit tasks built on it (`d4rl/maze2d-umaze-v1`,
`d4rl/pen-v0`, ...), are registered when the first of them is asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mildly.action_space import ActionSpace, Array
from mildly.errors import MildlyError

if TYPE_CHECKING:
    import gymnasium as gym

    Environment: TypeAlias = str | gym.Env[Any, Any] | Callable[[], gym.Env[Any, Any]]
    """An environment's id, an environment, or a function (a class, say) that makes one."""
else:
    Environment = str  # what a file can say of it
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


class NoSimulator(MildlyError):
    """An environment cannot be made because a package is not installed."""


class EnvironmentFailed(MildlyError):
    """An environment's own code raised, or gave a number that is not finite."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the environment '{name}' failed: {reason}.")
        self.name, self.reason = name, reason

    def told(self, when: str) -> str:
        """The message, with the time of the failure."""
        return f"the environment '{self.name}' failed {when}: {self.reason}."


class UntrustedEnvironment(NoSimulator):
    """An environment whose id would import code, and that only a file has named."""


TRUST_VARIABLE = "MILDLY_TRUST_ENV"
"""Set to 1, as `--trust-env` does, files may name environments that import code."""
_trusted: set[str] = set()


def trust_env(env_id: str | None) -> None:
    """The user has named this environment, so that `module:Id` may import the module."""
    if env_id is not None:
        _trusted.add(env_id)


def check_trusted(env_id: str) -> None:
    """Raise where making an environment would import code that only a file has asked for."""
    if ":" in env_id and env_id not in _trusted and os.environ.get(TRUST_VARIABLE) != "1":
        raise UntrustedEnvironment(
            f"environment '{env_id}' would import the module '{env_id.split(':')[0]}' because a file says so. If you "
            f"trust it, say it yourself: --env {env_id}, or --trust-env."
        )


def make_env(env_id: str) -> gym.Env[Any, Any]:
    """One environment with flat Box observations and actions, or an error that says what is missing.

    Observations of several parts, or of several dimensions, are laid out as one vector in gymnasium's order.
    """
    check_trusted(env_id)
    _check_gymnasium(env_id)
    import gymnasium as gym

    _silence_mujoco()
    if env_id.startswith(_ROBOTICS):
        _register_robotics(env_id)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gym.make(env_id)
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise NoSimulator(f"environment '{env_id}' needs a package that is not installed: {error}") from error
    except gym.error.Error as error:
        raise MildlyError(f"environment '{env_id}' cannot be made: {error}") from error
    except Exception as error:  # whatever an environment's own code raises (a package too new for it, say)
        reason = f"{type(error).__name__} {error}".strip()
        # Seen: gymnasium-robotics 1.4.2's Fetch, kitchen and Shadow hand fail with MuJoCo 3.12 and later.
        hint = " MuJoCo may be too new for it: pip install 'mujoco<3.12'." if env_id.startswith(_ROBOTICS) else ""
        raise MildlyError(f"environment '{env_id}' cannot be made: its own code fails with {reason}.{hint}") from error
    return _flat(env, env_id)


def _flat(env: gym.Env[Any, Any], name: str) -> gym.Env[Any, Any]:
    """The environment with flat Box observations, whose failures bear its name; its actions must be flat already."""
    import gymnasium as gym

    if _is_made_of_boxes(env.observation_space) and not _is_flat(env.observation_space):
        env = gym.wrappers.FlattenObservation(env)
    for kind, space in (("observation", env.observation_space), ("action", env.action_space)):
        if not _is_flat(space):
            raise MildlyError(f"environment '{name}': its {kind} space is {space}; a Box is needed.")
    from mildly.environments.sound import Sound

    return Sound(env, name)


@dataclass(frozen=True)
class Simulator:
    """Where a policy is run: an environment of an id, of a function that makes it, or an object."""

    name: str
    make: Callable[[], gym.Env[Any, Any]]
    one: bool = False
    """Whether it is the user's own object: its episodes follow one another, and it is not closed."""

    @classmethod
    def of(cls, env: Environment) -> Simulator:
        """What somebody means by an environment."""
        if isinstance(env, str):
            return cls(env, partial(make_env, env))
        if not callable(env):
            return cls(_name_of(env), lambda: _flat(env, _name_of(env)), one=True)
        first = env()
        name = _name_of(first)
        first.close()
        return cls(name, lambda: _flat(env(), name))


def _name_of(env: Any) -> str:
    """An environment's id with what it was made with, so that no other passes for the one that the id means alone."""
    _check_gymnasium(type(env).__name__)
    import gymnasium as gym

    if not isinstance(env, gym.Env):
        raise MildlyError(
            f"env must be an environment's id, a gymnasium.Env, or a function that makes one; this is a "
            f"{type(env).__name__}."
        )
    if env.spec is None:
        return type(env.unwrapped).__name__
    given = ", ".join(f"{name}={value!r}" for name, value in env.spec.kwargs.items())
    return f"{env.spec.id}({given})" if given else env.spec.id


def _check_gymnasium(env_id: str) -> None:
    try:
        importlib.import_module("gymnasium")
    except ImportError as error:
        extra = "robotics" if env_id.startswith(_ROBOTICS) else "mujoco"
        raise NoSimulator(
            f"environment '{env_id}' cannot be made: evaluating and collecting need a simulator, and gymnasium is not "
            f"installed. Install it with: pip install 'mildly[{extra}]'."
        ) from error


def _is_flat(space: gym.Space[Any]) -> bool:
    from gymnasium.spaces import Box

    return isinstance(space, Box) and len(space.shape) == 1


def _is_made_of_boxes(space: gym.Space[Any]) -> bool:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return all(_is_made_of_boxes(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return all(_is_made_of_boxes(part) for part in space.spaces)
    return isinstance(space, spaces.Box)


def _register_robotics(env_id: str) -> None:
    """Register gymnasium-robotics' environments, and ours which stand on it; once is enough."""
    import gymnasium as gym

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # on import it prints news of its versions
            robotics = importlib.import_module("gymnasium_robotics")
    except ImportError as error:
        raise NoSimulator(
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
    import gymnasium as gym

    gym.register(f"d4rl/{name}", f"{__name__}.{where}", max_episode_steps=horizon, kwargs=arguments)


def registered_time_limit(env_id: str) -> int | None:
    """The steps after which an environment that is registered by now cuts episodes off; nothing of it is imported."""
    try:
        import gymnasium as gym
    except ImportError:
        return None
    spec = gym.registry.get(env_id)
    return None if spec is None else spec.max_episode_steps


def check_fit(
    where: str | Simulator, observation_size: int, action_size: int, whose: str, space: ActionSpace | None
) -> None:
    """The environment exists and fits a data set or policy, known before anything runs or is written.

    Sizes must be equal, and actions within the environment's bounds: a policy in percent or degrees would otherwise be
    clipped to nonsense without a word. Without a space the actions are in [-1, 1].
    """
    simulator = Simulator.of(where) if isinstance(where, str) else where
    env, env_id = simulator.make(), simulator.name
    observation, action = env.observation_space.shape, env.action_space.shape
    lowest, highest = _box_bounds(env)
    if not simulator.one:
        env.close()
    if observation != (observation_size,) or action != (action_size,):
        raise MildlyError(
            f"environment '{env_id}' has observations {observation} and actions {action}, but {whose} "
            f"has ({observation_size},) and ({action_size},)."
        )
    space = space or ActionSpace.unit(action_size)
    low, high = np.array(space.low), np.array(space.high)
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


def stored_action_space(where: str | Simulator) -> ActionSpace | None:
    """What a data set must remember to act in an environment; none where its bounds are -1 and 1, or endless."""
    simulator = Simulator.of(where) if isinstance(where, str) else where
    env = simulator.make()
    space = action_space_of(env)
    if not simulator.one:
        env.close()
    return None if space.is_unit else space


def action_space_of(env: gym.Env[Any, Any]) -> ActionSpace:
    """What -1 and 1 stand for in an environment: its bounds, or -1 and 1 themselves where these are endless."""
    low, _ = _box_bounds(env)
    return bounded_action_space(env) or ActionSpace.unit(len(low))


def bounded_action_space(env: gym.Env[Any, Any]) -> ActionSpace | None:
    """The environment's own action bounds; none where they are endless."""
    low, high = _box_bounds(env)
    if not np.isfinite([low, high]).all():
        return None
    try:
        return ActionSpace.of(low, high)
    except MildlyError as error:
        raise MildlyError(f"environment '{env.spec.id if env.spec else env}': {error}") from error


def _box_bounds(env: gym.Env[Any, Any]) -> tuple[Array, Array]:
    """The lower and upper action bounds in float32, as policies act; some may be infinite."""
    from gymnasium.spaces import Box

    space = env.action_space
    assert isinstance(space, Box)
    return space.low.astype(np.float32), space.high.astype(np.float32)
