"""Tables with one row per step: CSV (also .tsv, and either of them as .gz) and Parquet, or a folder of them.

In a folder each file is a run of its own: at least one episode.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mildly.data.assemble import Log, Steps
from mildly.data.dataset import Array, Meta
from mildly.data.fill import REWARD, Codes
from mildly.data.findings import Remark, no_reward
from mildly.data.formats import cells
from mildly.data.formats.arrays import parse_meta
from mildly.data.formats.clock import Clock, Timed, Timeline, find_clock
from mildly.data.formats.columns import Columns, choose, one
from mildly.data.formats.discrete import watched
from mildly.data.formats.episodes import with_ends
from mildly.data.formats.lines import Lines, Spots
from mildly.data.formats.table_file import SUFFIXES, TableFile, delimiter, open_table, stem
from mildly.data.formats.table_writer import write
from mildly.data.memory import Limit, memory_limit, schema_bytes
from mildly.data.options import NO_REWARD, ImportOptions
from mildly.data.origin import Origin, worded
from mildly.errors import MildlyError
from mildly.words import counted

__all__ = ["read", "tables_in", "write"]

_GUESSED = "Columns as guessed from their names"
_NAME = 100  # bytes that an episode's name takes, about


def read(path: Path, options: ImportOptions) -> Log:
    """A table, or a folder of them; the notes say which column was taken for what."""
    sheets = _sheets(path)
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
    units = next((sheet.units for sheet in sheets if sheet.units), {})
    meta = stored or Meta(
        name=name,
        observation_names=columns.obs,
        action_names=columns.action,
        observation_units=_units_of(columns.obs, units),
        action_units=_units_of(columns.action, units),
        source=f"{source} {path.name}",
    )
    limit = memory_limit(options.max_memory)
    size = _expected_bytes(sheets, columns, limit)
    lines = Lines(sheets)
    origin = Origin(lines.places, columns.field_names)
    log = Log(meta, iter(()), where=where, scaled=stored is not None, size=size, origin=origin, notes=list(meta.notes))
    clock = search.clock if columns.time is not None else None
    if stored is None:
        log.notes += _notes(lines, columns, _origin(options, guessed=guessed), apart=path.is_dir())
        log.notes += [remark.note() for remark in search.remarks]
        log.notes += [clock.words()] if clock is not None and np.isfinite(clock.step) else []
    if options.missing is not None and stored is None:
        log.codes = Codes(options.missing, [*columns.obs, *columns.action, REWARD, *columns.reward.columns], where)
    log.steps = _steps_of(lines, columns, clock, limit, log, apart=path.is_dir())
    if stored is None:
        whole = [all(name in sheet.whole for sheet in sheets) for name in columns.action]
        log.steps = watched(log.steps, columns.action, options, log.notes, integer=whole)
    return log


def _units_of(names: Sequence[str], units: Mapping[str, str]) -> tuple[str, ...]:
    """The unit of each column, empty text where it is not told; empty where none is."""
    found = tuple(units.get(name, "") for name in names)
    return found if any(found) else ()


def texts(path: Path, said: str, rows: Sequence[int]) -> list[str] | None:
    """What a column of text holds in some rows of the table, empty text where nothing; None for a column of numbers."""
    sheets = _sheets(path)
    name = one("by", sheets[0].names, (), said, str(path)) or ""
    if _is_numeric(name, sheets):
        return None
    wanted, found, start = np.asarray(rows), [""] * len(rows), 0
    for sheet in sheets:
        for batch in sheet.batches([], [], [name]):
            column = cells.column(batch, name)
            for i in np.flatnonzero((start <= wanted) & (wanted < start + batch.num_rows)):
                value = column[int(wanted[i]) - start].as_py()
                found[i] = "" if value is None else _name(value)
            start += batch.num_rows
    return found


def _steps_of(
    lines: Lines,
    columns: Columns,
    clock: Clock | None,
    limit: Limit,
    log: Log,
    *,
    apart: bool,
) -> Iterator[Steps]:
    """All rows; the log's notes get what is found in them."""
    notes = log.notes
    order, decimals = Order(columns, limit, lines), Decimals(lines)
    timeline = (
        Timeline(clock, lines.places, episodes=bool(columns.episode or columns.flags)) if clock is not None else None
    )
    found = Finders(order, decimals, timeline, log.codes)
    yield from with_ends(
        (block for sheet in lines.sheets for block in _rows(sheet, columns, found, apart=apart)),
        notes,
        done=columns.terminated if columns.done_is_over else None,
        episode=columns.episode,
        flags=columns.flags,
        places=lines.places,
    )
    for finder in (decimals, order, timeline):
        notes += [remark.note() for remark in finder.remarks()] if finder is not None else []


def _origin(options: ImportOptions, *, guessed: bool) -> str:
    """How the columns of each role were found: given by the user, or guessed."""
    words = {"obs": "observation", "next_obs": "next observation", "cost": "reward"}
    roles = ("obs", "action", "reward", "cost", "next_obs", "episode", "terminated", "truncated")
    given = [words.get(role, role) for role in roles if getattr(options, role) is not None]
    if not guessed:
        return "Columns"
    return f"Columns as given ({', '.join(given)}) and guessed from their names (the others)" if given else _GUESSED


def _notes(lines: Lines, columns: Columns, origin: str, *, apart: bool) -> Iterator[str]:
    """What was taken for what, and what is unusual."""
    yield f"{origin}: {columns.words()}."
    spoken = (sheet.dialect.words(delimiter(sheet.path)) for sheet in lines.sheets if sheet.dialect)
    yield from dict.fromkeys(words for words in spoken if words)
    with_units = [sheet for sheet in lines.sheets if sheet.dialect is not None and sheet.dialect.text_rows]
    if with_units:
        yield _units(lines, with_units).note()
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


