"""Offline training: same seed, same bits; what it logs; how it ends when values run away; the public API."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SCHEDULE, content, make_dataset, train_tiny, unsealed

import mildly
from mildly.action_space import ActionSpace
from mildly.algorithms import ALGORITHMS
from mildly.cli import main
from mildly.data.dataset import FIELDS, Dataset
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError
from mildly.training import checkpoint
from mildly.training.offline import resume
from mildly.training.trainer import Diverged, SampledSource


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_same_seed_gives_same_bits_and_another_seed_others(tmp_path: Path, algorithm: str) -> None:
    short = {"steps": 60, "eval_every": 30}
    first = content(train_tiny(algorithm, tmp_path / "first", **short).path)
    torch.rand(7)  # torch's global numbers play no part
    np.random.rand(7)
    assert content(train_tiny(algorithm, tmp_path / "second", **short).path) == first
    other = content(train_tiny(algorithm, tmp_path / "other", seed=1, **short).path)
    for name in ("metrics.jsonl", "evaluations.jsonl", "policy/weights.safetensors", "source.generator"):
        assert other[name] != first[name]


@pytest.mark.parametrize("phases", [{}, {"behavior.steps": 20, "extras.bc_warmup_steps": 20}])
def test_evaluating_and_logging_leave_the_training_untouched(tmp_path: Path, phases: dict[str, Any]) -> None:
    quiet = {"eval_every": 0, "log_every": 60, "checkpoint_every": 60, "steps": 60}
    plain = content_of_training(train_tiny("mcq", tmp_path / "plain", **quiet, **phases).path)
    busy = {"eval_every": 20, "log_every": 1, "checkpoint_every": 7, "steps": 60}
    assert content_of_training(train_tiny("mcq", tmp_path / "busy", **busy, **phases).path) == plain


def content_of_training(run: Path) -> dict[str, bytes]:
    tensors, _ = checkpoint.load(run / "checkpoint.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def test_lines_are_means_over_the_steps_since_the_line_before(tmp_path: Path) -> None:
    short = {"steps": 13, "eval_every": 0}
    every = train_tiny("mcq", tmp_path / "every", log_every=1, **short).metrics()
    run = train_tiny("mcq", tmp_path / "run", log_every=5, **short)
    assert [line["step"] for line in run.metrics()] == [5, 10, 13]
    for line, steps in zip(run.metrics(), (every[:5], every[5:10], every[10:]), strict=True):
        for name in line.keys() - {"step"}:
            assert line[name] == pytest.approx(np.mean([step[name] for step in steps]), rel=1e-5, abs=1e-6)


def test_evaluations_fall_on_their_steps_and_on_the_last(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=25, eval_every=10, episodes=2, seed=3)
    evaluations = run.evaluations()
    assert [line["step"] for line in evaluations] == [10, 20, 25]
    assert all(line["seeds"] == [3100, 3101] and len(line["returns"]) == 2 for line in evaluations)


def test_trained_policy_is_the_one_of_the_last_evaluation(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=25, eval_every=25, episodes=2, seed=3)
    assert mildly.evaluate(run, episodes=2).returns == run.evaluations()[-1]["returns"]


def test_data_without_an_environment_train_without_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_tiny("bc", tmp_path / "run", dataset=make_dataset(), steps=10, eval_every=5)
    assert run.evaluations() == []
    assert "'tiny' names no environment to evaluate in" in capsys.readouterr().err
    with pytest.raises(MildlyError, match="names no environment"):
        mildly.evaluate(run)


def pendulum_with_rewards(factor: float, folder: Path) -> Path:
    data = mildly.load_dataset("pendulum-mixed")
    arrays = {name: getattr(data, name) for name in FIELDS}
    return Dataset.from_arrays(**arrays | {"rewards": np.full_like(data.rewards, factor)}, meta=data.meta).save(folder)


def finite(run: Path) -> bool:
    tensors, _ = checkpoint.load(run / "checkpoint.safetensors")
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values() if tensor.is_floating_point())


def test_rewards_that_overflow_end_the_run_with_the_metric_and_the_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = pendulum_with_rewards(3e38, tmp_path / "data")
    args = ["train", "sac", "--dataset", str(data), "--hidden-dims", "16", "16", "--batch-size", "16", "--steps", "50"]
    assert main([*args, "--out", str(tmp_path / "run")]) == 2
    assert "--no-check trains all the same" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main([*args, "--no-check", "--log-every", "10", "--out", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "training diverged" in message
    assert "loss_td" in message
    assert "not finite for the first time at step 1." in message
    assert "1. rewards: they reach 3e+38 in size" in message
    assert "No checkpoint was written yet" in message
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_absurd_learning_rate_ends_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    """The first 20 steps are sane; then the plan is changed to a learning rate that explodes."""
    run = train_tiny("sac", tmp_path / "run", steps=20, eval_every=0)
    before = (run.path / "checkpoint.safetensors").read_bytes()
    plan = unsealed(run.path / "run.json")
    plan["config"]["critic_lr"] = 1e30
    (run.path / "run.json").write_text(json.dumps(plan | {"checkpoint_every": 50}))
    with pytest.raises(Diverged, match=r"loss_.* not finite for the first time at step 21\. The last good checkpoint"):
        resume(run.path, steps=100)
    assert (run.path / "checkpoint.safetensors").read_bytes() == before
    assert finite(run.path)
    assert np.isfinite(mildly.load_policy(run.path).act(np.zeros(3, np.float32))).all()
    assert [line["step"] for line in run.metrics()] == [5, 10, 15, 20]


def test_overflow_that_no_metric_shows_yet_is_kept_out_of_the_checkpoint(tmp_path: Path) -> None:
    """The first step's loss is finite, but not the weights it leads to."""
    with pytest.raises(Diverged, match=r"actor\..* not finite after step 1\. No checkpoint was written yet"):
        train_tiny("bc", tmp_path / "run", actor_lr=1e39, log_every=1, checkpoint_every=1, eval_every=0)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert not (tmp_path / "run" / "policy").exists()


