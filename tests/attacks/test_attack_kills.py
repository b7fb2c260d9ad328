"""Commands killed at random moments: what they leave is sound, and the same command ends as if nothing had happened."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from conftest import make_dataset, run_fields, train_args, train_tiny
from killing import NEVER, Killer, check_sound, random_moment

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.sac import SACConfig
from mildly.cli import COMMANDS
from mildly.collect.agent import AgentPlan, _begin
from mildly.collect.rollouts import collect, describe, uniform
from mildly.data.convert import export
from mildly.data.dataset import FIELDS
from mildly.data.registry import load_dataset
from mildly.files import is_temporary
from mildly.training import checkpoint

SCHEDULE = {"steps": 64, "log_every": 5, "eval_every": 32, "episodes": 1, "checkpoint_every": 8}
PHASES = {"behavior.steps": 24, "extras.bc_warmup_steps": 20}
AGENT = AgentPlan(
    "Pendulum-v1",
    sac=SACConfig(hidden_dims=(8, 8), batch_size=8),
    random_steps=50,
    eval_every=100,
    eval_episodes=1,
    reference_episodes=2,
    checkpoint_every=1,
)
_TRIES = 5  # of one folder; the last is left alone
_NOT_COMPARED = ("timing.json", "checkpoint.previous.safetensors")


@dataclass(frozen=True)
class Case:
    """A command in a folder."""

    next: Callable[[Path], list[str]]
    """What a person types next; nothing where all is done."""
    result: Callable[[Path], Any]
    """What must be equal at the end."""
    prepare: Callable[[Path], object] = lambda folder: None
    later: tuple[str, ...] = ()
    """A later command in the same place, for leftovers of one whose result was complete when it was killed."""
    who: str = "command"
    writes: bool = True


def files(folder: Path) -> dict[str, Any]:
    """Every file below a folder: its bytes, without a date; of a checkpoint the tensors and facts."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name in _NOT_COMPARED or path.suffix == ".log" or not path.is_file():
            continue
        if name.startswith("tmp/") or any(map(is_temporary, path.relative_to(folder).parents)) or is_temporary(path):
            continue
        if path.name == "checkpoint.safetensors":
            tensors, facts = checkpoint.load(path)
            found[name] = facts, {key: tensor.numpy().tobytes() for key, tensor in tensors.items()}
        else:
            read = path.read_bytes()
            found[name] = re.sub(rb"Made by mildly [^<]*", b"", read) if path.suffix == ".html" else read
    return found


def same_command(*args: str, **options: Any) -> Case:
    return Case(lambda folder: list(args), files, **options)


def training(algorithm: str, **fields: Any) -> Case:
    args = train_args(algorithm, "run", **SCHEDULE, **fields)
    resumed = ["train", "--resume", "run"]
    return Case(lambda folder: resumed if (folder / "run" / "run.json").exists() else args, files)


def conversion(target: str) -> Case:
    place = target.replace("minari:", "minari/")

    def arrays(folder: Path) -> Any:
        data = load_dataset(folder / place)
        return data.meta, {name: np.asarray(getattr(data, name)).tobytes() for name in FIELDS}

    convert = ["data", "convert", "pendulum-mixed" if target.startswith("minari:") else "hopper-mixed"]
    return Case(
        lambda folder: [] if (folder / place).exists() else [*convert, target],
        arrays,
        later=(*convert, target.replace("set", "other")),
    )


def collection() -> Case:
    args = ["data", "collect", "set", "--env", "Pendulum-v1", "--kind", "full-replay", "--agent", "agent"]

    def prepare(folder: Path) -> None:
        (folder / "agent").mkdir()
        _begin(folder / "agent", AGENT, 500)  # the presets' agents are larger

    return Case(
        lambda folder: [] if (folder / "set").exists() else args,
        files,
        prepare=prepare,
        later=("data", "collect", "other", "--env", "Pendulum-v1", "--steps", "20"),
    )


