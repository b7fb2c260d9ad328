"""Actions mapped to [-1, 1], by bounds that are given, known from the environment, or found in the data."""

from __future__ import annotations

import dataclasses

import numpy as np

from mildly.data.dataset import ACTION_TOLERANCE, Array, Meta, blocks
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError

_REACHES = 0.9  # actions that fill [-1, 1] to this, where the environment's bounds are wider, look scaled already
_WIDER = 1.05
_MOST_BOUNDS = 4  # pairs told in a sentence


def scale_actions(
    actions: Array,
    meta: Meta,
    options: ImportOptions,
    notes: list[str],
    *,
    where: str,
    scaled: bool = False,
    refuse: bool = True,
) -> Meta:
    """Map actions to [-1, 1] in place; the description returned remembers the bounds, so that a policy can undo it.

    Args:
        actions: (n, a), in whatever units.
        meta: what the log says of itself, bounds included.
        options: what the user says.
        notes: gets a sentence on what was done.
        where: the file, for messages.
        scaled: whether the actions are known to be in [-1, 1] already.
        refuse: raise at actions beyond the bounds, unless told to clip them.
    """
    low, high, scaled = _bounds(actions, meta, options, notes, where, scaled=scaled or options.scaled)
    middle, half = (np.zeros_like(low), np.ones_like(low)) if scaled else ((high + low) / 2, (high - low) / 2)
    beyond = 0
    for rows in blocks(len(actions)):
        block = (actions[rows] - middle) / half
        outside = (np.abs(block) > 1 + ACTION_TOLERANCE) & np.isfinite(block)
        beyond += int(outside.any(axis=1).sum())
        if beyond and refuse and not options.clip_actions:
            row, column = (int(i) for i in np.argwhere(outside)[0])
            raise MildlyError(
                f"{where}: 'actions' must lie between {middle[column] - half[column]:g} and "
                f"{middle[column] + half[column]:g}, but row {rows.start + row}, column {column} is "
                f"{actions[rows][row, column]:.6g}. Give the right bounds with --action-low and --action-high, or clip "
                "the actions with --clip-actions, as most environments do."
            )
        if options.clip_actions:
            block = np.where(np.isfinite(block), block.clip(-1, 1), block)  # an infinite action is no large one
        actions[rows] = block
    if beyond and options.clip_actions:
        notes.append(f"{beyond:,} row(s) had actions beyond the bounds, which were clipped.")
    if (low == -1).all() and (high == 1).all():
        return dataclasses.replace(meta, action_low=None, action_high=None)
    return dataclasses.replace(meta, action_low=tuple(low.tolist()), action_high=tuple(high.tolist()))


def _bounds(
    actions: Array, meta: Meta, options: ImportOptions, notes: list[str], where: str, *, scaled: bool
) -> tuple[Array, Array, bool]:
    """(low, high, whether the actions are in [-1, 1] already), with a note on how they were come by."""
    size = actions.shape[1]
    stated = _stated_bounds(meta, options, size, where, ask_environment=not scaled)
    if stated is None:
        if scaled:
            return np.full(size, -1.0), np.full(size, 1.0), True
        low, high, kept = _found_bounds(actions)
        if kept:
            notes.append(
                "Actions lie within [-1, 1] and were kept. If their bounds are others, give them to `mildly data "
                "convert` with --action-low and --action-high."
            )
            return low, high, True
        notes.append(
            f"Actions were mapped to [-1, 1] from the bounds found in the data: {_words(low, high)}. "
            "If wider ones are allowed, give them to `mildly data convert` with --action-low and --action-high."
        )
        return low, high, False
    low, high, origin = stated
    if scaled and options.action_low is not None:
        notes.append(f"The actions are in [-1, 1] already; -1 and +1 now mean {_words(low, high)}.")
    if scaled or ((low == -1).all() and (high == 1).all()):
        return low, high, True
    if origin == "the environment" and _looks_scaled(actions, low, high):
        notes.append(
            "The actions fill [-1, 1] though the environment's bounds are wider, so they are taken for scaled "
            "already. If they are not, give the bounds to `mildly data convert` with --action-low and --action-high."
        )
        return low, high, True
    notes.append(f"Actions were mapped to [-1, 1] from the bounds of {origin}: {_words(low, high)}.")
    return low, high, False


