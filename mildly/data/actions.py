"""Actions mapped to [-1, 1], by bounds that are given, known from the environment, or found in the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np

from mildly.action_space import ActionSpace
from mildly.data.dataset import ACTION_TOLERANCE, Array, Meta, blocks
from mildly.data.findings import Remark
from mildly.data.options import ImportOptions
from mildly.data.origin import Origin, column_name, place
from mildly.errors import MildlyError
from mildly.words import counted

_REACHES = 0.9  # actions that fill [-1, 1] to this, where the environment's bounds are wider, look scaled already
_WIDER = 1.05
_RARE, _FAR = 0.005, 2.0  # of the values; in ranges of the others, beyond them: so rare and so far, they are outliers
_SELDOM = 0.05  # of the values
_NAMED = 5  # outliers in a text
_SAMPLE = 100_000  # rows that tell the range of the others


def scale_actions(
    actions: Array,
    meta: Meta,
    options: ImportOptions,
    notes: list[str],
    *,
    where: str,
    scaled: bool = False,
    refuse: bool = True,
    origin: Origin | None = None,
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
        origin: where the rows stand in the log, for messages.
    """
    cell = partial(_cell, meta=meta, origin=origin)
    space, scaled, clipped = _space(actions, meta, options, notes, where, cell, scaled=scaled or options.scaled)
    units = ActionSpace.unit(space.size) if scaled else space
    clipped |= options.clip_actions
    beyond = 0
    for rows in blocks(len(actions)):
        block = units.to_unit(actions[rows])
        outside = (np.abs(block) > 1 + ACTION_TOLERANCE) & np.isfinite(block)
        beyond += int(outside.any(axis=1).sum())
        if beyond and refuse and not clipped:
            row, column = (int(i) for i in np.argwhere(outside)[0])
            raise MildlyError(
                f"{where}: 'actions' must lie between {units.low[column]:g} and "
                f"{units.high[column]:g}, but {cell(rows.start + row, column)} is "
                f"{actions[rows][row, column]:.6g}. Give the right bounds with --action-low and --action-high, or clip "
                "the actions with --clip-actions, as most environments do."
            )
        if clipped:
            block = np.where(np.isfinite(block), block.clip(-1, 1), block)  # an infinite action is no large one
        actions[rows] = block
    if options.clip_actions:
        notes.append(
            f"Actions beyond the bounds were clipped in {counted(beyond, 'row')}."
            if beyond
            else "No action lies beyond the bounds, so that --clip-actions had no effect."
        )
    return dataclasses.replace(meta, action_space=None if space.is_unit else space)


def _cell(row: int, column: int, *, meta: Meta, origin: Origin | None) -> str:
    """`row 5, column 2`, by the log's own lines and names where they are known."""
    return f"{place(origin, row)}, {column_name(meta.action_names, column)}"


def _space(
    actions: Array,
    meta: Meta,
    options: ImportOptions,
    notes: list[str],
    where: str,
    cell: Callable[[int, int], str],
    *,
    scaled: bool,
) -> tuple[ActionSpace, bool, bool]:
    """The environment's units, whether the actions are in [-1, 1] already, and whether outliers must be clipped.

    A note says how this was found.
    """
    size = actions.shape[1]
    stated = _stated_space(meta, options, size, where, ask_environment=not scaled)
    if stated is None:
        if scaled:
            return ActionSpace.unit(size), True, False
        space, outliers = _found_space(actions, where, cell)
        notes += [outliers.note()] if outliers is not None else []
        if space is None:
            notes.append(
                "Actions lie within [-1, 1] and were kept. If their bounds are others, give them with --action-low and "
                "--action-high."
            )
            return ActionSpace.unit(size), True, outliers is not None
        notes.append(
            f"Actions were mapped to [-1, 1] from the bounds found in the data: {space}. "
            "If wider ones are allowed, give them with --action-low and --action-high."
        )
        return space, False, outliers is not None
    space, origin = stated
    if scaled and options.action_low is not None:
        notes.append(f"The actions are in [-1, 1] already; -1 and +1 now mean {space}.")
    if scaled or space.is_unit:
        return space, True, False
    if origin == "the environment" and _looks_scaled(actions, space):
        notes.append(
            "The actions fill [-1, 1] though the environment's bounds are wider, so they are taken for scaled "
            "already. If they are not, give the bounds with --action-low and --action-high."
        )
        return space, True, False
    notes.append(f"Actions were mapped to [-1, 1] from the bounds of {origin}: {space}.")
    return space, False, False


