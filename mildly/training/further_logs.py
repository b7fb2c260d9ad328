"""Further logs of a run that is fine-tuned: read as the first were, and in the first's units."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, NamedTuple

import numpy as np

from mildly.action_space import ActionSpace
from mildly.data.dataset import FIELDS, Dataset
from mildly.data.options import ImportOptions
from mildly.data.registry import is_raw_log, load_dataset, stable_source
from mildly.errors import MildlyError
from mildly.run import Plan, Run
from mildly.stage import Stage
from mildly.training.preflight import preflight

_ROUNDING = 1e-3


class Further(NamedTuple):
    """Logs that have just been read."""

    data: Dataset
    source: str | None
    """Where they are found from any folder; None where they were given in Python."""
    reading: ImportOptions
    said: list[str]
    """What there is to say of them."""


def read_further(
    plan: Plan,
    old: Dataset,
    dataset: str | os.PathLike[str] | Dataset,
    reading: ImportOptions | None,
    data_dir: str | os.PathLike[str] | None,
) -> Further:
    """Logs, read as the run's own were unless it is said how."""
    if isinstance(dataset, Dataset):
        return Further(in_units_of(plan, old, dataset), None, ImportOptions(), [])
    if reading is None and is_raw_log(dataset, data_dir):
        own = ImportOptions.from_json(plan.reading)
        reading = dataclasses.replace(own, name=None, **_bounds(plan.data.action_space))
    data = load_dataset(dataset, reading, data_dir=data_dir)
    source = stable_source(dataset, data_dir)
    said = preflight(data, source, reading, check=True)
    return Further(in_units_of(plan, old, data), source, reading or ImportOptions(), said)


def _bounds(space: ActionSpace | None) -> dict[str, Any]:
    """The first data's bounds: what is guessed from other rows would be others."""
    if space is None:
        return {}
    return {"action_low": space.low, "action_high": space.high, "clip_actions": True}


def reread_further(run: Run, plan: Plan, old: Dataset, stage: Stage) -> Dataset | None:
    """The logs of a part of a run; None where it acts itself."""
    if stage.online:
        return None
    if stage.dataset is None:
        raise MildlyError(
            f"{run.path}: was fine-tuned with a Dataset in memory. Save it (dataset.save(folder)) and give its folder."
        )
    data = in_units_of(plan, old, load_dataset(stage.dataset, ImportOptions.from_json(stage.reading), trusted=False))
    if data.meta.fingerprint != stage.fingerprint:
        raise MildlyError(f"{stage.dataset}: is not what {run.path} was fine-tuned with (its content differs).")
    return data


def in_units_of(plan: Plan, old: Dataset, new: Dataset) -> Dataset:
    """The new data with actions as the old ones have them; refused where the columns are others."""
    for what, ours, theirs in (
        ("observations", old.observation_size, new.observation_size),
        ("actions", old.action_size, new.action_size),
    ):
        if ours != theirs:
            raise MildlyError(f"'{new.meta.name}' has {what} of {theirs} numbers, but the run was trained on {ours}.")
    for what in ("observation_names", "action_names"):
        ours, theirs = getattr(old.meta, what), getattr(new.meta, what)
        if ours and theirs and ours != theirs:
            raise MildlyError(
                f"'{new.meta.name}': its {what.replace('_', ' ')} are {', '.join(theirs)}, but the run was trained on "
                f"{', '.join(ours)}. Name the columns in that order."
            )
    unit = ActionSpace.unit(old.action_size)
    here, there = plan.data.action_space or unit, new.meta.action_space or unit
    if new.meta.action_space is None or here == there:
        return new
    actions = here.to_unit(there.from_unit(np.asarray(new.actions)))
    farthest = float(np.abs(actions).max())
    if farthest > 1 + _ROUNDING:
        raise MildlyError(
            f"'{new.meta.name}': its actions go beyond the run's bounds ({here}), where the policy cannot act. Leave "
            "those rows out, or clip them when reading: --action-low, --action-high and --clip-actions."
        )
    columns = {name: getattr(new, name) for name in FIELDS} | {"actions": actions.clip(-1, 1)}
    meta = dataclasses.replace(new.meta, action_space=plan.data.action_space)
    return dataclasses.replace(Dataset.from_arrays(**columns, meta=meta), gaps=new.gaps)
