"""Three logs as people keep them, clean and with planted faults: what reading and checking must find, and must not.

    python recipes/messy_logs.py OUT

- `building.csv`: a heated building, 8 sensors, 2 actuators; semicolons and decimal commas, one day is one episode.
- `tank.parquet`: a tank that is filled and heated in batches; timestamps, flags for overflow and time limit.
- `vehicle/`: a vehicle that follows a road, one CSV file for each drive, with next observations.

Each plant is a small differential equation, run by operators of different skill with a sensible hand controller, some
noise on their actions, and a reward in the log. `FAULTS` lists what is planted: kind, column, place, and the finding of
`mildly data check` that tells it.
`Judge` runs a plant again, for a policy: how good is it really? Nothing of this is ever used in training.
"""

from __future__ import annotations

import argparse
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Protocol

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


# The plants. `look` draws everything that happens before an action, the operator's unsteady hand included


class Plant:
    """A process that operators ran to write the log, and in which a policy can be judged: its truth is nobody's input.

    In turns: `begin` an episode, `look` at the sensors, `step` with the actions. `Judge` does this for policies.
    """

    sensors: ClassVar[tuple[str, ...]]
    actuators: ClassVar[tuple[str, ...]]
    limit: ClassVar[int]
    """Steps of an episode of the judge."""
    skills: ClassVar[tuple[tuple[float, float, float], ...]]
    """What operators of different skill differ in: two numbers of their own, and the noise of their hands."""
    hand: list[float]
    """The last draws for the operator's noise."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random

    @abstractmethod
    def begin(self) -> None:
        """Another day, batch or drive."""

    @abstractmethod
    def look(self) -> list[float]:
        """What the sensors show now."""

    @abstractmethod
    def operate(self, skill: tuple[float, float, float]) -> tuple[float, float]:
        """What an operator does now, who knows the process itself, after a look."""

    @abstractmethod
    def step(self, first: float, second: float) -> tuple[float, bool]:
        """The actions' reward, and whether they ended the episode for good."""


class Building(Plant):
    """A room with heavy walls; the valve heats the supply, the fan brings fresh air. One day follows another."""

    sensors = ("outdoor", "sun", "room", "wall", "supply", "co2", "setpoint", "occupied")
    actuators = ("valve", "fan")
    limit = 7 * 96
    skills = ((12.0, 5.0, 8.0), (30.0, 15.0, 10.0), (4.0, 40.0, 15.0))

    def __init__(self, random: np.random.Generator) -> None:
        super().__init__(random)
        self.room, self.wall, self.supply, self.co2, self.weather = 19.0, 18.0, 35.0, 500.0, 2.0
        self.day = -1

    def begin(self) -> None:
        self.day, self.quarter = self.day + 1, 0
        self.clouds = self.random.uniform(0.2, 1.0)

    def look(self) -> list[float]:
        random = self.random
        if self.quarter == 96:
            self.begin()
        hour, self.quarter = self.quarter / 4, self.quarter + 1
        self.weather += 0.03 * (2.0 - self.weather) + 0.3 * random.normal()
        self.outdoor = self.weather + 4 * np.sin((hour - 9) / 24 * 2 * np.pi) + 0.1 * random.normal()
        light = 500 * self.clouds * np.sin((hour - 7) / 10 * np.pi) * (7 < hour < 17)
        self.sun = max(0.0, light + 3 * random.normal())
        self.occupied = float(8 <= hour < 18 and self.day % 7 < 5)
        self.setpoint = 21.0 if 6 <= hour < 18 else 17.0
        seen = [self.outdoor, self.sun]
        seen += [value + 0.03 * random.normal() for value in (self.room, self.wall, self.supply)]
        self.hand = [random.normal(), random.normal(), random.uniform(-1, 1)]
        return [*seen, self.co2 + 5 * random.normal(), self.setpoint, self.occupied]

    def operate(self, skill: tuple[float, float, float]) -> tuple[float, float]:
        gain, idle, noise = skill
        valve = np.clip(40 + gain * (self.setpoint - self.room) + noise * self.hand[0], 0, 100)
        fan = np.clip(idle + 0.08 * (self.co2 - 700) * self.occupied + noise * self.hand[1], 1, 99) + self.hand[2]
        return valve, fan

    def step(self, first: float, second: float) -> tuple[float, bool]:
        valve, fan = first, second
        power = 0.04 * valve + 0.01 * fan
        stuffy = 0.002 * max(0.0, self.co2 - 900) * self.occupied
        discomfort = abs(self.room - self.setpoint) * (0.2 + self.occupied) + stuffy
        supply, room, wall, outdoor = self.supply, self.room, self.wall, self.outdoor
        supply += 0.3 * (20 + 0.45 * valve - supply) + 0.1 * self.random.normal()
        room += 0.04 * (supply - room) + 0.1 * (wall - room) + 0.02 * (outdoor - room) * (1 + fan / 50)
        room += self.sun / 4000
        wall += 0.02 * (room - wall) + 0.004 * (outdoor - wall)
        self.supply, self.room, self.wall = supply, room, wall
        self.co2 += 60 * self.occupied - 0.05 * (0.3 + fan / 30) * (self.co2 - 420)
        return -power - 2 * discomfort, False


