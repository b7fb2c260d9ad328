"""Checks of the actions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mildly.data.check.inspection import Finding, Inspection, percent, sentence
from mildly.data.dataset import ACTION_TOLERANCE
from mildly.words import counted

_NEAR, _SHARE, _ALL, _SHOWN = 1e-3, 0.2, 0.95, 4
_NARROW, _REACHES = 0.2, 0.95  # the first from lowest to highest, of 2


def out_of_bounds(inspection: Inspection) -> Iterator[Finding]:
    """Actions beyond [-1, 1], which no policy of ours can take."""
    number, rows = inspection.count(inspection.data.actions, lambda values: np.abs(values) > 1.0 + ACTION_TOLERANCE)
    if number.any():
        facts = inspection.actions
        yield Finding(
            "error",
            "action-out-of-bounds",
            "Actions lie beyond [-1, 1], where no policy can follow them.",
            f"{counted(int(number.sum()), 'value')} in {inspection.column_names(np.flatnonzero(number), 'actions')} "
            f"({inspection.of_rows}), from {facts.low.min():.4g} to {facts.high.max():.4g}, "
            f"first in {inspection.places(rows)}.",
            "Give the actions' own bounds: `mildly data convert SRC DST --action-low LOW --action-high HIGH` (or "
            "`--env ID`, which knows them); add `--clip-actions` if the environment clips what goes beyond them.",
        )


def constant(inspection: Inspection) -> Iterator[Finding]:
    """Dimensions of the action that never change."""
    still = np.flatnonzero(inspection.actions.constant)
    if len(still):
        yield Finding(
            "warning",
            "action-constant",
            "Part of the action never changes, so the data cannot tell what else it could do."
            if len(still) < inspection.data.action_size
            else "The action never changes, so there is nothing to choose between.",
            f"{sentence(inspection.column_names(still, 'actions'))} of {inspection.data.action_size} "
            f"({inspection.of_rows}).",
            "Leave such columns out with `mildly data convert SRC DST --action ...`, or check that the right ones "
            "were read.",
        )


def saturated(inspection: Inspection) -> Iterator[Finding]:
    """Actions that sit at their bounds."""
    number, _ = inspection.count(inspection.data.actions, lambda values: np.abs(np.abs(values) - 1.0) <= _NEAR)
    share = np.where(inspection.actions.constant, 0.0, number / inspection.looked_at)
    often = np.flatnonzero(share > _SHARE)
    if not len(often):
        return
    often = often[np.argsort(-share[often], kind="stable")]
    shown = ", ".join(
        f"{percent(share[column])} in {inspection.data.column_name(column, 'actions')}" for column in often[:_SHOWN]
    )
    more = f" and more than {percent(_SHARE)} in {len(often) - _SHOWN} more" if len(often) > _SHOWN else ""
    everywhere = bool((share > _ALL).all())
    yield Finding(
        "warning",
        "action-saturated",
        "Nearly all actions sit at their bounds: a bang-bang policy made these data, or the bounds are too tight."
        if everywhere
        else "Many actions sit at their bounds: the policy that made these data pushed against them, or they are too "
        "tight.",
        f"Share of rows at a bound: {shown}{more} ({inspection.of_rows}).",
        "If the bounds are right, leave it so: a squashed Gaussian policy reaches them nearly, never quite. If the log "
        "was clipped by mistake, give wider ones: `mildly data convert SRC DST --action-low LOW --action-high HIGH`.",
    )


def narrow(inspection: Inspection) -> Iterator[Finding]:
    """Actions that use a small part of [-1, 1]."""
    facts = inspection.actions
    span = facts.high - facts.low
    inside = np.maximum(np.abs(facts.low), np.abs(facts.high)) < _REACHES  # at a bound, bounds are not too wide
    thin = np.flatnonzero((span < _NARROW) & (span > 0) & inside)
    if len(thin):
        yield Finding(
            "warning",
            "action-narrow",
            f"Actions use less than {percent(_NARROW / 2)} of [-1, 1]: the bounds look too wide, and the rest of the "
            "range is unknown to the data.",
            f"{sentence(inspection.column_names(thin, 'actions'))} of {inspection.data.action_size}; "
            f"{inspection.data.column_name(thin[0], 'actions')} goes from "
            f"{facts.low[thin[0]]:.3g} to {facts.high[thin[0]]:.3g} ({inspection.of_rows}).",
            "Give the bounds that actions really have: `mildly data convert SRC DST --action-low LOW --action-high "
            "HIGH`.",
        )
