"""Sweeps: a file means the jobs it says; whatever ends a sweep, the same command finishes it, to the bit."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import COMMAND, SCHEDULE, content, make_dataset, mildly, run_fields, train_tiny
from rich.console import Console

from mildly.cli import main
from mildly.data.registry import builtin_names, load_dataset
from mildly.errors import MildlyError
from mildly.experiments import local, process, worker
from mildly.experiments.process import Task, last_line, reached
from mildly.experiments.progress import Counts, SweepProgress
from mildly.experiments.spec import Job, Spec, expand, options_of_train, read_spec, setting_of
from mildly.experiments.summary import summarize
from mildly.experiments.sweep import _cores, run_sweep
from mildly.run import Run
from mildly.training.loop import Stopped

TINY = {key: value for key, value in SCHEDULE.items() if key != "threads"}


def toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def write_spec(path: Path, text: str = "", *, algorithms: tuple[str, ...] = ("bc",), **options: Any) -> Path:
    """A spec of tiny runs: options, then `text`, then the fields that make networks tiny."""
    top = {"algorithms": algorithms, "datasets": ["pendulum-mixed"], **TINY, **options}
    lines = [f"{name} = {toml(value)}" for name, value in top.items()]
    lines += ["[fields]", *(f"{name} = {toml(value)}" for name, value in run_fields("bc").items()), text]
    if "mcq" in algorithms:
        own = {name: value for name, value in run_fields("mcq").items() if name not in run_fields("bc")}
        lines += ["[mcq]", *(f"{name} = {toml(value)}" for name, value in own.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def jobs_of(path: Path, *args: Any, **options: Any) -> list[Job]:
    return expand(read_spec(write_spec(path / "spec.toml", *args, **options)))


def parsed(tmp_path: Path, text: str) -> Spec:
    (tmp_path / "spec.toml").write_text(text)
    return read_spec(tmp_path / "spec.toml")


# What a file means.

BOTH = 'algorithms = ["bc", "mcq"]\ndatasets = ["pendulum-mixed", "hopper-mixed"]\n'


def test_a_spec_means_every_combination_and_names_only_what_is_crossed(tmp_path: Path) -> None:
    jobs = expand(parsed(tmp_path, BOTH + "seeds = 2\n[fields]\nlam = [0.5, 0.7]\nbatch_size = 64\n"))
    names = [job.name for job in jobs]
    assert len(names) == 2 * 2 + 2 * 2 * 2
    assert names[:2] == ["bc/pendulum-mixed/seed-0", "bc/hopper-mixed/seed-0"]
    assert [job.seed for job in jobs] == [0] * 6 + [1] * 6  # the picture is whole before it is sharp
    assert "mcq/hopper-mixed/lam=0.7/seed-1" in names
    assert {job.plan.config["batch_size"] for job in jobs} == {64}
    assert {(job.setting, job.plan.config["lam"]) for job in jobs if job.algorithm == "mcq"} == {
        ("lam=0.5", 0.5),
        ("lam=0.7", 0.7),
    }
    assert all("lam" not in job.options for job in jobs if job.algorithm == "bc")


def test_what_is_below_an_algorithm_is_for_it_alone_and_wins(tmp_path: Path) -> None:
    text = "preset = 'small'\nsteps = 60\n[fields]\nactor_lr = 0.1\n[mcq]\nsteps = 80\nactor_lr = [0.2, 0.3]\n"
    jobs = expand(parsed(tmp_path, BOTH + text))
    told = {(job.algorithm, job.plan.steps, job.plan.config["actor_lr"]) for job in jobs}
    assert told == {("bc", 60, 0.1), ("mcq", 80, 0.2), ("mcq", 80, 0.3)}
    assert {job.plan.preset for job in jobs} == {"small"}


VARIANTS = "[variants.plain]\n[variants.wide]\nhidden = [64, 64]\nsteps = 90\n"


def test_variants_are_compared_with_one_another_and_name_their_folders(tmp_path: Path) -> None:
    jobs = expand(parsed(tmp_path, BOTH + "steps = 60\n[mcq]\nlam = [0.5, 0.7]\nsteps = 80\n" + VARIANTS))
    told = {(job.algorithm, job.setting, job.plan.steps, job.plan.config["hidden"]) for job in jobs}
    assert told == {
        ("bc", "plain", 60, (400, 400)),
        ("bc", "wide", 90, (64, 64)),
        ("mcq", "plain,lam=0.5", 80, (400, 400)),
        ("mcq", "plain,lam=0.7", 80, (400, 400)),
        ("mcq", "wide,lam=0.5", 90, (64, 64)),
        ("mcq", "wide,lam=0.7", 90, (64, 64)),
    }
    assert "mcq/pendulum-mixed/wide,lam=0.5/seed-0" in [job.name for job in jobs]


@pytest.mark.parametrize("shared", ["", VARIANTS])
def test_an_algorithm_s_own_variants_stand_in_the_place_of_the_shared_ones(tmp_path: Path, shared: str) -> None:
    own = "[bc]\nactor_lr = 0.1\n[bc.variants.all]\n[bc.variants.best]\nbest_episodes = 0.1\npreset = 'small'\n"
    jobs = expand(parsed(tmp_path, BOTH + own + shared))
    told = {
        (job.setting, job.plan.preset, job.plan.config["best_episodes"], job.plan.config["actor_lr"])
        for job in jobs
        if job.algorithm == "bc"
    }
    assert told == {("all", "paper", None, 0.1), ("best", "small", 0.1, 0.1)}
    assert {job.setting for job in jobs if job.algorithm == "mcq"} == ({"plain", "wide"} if shared else {""})


def test_shared_variants_that_mean_the_same_for_an_algorithm_are_run_once(tmp_path: Path) -> None:
    jobs = expand(parsed(tmp_path, BOTH + "[variants.a]\nlam = 0.5\n[variants.b]\nlam = 0.7\n"))
    assert {job.setting for job in jobs if job.algorithm == "mcq"} == {"a", "b"}
    assert [job.name for job in jobs if job.algorithm == "bc"] == ["bc/pendulum-mixed/seed-0", "bc/hopper-mixed/seed-0"]
    wide = "[variants.a]\nlam = 0.5\n[variants.b]\nlam = 0.7\n[variants.wide]\nhidden = [64, 64]\n"
    jobs = expand(parsed(tmp_path, BOTH + wide))
    assert {job.setting for job in jobs if job.algorithm == "bc"} == {"a", "wide"}


def test_none_is_written_as_text_where_a_field_may_be_nothing(tmp_path: Path) -> None:
    jobs = expand(parsed(tmp_path, BOTH + "[bc]\nbest_episodes = [0.1, 'None']\n"))
    told = {(job.setting, job.plan.config["best_episodes"]) for job in jobs if job.algorithm == "bc"}
    assert told == {("best_episodes=0.1", 0.1), ("best_episodes=None", None)}


def test_a_setting_can_be_read_from_the_folder_of_a_job(tmp_path: Path) -> None:
    jobs = expand(parsed(tmp_path, BOTH + "[mcq]\nlam = [0.5, 0.7]\n" + VARIANTS))
    for job in jobs:
        assert setting_of(tmp_path / job.name, job.plan) == job.setting
        assert setting_of(tmp_path / "runs" / "first", job.plan) is None
        assert setting_of((tmp_path / job.name).parent / "seed-7", job.plan) is None
    (plain, *_) = expand(parsed(tmp_path, BOTH))
    assert setting_of(tmp_path / plain.name, plain.plan) == ""


KEPT = sorted((Path(__file__).parents[2] / "benchmarks" / "sweeps").glob("*.toml"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_specs_that_are_kept_can_be_expanded(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILDLY_DATA", str(tmp_path))
    spec = read_spec(path)
    for name in set(spec.datasets) - set(builtin_names()):  # collected by whoever runs it
        made = make_dataset()
        dataclasses.replace(made, meta=dataclasses.replace(made.meta, name=name)).save(tmp_path / name)
    assert len(expand(spec)) >= len(spec.algorithms) * len(spec.datasets) * len(spec.seeds)


def test_a_field_that_is_a_list_itself_is_crossed_by_a_list_of_lists(tmp_path: Path) -> None:
    one = expand(parsed(tmp_path, BOTH + "[fields]\nhidden = [64, 32]\n"))
    assert {(job.setting, job.plan.config["hidden"]) for job in one} == {("", (64, 32))}
    two = expand(parsed(tmp_path, BOTH + "[fields]\nhidden = [[64, 32], [8]]\n[mcq]\none_sided = [true]\n"))
    assert {job.setting for job in two} == {
        "hidden=64x32",
        "hidden=8",
        "hidden=64x32,one_sided=true",
        "hidden=8,one_sided=true",
    }


def test_a_spec_may_say_whatever_train_takes(tmp_path: Path) -> None:
    values = {name: "Pendulum-v1" if default is None else default for name, default in options_of_train().items()}
    (job, *_) = jobs_of(tmp_path, **{**values, "device": "cpu"})
    assert {"steps", "eval_every", "episodes", "env", "log_every", "checkpoint_every", "check"} <= job.options.keys()
    assert job.plan.env == "Pendulum-v1"
    assert job.plan.steps == options_of_train()["steps"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 5", "unknown key 'stepz'. Did you mean 'steps'?"),
        ("lam = 0.5", "'lam' is a field of mcq, mcq-td3: write it below [fields]"),
        ("[fields]\nlamb = 0.5", "unknown field 'lamb'. Did you mean 'lam'?"),
        ("[fields]\nsteps = 5", "'steps' is no field of an algorithm's config: write it above [fields]"),
        ("[fields]\nlam = [0.5, 1.5]", "lam must be in (0, 1] or 'auto', got 1.5"),
        ("[fields]\nlam = [0.5, 0.5]", "two jobs would be called mcq/pendulum-mixed/lam=0.5/seed-0"),
        ("[fields]\nbatch_size = 'x'", "batch_size must be a whole number"),
        ("[bc]\nlam = 0.5", "unknown key below [bc] 'lam'"),
        ("[bcc]\nsteps = 5", "unknown key 'bcc'"),
        ("mcq = 3", "'mcq' must be a table"),
        ("variants = 3", "'variants' must be a table"),
        ("[variants]\nwide = 3", "'wide' below [variants] must be a table: write [variants.wide]"),
        ("[variants.wide]\nwidth = 3", "unknown key below [variants.wide] 'width'"),
        ("[variants.wide]\nlam = []", "'lam' is an empty list"),
        ("[mcq]\nvariants = 3", "'mcq.variants' must be a table"),
        ("[bc.variants.mild]\nlam = 0.5", "unknown key below [bc.variants.mild] 'lam'"),
        ("[bc.variants.mild]\nsteps = 'x'", "steps must be a whole number"),
        ("[bc.variants.'..']\nsteps = 5", "'..' below [bc.variants] cannot be the name of a folder"),
        ("[bc.variants.'a b']\n[bc.variants.'a/b']", "two jobs would be called bc/pendulum-mixed/a_b/seed-0"),
        ("[fields]\nlam = 'None'", "lam must be a number or 'auto', got 'None'"),
        ("steps = 0", "steps must be at least 1"),
        ("steps = 6e3", "steps must be a whole number, got 6000.0"),
        ("check = 1", "check must be true or false"),
        ("seeds = 0", "seeds must be how many"),
        ("seeds = [0, -1]", "seed must be at least 0"),
        ("seeds = true", "seeds must be how many"),
        ("preset = 'smal'", "unknown preset 'smal'. Did you mean 'small'?"),
        ("device = 'gpu9'", "device 'gpu9' cannot be used here"),
        ("steps = ", "not a TOML file"),
        ("seed = [", "not a TOML file"),
    ],
)
def test_a_mistake_in_a_spec_is_told_before_anything_runs(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MildlyError) as refused:
        expand(parsed(tmp_path, BOTH + text))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithms = 'mcq'", "'datasets' is missing"),
        ("algorithms = ['mcp']\ndatasets = 'pendulum-mixed'", "unknown algorithm 'mcp'. Did you mean 'mcq'?"),
        ("algorithms = []\ndatasets = 'pendulum-mixed'", "algorithms must be a list of names"),
        ("algorithms = 'bc'\ndatasets = ['pendulum-mixd']", "Did you mean 'pendulum-mixed'?"),
        ("algorithms = 'bc'\ndatasets = ['there/is/none.csv']", "no such file or folder"),
    ],
)
def test_unknown_algorithms_and_data_sets_are_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MildlyError) as refused:
        expand(parsed(tmp_path, text))
    assert message in str(refused.value)


def test_a_dry_run_lists_the_jobs_and_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_spec(tmp_path / "spec.toml", seeds=3)
    assert main(["sweep", str(spec), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"bc/pendulum-mixed/seed-{seed}  300 steps" for seed in range(3)] + ["3 jobs"]
    assert not (tmp_path / "out").exists()


def test_the_spec_of_the_guide_can_be_expanded(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    first, named = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(expand(parsed(tmp_path, first))) == 18
    assert [job.setting for job in expand(parsed(tmp_path, named))] == ["all", "best-tenth", "careful", "robust"]


# What a sweep does with its jobs. Here jobs run one after the other in this process.


class Finished:
    """Stands for a process that has ended."""

    stdin = None

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int:
        return self.code


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Jobs run in this process as they are started; gives their names, in that order."""
    names: list[str] = []

    def start(task: Task) -> Finished:
        names.append(task.name)
        task.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            worker._train(Task(**json.loads(json.dumps(dataclasses.asdict(task)))))
        except MildlyError as error:
            with task.log.open("a") as log:
                log.write(f"error: {error}\n")
            return Finished(2)
        return Finished(0)

    monkeypatch.setattr(local, "start", start)
    return names