def _stated_bounds(
    meta: Meta, options: ImportOptions, size: int, where: str, *, ask_environment: bool
) -> tuple[Array, Array, str] | None:
    """Bounds that somebody vouches for: the user, the log, or the environment."""
    if options.action_low is not None and options.action_high is not None:
        names = f"{where}: action-low", "action-high"
        return *_in_order(options.action_low, options.action_high, size, *names), "the options"
    if meta.action_low is not None and meta.action_high is not None:
        names = f"{where}: its own lower action bound", "the upper one"
        return *_in_order(meta.action_low, meta.action_high, size, *names), "the log"
    if meta.env_id is None or not ask_environment:
        return None
    from mildly.environments import action_bounds, make_env

    try:
        env = make_env(meta.env_id)
    except MildlyError:
        if options.env is not None:
            raise
        return None  # an environment that the log names, but that is not installed here
    low, high = (bound.astype(np.float64) for bound in action_bounds(env))
    env.close()
    if len(low) != size:
        raise MildlyError(f"{where}: has actions of size {size}, but environment '{meta.env_id}' of {len(low)}.")
    return (low, high, "the environment") if np.isfinite([low, high]).all() else None


def _in_order(
    lower: tuple[float, ...], upper: tuple[float, ...], size: int, first: str, second: str
) -> tuple[Array, Array]:
    """Bounds for each column; `first` and `second` are what messages call them."""
    if not {len(lower), len(upper)} <= {1, size}:
        raise MildlyError(f"{first}: {len(lower)} given for {size} action column(s); give one, or one for each.")
    low, high = _one_each(lower, size), _one_each(upper, size)
    if not (np.isfinite([low, high]).all() and (low < high).all()):
        raise MildlyError(f"{first} must be below {second} in every column, got {_words(low, high)}.")
    return low, high


def _one_each(values: tuple[float, ...], size: int) -> Array:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (size,)).copy()


def _found_bounds(actions: Array) -> tuple[Array, Array, bool]:
    """(low, high, whether to keep the actions), for all columns alike.

    Actions that lie within [-1, 1] and use both signs look scaled already: a column's own smallest and largest value
    would then be an accident. Others are mapped, each column from these two.
    """
    low, high = np.full(actions.shape[1], np.inf), np.full(actions.shape[1], -np.inf)
    for rows in blocks(len(actions)):
        block = np.where(np.isfinite(actions[rows]), actions[rows], np.nan)
        low, high = np.fmin(low, np.fmin.reduce(block)), np.fmax(high, np.fmax.reduce(block))
    empty = ~np.isfinite(low)  # a column without a number
    low, high = np.where(empty, -1.0, low), np.where(empty, 1.0, high)
    within = low.min() >= -1 - ACTION_TOLERANCE and high.max() <= 1 + ACTION_TOLERANCE
    if within and low.min() < 0 and high.max() > 0:
        return np.full_like(low, -1.0), np.full_like(high, 1.0), True
    constant = low == high
    return np.where(constant, low - 1, low), np.where(constant, high + 1, high), False


def _looks_scaled(actions: Array, low: Array, high: Array) -> bool:
    """Whether all actions fill [-1, 1] and none goes beyond, where the environment would allow it everywhere."""
    largest = max(float(np.abs(np.nan_to_num(actions[rows])).max()) for rows in blocks(len(actions)))
    allowed = float(np.minimum(-low, high).min())
    return _REACHES < largest <= 1 + ACTION_TOLERANCE and allowed > _WIDER


def _words(low: Array, high: Array) -> str:
    pairs = dict.fromkeys(zip(low.tolist(), high.tolist(), strict=True))
    if len(pairs) > _MOST_BOUNDS:
        return f"{len(low)} columns, from {low.min():g} to {high.max():g}"
    return ", ".join(f"{a:g} to {b:g}" for a, b in pairs)
