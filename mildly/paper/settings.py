"""The paper's settings of each data set: lambda and N of MCQ, and the returns that score 0 and 100."""

from __future__ import annotations

from typing import NamedTuple

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.config import make_config
from mildly.data.tasks import PAPER_DATASETS, task_of


class Settings(NamedTuple):
    """What is used for one data set."""

    dataset: str
    lam: float
    lam_td3: float
    """Of MCQ on TD3, which the paper tunes anew for one set."""
    num_actions: int
    reference_min: float
    reference_max: float
    horizon: int


def settings() -> list[Settings]:
    """Of the paper's 27 data sets, in its order."""
    found = []
    for name in PAPER_DATASETS:
        config, on_td3 = (make_config(ALGORITHMS[kind], "paper", name, {}) for kind in ("mcq", "mcq-td3"))
        task = task_of(name)
        assert task is not None
        numbers = task.reference_min, task.reference_max, task.horizon
        found.append(Settings(name, config.lam, on_td3.lam, config.num_actions, *numbers))
    return found