def test_diverged_policy_is_told_as_such_and_not_evaluated(tmp_path: Path) -> None:
    """An evaluation before the next line of the log must not run a policy of NaNs."""
    with pytest.raises(Diverged, match="not finite"):
        train_tiny("bc", tmp_path / "run", actor_lr=1e38, log_every=1000, checkpoint_every=1000, eval_every=10)
    assert not (tmp_path / "run" / "evaluations.jsonl").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"log_every": 0}, "log_every must be at least 1"),
        ({"checkpoint_every": -1}, "checkpoint_every must be at least 1"),
        ({"eval_every": -5}, "eval_every must be at least 0"),
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**64}, "seed must be at most"),
        ({"device": "meta"}, "device 'meta' cannot be used"),
        ({"env": "MountainCarContinuous-v0"}, "has observations .* but the data set 'pendulum-mixed'"),
        ({"lamb": 0.5}, "unknown hyperparameter 'lamb'. Did you mean 'lam'"),
    ],
)
def test_impossible_wish_is_refused_before_a_folder_is_made(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(MildlyError, match=message):
        train_tiny("mcq", tmp_path / "run", **given)
    assert not list(tmp_path.iterdir())


def test_public_api_goes_from_data_to_action(tmp_path: Path) -> None:
    data = mildly.load_dataset("pendulum-mixed")
    assert data.meta.env_id == "Pendulum-v1"
    assert {"mcq", "sac", "bc"} <= mildly.ALGORITHMS.keys()
    sizes = {"eval_every": 0, "hidden_dims": (16, 16), "batch_size": 16}
    short = {"steps": 20, "behavior.steps": 20, "extras.bc_steps": 20, "extras.bc_warmup_steps": 20, **sizes}
    run = mildly.train("mcq", data, out=tmp_path / "run", **short)
    policy = mildly.load_policy(run.path)
    observations = data.observations[:5]
    assert policy.act(observations[0]).shape == (1,)
    actions = policy.act(observations)
    assert actions.shape == (5, 1)
    assert (np.abs(actions) <= 2.0).all()  # Pendulum's own units
    assert mildly.evaluate(run.path, episodes=1).lengths == [200]
    assert run.plan().steps < SCHEDULE["steps"]
    assert set(mildly.__all__) >= {"load_dataset", "train", "resume", "evaluate", "load_policy", "ALGORITHMS"}
    assert all(hasattr(mildly, name) for name in mildly.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = mildly.nonsense


def test_the_policy_acts_in_the_environments_units_although_the_data_say_nothing_of_them(tmp_path: Path) -> None:
    builtin = load_dataset("pendulum-mixed")
    bare = dataclasses.replace(builtin.meta, action_space=None)
    run = train_tiny("bc", tmp_path / "run", dataset=dataclasses.replace(builtin, meta=bare), steps=5, eval_every=0)
    policy = mildly.load_policy(run.path)
    assert policy.action_space == ActionSpace((-2.0,), (2.0,))


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=5)
    with run.locked(), pytest.raises(MildlyError, match="another process is training in this folder"):
        mildly.resume(run.path, steps=10)
    assert mildly.resume(run.path, steps=10).metrics()[-1]["step"] == 10


def test_a_batch_beyond_memory_is_one_message_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MildlyError, match="batch_size must be at most 16,777,216, got 10000000000000"):
        train_tiny("bc", tmp_path / "run", steps=5, batch_size=10_000_000_000_000)

    def too_much(source: SampledSource, own: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 640000000000000 bytes.")

    monkeypatch.setattr(SampledSource, "next_batches", too_much)
    with pytest.raises(MildlyError, match="out of memory at step 1 with batch_size 16"):
        train_tiny("bc", tmp_path / "run", steps=5)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_says_so_when_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=5)
    mildly.resume(run.path)
    assert "complete at step 5 already; prolong it with --steps" in capsys.readouterr().err
