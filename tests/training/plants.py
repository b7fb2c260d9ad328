"""Small environments for fine-tuning: three sensors, one valve, episodes of a few steps."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Plant(gym.Env[Any, Any]):
    """Sensors follow the valve; every third episode overflows (terminated), the others are cut off by time."""

    observation_space = gym.spaces.Box(-10, 10, (3,), np.float32)
    action_space = gym.spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 7
        self.overflows = bool(self.np_random.integers(3) == 0)
        self.state = self.np_random.normal(size=3)
        return self.state.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        self.state = 0.9 * self.state + 0.1 * float(action[0]) + 0.1 * self.np_random.normal(size=3)
        end = self.left == 0
        return self.state.astype(np.float32), float(action[0]), end and self.overflows, end and not self.overflows, {}


class Counted(Plant):
    """One whose steps are counted, all together, and that breaks down at one of them."""

    steps = 0
    breaks_at = 0
    error: type[BaseException] = RuntimeError

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Counted.steps += 1
        if Counted.steps == Counted.breaks_at:
            raise self.error("the pump is stuck")
        return super().step(action)


class Restless(Plant):
    """One whose seed does not decide everything."""

    made = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        Restless.made += 1
        return super().reset(seed=None if seed is None else seed + Restless.made)
