"""D4RL's maze2d: a point that is pushed through a maze, on gymnasium-robotics' model of the point.

The observation is (x, y, vx, vy): x counts the rows of the map, y its columns. The reward is 1 within 0.5 of the goal,
or exp(-distance) in the dense tasks, both where the point stands after the step. An episode only ends at its horizon.
"""

from __future__ import annotations

import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import gymnasium as gym
import gymnasium_robotics
import numpy as np
import numpy.typing as npt
from gymnasium_robotics.envs.maze.point import PointEnv

Array = npt.NDArray[np.float64]

MAPS = {
    "umaze": (
        "#####",
        "#G..#",
        "###.#",
        "#...#",
        "#####",
    ),
    "medium": (
        "########",
        "#..##..#",
        "#..#...#",
        "##...###",
        "#..#...#",
        "#.#..#.#",
        "#...#.G#",
        "########",
    ),
}
"""Seen from above: wall, free, goal."""

_ORIGIN = 1.2
"""Where the point stands in the simulation when its coordinates are 0; the wall of cell 0 stands at 1. So cells are
not centred on whole numbers: the walls of row 1 leave the point x from 0.4 to 1.2."""


class Maze(gym.Wrapper[Array, Array, Array, Array]):
    """One maze with a fixed goal; an episode starts anywhere free, the goal's own cell included."""

    def __init__(self, maze: str, dense: bool, render_mode: str | None = None) -> None:
        rows = MAPS[maze]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{maze}.xml"
            _model(rows).write(path)
            self.point = PointEnv(xml_file=str(path), render_mode=render_mode)
        super().__init__(self.point)
        self.dense = dense
        self.goal = np.array(_cells(rows, "G")[0], dtype=np.float64)
        self.starts = np.array(_cells(rows, ".G"), dtype=np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start in the middle of a random cell, nearly at rest."""
        _, info = self.point.reset(seed=seed, options=options)
        rng = self.point.np_random
        position = rng.choice(self.starts) + rng.uniform(-0.1, 0.1, 2)
        velocity = rng.normal(0.0, 0.1, 2)
        self.point.set_state(position, velocity)
        return np.concatenate([position, velocity]), info

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Push the point for a hundredth of a second; the model clips action to +-1 and velocity to +-5."""
        observation, _, _, _, info = self.point.step(action)
        distance = float(np.linalg.norm(observation[:2] - self.goal))
        reward = float(np.exp(-distance)) if self.dense else float(distance <= 0.5)
        return observation, reward, False, False, info


def _cells(rows: tuple[str, ...], kinds: str) -> list[tuple[int, int]]:
    return [(i, j) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell in kinds]


def _model(rows: tuple[str, ...]) -> ElementTree.ElementTree[ElementTree.Element]:
    """MuJoCo's description of the point, among the walls of a map."""
    folder = Path(gymnasium_robotics.__file__).parent / "envs" / "assets" / "point"
    model = ElementTree.parse(folder / "point.xml")
    world, point = model.find("worldbody"), model.find("worldbody/body[@name='particle']")
    assert world is not None
    assert point is not None
    point.set("pos", f"{_ORIGIN} {_ORIGIN} 0")
    for i, j in _cells(rows, "#"):
        wall = {"name": f"wall_{i}_{j}", "type": "box", "pos": f"{i + 1} {j + 1} 0", "size": "0.5 0.5 0.2"}
        ElementTree.SubElement(world, "geom", {**wall, "contype": "1", "conaffinity": "1", "rgba": "0.7 0.5 0.3 1"})
    return model