def test_complete_jobs_are_never_run_again_with_or_without_evaluations(tmp_path: Path, started: list[str]) -> None:
    jobs = jobs_of(tmp_path, seeds=2, steps=20) + jobs_of(tmp_path, seeds=[7], steps=20, eval_every=0)
    assert run_sweep(jobs, tmp_path / "out") == {}
    assert len(started) == 3
    assert run_sweep(jobs, tmp_path / "out") == {}
    assert len(started) == 3
    assert not Run(tmp_path / "out" / jobs[2].name).evaluations()


def test_longest_jobs_start_first_and_equal_ones_in_the_spec_s_order(tmp_path: Path, started: list[str]) -> None:
    jobs = jobs_of(tmp_path, algorithms=("bc", "mcq", "sac"), seeds=2, steps=2, eval_every=0)
    run_sweep(jobs, tmp_path / "out")
    assert [name.replace("pendulum-mixed/seed-", "") for name in started] == [
        "mcq/0",
        "mcq/1",
        "sac/0",
        "sac/1",
        "bc/0",
        "bc/1",
    ]


def test_more_steps_prolong_a_run_and_fewer_or_other_fields_are_refused(tmp_path: Path, started: list[str]) -> None:
    out = tmp_path / "out"
    run_sweep(jobs_of(tmp_path, steps=20), out)
    (job,) = longer = jobs_of(tmp_path, steps=30)
    run_sweep(longer, out)
    assert reached(out / job.name) == Run(out / job.name).plan().steps == 30
    for changes, message in (
        ({"steps": 25}, "steps 25, not 30"),
        ({"steps": 40, "text": "actor_lr = 0.1"}, "actor_lr 0.1, not 0.0003"),
        ({"steps": 30, "episodes": 4}, "episodes 4, not 1"),
    ):
        before = content(out / job.name)
        with pytest.raises(MildlyError, match=re.escape(message)):
            run_sweep(jobs_of(tmp_path, **changes), out)
        assert content(out / job.name) == before
    assert len(started) == 2


