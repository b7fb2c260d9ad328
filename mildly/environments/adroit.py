"""D4RL's four Adroit tasks, on gymnasium-robotics' models of the hand.

The models and observations are D4RL's. The rewards are computed here, because gymnasium-robotics up to 1.4.2 pays for
keeping away from the door's handle, the hammer and the ball (a sign), and because it never ends an episode: D4RL's pen
task does, when the pen falls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium_robotics.envs.adroit_hand.adroit_door import AdroitHandDoorEnv
from gymnasium_robotics.envs.adroit_hand.adroit_hammer import AdroitHandHammerEnv
from gymnasium_robotics.envs.adroit_hand.adroit_pen import AdroitHandPenEnv
from gymnasium_robotics.envs.adroit_hand.adroit_relocate import AdroitHandRelocateEnv

Array = npt.NDArray[np.float64]


def pen_reward(observation: Array, data: Any) -> float:
    """Bring the pen to the target's place and direction, and do not drop it."""
    distance = _length(observation[39:42])
    similarity = float(observation[33:36] @ observation[36:39])
    near = distance < 0.075
    bonus = 10 * (near and similarity > 0.9) + 50 * (near and similarity > 0.95)
    return similarity - distance + bonus - 5 * pen_fell(observation)


def pen_fell(observation: Array) -> bool:
    """The pen is below the hand."""
    return bool(observation[26] < 0.075)


def door_reward(observation: Array, data: Any) -> float:
    """Reach for the handle, open the door wide, and move calmly."""
    angle = float(observation[28])
    reaching = 0.1 * _length(observation[35:38])
    opening = 0.1 * (angle - 1.57) ** 2
    speed = 1e-5 * float(np.sum(data.qvel**2))
    return 2 * (angle > 0.2) + 8 * (angle > 1.0) + 10 * (angle > 1.35) - reaching - opening - speed


def hammer_reward(observation: Array, data: Any) -> float:
    """Reach for the hammer, lift it, bring its head to the nail, and drive the nail in."""
    palm, hammer, nail = observation[33:36], observation[36:39], observation[42:45]
    head, goal = data.site("tool").xpos, data.site("nail_goal").xpos
    left = _length(nail - goal)
    costs = 0.1 * _length(palm - hammer) + _length(head - nail) + 10 * left + 1e-2 * _length(data.qvel)
    lifted = hammer[2] > 0.04 and head[2] > 0.04
    return 2 * bool(lifted) + 25 * (left < 0.02) + 75 * (left < 0.01) - costs


def relocate_reward(observation: Array, data: Any) -> float:
    """Reach for the ball, lift it, and carry it to the target."""
    palm_to_ball, palm_to_target, ball_to_target = observation[30:33], observation[33:36], observation[36:39]
    left = _length(ball_to_target)
    reward = 10 * (left < 0.1) + 20 * (left < 0.05) - 0.1 * _length(palm_to_ball)
    if data.body("Object").xpos[2] > 0.04:
        reward += 1.0 - 0.5 * _length(palm_to_target) - 0.5 * left
    return reward


def _length(vector: Array) -> float:
    return float(np.linalg.norm(vector))


TASKS: dict[str, tuple[Callable[..., Any], Callable[[Array, Any], float]]] = {
    "pen": (AdroitHandPenEnv, pen_reward),
    "door": (AdroitHandDoorEnv, door_reward),
    "hammer": (AdroitHandHammerEnv, hammer_reward),
    "relocate": (AdroitHandRelocateEnv, relocate_reward),
}


class Hand(gym.Wrapper[Array, Array, Array, Array]):
    """One of D4RL's Adroit tasks, with its dense reward."""

    def __init__(self, task: str, render_mode: str | None = None) -> None:
        make, self.reward = TASKS[task]
        self.hand = make(render_mode=render_mode)
        self.task = task
        super().__init__(self.hand)

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """D4RL's reward, of the state after the step."""
        observation, _, _, truncated, info = self.hand.step(action)
        terminated = self.task == "pen" and pen_fell(observation)
        return observation, self.reward(observation, self.hand.data), terminated, truncated, info