def new_agent() -> Case:
    args = ["--env", "Pendulum-v1", "--kind", "random", "--steps", "20", "--agent", "agent"]
    args = ["data", "collect", "set", *args, "--preset", "small", "--agent-steps", "1000"]
    return Case(lambda folder: [] if (folder / "set").exists() else args, files, later=collection().later)


def sweep(who: str) -> Case:
    def prepare(folder: Path) -> None:
        shutil.copy2(MATERIALS / "log.csv", folder)
        own = {name: value for name, value in run_fields("mcq").items() if name not in run_fields("bc")} | PHASES
        top = {"algorithms": ["bc", "mcq"], "datasets": ["log.csv"], **SCHEDULE, "eval_every": 0, "check": False}
        tables = {"": top, "[fields]": run_fields("bc"), "[mcq]": own}
        lines = [
            f"{title}\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in rows.items())
            for title, rows in tables.items()
        ]
        (folder / "spec.toml").write_text("".join(lines))

    return same_command("sweep", "spec.toml", "--out", "out", prepare=prepare, who=who)


def paper() -> Case:
    args = ["--datasets", "hopper-medium", "--algorithms", "bc", "sac", "--steps", "40", "--seeds", "1"]
    args += ["--eval-every", "20", "--fields", "hidden_dims=[8, 8]", "--data-dir", "data", "--out", "out"]
    args += ["--markdown", "table.md", "--latex", "table.tex", "--csv", "table.csv"]
    return same_command("paper", "table1", *args, prepare=lambda folder: copy("data", folder))


def report() -> Case:
    args = ["report", "runs", "--csv", "csv", "--latex", "table.tex", "--figures", "figures"]
    return same_command(*args, prepare=lambda folder: copy("runs", folder))


def evaluation() -> Case:
    return same_command("evaluate", "runs/bc", writes=False, prepare=lambda folder: copy("runs", folder))


def finetuning() -> Case:
    args = ["finetune", "runs/mcq", "--steps", "24", "--eval-every", "12", "--episodes", "1"]
    return same_command(*args, prepare=lambda folder: copy("runs", folder))


def model() -> Case:
    args = ["--hidden-dims", "8", "8", "--batch-size", "16", "--max-steps", "64", "--checkpoint-every", "8"]
    args = ["model", "fit", "pendulum-mixed", "--out", "run", "--threads", "1", *args]
    resumed = ["train", "--resume", "run"]
    return Case(lambda folder: resumed if (folder / "run" / "run.json").exists() else args, files)


def judging(*args: str) -> Case:
    work = ["--steps", "40", "--density-steps", "20", "--hidden-dims", "8", "8", "--replications", "20"]
    log = ["--dataset", "pendulum-mixed", "--out", "judged", *work]
    return same_command(*args, *log, prepare=lambda folder: copy("runs", folder))


def solving() -> Case:
    args = ["solve", "log.csv", "--steps", "8", "--groups", "3", "--no-check", "--out", "solved", "--workers", "1"]
    resumed = ["solve", "--resume", "solved", "--workers", "1"]

    def but_for_speed(folder: Path) -> dict[str, Any]:
        found = files(folder)
        assert found.pop("solved/report.html")  # tells how many steps a second were made
        return found

    return Case(
        lambda folder: resumed if (folder / "solved" / "solve.json").exists() else args,
        but_for_speed,
        prepare=lambda folder: shutil.copy2(MATERIALS / "log.csv", folder),
    )