class Tank(Plant):
    """A tank that is to be filled to a level and heated, without overflow. A spill ends a batch."""

    sensors = ("level", "temperature", "inflow", "pressure", "ambient", "product")
    actuators = ("inlet", "heater")
    limit = 150
    skills = ((0.8, 0.25, 0.1), (2.0, 0.4, 0.15), (0.3, 0.1, 0.25))

    def begin(self) -> None:
        random = self.random
        self.level, self.temperature, self.product = (random.uniform(*of) for of in ((0.2, 0.6), (12, 18), (900, 950)))
        self.ambient, self.drain = 15 + 3 * random.normal(), random.uniform(0.018, 0.03)
        self.inlet = 0.0

    def look(self) -> list[float]:
        random = self.random
        self.hand = [random.normal(), random.normal()]
        self.ripple = 0.5 * random.normal()
        pressure = 1013 + 98.1 * self.level + 0.4 * random.normal()
        self.ambient += 0.05 * (15 - self.ambient) + 0.2 * random.normal()
        seen = [self.level + 0.003 * random.normal(), self.temperature + 0.1 * random.normal()]
        return [*seen, self.inflow(self.inlet), pressure, self.ambient, self.product + random.normal()]

    def inflow(self, inlet: float) -> float:
        """What the flow meter shows: before an action the flow that the last one let in; in the log, its own."""
        return 60 * inlet + self.ripple

    def operate(self, skill: tuple[float, float, float]) -> tuple[float, float]:
        gain, heat, noise = skill
        inlet = np.clip(0.3 + gain * (1.5 - self.level) + noise * self.hand[0], 0, 1)
        return inlet, np.clip(heat * (60 - self.temperature) / 10 + noise * self.hand[1], 0, 1)

    def step(self, first: float, second: float) -> tuple[float, bool]:
        random, level, temperature = self.random, self.level, self.temperature
        self.inlet, heater = first, second
        reward = -abs(level - 1.3) - 0.03 * abs(temperature - 60) - 0.2 * heater
        level += 0.06 * self.inlet - self.drain * np.sqrt(max(level, 0.0)) + 0.002 * random.normal()
        temperature += 1.5 * heater - 0.02 * (temperature - self.ambient) - 0.2 * self.inlet + 0.05 * random.normal()
        self.product += 0.1 * (temperature - 40) / 10 + 0.2 * random.normal()
        self.level, self.temperature = level, temperature
        return reward, level > 1.49


class Vehicle(Plant):
    """A vehicle that is to follow a road that bends, fast but not off it. A drive that leaves the road is done."""

    sensors = ("offset", "heading", "speed", "yaw", "bend")
    actuators = ("steer", "throttle")
    limit = 120
    skills = ((0.3, 17.0, 0.08), (0.2, 13.0, 0.12), (0.1, 9.0, 0.2))

    def begin(self) -> None:
        random = self.random
        self.offset, self.heading, self.speed = 0.5 * random.normal(), 0.02 * random.normal(), random.uniform(5, 9)
        self.yaw, self.bend = 0.0, 0.0

    def look(self) -> list[float]:
        noise = zip((0.01, 0.002, 0.05, 0.002), (self.offset, self.heading, self.speed, self.yaw), strict=True)
        return [*(value + size * self.random.normal() for size, value in noise), self.bend]

    def operate(self, skill: tuple[float, float, float]) -> tuple[float, float]:
        gain, target, noise = skill
        steer = np.clip(-gain * self.offset - 2 * self.heading + 8 * self.bend + noise * self.random.normal(), -1, 1)
        return steer, np.clip(0.2 * (target - self.speed) + noise * self.random.normal(), -1, 1)

    def step(self, first: float, second: float) -> tuple[float, bool]:
        steer, throttle = first, second
        reward = self.speed / 20 - 0.2 * abs(self.offset) - 0.05 * abs(steer)
        self.bend += 0.1 * (0.03 * self.random.normal() - self.bend)
        self.yaw += 0.5 * (0.5 * steer * self.speed / 20 - self.yaw)
        self.heading += 0.2 * (self.yaw - self.bend * self.speed)
        self.offset += 0.2 * self.speed * np.sin(self.heading)
        self.speed += 0.2 * (3 * throttle - 0.02 * self.speed)
        return reward, abs(self.offset) > 3


PLANTS: dict[str, type[Plant]] = {"building": Building, "tank": Tank, "vehicle": Vehicle}


# The logs


