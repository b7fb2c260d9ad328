"""Tables with one row per step: CSV (also .tsv, and either of them as .gz) and Parquet, or a folder of them.

In a folder each file is a run of its own: at least one episode.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mildly.data.assemble import Log, Steps
from mildly.data.dataset import Array, Meta
from mildly.data.findings import Remark, no_reward
from mildly.data.formats import cells
from mildly.data.formats.arrays import parse_meta
from mildly.data.formats.clock import Clock, Timeline, find_clock
from mildly.data.formats.columns import Columns, choose
from mildly.data.formats.episodes import with_ends
from mildly.data.formats.table_file import SUFFIXES, TableFile, delimiter, open_table, stem
from mildly.data.formats.table_writer import write
from mildly.data.memory import Limit, memory_limit, schema_bytes
from mildly.data.options import NO_REWARD, ImportOptions
from mildly.errors import MildlyError

__all__ = ["read", "tables_in", "write"]

_GUESSED = "Columns as guessed from their names"
_NAME = 100  # bytes that an episode's name takes, about


def read(path: Path, options: ImportOptions) -> Log:
    """A table, or a folder of them; the notes say which column was taken for what."""
    sheets = [open_table(file) for file in (tables_in(path) if path.is_dir() else [path])]
    _check_same_columns(sheets)
    first, where = sheets[0], str(path)
    numeric = [name for name in first.names if _is_numeric(name, sheets)]
    search = find_clock(first, numeric, options, where)
    columns, guessed = choose(
        first.names,
        numeric,
        options,
        where,
        time=search.clock.name if search.clock else None,
        sensors=search.sensors,
        named=first.dialect is None or first.dialect.named,
    )
    stored = _stored(sheets, path)
    name, source = (path.name, "folder of tables") if path.is_dir() else (stem(path), "table")
    meta = stored or Meta(
        name=name, observation_names=columns.obs, action_names=columns.action, source=f"{source} {path.name}"
    )
    limit = memory_limit(options.max_memory)
    size = _expected_bytes(sheets, columns, limit)
    log = Log(meta, iter(()), where=where, scaled=stored is not None, size=size, notes=list(meta.notes))
    clock = search.clock if columns.time is not None else None
    if stored is None:
        log.notes += _notes(sheets, columns, _origin(options, guessed=guessed), apart=path.is_dir())
        log.notes += [remark.note() for remark in search.remarks]
        log.notes += [clock.words()] if clock is not None and np.isfinite(clock.step) else []
    log.steps = _steps_of(sheets, columns, clock, limit, log.notes, apart=path.is_dir())
    return log


def _steps_of(
    sheets: Sequence[TableFile],
    columns: Columns,
    clock: Clock | None,
    limit: Limit,
    notes: list[str],
    *,
    apart: bool,
) -> Iterator[Steps]:
    """All rows; the notes get what is found in them."""
    order = Order(columns, limit)
    timeline = Timeline(clock, episodes=bool(columns.episode or columns.flags)) if clock is not None else None
    yield from with_ends(
        (block for sheet in sheets for block in _rows(sheet, columns, order, timeline, apart=apart)),
        notes,
        done=columns.terminated if columns.done_is_over else None,
        episode=columns.episode,
    )
    for finder in (order, timeline):
        notes += [remark.note() for remark in finder.remarks()] if finder is not None else []


def _origin(options: ImportOptions, *, guessed: bool) -> str:
    """How the columns of each role were found: given by the user, or guessed."""
    words = {"obs": "observation", "next_obs": "next observation", "cost": "reward"}
    roles = ("obs", "action", "reward", "cost", "next_obs", "episode", "terminated", "truncated")
    given = [words.get(role, role) for role in roles if getattr(options, role) is not None]
    if not guessed:
        return "Columns"
    return f"Columns as given ({', '.join(given)}) and guessed from their names (the others)" if given else _GUESSED


def _notes(sheets: Sequence[TableFile], columns: Columns, origin: str, *, apart: bool) -> Iterator[str]:
    """What was taken for what, and what is unusual."""
    yield f"{origin}: {columns.words()}."
    spoken = (sheet.dialect.words(delimiter(sheet.path)) for sheet in sheets if sheet.dialect)
    yield from dict.fromkeys(words for words in spoken if words)
    if sheets[0].units:
        yield f"Units: {', '.join(f'{name} = {unit}' for name, unit in sheets[0].units.items())}."
    if str(columns.reward) == NO_REWARD:
        yield no_reward().note()
    if columns.terminated is None:
        yield "No column says where an episode ended for good: every end is taken for a cut-off."
    if not (columns.labels or columns.flags):
        rows, clock = (
            "each file is" if apart else "all rows are",
            ", as far as the clock goes on" if columns.time else "",
        )
        yield f"No column tells the episodes apart: {rows} taken for one{clock}."


def _expected_bytes(sheets: Sequence[TableFile], columns: Columns, limit: Limit) -> int | None:
    """What the transitions will take, by what Parquet files claim; None for texts, which claim nothing."""
    total = 0
    for sheet in sheets:
        if sheet.size is None:
            return None
        widths, pieces = sheet.size.widths, sheet.size.pieces
        times = [columns.time] if columns.time else []
        wanted = dict.fromkeys([*columns.numbers, *columns.flags, *columns.labels, *times])
        largest = max(wanted, key=lambda name: pieces[name])
        limit.check_piece(str(sheet.path), f"a row with '{largest}'", sum(pieces[name] for name in wanted))
        sizes = (sum(widths[name] for name in names) for names in (columns.obs, columns.action))
        total += schema_bytes(sheet.size.rows, *sizes)
    return total


def tables_in(folder: Path) -> list[Path]:
    """The tables in a folder, in the order in which a person would count them: run_2 before run_10."""
    found = [
        file
        for file in folder.iterdir()
        if file.name.lower().endswith(SUFFIXES) and not file.name.startswith(".") and file.is_file()
    ]
    return sorted(found, key=lambda file: ([_counted(part) for part in re.split(r"(\d+)", file.name)], file.name))


def _counted(part: str) -> tuple[int, str]:
    return (int(part), "") if part.isdecimal() else (-1, part.lower())


def _check_same_columns(sheets: Sequence[TableFile]) -> None:
    first = sheets[0]
    for sheet in sheets[1:]:
        lacking = [name for name in first.names if name not in sheet.names]
        more = [name for name in sheet.names if name not in first.names]
        if lacking or more:
            what = f"lacks column '{lacking[0]}'" if lacking else f"has a column '{more[0]}' more"
            raise MildlyError(
                f"{sheet.path}: {what}, unlike {first.path.name}. All tables of a folder need the same columns."
            )


def _is_numeric(name: str, sheets: Sequence[TableFile]) -> bool:
    """Numbers wherever there is anything."""
    return any(name in sheet.numeric for sheet in sheets) and all(
        name in sheet.numeric or name in sheet.empty for sheet in sheets
    )


def _stored(sheets: Sequence[TableFile], path: Path) -> Meta | None:
    """The description that our own files carry; files of one folder must agree in what their actions mean."""
    found = [parse_meta(sheet.description, sheet.path) if sheet.description else None for sheet in sheets]
    if len(found) == 1 or (found[0] is None and not any(found)):
        return found[0]
    spaces = {meta.action_space if meta else "none" for meta in found}
    if len(spaces) > 1 or found[0] is None:
        raise MildlyError(f"{path}: its tables differ in the bounds of their actions. Convert them one by one.")
    return dataclasses.replace(found[0], name=path.name, notes=())


def _rows(
    sheet: TableFile, columns: Columns, order: Order, timeline: Timeline | None, *, apart: bool
) -> Iterator[tuple[Steps, Array | None]]:
    """Blocks with where new episodes begin, if anything but flags tells it. `apart`: they do with the file."""
    order.open(sheet)
    if timeline is not None:
        timeline.open()
    widths: dict[str, int] = {}
    first = True
    for batch in sheet.batches(columns.numbers, columns.flags, columns.labels, columns.time):
        if batch.num_rows == 0:
            continue
        steps = _steps(batch, columns, sheet.path, widths)
        starts = order.starts(batch) | cells.flag(batch, columns.first, sheet.path)
        goes_on = order.goes_on(starts, steps)
        if timeline is not None:
            starts |= timeline.breaks(batch, sheet, goes_on)
        if columns.episode is None and columns.first is None and timeline is None and not apart:
            yield steps, None
            continue
        starts[0] |= first
        first = False
        yield steps, starts


def _steps(batch: Any, columns: Columns, path: Path, widths: dict[str, int]) -> Steps:
    terminated = cells.flag(batch, columns.terminated, path)
    truncated = cells.flag(batch, columns.truncated, path)
    if columns.last is not None:
        truncated |= cells.flag(batch, columns.last, path) & ~terminated
    return Steps(
        cells.matrix(batch, columns.obs, path, widths),
        cells.matrix(batch, columns.action, path, widths),
        _rewards(batch, columns, path),
        terminated,
        truncated,
        cells.matrix(batch, columns.next_obs, path, widths) if columns.next_obs else None,
    )


def _rewards(batch: Any, columns: Columns, path: Path) -> Array:
    """The rewards in double precision: what is computed is rounded once, at its end."""
    inputs = {}
    for name in columns.reward.columns:
        values = cells.matrix(batch, (name,), path, {}, np.float64)
        if values.shape[1] != 1:
            raise MildlyError(f"{path}: the reward needs one number of column '{name}', which holds lists.")
        inputs[name] = values[:, 0]
    return columns.reward.values(inputs, batch.num_rows)


class Order:
    """Looks whether each episode is in one piece."""

    def __init__(self, columns: Columns, limit: Limit) -> None:
        self.columns, self.limit = columns, limit
        self.pieces = 0  # of episodes that had begun before

    def open(self, sheet: TableFile) -> None:
        """Begin a file."""
        self.sheet = sheet
        self.count = 0  # rows seen
        self.seen: set[Any] = set()  # episodes
        self.last: Any = None  # the last row's episode
        self.ended = True  # whether the last row had a flag

    def starts(self, batch: Any) -> Array:
        """Where the episode's number is another one than in the row before."""
        starts = np.zeros(batch.num_rows, dtype=bool)
        if self.columns.episode is not None:
            ids = cells.column(batch, self.columns.episode)
            if ids.null_count:
                raise MildlyError(f"{self.sheet.path}: the episode column '{self.columns.episode}' has empty cells.")
            starts = cells.changes(ids, self.last)
            self._check_contiguous(ids, starts)
            self.last = ids[len(ids) - 1].as_py()
        self.count += batch.num_rows
        return starts

    def goes_on(self, starts: Array, steps: Steps) -> Array:
        """Which rows are of the episode of the row before."""
        ends = steps.terminated | steps.truncated
        goes_on: Array = ~(starts | np.concatenate([[self.ended], ends[:-1]]))
        self.ended = bool(ends[-1])
        return goes_on

    def _check_contiguous(self, ids: Any, starts: Array) -> None:
        """An episode that comes back later is in pieces, of which the first would lack its last next observation."""
        firsts = np.flatnonzero(starts).tolist() if self.seen else [0, *np.flatnonzero(starts).tolist()]
        path = str(self.sheet.path)
        for row in firsts:
            episode = ids[row].as_py()
            if episode in self.seen and not self.columns.next_obs:
                by = f"'{self.columns.episode}'" + (f" and '{self.columns.time}'" if self.columns.time else "")
                (place,) = self.sheet.places([self.count + row])
                raise MildlyError(
                    f"{path}: episode {_name(episode)} (column '{self.columns.episode}') goes on in {place} after "
                    f"another one began. Sort the rows by {by} first, or number the episodes apart if it is another."
                )
            self.pieces += episode in self.seen
            self.seen.add(episode)
        self.limit.check_piece(path, f"the list of its {len(self.seen):,} episodes", _NAME * len(self.seen))

    def remarks(self) -> Iterator[Remark]:
        """What was found, once all rows are read."""
        if self.pieces:
            yield Remark(
                "warning",
                "episodes-in-pieces",
                "Episodes are in pieces, each of which is taken for an episode of its own.",
                f"By '{self.columns.episode}' {self.pieces:,} piece(s) go on with an episode after others began.",
                "Transitions are right, since the log has next observations; returns and lengths of episodes are not. "
                f"Sort the rows by '{self.columns.episode}', leaving their order as it is otherwise.",
            )


def _name(episode: Any) -> str:
    return episode.decode(errors="replace") if isinstance(episode, bytes) else str(episode)