KILLS: dict[str, tuple[int, Case]] = {
    **{f"train {name}": (18, training(name)) for name in ALGORITHMS},
    "train mcq with phases": (20, training("mcq", **PHASES)),
    "train mcq-td3 with phases": (12, training("mcq-td3", **PHASES)),
    "train cql with a warm-up": (10, training("cql", **{"extras.bc_warmup_steps": 40})),
    "finetune": (10, finetuning()),
    "model fit": (8, model()),
    "ope": (6, judging("ope", "runs/bc")),
    "choose": (6, judging("choose", "runs/bc", "runs/mcq", "--groups", "3", "-o", "page.html")),
    "solve": (12, solving()),
    "sweep": (12, sweep("command")),
    "sweep's workers": (10, sweep("worker")),
    "sweep with its workers": (8, sweep("all")),
    **{
        f"data convert {target}": (6, conversion(target))
        for target in ("set", "set.npz", "set.hdf5", "set.parquet", "set.csv.gz", "minari:kills/set-v0")
    },
    "data collect": (14, collection()),
    "data collect with a new agent": (6, new_agent()),
    "data info": (3, same_command("data", "info", "pendulum-mixed", "--plot", "set.png")),
    "report": (10, report()),
    "evaluate": (3, evaluation()),
    "paper": (8, paper()),
    "theory": (4, same_command("theory", "--mdps", "3", "--out", "figures")),
}
"""How often each command is killed in the long test."""
MATERIALS = Path()


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A table, finished runs, and a set of the benchmark's."""
    global MATERIALS
    MATERIALS = tmp_path_factory.mktemp("materials")
    export(make_dataset(200), MATERIALS / "log.csv")
    for name in ("bc", "mcq"):
        train_tiny(name, MATERIALS / "runs" / name, **SCHEDULE)
    data = collect("Hopper-v4", uniform(3), 400, describe("hopper-medium-recollected", "Hopper-v4"))
    data.save(MATERIALS / "data" / "hopper-medium-recollected")


def copy(name: str, folder: Path) -> None:
    shutil.copytree(MATERIALS / name, folder / name)


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    made = Killer(tmp_path_factory.mktemp("killer"))
    yield made
    made.close()


def survive(killer: Killer, place: Path, name: str, kills: int) -> None:
    """Kill a command again and again; the folder ends as one whose command was left alone."""
    case, random = KILLS[name][1], Random(name)
    how = {"who": case.who, "writes": case.writes}
    folder = place / "folder"  # always the same one: run.json holds paths

    def begin() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "tmp").mkdir(parents=True)
        case.prepare(folder)

    begin()
    whole = killer.run(case.next(folder), folder, **how)
    assert whole.code == 0, whole.message
    expected = case.result(folder)
    killed: Counter[str] = Counter()
    for _ in range(2 * kills):  # some moments come too late
        begin()
        for left in reversed(range(_TRIES)):
            if not (args := case.next(folder)):
                break
            moment = random_moment(random, whole) if left and killed.total() < kills else NEVER
            ended = killer.run(args, folder, moment, **how)
            killed["resumed" if "--resume" in args else "started"] += ended.killed
            check_sound(folder)
            if ended.code == 0:
                break
            assert ended.killed, ended.message
        assert case.result(folder) == expected
        if case.later and list(folder.rglob(".tmp-*")):
            assert killer.run(case.later, folder).code == 0
        assert not list(folder.rglob(".tmp-*"))
        if killed.total() >= kills:
            break
    assert killed.total() >= kills
    print(f"{name}: killed {dict(killed)}, no difference")


def test_every_algorithm_and_every_command_that_writes_is_killed() -> None:
    assert {f"train {name}" for name in ALGORITHMS} <= set(KILLS)
    assert {name.split()[0].removesuffix("'s") for name in KILLS} == set(COMMANDS) - {"bench"}
    assert sum(kills for kills, _ in KILLS.values()) >= 300


@pytest.mark.parametrize("name", ["train mcq with phases", "data convert set"])
def test_a_command_killed_a_few_times_ends_as_one_that_was_left_alone(
    killer: Killer, tmp_path: Path, name: str
) -> None:
    survive(killer, tmp_path, name, 3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("materials")
@pytest.mark.parametrize("name", KILLS)
def test_a_command_killed_again_and_again_ends_as_one_that_was_left_alone(
    killer: Killer, tmp_path: Path, name: str
) -> None:
    survive(killer, tmp_path, name, KILLS[name][0])