def _units(lines: Lines, sheets: Sequence[TableFile]) -> Remark:
    """Rows of text between the header and the first numbers."""
    rows = [lines.place(sheet, row) for sheet in sheets if sheet.dialect for row in range(-sheet.dialect.text_rows, 0)]
    units = ", ".join(f"{name} = {unit}" for name, unit in sheets[0].units.items())
    return Remark("info", "units-row", "Rows of units below the header were skipped.", f"{worded(rows)}: {units}.")


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


def _sheets(path: Path) -> list[TableFile]:
    return [open_table(file) for file in (tables_in(path) if path.is_dir() else [path])]


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


def _rows(sheet: TableFile, columns: Columns, finders: Finders, *, apart: bool) -> Iterator[tuple[Steps, Array | None]]:
    """Blocks with where new episodes begin, if anything but flags tells it. `apart`: they do with the file."""
    order, timeline = finders.order, finders.timeline
    order.open(sheet)
    blocks = _timed(sheet, columns, finders)
    if timeline is not None:
        timeline.open()
        blocks = timeline.put_in_order(blocks)
    first = True
    for steps, starts, times in blocks:
        goes_on = order.goes_on(starts, steps)
        if timeline is not None and steps.numbers is not None:
            starts |= timeline.breaks(times, steps.numbers, goes_on)
        if columns.episode is None and columns.first is None and timeline is None and not apart:
            yield steps, None
            continue
        starts[0] |= first
        first = False
        yield steps, starts


def _timed(sheet: TableFile, columns: Columns, finders: Finders) -> Iterator[Timed]:
    """Blocks as they stand in the file."""
    order, decimals, timeline, codes = finders
    widths: dict[str, int] = {}
    for batch in sheet.batches(columns.numbers, columns.flags, columns.labels, columns.time, decimals.add):
        if batch.num_rows:
            starts = order.starts(batch) | cells.flag(batch, columns.first, sheet.path)
            steps = _steps(batch, columns, sheet.path, widths, codes)
            steps = steps._replace(numbers=order.lines.numbers(batch.num_rows))
            yield Timed(steps, starts, timeline.times(batch, sheet) if timeline is not None else np.empty(0))


def _steps(batch: Any, columns: Columns, path: Path, widths: dict[str, int], codes: Codes | None) -> Steps:
    terminated = cells.flag(batch, columns.terminated, path)
    truncated = cells.flag(batch, columns.truncated, path)
    if columns.last is not None:
        truncated |= cells.flag(batch, columns.last, path) & ~terminated
    return Steps(
        cells.matrix(batch, columns.obs, path, widths),
        cells.matrix(batch, columns.action, path, widths),
        _rewards(batch, columns, path, codes),
        terminated,
        truncated,
        cells.matrix(batch, columns.next_obs, path, widths) if columns.next_obs else None,
    )


def _rewards(batch: Any, columns: Columns, path: Path, codes: Codes | None) -> Array:
    """The rewards in double precision: what is computed is rounded once, at its end, and never from a code."""
    learned = {*columns.obs, *columns.action}
    inputs = {}
    for name in columns.reward.columns:
        values = cells.matrix(batch, (name,), path, {}, np.float64)
        if values.shape[1] != 1:
            raise MildlyError(f"{path}: the reward needs one number of column '{name}', which holds lists.")
        inputs[name] = values[:, 0]
        if codes is not None:
            inputs[name] = codes.cleared(inputs[name], name, counts=name not in learned)
    return columns.reward.values(inputs, batch.num_rows)


class Finders(NamedTuple):
    """What looks at the rows as they are read."""

    order: Order
    decimals: Decimals
    timeline: Timeline | None
    codes: Codes | None


class Decimals:
    """Cells with the other decimal sign than the rest of their file."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.found: dict[str, Spots] = {}

    def add(self, name: str, rows: Array) -> None:
        """Rows of the running file in which a column has such cells."""
        self.found.setdefault(name, Spots()).add(rows + self.lines.firsts[-1])

    def remarks(self) -> Iterator[Remark]:
        """What was found, once all rows are read."""
        if self.found:
            places = (f"'{name}' in {spots.words(self.lines.places)}" for name, spots in self.found.items())
            yield Remark(
                "warning",
                "decimal-mixed",
                "Decimal commas and points are mixed. Both were read as decimal signs.",
                f"{'; '.join(places)}.",
                "Look at those cells: they may come from another program, or have been typed by hand.",
            )


class Order:
    """Looks whether each episode is in one piece."""

    def __init__(self, columns: Columns, limit: Limit, lines: Lines) -> None:
        self.columns, self.limit, self.lines = columns, limit, lines
        self.pieces = 0  # of episodes that had begun before

    def open(self, sheet: TableFile) -> None:
        """Begin a file."""
        self.sheet = sheet
        self.lines.open()
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
                (place,) = self.lines.places([self.lines.count + row])
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
                f"By '{self.columns.episode}', an episode goes on after others began {counted(self.pieces, 'time')}.",
                "Transitions are right, since the log has next observations; returns and lengths of episodes are not. "
                f"Sort the rows by '{self.columns.episode}', leaving their order as it is otherwise.",
            )


def _name(episode: Any) -> str:
    return episode.decode(errors="replace") if isinstance(episode, bytes) else str(episode)
