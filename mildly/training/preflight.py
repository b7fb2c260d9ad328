"""Before a training begins: a quick look at the data, and at the environment to evaluate in."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mildly.algorithms.base import Algorithm
from mildly.data.batches import Sampler
from mildly.data.check import check as findings_of
from mildly.data.dataset import Dataset, Meta
from mildly.data.findings import Remark, lacks_reward
from mildly.data.options import ImportOptions
from mildly.device import memory_bytes
from mildly.environments import NoSimulator, Simulator, check_fit, stored_action_space, trust_env
from mildly.errors import MildlyError
from mildly.run import Plan, flatten
from mildly.training.checkpoint import previous

_COPIES = 4
"""Of a network's weights and of a layer's output there are at least so many: gradients, and what Adam remembers."""


def preflight(data: Dataset, source: str | None, reading: ImportOptions | None = None, *, check: bool) -> list[str]:
    """Refuse data on which training would go wrong; otherwise what there is to say of them, a line each.

    Args:
        data: what is to be trained on.
        source: the name or path it was loaded from; None for a set that was made in Python.
        reading: the options it was read with, if any.
        check: look for mistakes.
    """
    raw = source is not None and not isinstance(data.rewards, np.memmap)
    said = list(data.meta.notes) if raw else []  # a log read just now: what was guessed must be told
    if not check:
        return said
    findings = findings_of(data, thorough=False)
    errors = [finding for finding in findings if finding.severity == "error"]
    where = source or data.meta.name
    words = reading.words() if reading is not None else ""
    look = f"'{f'mildly data check {shlex.quote(where)} {words}'.rstrip()}' shows it in full"
    if errors:
        told = " ".join(f"{error.what} {error.evidence} {error.advice}" for error in errors)
        raise MildlyError(f"{where}: training would go wrong. {told} ({look}; --no-check trains all the same.)")
    noted = {Remark.of(note).code for note in said}
    warnings = [
        f"warning: {finding.what} ({finding.code})"
        for finding in findings
        if finding.severity == "warning" and finding.code not in noted
    ]
    return [*said, *warnings, *([look] if warnings else [])]


def check_reward(algorithm: str, config: Any, data: Dataset) -> None:
    """Refuse a log without a reward where rewards are learned from."""
    ranked = getattr(config, "best_episodes", None) is not None
    learned = hasattr(config, "gamma") or hasattr(config, "target_return")
    if lacks_reward(data.meta.notes) and (ranked or learned):
        why = "--best-episodes chooses by it" if ranked else f"{algorithm} learns from it"
        raise MildlyError(
            f"'{data.meta.name}' has no reward, and {why}. Read the log with one: --reward \"NAME\", a formula such as "
            f'--reward "-power - 10 * abs(temp - 21)", or --cost "NAME". Without one, imitate it: mildly train bc.'
        )


def check_sizes(config: Any, data: Dataset, checkpoint: Path) -> None:
    """Refuse networks and batches that this machine cannot hold, or that a run's checkpoint cannot have come from.

    Both may be another's words, in a run's folder; they are looked at before anything is allocated.
    """
    most = memory_bytes()
    stored = [path.stat().st_size for path in (checkpoint, previous(checkpoint)) if path.exists()]
    fields = flatten(config)
    batch = fields.get("batch_size", 0)
    for name, widths in fields.items():
        if not name.endswith("hidden_dims") or not widths:
            continue
        group = name.removesuffix("hidden_dims")
        several = next((each for each in (f"{group}ensemble", f"{group}members") if each in fields), None)
        networks = fields[several] if several else 1
        weights = networks * sum(inputs * outputs for inputs, outputs in pairwise((data.observation_size, *widths)))
        needed = 4 * _COPIES * (weights + networks * batch * max(widths))
        if most and needed > most:
            given = f"{name} {tuple(widths)}" + (f", {several} {networks:,}" if several else "")
            raise MildlyError(
                f"{given} and batch_size {batch:,} need at least {needed / 1e9:,.0f} GB of memory, but this machine "
                f"has {most / 1e9:,.0f}. Lower them."
            )
        if name == "hidden_dims" and stored and 4 * weights > max(stored):
            raise MildlyError(
                f"{checkpoint}: the checkpoint is damaged, or too small for "
                f"a network with hidden_dims {tuple(widths)}, as run.json says."
            )


def check_learned(algorithm: Algorithm, built: Collection[str], sampler: Sampler, data: Dataset) -> None:
    """Refuse data of the rows among what the algorithm has learned, which would be in every checkpoint.

    Args:
        algorithm: after `batches`.
        built: the names of its state before `batches`.
        sampler: what `batches` gave.
        data: what it was given.
    """
    for name, tensor in algorithm.state_dict().items():
        if name not in built and tensor.ndim and len(tensor) in (len(data), len(sampler)):
            raise MildlyError(
                f"{type(algorithm).__name__}.{name} has a row for each of the data, and would be kept as if it were "
                "learned. Return it from 'prepare', or name it in DERIVED where it is computed anew on resuming."
            )


def environment_of(meta: Meta, asked: str | Simulator | None) -> tuple[str | None, Meta]:
    """The id of the environment to evaluate in, and the description with its action space, where it has none.

    Args:
        meta: the data's description.
        asked: an environment that the user names, and that must therefore be installed, or gives, which has no id that
            a file could keep; otherwise the data's own.
    """
    env = None if isinstance(asked, Simulator) else asked or meta.env_id
    if isinstance(asked, str):
        trust_env(asked)
    where = asked or env
    if where is None or (asked is None and meta.action_space is not None):
        return env, meta
    try:
        space = stored_action_space(where)
    except NoSimulator:
        if asked is not None:
            raise
        return env, meta
    return env, dataclasses.replace(meta, action_space=meta.action_space or space)


def evaluation_of(plan: Plan, data: Dataset, given: Simulator | None = None) -> tuple[Simulator | None, list[str]]:
    """The environment to evaluate in, and what there is to say of it.

    That is the given one, or the plan's if it is installed; it must fit the data. Otherwise there is none.
    """
    simulator = given or (None if plan.env is None else Simulator.of(plan.env))
    if simulator is None:
        return None, []
    name, space = data.meta.name, plan.data.action_space
    try:
        check_fit(simulator, data.observation_size, data.action_size, f"the data set '{name}'", space)
    except NoSimulator as error:
        said = [f"training goes on without evaluation: {error}"] if plan.eval_every else []
        if space is None:
            said.append(f"'{name}' names no action bounds, and {plan.env} cannot be asked: the policy acts in [-1, 1].")
        return None, said
    return simulator, []
