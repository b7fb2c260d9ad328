"""Three logs as people keep them, clean and with planted faults: what reading and checking must find, and must not.

    python recipes/messy_logs.py OUT

- `building.csv`: a heated building, 8 sensors, 2 actuators; semicolons and decimal commas, one day is one episode.
- `tank.parquet`: a tank that is filled and heated in batches; timestamps, flags for overflow and time limit.
- `vehicle/`: a vehicle that follows a road, one CSV file for each drive, with next observations.

Each plant is a small differential equation, run by operators of different skill with a sensible hand controller, some
noise on their actions, and a reward in the log. `FAULTS` lists what is planted: kind, column, place, and the finding of
`mildly data check` that tells it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
START = datetime(2024, 1, 8)


@dataclass
class Table:
    """A log: columns of numbers, rows in order."""

    name: str
    columns: dict[str, Array]
    run: Array
    """The episode that each row belongs to."""
    time: list[datetime] = field(default_factory=list)
    """Empty where the log has no clock."""

    def __post_init__(self) -> None:
        self.origin = np.arange(len(self.run))
        """The row of the clean log that each row is."""
        self.starts = np.searchsorted(self.run, np.arange(self.run[-1] + 1))
        """The row of the clean log at which each episode begins."""

    def find(self, at: Sequence[tuple[int, int]]) -> Array:
        """Where steps of episodes, as the clean log counts them, are now; of a row that is there twice, the first."""
        return np.array([np.flatnonzero(self.origin == self.starts[run] + step)[0] for run, step in at], dtype=int)

    def pick(self, rows: Array) -> None:
        """Keep these rows, in this order."""
        self.columns = {name: column[rows] for name, column in self.columns.items()}
        self.run, self.origin = self.run[rows], self.origin[rows]
        self.time = [self.time[row] for row in rows] if self.time else []


@dataclass(frozen=True)
class Fault:
    """One planted fault."""

    log: str
    kind: str
    finding: str
    """The code of the finding that tells it."""
    column: str = ""
    at: tuple[tuple[int, int], ...] = ()
    """Episode and step of each place, in the clean log; empty where all of the column is meant."""
    value: float = float("nan")
    rows: int = 1


@dataclass(frozen=True)
class Planted:
    """A fault in a written log."""

    fault: Fault
    rows: tuple[int, ...]
    """Rows of the log, over all of its files, counted from 0."""
    places: tuple[tuple[str, int], ...]
    """Files, and lines counted from 1 as an editor does; in Parquet rows, counted from 0."""


FAULTS: tuple[Fault, ...] = (
    Fault("building", "missing", "nan", "obs_room", ((3, 20), (17, 50), (41, 8))),
    Fault("building", "value", "sentinel", "obs_outdoor", ((5, 11), (5, 70), (22, 40), (36, 3)), -999.0),
    Fault("building", "value", "sentinel", "obs_co2", ((9, 30), (28, 31), (50, 60)), 65535.0),
    Fault("building", "value", "sentinel", "reward", ((12, 44), (33, 21)), -9999.0),
    Fault("building", "spike", "spike", "obs_supply", ((14, 60), (45, 25)), 40.0),
    Fault("building", "stuck", "stuck", "obs_wall", ((25, 30),), rows=60),
    Fault("building", "repeated", "row-repeated", at=((19, 33),)),
    Fault("building", "constant column", "observation-constant", "obs_door", value=1.0),
    Fault("building", "copied column", "observation-duplicated", "obs_sun", value=1.0),
    Fault("building", "saturated", "action-saturated", "action_fan", value=0.6),
    Fault("building", "units row", "units-row", at=((0, 0),)),
    Fault("building", "decimal point", "decimal-mixed", "obs_room", ((7, 15),)),
    Fault("building", "swapped", "rows-swapped", "timestamp", ((30, 40),)),
    Fault("building", "deleted", "time-gaps", "timestamp", ((38, 50),), rows=12),
    Fault("tank", "time limit as terminal", "time-limit-as-terminal", "terminated"),
    Fault("tank", "missing", "nan", "obs_level", ((6, 77), (29, 12))),
    Fault("tank", "value", "sentinel", "obs_inflow", ((2, 90), (15, 41), (34, 100)), 32767.0),
    Fault("tank", "value", "sentinel", "obs_product", ((11, 66), (20, 5), (31, 120)), -50.0),
    Fault("tank", "spike", "spike", "obs_temperature", ((10, 80),), 25.0),
    Fault("tank", "unit change", "unit-change", "obs_ambient", ((22, 0),)),
    Fault("tank", "stuck", "stuck", "obs_pressure", ((27, 40),), rows=45),
    Fault("tank", "wrong flag", "flag-inside-episode", "terminated", ((13, 90),), 1.0),
    Fault("tank", "clock jump", "time-goes-back", "timestamp", ((18, 30),)),
    Fault("tank", "swapped", "rows-swapped", "timestamp", ((25, 61),)),
    Fault("tank", "deleted", "time-gaps", "timestamp", ((33, 50),), rows=20),
    Fault("vehicle", "wrong next", "next-observation-wrong", "next_obs_offset", ((4, 30), (21, 77)), 0.5),
    Fault("vehicle", "swapped", "rows-swapped", at=((8, 50),)),
    Fault("vehicle", "deleted", "episode-jumps", at=((16, 60),), rows=15),
    Fault("vehicle", "repeated", "row-repeated", at=((24, 44),)),
    Fault("vehicle", "wrong flag", "end-continues", "done", ((30, 64),), 1.0),
    Fault("vehicle", "value", "sentinel", "obs_speed", ((11, 20), (34, 90)), 1e10),
    Fault("vehicle", "missing", "nan", "action_steer", ((19, 70),)),
    Fault("vehicle", "value", "action-outliers", "action_throttle", ((27, 33),), 40.0),
    Fault("vehicle", "units row", "units-row", at=((2, 0),)),
    Fault("vehicle", "decimal comma", "decimal-mixed", "obs_heading", ((36, 18),)),
)


MOVING = ("swapped", "deleted", "repeated", "clock jump")
"""Faults that move rows, or their times; they come after those in cells."""
UNITS = (
    dict.fromkeys(("obs_outdoor", "obs_room", "obs_wall", "obs_supply", "obs_setpoint"), "degC")
    | {"obs_sun": "W/m2", "obs_co2": "ppm", "action_valve": "%", "action_fan": "%", "reward": "EUR"}
    | {"obs_offset": "m", "obs_heading": "rad", "obs_speed": "m/s", "obs_yaw": "rad/s", "obs_bend": "1/m"}
)


# The plants


def building(seed: int = 0, days: int = 60) -> Table:
    """A room with heavy walls; the valve heats the supply, the fan brings fresh air. One operator a week."""
    random = np.random.default_rng(seed)
    rows: list[list[float]] = []
    room, wall, supply, co2, weather = 19.0, 18.0, 35.0, 500.0, 2.0
    for day in range(days):
        gain, idle, noise = ((12.0, 5.0, 8.0), (30.0, 15.0, 10.0), (4.0, 40.0, 15.0))[day // 7 % 3]
        clouds = random.uniform(0.2, 1.0)
        for step in range(96):
            hour = step / 4
            weather += 0.03 * (2.0 - weather) + 0.3 * random.normal()
            outdoor = weather + 4 * np.sin((hour - 9) / 24 * 2 * np.pi) + 0.1 * random.normal()
            sun = max(0.0, 500 * clouds * np.sin((hour - 7) / 10 * np.pi) * (7 < hour < 17) + 3 * random.normal())
            occupied = float(8 <= hour < 18 and day % 7 < 5)
            setpoint = 21.0 if 6 <= hour < 18 else 17.0
            seen = [outdoor, sun, *(value + 0.03 * random.normal() for value in (room, wall, supply))]
            valve = np.clip(40 + gain * (setpoint - room) + noise * random.normal(), 0, 100)
            fan = np.clip(idle + 0.08 * (co2 - 700) * occupied + noise * random.normal(), 1, 99) + random.uniform(-1, 1)
            power = 0.04 * valve + 0.01 * fan
            discomfort = abs(room - setpoint) * (0.2 + occupied) + 0.002 * max(0.0, co2 - 900) * occupied
            seen += [co2 + 5 * random.normal(), setpoint, occupied, valve, fan, -power - 2 * discomfort]
            rows.append(seen)
            supply += 0.3 * (20 + 0.45 * valve - supply) + 0.1 * random.normal()
            room += 0.04 * (supply - room) + 0.1 * (wall - room) + 0.02 * (outdoor - room) * (1 + fan / 50) + sun / 4000
            wall += 0.02 * (room - wall) + 0.004 * (outdoor - wall)
            co2 += 60 * occupied - 0.05 * (0.3 + fan / 30) * (co2 - 420)
    names = [f"obs_{name}" for name in ("outdoor", "sun", "room", "wall", "supply", "co2", "setpoint", "occupied")]
    digits = (2, 1, 2, 2, 2, 0, 1, 0, 1, 1, 4)
    time = [START + timedelta(minutes=15 * row) for row in range(len(rows))]
    return _table(
        "building", [*names, "action_valve", "action_fan", "reward"], rows, np.repeat(np.arange(days), 96), digits, time
    )


def tank(seed: int = 1, batches: int = 40, limit: int = 150) -> Table:
    """Fill a tank to a level and heat it, without overflow. Batches of 150 steps; a spill ends one."""
    random = np.random.default_rng(seed)
    rows: list[list[float]] = []
    runs: list[int] = []
    for batch in range(batches):
        gain, heat, noise = ((0.8, 0.25, 0.1), (2.0, 0.4, 0.15), (0.3, 0.1, 0.25))[batch // 5 % 3]
        level, temperature, product = random.uniform(0.2, 0.6), random.uniform(12, 18), random.uniform(900, 950)
        ambient, drain = 15 + 3 * random.normal(), random.uniform(0.018, 0.03)
        for step in range(limit):
            inlet = np.clip(0.3 + gain * (1.5 - level) + noise * random.normal(), 0, 1)
            heater = np.clip(heat * (60 - temperature) / 10 + noise * random.normal(), 0, 1)
            inflow = 60 * inlet + 0.5 * random.normal()
            pressure = 1013 + 98.1 * level + 0.4 * random.normal()
            ambient += 0.05 * (15 - ambient) + 0.2 * random.normal()
            reward = -abs(level - 1.3) - 0.03 * abs(temperature - 60) - 0.2 * heater
            seen = [level + 0.003 * random.normal(), temperature + 0.1 * random.normal(), inflow, pressure, ambient]
            seen += [product + random.normal(), inlet, heater, reward, 0.0, float(step == limit - 1)]
            rows.append(seen)
            runs.append(batch)
            level += 0.06 * inlet - drain * np.sqrt(max(level, 0.0)) + 0.002 * random.normal()
            temperature += 1.5 * heater - 0.02 * (temperature - ambient) - 0.2 * inlet + 0.05 * random.normal()
            product += 0.1 * (temperature - 40) / 10 + 0.2 * random.normal()
            if level > 1.49:
                rows[-1][-2:] = [1.0, 0.0]
                break
    names = [f"obs_{name}" for name in ("level", "temperature", "inflow", "pressure", "ambient", "product")]
    names += ["action_inlet", "action_heater", "reward", "terminated", "truncated"]
    time = [START + timedelta(seconds=10 * row) for row in range(len(rows))]
    return _table("tank", names, rows, np.array(runs), (4, 2, 2, 2, 2, 1, 3, 3, 4, 0, 0), time)


def vehicle(seed: int = 2, drives: int = 40, limit: int = 120) -> Table:
    """Follow a road that bends, fast but not off it. A drive that leaves the road is done."""
    random = np.random.default_rng(seed)
    rows: list[list[float]] = []
    runs: list[int] = []
    for drive in range(drives):
        gain, target, noise = ((0.3, 17.0, 0.08), (0.2, 13.0, 0.12), (0.1, 9.0, 0.2))[drive // 5 % 3]
        offset, heading, speed, yaw, bend = (
            0.5 * random.normal(),
            0.02 * random.normal(),
            random.uniform(5, 9),
            0.0,
            0.0,
        )
        before: list[float] = []
        for _ in range(limit + 1):
            seen = [offset + 0.01 * random.normal(), heading + 0.002 * random.normal(), speed + 0.05 * random.normal(),
                    yaw + 0.002 * random.normal(), bend]  # fmt: skip
            if before:
                rows.append([*before, float(abs(offset) > 3), *seen])
                runs.append(drive)
                if abs(offset) > 3:
                    break
            steer = np.clip(-gain * offset - 2 * heading + 8 * bend + noise * random.normal(), -1, 1)
            throttle = np.clip(0.2 * (target - speed) + noise * random.normal(), -1, 1)
            before = [*seen, steer, throttle, speed / 20 - 0.2 * abs(offset) - 0.05 * abs(steer)]
            bend += 0.1 * (0.03 * random.normal() - bend)
            yaw += 0.5 * (0.5 * steer * speed / 20 - yaw)
            heading += 0.2 * (yaw - bend * speed)
            offset += 0.2 * speed * np.sin(heading)
            speed += 0.2 * (3 * throttle - 0.02 * speed)
    names = [f"obs_{name}" for name in ("offset", "heading", "speed", "yaw", "bend")]
    names = [*names, "action_steer", "action_throttle", "reward", "done", *(f"next_{name}" for name in names)]
    return _table("vehicle", names, rows, np.array(runs), (4, 5, 3, 5, 6, 4, 4, 4, 0, 4, 5, 3, 5, 6))


def _table(
    name: str,
    names: Sequence[str],
    rows: Sequence[Sequence[float]],
    run: Array,
    digits: Sequence[int],
    time: Sequence[datetime] = (),
) -> Table:
    columns = np.array(rows, dtype=np.float64).T
    return Table(name, {n: c.round(d) for n, c, d in zip(names, columns, digits, strict=True)}, run, list(time))


LOGS: dict[str, Callable[[], Table]] = {"building": building, "tank": tank, "vehicle": vehicle}


# The faults


def plant(table: Table, fault: Fault) -> None:
    """Change a table as a fault says; faults in the text of a file are planted where it is written."""
    rows, columns = table.find(fault.at), table.columns
    column = columns.get(fault.column, np.empty(0))
    first = int(rows[0]) if len(rows) else 0
    match fault.kind:
        case "missing" | "value" | "wrong flag":
            column[rows] = fault.value
        case "spike" | "wrong next":
            column[rows] += fault.value
        case "stuck":
            column[first : first + fault.rows] = column[first]
        case "constant column":
            columns[fault.column] = np.full(len(table.run), fault.value)
        case "copied column":
            columns[f"{fault.column}_2"] = column.copy()
        case "saturated":
            np.minimum(column, np.quantile(column, fault.value), out=column)
        case "unit change":
            column[first:] = (1.8 * column[first:] + 32).round(2)
        case "time limit as terminal":
            columns["terminated"] += columns["truncated"]
            columns["truncated"][:] = 0
        case "swapped":
            table.pick(np.r_[:first, first + 1, first, first + 2 : len(table.run)])
        case "deleted":
            table.pick(np.r_[:first, first + fault.rows : len(table.run)])
        case "repeated":
            table.pick(np.r_[: first + 1, first : len(table.run)])
        case "clock jump":
            table.time[first:] = [time - timedelta(hours=1) for time in table.time[first:]]


def places(table: Table, fault: Fault) -> tuple[int, ...]:
    """The rows of the messy table in which a fault shows."""
    if fault.kind == "deleted":  # on either side of the gap
        run, step = fault.at[0]
        return tuple(table.find(((run, step - 1), (run, step + fault.rows))).tolist())
    rows = table.find(fault.at)
    if fault.kind == "swapped":
        return int(rows[0]) - 1, int(rows[0])
    return tuple((rows + (fault.kind == "repeated")).tolist())


def write(log: str, folder: Path, faults: Sequence[Fault] = ()) -> tuple[Path, list[Planted]]:
    """Write a log with the faults that are meant for it; without any, clean. Gives its path, and what was planted."""
    table = LOGS[log]()
    mine = [fault for fault in faults if fault.log == log]
    for fault in sorted(mine, key=lambda fault: fault.kind in MOVING):
        plant(table, fault)
    rows = {fault: places(table, fault) for fault in mine}
    path, where = {"building": _write_building, "tank": _write_tank, "vehicle": _write_vehicle}[log](
        table, folder, mine
    )
    shift = {fault: int(fault.kind == "units row") for fault in mine}  # it is the line above its first row
    return path, [
        Planted(fault, at, tuple((file, line - shift[fault]) for file, line in map(where, at)))
        for fault, at in rows.items()
    ]


Where = Callable[[int], tuple[str, int]]


def _cells(table: Table, faults: Sequence[Fault], comma: bool) -> list[list[str]]:
    """All cells as text, with decimal commas or points; faults may mix them."""
    names = list(table.columns)
    mark = "," if comma else "."
    cells = [["" if np.isnan(value) else f"{value:.10g}".replace(".", mark) for value in row] for row in
             np.stack(list(table.columns.values()), axis=1)]  # fmt: skip
    for fault in faults:
        if fault.kind in ("decimal point", "decimal comma"):
            other = "." if comma else '","'
            for row in table.find(fault.at):
                column = names.index(fault.column)
                text = cells[row][column].replace(mark, other.strip('"'))
                cells[row][column] = text if comma else f'"{text}"'
    return cells


def _write_building(table: Table, folder: Path, faults: Sequence[Fault]) -> tuple[Path, Where]:
    path = folder / "building.csv"
    units = any(fault.kind == "units row" for fault in faults)
    lines = [";".join(["timestamp", "episode", *table.columns])]
    if units:
        lines.append(";".join(["-", "-", *(UNITS.get(name, "-") for name in table.columns)]))
    for time, run, cells in zip(table.time, table.run, _cells(table, faults, comma=True), strict=True):
        lines.append(";".join([time.isoformat(" "), str(run), *cells]))
    path.write_text("\n".join(lines) + "\n")
    return path, lambda row: (path.name, row + 2 + units)


def _write_tank(table: Table, folder: Path, faults: Sequence[Fault]) -> tuple[Path, Where]:
    import pyarrow
    import pyarrow.parquet

    path = folder / "tank.parquet"
    flags = {name: table.columns[name] > 0 for name in ("terminated", "truncated")}
    columns = {"timestamp": table.time, "batch": table.run, **table.columns, **flags}
    pyarrow.parquet.write_table(pyarrow.table({"episode" if k == "batch" else k: v for k, v in columns.items()}), path)
    return path, lambda row: (path.name, row)


def _write_vehicle(table: Table, folder: Path, faults: Sequence[Fault]) -> tuple[Path, Where]:
    path = folder / "vehicle"
    path.mkdir()
    units = {run for fault in faults if fault.kind == "units row" for run, _ in fault.at}
    cells = _cells(table, faults, comma=False)
    for run in np.unique(table.run):
        lines = [",".join(table.columns)]
        if run in units:
            lines.append(",".join(UNITS.get(name.removeprefix("next_"), "-") for name in table.columns))
        lines += [",".join(cells[row]) for row in np.flatnonzero(table.run == run)]
        (path / f"drive_{run:02d}.csv").write_text("\n".join(lines) + "\n")

    def where(row: int) -> tuple[str, int]:
        run = int(table.run[row])
        return f"drive_{run:02d}.csv", row - int(np.flatnonzero(table.run == run)[0]) + 2 + (run in units)

    return path, where


def main() -> None:
    """Write all logs, clean and messy, and print what was planted where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write; must not exist")
    out = parser.parse_args().out
    for name, faults in (("clean", ()), ("messy", FAULTS)):
        (out / name).mkdir(parents=True)
        for log in LOGS:
            path, planted = write(log, out / name, faults)
            print(path)
            for one in planted:
                shown = ", ".join(f"{file}:{line}" for file, line in one.places) or "the whole column"
                print(f"  {one.fault.kind} in {one.fault.column or 'the row'}: {shown} ({one.fault.finding})")


if __name__ == "__main__":
    main()
