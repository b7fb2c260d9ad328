"""Before a training begins: a quick look at the data, and at the environment to evaluate in."""

from __future__ import annotations

import dataclasses
import shlex

import numpy as np

from mildly.data.check import check as findings_of
from mildly.data.dataset import Dataset, Meta
from mildly.environments import NoSimulator, check_fit, stored_action_space
from mildly.errors import MildlyError
from mildly.run import Plan


def preflight(data: Dataset, source: str | None, *, check: bool) -> list[str]:
    """Refuse data on which training would go wrong; otherwise what there is to say of them, a line each.

    Args:
        data: what is to be trained on.
        source: the name or path it was loaded from; None for a set that was made in Python.
        check: look for mistakes.
    """
    raw = source is not None and not isinstance(data.rewards, np.memmap)
    said = list(data.meta.notes) if raw else []  # a log read just now: what was guessed must be told
    if not check:
        return said
    findings = findings_of(data, thorough=False)
    errors = [finding for finding in findings if finding.severity == "error"]
    where = source or data.meta.name
    look = f"'mildly data check {shlex.quote(where)}' shows it in full"
    if errors:
        told = " ".join(f"{error.what} {error.evidence} {error.advice}" for error in errors)
        raise MildlyError(f"{where}: training would go wrong. {told} ({look}; --no-check trains all the same.)")
    warnings = [f"warning: {finding.what} ({finding.code})" for finding in findings if finding.severity == "warning"]
    return [*said, *warnings, *([look] if warnings else [])]


def environment_of(meta: Meta, asked: str | None) -> tuple[str | None, Meta]:
    """The environment to evaluate in, and the description with its action space, where it has none of its own.

    Args:
        meta: the data's description.
        asked: an environment that the user names, and that must therefore be installed; otherwise the data's own.
    """
    env = asked or meta.env_id
    if env is None or (asked is None and meta.action_space is not None):
        return env, meta
    try:
        space = stored_action_space(env)
    except NoSimulator:
        if asked is not None:
            raise
        return env, meta
    return env, dataclasses.replace(meta, action_space=meta.action_space or space)


def evaluation_of(plan: Plan, data: Dataset) -> tuple[str | None, list[str]]:
    """The plan's environment if it is installed and fits the data, otherwise none; and what there is to say of it."""
    if plan.env is None:
        return None, []
    name, space = data.meta.name, plan.data.action_space
    try:
        check_fit(plan.env, data.observation_size, data.action_size, f"the data set '{name}'", space)
    except NoSimulator as error:
        said = [f"training goes on without evaluation: {error}"] if plan.eval_every else []
        if space is None:
            said.append(f"'{name}' names no action bounds, and {plan.env} cannot be asked: the policy acts in [-1, 1].")
        return None, said
    return plan.env, []