def building(seed: int = 0, days: int = 60) -> Table:
    """A day is an episode; one operator a week."""
    plant = Building(np.random.default_rng(seed))
    rows: list[list[float]] = []
    for day in range(days):
        plant.begin()
        for _ in range(96):
            seen, actions = plant.look(), plant.operate(plant.skills[day // 7 % 3])
            rows.append([*seen, *actions, plant.step(*actions)[0]])
    digits = (2, 1, 2, 2, 2, 0, 1, 0, 1, 1, 4)
    time = [START + timedelta(minutes=15 * row) for row in range(len(rows))]
    return _table(plant, ["reward"], rows, np.repeat(np.arange(days), 96), digits, time)


def tank(seed: int = 1, batches: int = 40) -> Table:
    """A batch is an episode, of 150 steps if nothing spills; operators change after five."""
    plant = Tank(np.random.default_rng(seed))
    rows: list[list[float]] = []
    runs: list[int] = []
    for batch in range(batches):
        plant.begin()
        for step in range(plant.limit):
            seen, (inlet, heater) = plant.look(), plant.operate(plant.skills[batch // 5 % 3])
            seen[plant.sensors.index("inflow")] = plant.inflow(inlet)
            reward, spilled = plant.step(inlet, heater)
            rows.append([*seen, inlet, heater, reward, float(spilled), float(step == plant.limit - 1 and not spilled)])
            runs.append(batch)
            if spilled:
                break
    time = [START + timedelta(seconds=10 * row) for row in range(len(rows))]
    digits = (4, 2, 2, 2, 2, 1, 3, 3, 4, 0, 0)
    return _table(plant, ["reward", "terminated", "truncated"], rows, np.array(runs), digits, time)


def vehicle(seed: int = 2, drives: int = 40) -> Table:
    """A drive is an episode, of 120 steps on the road; operators change after five."""
    plant = Vehicle(np.random.default_rng(seed))
    rows: list[list[float]] = []
    runs: list[int] = []
    for drive in range(drives):
        plant.begin()
        before: list[float] = []
        left = False
        for _ in range(plant.limit + 1):
            seen = plant.look()
            if before:
                rows.append([*before, float(left), *seen])
                runs.append(drive)
                if left:
                    break
            actions = plant.operate(plant.skills[drive // 5 % 3])
            reward, left = plant.step(*actions)
            before = [*seen, *actions, reward]
    more = ["reward", "done", *(f"next_obs_{name}" for name in plant.sensors)]
    return _table(plant, more, rows, np.array(runs), (4, 5, 3, 5, 6, 4, 4, 4, 0, 4, 5, 3, 5, 6))


def _table(
    plant: Plant,
    more: Sequence[str],
    rows: Sequence[Sequence[float]],
    run: Array,
    digits: Sequence[int],
    time: Sequence[datetime] = (),
) -> Table:
    names = [*(f"obs_{name}" for name in plant.sensors), *(f"action_{name}" for name in plant.actuators), *more]
    columns = np.array(rows, dtype=np.float64).T
    rounded = {n: c.round(d) for n, c, d in zip(names, columns, digits, strict=True)}
    return Table(type(plant).__name__.lower(), rounded, run, list(time))


LOGS: dict[str, Callable[[], Table]] = {"building": building, "tank": tank, "vehicle": vehicle}


# The judge


class Acts(Protocol):
    """Whoever acts in plants side by side: from sensors by the log's names, (n,) each, to actions by their names."""

    def __call__(self, seen: Mapping[str, Array]) -> Mapping[str, Array]: ...


class Judge:
    """Episodes of a plant that no log has, for policies and for its operators. Training never sees it."""

    def __init__(self, log: str) -> None:
        self.kind = PLANTS[log]

    def returns(self, act: Acts, episodes: int, seed: int = 1000) -> list[float]:
        """What somebody earns in each of so many episodes, which have the same weather, road and so on for everyone."""

        def by_name(plants: list[Plant], seen: list[list[float]]) -> Array:
            columns = zip(self.kind.sensors, np.array(seen).T, strict=True)
            actions = act({f"obs_{name}": column for name, column in columns})
            return np.stack([actions[f"action_{name}"] for name in self.kind.actuators], axis=1).astype(np.float64)

        return self._returns(by_name, episodes, seed)

    def operators(self, episodes: int, seed: int = 1000) -> list[list[float]]:
        """The same for each operator of the log."""

        def returns(skill: tuple[float, float, float]) -> list[float]:
            return self._returns(lambda plants, _: [plant.operate(skill) for plant in plants], episodes, seed)

        return [returns(skill) for skill in self.kind.skills]

    def _returns(
        self, act: Callable[[list[Plant], list[list[float]]], Iterable[Sequence[float]]], episodes: int, seed: int
    ) -> list[float]:
        plants = [self.kind(np.random.default_rng((seed, i))) for i in range(episodes)]
        for plant in plants:
            plant.begin()
        totals, running = dict.fromkeys(plants, 0.0), list(plants)
        for _ in range(self.kind.limit):
            actions = act(running, [plant.look() for plant in running])
            steps = [(plant, *plant.step(*given)) for plant, given in zip(running, actions, strict=True)]
            for plant, reward, _ in steps:
                totals[plant] += reward
            running = [plant for plant, _, ended in steps if not ended]
            if not running:
                break
        return list(totals.values())


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
