"""The data of a training: read as the user says, and in the same way once more when the run is resumed."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from mildly.algorithms import algorithm_named
from mildly.algorithms.base import Algorithm
from mildly.algorithms.config import build_config
from mildly.data.dataset import Dataset
from mildly.data.findings import NoReward
from mildly.data.options import NO_REWARD, ImportOptions
from mildly.data.registry import is_raw_log, load_dataset
from mildly.environments import Simulator, stored_action_space
from mildly.errors import MildlyError
from mildly.run import Plan, Run


def read_data(
    kind: type[Algorithm],
    dataset: str | os.PathLike[str] | Dataset,
    reading: ImportOptions,
    env: str | Simulator | None,
    data_dir: str | os.PathLike[str] | None,
) -> tuple[Dataset, ImportOptions]:
    """The data, and the options that they were read with.

    The environment to evaluate in is also the one that a raw log comes from. Where an algorithm learns no values, a log
    may lack a reward.
    """
    if env is not None and not isinstance(dataset, Dataset) and is_raw_log(dataset, data_dir):
        reading = _in_units_of(env, reading)
    try:
        return load_dataset(dataset, reading, data_dir=data_dir), reading
    except NoReward:
        if "gamma" in kind.Config.__dataclass_fields__:
            raise
        reading = dataclasses.replace(reading, reward=NO_REWARD)
        return load_dataset(dataset, reading, data_dir=data_dir), reading


def _in_units_of(env: str | Simulator, reading: ImportOptions) -> ImportOptions:
    """The options with the environment; one that has no id, which a file could keep, gives its bounds instead."""
    if isinstance(env, str):
        return dataclasses.replace(reading, env=reading.env or env)
    space = stored_action_space(env)
    if space is None or reading.env is not None or reading.action_low is not None:
        return reading
    return dataclasses.replace(reading, action_low=space.low, action_high=space.high)


def reopened(run: Run, plan: Plan, dataset: Dataset | None, how: str) -> tuple[Dataset, Any]:
    """The data and the config of a run that is gone on with.

    The data are given where `run.json` does not say where to find them; `how` is the call that does so.
    """
    if dataset is None and plan.dataset is None:
        raise MildlyError(f"{run.path}: was trained on a Dataset in memory. Go on with it in Python: {how}.")
    data = load_dataset(dataset) if dataset is not None else reread(run, plan)
    if data.meta.fingerprint != plan.data.fingerprint:
        raise MildlyError(
            f"{run.path}: the data set '{data.meta.name}' is not the one this run was started on (its content differs)."
        )
    try:
        return data, build_config(algorithm_named(plan.algorithm), plan.config)
    except MildlyError as error:
        raise MildlyError(f"{run.path / 'run.json'}: its config does not fit {plan.algorithm}: {error}") from error


def reread(run: Run, plan: Plan) -> Dataset:
    """The data of a run that is resumed. Its file is not trusted: what it names is not imported."""
    try:
        reading = ImportOptions.from_json(plan.reading)
    except (ValueError, TypeError) as error:
        raise MildlyError(f"{run.path / 'run.json'}: the options of reading in it are damaged ({error}).") from error
    return load_dataset(plan.dataset or "", reading, trusted=False)