def _stated_space(
    meta: Meta, options: ImportOptions, size: int, where: str, *, ask_environment: bool
) -> tuple[ActionSpace, str] | None:
    """Bounds that somebody vouches for: the user, the log, or the environment."""
    if options.action_low is not None and options.action_high is not None:
        return _given_space(options.action_low, options.action_high, size, where), "the options"
    if meta.action_space is not None:
        if meta.action_space.size != size:
            raise MildlyError(
                f"{where}: states {counted(meta.action_space.size, 'action bound')} for "
                f"{counted(size, 'action column')}."
            )
        return meta.action_space, "the log"
    if meta.env_id is None or not ask_environment:
        return None
    from mildly.environments import bounded_action_space, make_env

    try:
        env = make_env(meta.env_id)
    except MildlyError:
        if options.env is not None:
            raise
        return None  # an environment that the log names, but that is not installed here
    (its_size,), space = env.action_space.shape or (0,), bounded_action_space(env)
    env.close()
    if its_size != size:
        raise MildlyError(f"{where}: has actions of size {size}, but environment '{meta.env_id}' of {its_size}.")
    return None if space is None else (space, "the environment")


def _given_space(low: tuple[float, ...], high: tuple[float, ...], size: int, where: str) -> ActionSpace:
    """The user's bounds; one number is meant for all columns."""
    for name, bounds in (("action-low", low), ("action-high", high)):
        if len(bounds) not in (1, size):
            given = f"{len(bounds)} given for {counted(size, 'action column')}"
            raise MildlyError(f"{where}: {name}: {given}; give one, or one for each.")
    try:
        return ActionSpace(*(bounds * size if len(bounds) == 1 else bounds for bounds in (low, high)))
    except MildlyError as error:
        raise MildlyError(f"{where}: action-low and action-high: {error}") from error


def _found_space(
    actions: Array, where: str, cell: Callable[[int, int], str]
) -> tuple[ActionSpace | None, Remark | None]:
    """The bounds that the data show, column by column; none where the actions are to be kept. And outliers, if any.

    Actions that lie within [-1, 1] and use both signs look scaled already: a column's own smallest and largest value
    would then be an accident. Others are mapped, each column from these two, outliers left out.
    """
    low, high = np.full(actions.shape[1], np.inf), np.full(actions.shape[1], -np.inf)
    least, most = _likely(actions)
    beyond = _Outliers(cell)
    for rows in blocks(len(actions)):
        block = np.where(np.isfinite(actions[rows]), actions[rows], np.nan)
        far = (block < least) | (block > most)
        beyond.add(rows.start, block, far)
        block[far] = np.nan
        low, high = np.fmin(low, np.fmin.reduce(block)), np.fmax(high, np.fmax.reduce(block))
    empty = ~np.isfinite(low)  # a column without a number
    low, high = np.where(empty, -1.0, low), np.where(empty, 1.0, high)
    within = low.min() >= -1 - ACTION_TOLERANCE and high.max() <= 1 + ACTION_TOLERANCE
    if within and low.min() < 0 and high.max() > 0:
        return None, beyond.remark()
    constant = low == high
    try:
        space = ActionSpace.of(np.where(constant, low - 1, low), np.where(constant, high + 1, high))
        return space, beyond.remark()
    except MildlyError as error:  # a constant so large that one more is no more
        raise MildlyError(f"{where}: the bounds found in its actions cannot be used: {error}") from error


def _likely(actions: Array) -> tuple[Array, Array]:
    """Between what the values of each column must lie in order not to be outliers."""
    sample = actions[:: -(-len(actions) // _SAMPLE)].astype(np.float64)
    sample = np.where(np.isfinite(sample), sample, np.nan)
    few = np.isfinite(sample).sum(axis=0) * _RARE < 1  # too few values to call one of them rare
    sample[:, few] = 0.0
    low, lower, upper, high = np.nanquantile(sample, [_RARE, _SELDOM, 1 - _SELDOM, 1 - _RARE], axis=0)
    far = np.where(few | (lower == upper), np.inf, _FAR * (high - low))  # an actuator seldom used has no outliers
    return low - far, high + far


class _Outliers:
    """Values far from all others of their column."""

    def __init__(self, cell: Callable[[int, int], str]) -> None:
        self.cell = cell
        self.count = 0
        self.first: list[str] = []

    def add(self, start: int, values: Array, far: Array) -> None:
        self.count += int(far.sum())
        for row, column in np.argwhere(far)[: max(_NAMED - len(self.first), 0)].tolist():
            self.first.append(f"{values[row, column]:.6g} in {self.cell(start + row, column)}")

    def remark(self) -> Remark | None:
        if not self.count:
            return None
        more = f" and {self.count - len(self.first):,} more" if self.count > len(self.first) else ""
        return Remark(
            "warning",
            "action-outliers",
            "Some actions lie far from all others. The bounds found in the data leave them out, and they are clipped.",
            f"{counted(self.count, 'value')}: {'; '.join(self.first)}{more}.",
            "Give the bounds with --action-low and --action-high if such actions are real. If they stand for missing "
            "values, repair those rows.",
        )


def _looks_scaled(actions: Array, space: ActionSpace) -> bool:
    """Whether all actions fill [-1, 1] and none goes beyond, where the environment would allow it everywhere."""
    largest = max(float(np.abs(np.nan_to_num(actions[rows])).max()) for rows in blocks(len(actions)))
    allowed = float(np.minimum(np.negative(space.low), space.high).min())
    return _REACHES < largest <= 1 + ACTION_TOLERANCE and allowed > _WIDER