def test_a_failed_job_is_tried_again_told_with_its_last_words_and_does_not_stop_the_others(
    tmp_path: Path, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_spec(tmp_path / "spec.toml", "actor_lr = [1e30, 0.001]", steps=20)
    code = main(["sweep", str(spec), "--out", str(tmp_path / "out"), "--retries", "1", "--workers", "1"])
    out, err = capsys.readouterr()
    assert code == 1
    assert started == ["bc/pendulum-mixed/actor_lr=1e+30/seed-0"] * 2 + ["bc/pendulum-mixed/actor_lr=0.001/seed-0"]
    assert "failed: bc/pendulum-mixed/actor_lr=1e+30/seed-0" in err
    assert "error: training diverged" in err
    assert "1 of 2 jobs complete" in out
    assert f"mildly report {tmp_path / 'out'} -o report.html" in out


def write_log(path: Path) -> Path:
    data = load_dataset("pendulum-mixed")
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["episode", "obs_0", "obs_1", "obs_2", "action_0", "reward"])
        for episode, rows in enumerate(data.episodes()[:20]):
            for i in range(rows.start, rows.stop):
                table.writerow([episode, *data.observations[i], *data.actions[i], data.rewards[i]])
    return path


def test_data_in_another_format_are_converted_once_and_keep_their_name(tmp_path: Path, started: list[str]) -> None:
    log = write_log(tmp_path / "my log.csv")
    jobs = jobs_of(tmp_path, datasets=[str(log)], seeds=2, steps=20)
    copy = tmp_path / "out" / "data" / "my_log"
    left = copy.with_name(".my_log-abc")
    left.mkdir(parents=True)  # by a sweep that was killed while it converted
    run_sweep(jobs, tmp_path / "out")
    assert not left.exists()
    written = (copy / "rewards.npy").stat().st_mtime_ns
    for job in jobs:
        plan = Run(tmp_path / "out" / job.name).plan()
        assert (plan.dataset, plan.data.name) == (str(copy), "my log")
        assert plan.data.fingerprint == load_dataset(log).meta.fingerprint
    run_sweep(jobs_of(tmp_path, datasets=[str(log)], seeds=3, steps=20), tmp_path / "out")
    assert (copy / "rewards.npy").stat().st_mtime_ns == written
    assert len(started) == 3
    os.utime(log)
    with pytest.raises(MildlyError, match="was made of other data"):
        run_sweep(jobs, tmp_path / "out")


