"""What a sweep does with its jobs, which run here one after the other in this process."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import content, make_dataset
from sweeps import jobs_of, write_spec

from mildly.cli import main
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError
from mildly.experiments import local, worker
from mildly.experiments.final_scores import final_scores
from mildly.experiments.process import WorkerTask, checkpoint_step
from mildly.experiments.spec import expand, read_spec
from mildly.experiments.sweep import run_sweep
from mildly.run import Run


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

    def start(task: WorkerTask) -> Finished:
        names.append(task.name)
        task.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            worker.run_task(WorkerTask(**json.loads(json.dumps(dataclasses.asdict(task)))))
        except MildlyError as error:
            with task.log.open("a") as log:
                log.write(f"error: {error}\n")
            return Finished(worker.exit_code(error))
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


def test_run_json_names_variant_and_data_and_is_written_once(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    write_plan = Run.write_plan
    monkeypatch.setattr(Run, "write_plan", lambda run, plan: (written.append(run.path), write_plan(run, plan)))
    jobs = jobs_of(tmp_path, "actor_lr = [0.001, 0.01]", steps=20)
    run_sweep(jobs, tmp_path / "out")
    plans = {path: Run(path).plan() for path in written}
    assert len(written) == len(plans) == len(jobs) == 2
    assert {plan.variant for plan in plans.values()} == {"actor_lr=0.001", "actor_lr=0.01"}
    assert {plan.dataset for plan in plans.values()} == {"pendulum-mixed"}


GROUPS = """"extras.bc_warmup_steps" = 4
[fields.behavior]
model = ["cvae", "flow"]
"steps" = 6
"""


def test_groups_of_mcq_s_config_reach_its_runs_and_their_phases_are_no_steps(
    tmp_path: Path, started: list[str]
) -> None:
    out, options = tmp_path / "out", {"algorithms": ("mcq", "bc"), "steps": 10, "eval_every": 0, "log_every": 2}
    jobs = jobs_of(tmp_path, GROUPS, **options)
    assert run_sweep(jobs, out) == {}
    assert started == [
        *(f"mcq/pendulum-mixed/behavior.model={model}/seed-0" for model in ("cvae", "flow")),
        jobs[2].name,
    ]
    for name, model in zip(started, ("cvae", "flow"), strict=False):
        run = Run(out / name)
        plan = run.plan()
        told = plan.config["behavior"]
        assert (told["model"], told["hidden_dims"], told["steps"], told["cache"]) == (model, [16, 16], 6, False)
        assert plan.config["extras"]["bc_warmup_steps"] == 4
        assert plan.variant == f"behavior.model={model}"
        lines = [(line.get("phase"), line["step"]) for line in map(json.loads, (run.path / "metrics.jsonl").open())]
        assert lines == [
            *(("behavior model", step) for step in (2, 4, 6)),
            *(("bc warm-up", step) for step in (2, 4)),
            *((None, step) for step in (2, 4, 6, 8, 10)),
        ]
        assert checkpoint_step(run.path) == 10
    assert run_sweep(jobs, out) == {}
    assert len(started) == 3, "complete jobs were run again"
    for old, new, message in (
        ('"steps" = 6', '"steps" = 7', "Different now: behavior.steps 7, not 6."),
        ("= 4", "= 5", "Different now: extras.bc_warmup_steps 5, not 4."),
    ):
        with pytest.raises(MildlyError, match=re.escape(message)):
            run_sweep(jobs_of(tmp_path, GROUPS.replace(old, new), **options), out)


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
    assert checkpoint_step(out / job.name) == Run(out / job.name).plan().steps == 30
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


def test_a_sweep_with_held_out_episodes_goes_on_and_another_share_is_refused(
    tmp_path: Path, started: list[str]
) -> None:
    """The set has 97 episodes, of which each seed keeps others out."""
    out, options = tmp_path / "out", {"seeds": 2, "eval_every": 0}
    jobs = jobs_of(tmp_path, steps=20, holdout=0.2, **options)
    assert run_sweep(jobs, out) == {}
    held = [Run(out / job.name).plan().held_out for job in jobs]
    assert [len(numbers) for numbers in held] == [19, 19]
    assert held[0] != held[1]
    assert run_sweep(jobs, out) == {}
    assert len(started) == 2, "complete jobs were run again"
    assert run_sweep(jobs_of(tmp_path, steps=30, holdout=0.2, **options), out) == {}
    assert [Run(out / job.name).plan().held_out for job in jobs] == held
    for share, told in ((0.3, 29), (0, 0)):
        with pytest.raises(MildlyError, match=f"Different now: held-out episodes {told}, not 19."):
            run_sweep(jobs_of(tmp_path, steps=30, holdout=share, **options), out)


def test_a_share_to_hold_out_that_makes_no_sense_is_refused_before_any_job(tmp_path: Path, started: list[str]) -> None:
    with pytest.raises(MildlyError, match=re.escape("holdout must be in [0, 1), such as 0.2; got 1.")):
        run_sweep(jobs_of(tmp_path, holdout=1), tmp_path / "out")
    assert started == []
    assert not (tmp_path / "out").exists()


def test_a_diverged_job_is_not_run_again_but_reported_with_the_end_of_its_log_and_does_not_stop_the_others(
    tmp_path: Path, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_spec(tmp_path / "spec.toml", "actor_lr = [1e30, 0.001]", steps=20)
    code = main(["sweep", str(spec), "--out", str(tmp_path / "out"), "--retries", "1", "--workers", "1"])
    out, err = capsys.readouterr()
    assert code == 1
    assert started == ["bc/pendulum-mixed/actor_lr=1e+30/seed-0", "bc/pendulum-mixed/actor_lr=0.001/seed-0"]
    assert "bc/pendulum-mixed/actor_lr=1e+30/seed-0: diverged, see" in err
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
    program = "import sys, pathlib, mildly.files as files; print(files.temporary_path(pathlib.Path(sys.argv[1])))"
    made = subprocess.run([sys.executable, "-c", program, copy], capture_output=True, text=True, check=True)
    left = Path(made.stdout.strip())
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


def test_bad_data_and_a_wrong_environment_are_refused_before_any_job(tmp_path: Path, started: list[str]) -> None:
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
    assert str(final_scores(jobs, tmp_path / "out")["bc", "actor_lr=0.001"]["pendulum-mixed"]) == "-"
    run_sweep(jobs, tmp_path / "out")
    for job, score in zip(jobs, (10.0, 1.0, 30.0, 2.0), strict=True):
        line = json.dumps({"step": 20, "score": score, "mean_return": 0.0})
        (tmp_path / "out" / job.name / "evaluations.jsonl").write_text(line + "\n")
    told = {row[1]: str(cells["pendulum-mixed"]) for row, cells in final_scores(jobs, tmp_path / "out").items()}
    assert told == {"actor_lr=0.001": "20.0 ± 14.1", "actor_lr=0.01": "1.5 ± 0.7"}


def test_a_folder_of_files_that_has_changed_is_not_taken_for_what_was_converted(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    rows = "obs_0,action_0,reward\n" + "".join(f"{i},{(-1) ** i / 2},1.0\n" for i in range(9))
    for i in range(2):
        (logs / f"run_{i}.csv").write_text(rows)
    spec = tmp_path / "spec.toml"
    spec.write_text(
        f'algorithms = "bc"\ndatasets = "{logs}"\nsteps = 5\ncheck = false\n[fields]\nhidden_dims = [8, 8]\n'
    )
    assert run_sweep(expand(read_spec(spec)), tmp_path / "out") == {}
    (logs / "run_1.csv").write_text(rows.replace("1.0", "50.0"))
    with pytest.raises(MildlyError, match="made of other data"):
        run_sweep(expand(read_spec(spec)), tmp_path / "out")


def test_a_sweep_fine_tunes_every_run_and_a_second_call_has_nothing_to_do(tmp_path: Path) -> None:
    options: dict[str, Any] = {"algorithms": ("sac",), "steps": 20, "eval_every": 0}
    jobs = jobs_of(tmp_path, "[finetune]\nsteps = 9\nshare = 0.5", **options)
    assert [job.steps for job in jobs] == [29]
    assert run_sweep(jobs, tmp_path / "out", workers=1) == {}
    run = Run(tmp_path / "out" / jobs[0].name)
    plan, before = run.plan(), run.checkpoint.stat().st_mtime_ns
    assert (plan.steps, plan.offline_steps, plan.finetune[0].share) == (29, 20, 0.5)
    assert run_sweep(jobs, tmp_path / "out", workers=1) == {}
    assert run.checkpoint.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[finetune]\nstep = 9", "steps"),
        ("[finetune]\nshare = 2.0", "share must be a number from 0 to 1"),
        ("[finetune]\nsteps = 9", "bc cannot learn online"),
    ],
)
def test_what_cannot_be_fine_tuned_is_told_before_anything_runs(tmp_path: Path, table: str, words: str) -> None:
    algorithm = "bc" if "bc" in words else "sac"
    with pytest.raises(MildlyError, match=words):
        jobs_of(tmp_path, table, algorithms=(algorithm,))
