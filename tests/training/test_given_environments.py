"""Environments that are objects or functions, callbacks, quiet trainings, and what is said where nothing evaluates."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from conftest import content, make_dataset, train_tiny

import mildly
from mildly.cli import main
from mildly.environments import Simulator
from mildly.errors import MildlyError
from mildly.run import Run
from mildly.training.offline import Evaluated, resume
from mildly.training.outlook import earned_by_the_log

FEW: dict[str, Any] = {"steps": 4, "eval_every": 2, "log_every": 2, "checkpoint_every": 100, "episodes": 2}


class Plant(gym.Env[Any, Any]):
    """An environment that no registry knows: three sensors, one valve, five steps; it counts what happens to it."""

    observation_space = gym.spaces.Box(-10, 10, (3,), np.float32)
    action_space = gym.spaces.Box(-2, 2, (1,), np.float32)
    made = closed = 0

    def __init__(self) -> None:
        Plant.made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 5
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        sensors = self.np_random.normal(size=3).astype(np.float32)
        return sensors, float(action[0]), False, self.left == 0, {}

    def close(self) -> None:
        Plant.closed += 1


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plant, "made", 0)
    monkeypatch.setattr(Plant, "closed", 0)


def test_an_object_is_evaluated_in_one_episode_after_another_and_stays_open(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", env=Plant(), **FEW)
    assert (Plant.made, Plant.closed) == (1, 0)
    first = run.evaluations()[-1]
    assert (first["env_id"], first["lengths"], first["score"]) == ("Plant", [5, 5], None)
    assert run.plan().env is None  # no file can name it
    together, apart = (mildly.evaluate(run, env=env, episodes=3) for env in (Plant, Plant()))
    assert together.seeds == apart.seeds
    assert together.returns == pytest.approx(apart.returns, rel=1e-5)  # a network rounds otherwise in a larger batch
    assert first["returns"] == apart.returns[:2]


def test_a_run_resumed_without_its_object_goes_on_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_tiny("bc", tmp_path / "run", env=Plant(), **FEW)
    assert main(["train", "--resume", str(run.path), "--steps", "6"]) == 0
    assert "not evaluated any more: 'Plant' was given in Python." in capsys.readouterr().err
    assert [line["step"] for line in run.evaluations()] == [2, 4]


def test_a_function_makes_an_environment_for_each_episode_and_they_are_closed(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", env=lambda: Plant(), **FEW)
    assert [line["step"] for line in run.evaluations()] == [2, 4]
    assert Plant.made == Plant.closed > 2


def test_the_bounds_of_an_object_are_those_of_a_raw_log(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = random.uniform(-1.5, 1.5, (40, 5)).round(3)
    lines = [",".join(map(str, [i // 10, *row])) for i, row in enumerate(rows)]
    (tmp_path / "log.csv").write_text("\n".join(["episode,x,y,z,action,reward", *lines]))
    run = train_tiny("bc", tmp_path / "run", dataset=tmp_path / "log.csv", env=Plant(), check=False, **FEW)
    space = run.plan().data.action_space
    assert space is not None
    assert (space.low, space.high) == ((-2.0,), (2.0,))
    assert resume(run.path, steps=6, env=Plant()).evaluations()[-1]["step"] == 6


def test_an_environment_with_arguments_does_not_pass_for_the_one_of_its_id() -> None:
    assert Simulator.of(gym.make("Pendulum-v1", g=5.0)).name == "Pendulum-v1(g=5.0)"
    assert Simulator.of(lambda: gym.make("Pendulum-v1")).name == "Pendulum-v1"


def test_what_is_no_environment_and_one_that_does_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MildlyError, match=r"env must be an environment's id, a gymnasium\.Env, or a function"):
        train_tiny("bc", tmp_path / "run", env=3, **FEW)
    with pytest.raises(MildlyError, match="'Pendulum-v1' has observations"):
        train_tiny("bc", tmp_path / "run", dataset="hopper-mixed", env=gym.make("Pendulum-v1"), **FEW)
    assert not (tmp_path / "run").exists()


# Callbacks


def test_callbacks_are_told_of_every_evaluation_with_the_policy_of_that_step(tmp_path: Path) -> None:
    seen: list[Evaluated] = []

    def keep(evaluated: Evaluated) -> None:
        seen.append(evaluated)
        evaluated.policy.save(tmp_path / f"policy-{evaluated.step}")

    run = train_tiny("bc", tmp_path / "run", callbacks=[keep], **FEW)
    assert [(one.step, one.result.mean_return) for one in seen] == [
        (line["step"], line["mean_return"]) for line in run.evaluations()
    ]
    ends = [mildly.load_policy(folder).act(np.ones(3)) for folder in (tmp_path / "policy-4", run.path)]
    assert np.array_equal(*ends)
    assert not np.array_equal(mildly.load_policy(tmp_path / "policy-2").act(np.ones(3)), ends[0])


def test_an_error_in_a_callback_reaches_the_caller_and_the_run_goes_on_from_there_to_the_bit(tmp_path: Path) -> None:
    def fail(evaluated: Evaluated) -> None:
        raise RuntimeError("my own mistake")

    with pytest.raises(RuntimeError, match="my own mistake"):
        train_tiny("bc", tmp_path / "failed", callbacks=[fail], **FEW)
    failed = mildly.resume(tmp_path / "failed", quiet=True)
    whole = train_tiny("bc", tmp_path / "whole", **FEW)
    assert content(failed.path) == content(whole.path)


def test_a_quiet_training_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train_tiny("bc", tmp_path / "run", quiet=True, **FEW)
    assert capfd.readouterr() == ("", "")


# Without a simulator


def test_the_end_of_a_training_that_nothing_evaluates_says_what_is_known_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    rows = random.uniform(-1, 1, (400, 3)).round(3)
    lines = [",".join(map(str, [i // 40, *row])) for i, row in enumerate(rows)]
    (tmp_path / "log.csv").write_text("\n".join(["run,x,valve,reward", *lines]))
    few = {**FEW, "dataset": tmp_path / "log.csv"}
    run = train_tiny("td3-bc", tmp_path / "run", **few, reading=mildly_options("valve"))
    said = capsys.readouterr().err
    for fact in ("what the policy earns is not known", "390 transitions in 10 episodes", "- losses at the end: loss_"):
        assert fact in said
    assert "- values: the critics give the logged actions" in said
    # The distance once more, by hand, in the log's own units
    data = mildly.load_dataset(tmp_path / "log.csv", action="valve")
    space = data.meta.action_space
    acted = mildly.load_policy(run.path).act(data.observations)
    logged = data.actions if space is None else space.from_unit(data.actions)
    width = 2.0 if space is None else space.high[0] - space.low[0]
    share = 100 * np.sqrt(np.square(acted - logged).mean()) / width
    assert f"its actions are {share:.1f} % of their range away from the logged ones" in said
    for line in said.split("next:\n")[1].splitlines():
        command = line.strip().split("   (")[0].split()
        assert command[0] == "mildly"
        quick = {"report": ["-o", str(tmp_path / "r.html")], "ope": ["--steps", "2", "--density-steps", "2"]}
        if "MODULE:ID" not in command and "train" not in command:
            assert main([*command[1:], *quick.get(command[1], [])]) in (0, 1)


@pytest.mark.parametrize(("share", "seed"), [(0.2, 3), (0.13, 0)])
def test_the_clone_that_is_suggested_holds_the_same_episodes_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], share: float, seed: int
) -> None:
    folder = make_dataset(rows=370).save(tmp_path / "log")
    run = train_tiny("td3-bc", tmp_path / "run", **{**FEW, "dataset": folder, "holdout": share, "seed": seed})
    said = capsys.readouterr().err
    command = next(line for line in said.splitlines() if "mildly train bc" in line).split("   (")[0].split()
    quick = ["--steps", "1", "--preset", "small", "--no-check", "--out", str(tmp_path / "clone")]
    assert main([*command[1:], *quick]) == 0
    assert Run.open(tmp_path / "clone").plan().held_out == run.plan().held_out != []


def mildly_options(action: str) -> Any:
    from mildly.data.options import ImportOptions

    return ImportOptions(action=action)


def test_a_report_of_runs_that_nothing_evaluated_has_their_values_and_distance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_tiny("td3-bc", tmp_path / "run", **{**FEW, "eval_every": 0})
    assert main(["report", str(run.path), "-o", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    last = run.metrics()[-1]
    for number in (f"{last['q_data']:.4g}", f"{np.sqrt(last['policy_distance']):.3f}"):
        assert number in said
        assert number in (tmp_path / "page.html").read_text()
    assert "Without an environment there is no score." in said


class Stuck(Plant):
    """One that breaks down in its n-th step of all."""

    left_to_make = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Stuck.left_to_make -= 1
        if Stuck.left_to_make == 0:
            raise OSError("no connection")
        return super().step(action)


def test_a_training_whose_last_evaluation_fails_goes_on_with_that_evaluation(tmp_path: Path) -> None:
    whole = train_tiny("bc", tmp_path / "whole", env=Plant, **FEW)
    Stuck.left_to_make = 2 * 5 + 3  # two episodes of five steps each after two steps; then it fails
    with pytest.raises(MildlyError, match=r"'Stuck' failed in an evaluation: OSError no connection") as caught:
        train_tiny("bc", tmp_path / "run", env=Stuck, **FEW)
    assert "a checkpoint of step 4 is written" in str(caught.value)
    assert f"Go on with: mildly train --resume {tmp_path / 'run'}" in str(caught.value)
    run = resume(tmp_path / "run", env=Plant)
    assert run.evaluations()[1:] == whole.evaluations()[1:]
    assert [line["step"] for line in run.evaluations()] == [2, 4]
    changed = "evaluations.jsonl"  # the first evaluation names the other environment
    assert {**content(run.path), changed: None} == {**content(whole.path), changed: None}


def test_a_reward_that_is_no_number_is_told_and_never_recorded(tmp_path: Path) -> None:
    class Unpaid(Plant):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            seen, _, *rest = super().step(action)
            return seen, float("nan"), *rest

    with pytest.raises(MildlyError, match="'Unpaid' failed in an evaluation: its reward is nan"):
        train_tiny("bc", tmp_path / "run", env=Unpaid, **FEW)
    assert not (tmp_path / "run" / "evaluations.jsonl").exists()
    assert resume(tmp_path / "run", env=Plant).evaluations()[0]["step"] == 2


@pytest.mark.parametrize(
    ("earned", "env_id", "step", "less"),
    [(-0.1, "E-v0", 9, True), (0.1, "E-v0", 9, False), (-9, "F-v0", 9, False), (-9, "E-v0", 8, False)],
)
def test_a_policy_that_earns_less_than_its_log_is_told_so(earned: float, env_id: str, step: int, less: bool) -> None:
    data = dataclasses.replace(made := make_dataset(), meta=dataclasses.replace(made.meta, env_id="E-v0"))
    mean = data.episode_returns().mean()
    said = earned_by_the_log(
        data, {"step": step, "env_id": env_id, "mean_return": mean + earned}, 9, "mildly train --resume run"
    )
    assert said[0].startswith(f"the log's own episodes: mean return {mean:.1f}")
    assert (
        said[1:]
        == ["this policy earns less than the log did: more steps may help (mildly train --resume run --steps N)"] * less
    )
