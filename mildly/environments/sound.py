"""An environment whose failures bear its name: what its code raises, and numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np

from mildly.action_space import Array
from mildly.environments import EnvironmentFailed
from mildly.errors import MildlyError

_LARGEST = float(np.finfo(np.float32).max)


class Sound(gym.Wrapper[Array, Array, Array, Array]):
    """Gives what the environment gives, or raises EnvironmentFailed."""

    def __init__(self, env: gym.Env[Array, Array], name: str) -> None:
        super().__init__(env)
        self.name = name

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """The first observation, every number of which is finite."""
        with self._named():
            given = {} if options is None else {"options": options}  # which some environments do not take
            observation, info = self.env.reset(seed=seed, **given)
            return _finite(observation), info

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """A step whose numbers are finite."""
        with self._named():
            observation, reward, terminated, truncated, info = self.env.step(action)
            if not math.isfinite(reward):
                raise _NotFinite(f"its reward is {float(reward)}")
            return _finite(observation), float(reward), bool(terminated), bool(truncated), info

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except MildlyError:
            raise
        except _NotFinite as error:
            raise EnvironmentFailed(self.name, str(error)) from None
        except Exception as error:  # whatever an environment's own code raises
            raise EnvironmentFailed(self.name, f"{type(error).__name__} {error}".strip()) from error


class _NotFinite(Exception):
    """A number that is none."""


def _finite(observation: Array) -> Array:
    if not np.abs(observation).max() <= _LARGEST:  # NaN is not, either
        raise _NotFinite("its observation holds NaN or infinite numbers")
    return observation