def test_data_that_would_spoil_a_training_and_a_wrong_environment_are_refused_before_any_job(
    tmp_path: Path, started: list[str]
) -> None:
    make_dataset(env_id="Pendulum-v1").save(tmp_path / "tiny")
    for options, message in (
        ({"datasets": [str(tmp_path / "tiny")]}, "environment 'Pendulum-v1' has observations"),
        ({"env": "Nowhere-v0"}, "environment 'Nowhere-v0' cannot be made"),
    ):
        with pytest.raises(MildlyError, match=message):
            run_sweep(jobs_of(tmp_path, **options), tmp_path / "out")
    assert started == []
    assert not (tmp_path / "out").exists()


def test_two_sweeps_cannot_work_in_one_folder(tmp_path: Path, started: list[str]) -> None:
    (tmp_path / "out").mkdir()
    with Run(tmp_path / "out").locked(), pytest.raises(MildlyError, match="another process"):
        run_sweep(jobs_of(tmp_path), tmp_path / "out")


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"threads": 0}, {"retries": -1}, {"ray": "auto", "workers": 2}])
def test_impossible_numbers_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(MildlyError, match=r"must be at least|--workers is for"):
        run_sweep(jobs_of(tmp_path), tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_scores_are_the_mean_and_deviation_over_seeds(tmp_path: Path, started: list[str]) -> None:
    jobs = jobs_of(tmp_path, "actor_lr = [0.001, 0.01]", seeds=2, steps=20)
    assert str(summarize(jobs, tmp_path / "out")["bc", "actor_lr=0.001"]["pendulum-mixed"]) == "-"
    run_sweep(jobs, tmp_path / "out")
    for job, score in zip(jobs, (10.0, 1.0, 30.0, 2.0), strict=True):
        line = json.dumps({"step": 20, "score": score, "mean_return": 0.0})
        (tmp_path / "out" / job.name / "evaluations.jsonl").write_text(line + "\n")
    told = {row[1]: str(cells["pendulum-mixed"]) for row, cells in summarize(jobs, tmp_path / "out").items()}
    assert told == {"actor_lr=0.001": "20.0 ± 14.1", "actor_lr=0.01": "1.5 ± 0.7"}


# The picture of progress.


def test_the_board_shows_step_score_and_counts_from_the_run_s_files(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 5}\n{"step": 10}\n{"st')
    (folder / "evaluations.jsonl").write_text('{"step": 10, "score": 42.123, "mean_return": 1.0}\n')
    task = Task("a/b", str(folder), "bc", "", "", 0, steps=20, threads=1, options={})
    for terminal in (True, False):
        text = io.StringIO()
        progress = SweepProgress(Counts(4, 1, 1), Console(file=text, force_terminal=terminal, width=100))
        with progress:
            progress.look([task])
            assert "10/20" not in text.getvalue(), "shown too soon"
            progress.shown -= 60
            progress.look([task])
        for part in ("a/b", "10/20", "score 42.1", "1 of 4 jobs done, 1 failed, 1 running, 1 waiting"):
            assert part in text.getvalue()


def test_the_last_line_of_a_file_is_found_whatever_state_it_is_in(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    assert last_line(path) == {}
    for text, step in (("", None), ('{"step": 1', None), ('{"step": 1}\n', 1), ('{"x": 0}\n{"step": 2}\n{"s', 2)):
        path.write_text(text)
        assert last_line(path).get("step") == step


# Real processes.


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def is_free(run: Path) -> bool:
    """Whether no process trains in a run folder any more."""
    try:
        with Run(run).locked():
            return True
    except MildlyError:
        return False


LONG = {"steps": 800, "eval_every": 400, "log_every": 50, "checkpoint_every": 100}


def begin(spec: Path, out: Path, runs: list[Path]) -> subprocess.Popen[str]:
    """Start a sweep and wait until every one of these runs has a checkpoint."""
    command = [*COMMAND, "sweep", str(spec), "--out", str(out)]
    sweep = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(lambda: all(reached(run) > 0 for run in runs), "no run has begun")
    assert sweep.poll() is None
    return sweep


def test_jobs_of_a_killed_sweep_end_and_the_same_command_finishes_to_the_bits_of_an_uninterrupted_training(
    tmp_path: Path,
) -> None:
    out, spec = tmp_path / "out", write_spec(tmp_path / "spec.toml", algorithms=("bc", "sac"), **LONG)
    runs = [out / algorithm / "pendulum-mixed" / "seed-0" for algorithm in ("sac", "bc")]
    sweep = begin(spec, out, runs[: min(2, _cores())])
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    until(lambda: all(is_free(run) for run in runs if run.exists()), "a job outlives its sweep")
    assert 0 < reached(runs[0]) < LONG["steps"], "the job went on to its end"
    ended = mildly("sweep", str(spec), "--out", str(out), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "2 of 2 jobs complete" in ended.stdout
    for algorithm, run in zip(("sac", "bc"), runs, strict=True):
        assert content(run) == content(train_tiny(algorithm, tmp_path / algorithm, **LONG).path)
        assert Run(run).plan().dataset == "pendulum-mixed"
        assert Run(run).plan().threads == 1
        assert not list(run.rglob("*.tmp"))


def test_a_sweep_that_is_asked_to_stop_leaves_checkpoints_and_says_how_to_go_on(tmp_path: Path) -> None:
    out, spec = tmp_path / "out", write_spec(tmp_path / "spec.toml", algorithms=("sac",), **LONG)
    run = out / "sac" / "pendulum-mixed" / "seed-0"
    sweep = begin(spec, out, [run])
    sweep.send_signal(signal.SIGTERM)
    _, message = sweep.communicate(timeout=60)
    assert sweep.returncode == 128 + signal.SIGTERM
    assert "stopped; 0 of 1 jobs are complete, those under way have checkpoints. The same command goes on." in message
    assert is_free(run)
    assert "stopped at step" in (out / "sac" / "pendulum-mixed" / "seed-0.log").read_text()


def test_a_job_that_was_killed_is_resumed_and_a_signal_stops_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for workers: the first one dies, the second succeeds, the third runs until it is asked to end."""
    endings = iter(["import os; os.kill(os.getpid(), 9)", "", "import time; time.sleep(600)"])
    stop: list[int] = []
    begun: list[str] = []

    def start(task: Task) -> subprocess.Popen[bytes]:
        begun.append(task.name)
        if task.name == "third":
            stop.append(signal.SIGTERM)
        return subprocess.Popen([sys.executable, "-c", next(endings)], stdin=subprocess.PIPE)

    monkeypatch.setattr(local, "start", start)
    tasks = [Task(name, str(tmp_path / name), "bc", "", "", 0, 1, 1, {}) for name in ("first", "third", "fourth")]
    progress = SweepProgress(Counts(3))
    assert local.run_here(tasks, workers=1, retries=1, progress=progress, stop=stop) == {}
    assert begun == ["first", "first", "third"]
    assert progress.counts == Counts(3, 1, 0)


def test_a_worker_has_the_threads_of_its_task(tmp_path: Path, monkeypatch: Any) -> None:
    """The variables that BLAS reads when it is loaded are set for the new process."""
    monkeypatch.setattr(process.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text(
        "#!/bin/sh\necho threads $OMP_NUM_THREADS $MKL_NUM_THREADS $OPENBLAS_NUM_THREADS\n"
    )
    (tmp_path / "python").chmod(0o755)
    task = Task("a/b", str(tmp_path / "a" / "b"), "bc", "", "", 0, 1, threads=3, options={})
    started = process.start(task)
    assert started.wait() == 0
    started.stdin.close()
    assert "threads 3 3 3" in (tmp_path / "a" / "b.log").read_text()


def test_stopping_is_an_exception_for_those_who_call_from_python(tmp_path: Path, monkeypatch: Any) -> None:
    def start(task: Task) -> subprocess.Popen[bytes]:
        signal.raise_signal(signal.SIGINT)
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE)

    monkeypatch.setattr(local, "start", start)
    with pytest.raises(Stopped, match="0 of 1 jobs are complete") as stopped:
        run_sweep(jobs_of(tmp_path), tmp_path / "out")
    assert stopped.value.exit_code == 130


def test_a_worker_that_dies_at_once_is_a_failed_job_and_no_more(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(process.sys, "executable", "/bin/false")
    tasks = [Task(f"a/{i}", str(tmp_path / f"a{i}"), "bc", "", "", 0, 1, 1, {"x": "y" * 1000}) for i in range(5)]
    failed = local.run_here(tasks, workers=2, retries=2, progress=SweepProgress(Counts(5)), stop=[])
    assert list(failed) == [f"a/{i}" for i in range(5)]
    assert tasks[0].log.read_text().count("--- ") == 3


def test_a_folder_of_files_that_has_changed_is_not_taken_for_what_was_converted(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    rows = "obs_0,action_0,reward\n" + "".join(f"{i},{(-1) ** i / 2},1.0\n" for i in range(9))
    for i in range(2):
        (logs / f"run_{i}.csv").write_text(rows)
    spec = tmp_path / "spec.toml"
    spec.write_text(f'algorithms = "bc"\ndatasets = "{logs}"\nsteps = 5\ncheck = false\n[fields]\nhidden = [8, 8]\n')
    assert run_sweep(expand(read_spec(spec)), tmp_path / "out") == {}
    (logs / "run_1.csv").write_text(rows.replace("1.0", "50.0"))
    with pytest.raises(MildlyError, match="made of other data"):
        run_sweep(expand(read_spec(spec)), tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "message"), [("[mcq]\nlam = 0.5", "not in 'algorithms'"), ("[fields]\nhidden = []", "an empty list")]
)
def test_what_would_run_nothing_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "spec.toml").write_text(f'algorithms = "bc"\ndatasets = "pendulum-mixed"\n{text}\n')
    with pytest.raises(MildlyError, match=message):
        read_spec(tmp_path / "spec.toml")


# Minutes long.

EIGHTEEN = """
algorithms = ["bc", "sac", "mcq"]
datasets = ["pendulum-mixed", "hopper-mixed"]
seeds = 3
preset = "small"
steps = 1500
eval_every = 750
episodes = 2
[bc]
steps = 4000
eval_every = 2000
[mcq]
steps = 200
eval_every = 100
checkpoint_every = 50
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_eighteen_jobs_killed_again_and_again_equal_those_left_alone(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(EIGHTEEN)
    jobs = expand(read_spec(spec))
    assert run_sweep(jobs, tmp_path / "whole") == {}
    command = [*COMMAND, "sweep", str(spec), "--out", str(tmp_path / "killed")]
    for complete in (2, 7, 12):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as sweep:
            until(
                lambda complete=complete: (
                    sum(reached(tmp_path / "killed" / job.name) >= job.plan.steps for job in jobs) >= complete
                ),
                "too slow",
                seconds=600,
            )
            sweep.kill()
    subprocess.run(command, check=True)
    for job in jobs:
        assert content(tmp_path / "killed" / job.name) == content(tmp_path / "whole" / job.name), job.name


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(_cores() < 2, reason="needs two cores")
def test_two_cores_do_at_least_1_7_times_the_work_of_one(tmp_path: Path) -> None:
    """Rounds alternate, so that what else the machine does troubles both alike; the best round of each counts."""
    spec = tmp_path / "spec.toml"
    spec.write_text(EIGHTEEN.replace("seeds = 3", "seeds = 1"))
    jobs = expand(read_spec(spec))
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(2):
        for workers, spent in seconds.items():
            began = time.monotonic()
            assert run_sweep(jobs, tmp_path / f"{turn}-{workers}", workers=workers) == {}
            spent.append(time.monotonic() - began)
    assert min(seconds[1]) / min(seconds[2]) >= 1.7, seconds
