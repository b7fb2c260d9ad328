"""Logs of a simple plant, x' = 0.7 x + 0.5 a + noise, in which each period has had a policy of its own."""

from __future__ import annotations

import numpy as np

from mildly.action_space import ActionSpace
from mildly.data.dataset import Dataset, Meta

PERIODS, EPISODES, LENGTH = 4, 10, 15


def periods(hidden: bool = False, noise: float = 0.2, seed: int = 0) -> Dataset:
    """Periods of policies that aim at different places, and earn what x is.

    Where the reason is `hidden` all periods act alike, and earn what no column shows: nothing can be told from it.
    """
    random = np.random.default_rng(seed)
    aims = np.linspace(-0.6, 0.6, PERIODS)
    columns: dict[str, list] = {name: [] for name in ("x", "a", "r", "y")}
    for period in range(PERIODS):
        for _ in range(EPISODES):
            x = random.normal(0, 0.3)
            for _ in range(LENGTH):
                aim = 0.0 if hidden else aims[period]
                a = float(np.clip(aim + random.normal(0, noise), -1, 1))
                y = 0.7 * x + 0.5 * a + random.normal(0, 0.05)
                reward = float(period) + random.normal(0, 0.1) if hidden else x
                for column, value in zip(columns.values(), (x, a, reward, y), strict=True):
                    column.append(value)
                x = y
    rows = PERIODS * EPISODES * LENGTH
    ends = np.arange(1, rows + 1) % LENGTH == 0
    return Dataset.from_arrays(
        observations=np.array(columns["x"])[:, None],
        actions=np.array(columns["a"])[:, None],
        rewards=np.array(columns["r"]),
        next_observations=np.array(columns["y"])[:, None],
        terminated=np.zeros(rows, bool),
        truncated=ends,
        meta=Meta("periods", action_space=ActionSpace((-1.0,), (1.0,))),
    )
