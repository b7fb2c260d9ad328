"""The table of checks, and the function that runs them.

A check is a function from a `Inspection` at the data to its findings, in one of the two tables below. It must cope with
anything that has the right shapes: NaN, actions out of bounds, a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mildly.data.check import actions, episodes, learning, observations, order, rewards, sensors, values
from mildly.data.check.inspection import Finding, Inspection
from mildly.data.dataset import Dataset
from mildly.data.formats import discrete

Check = Callable[[Inspection], Iterator[Finding]]

QUICK: tuple[Check, ...] = (
    observations.not_finite,
    actions.out_of_bounds,
    episodes.time_limit_as_terminal,
    episodes.too_long,
    order.next_observations,
    order.repeated_rows,
    order.ends_that_continue,
    order.counters,
    episodes.episode_ends,
    episodes.single_steps,
    episodes.few,
    values.codes,
    values.spikes,
    sensors.stuck,
    sensors.unit_change,
    rewards.too_large,
    rewards.outliers,
    rewards.constant,
    rewards.value_scale,
    actions.constant,
    actions.saturated,
    actions.narrow,
    observations.dominated,
    observations.too_fine,
    observations.scale,
    observations.constant,
    observations.duplicated_columns,
    learning.return_spread,
    learning.notes,
)
"""Checks that also run before a training, on a sample of the rows."""

THOROUGH: tuple[Check, ...] = (learning.deterministic_behavior, learning.duplicated_rows)
"""Checks that take seconds."""

_OF_CONTINUOUS_ACTIONS = ("action-saturated", "action-narrow", "deterministic-behavior")
"""What makes no sense of choices."""


def check(data: Dataset, *, thorough: bool = True) -> list[Finding]:
    """Look for what would spoil a training, or surprise its owner; errors come first.

    Args:
        data: a data set whose content may be anything (`load_dataset(source, verify=False)`).
        thorough: look at every row. Otherwise observations and actions are looked at in a sample of 100,000 rows,
            rewards and the ends of episodes still in all, and the checks that take seconds are left out.
    """
    inspection = Inspection(data, thorough=thorough)
    with np.errstate(all="ignore"):  # NaN and infinities are what we look for
        found = [finding for one in (*QUICK, *(THOROUGH if thorough else ())) for finding in one(inspection)]
    if any(finding.code == discrete.CODE for finding in found):
        found = [finding for finding in found if finding.code not in _OF_CONTINUOUS_ACTIONS]
    return sorted(found, key=lambda finding: ("error", "warning", "info").index(finding.severity))
