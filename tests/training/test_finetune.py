"""Fine-tuning: what enters batches, exact resume, failures, further logs, the safety net, refusals."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Refused, make_dataset, tiny, train_tiny
from plants import Counted, Plant, Restless

import mildly
from mildly.action_space import ActionSpace
from mildly.algorithms import ALGORITHMS
from mildly.algorithms.config import build_config
from mildly.cli import main
from mildly.data.batches import Buffer, Mixture, Transitions
from mildly.data.dataset import Dataset
from mildly.data.registry import load_dataset
from mildly.environments import Simulator
from mildly.errors import MildlyError
from mildly.evaluation.results import load_results
from mildly.policy import load_policy
from mildly.run import Run
from mildly.stage import Stage
from mildly.training import checkpoint
from mildly.training.environment import EnvironmentSource, Share
from mildly.training.experience import columns, record
from mildly.training.finetune import FellBelow, Finetuning, finetune
from mildly.training.offline import resume
from mildly.training.session import Asked

FEW: dict[str, Any] = {"steps": 10, "eval_every": 0, "log_every": 5, "checkpoint_every": 7, "env": None}
RECORD = record(3, 1)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Run]:
    """Copies of tiny runs, each trained once."""
    home, known = tmp_path_factory.mktemp("trained"), {}

    def copy(algorithm: str, to: Path, **fields: Any) -> Run:
        name = f"{algorithm}-{len(fields)}-{'-'.join(map(str, fields))}"
        if name not in known:
            known[name] = train_tiny(algorithm, home / name, **{**FEW, **fields})
        return Run(Path(shutil.copytree(known[name].path, to)))

    return copy


def online(run: Run, **given: Any) -> Run:
    """Fine-tuned in a small plant."""
    return finetune(run, **{"env": Plant, "quiet": True, "steps": 30, **given})


def rows_of(run: Run, part: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    return columns(run.path / f"online-{part}.bin", RECORD)


def everything(run: Run) -> dict[str, Any]:
    """All that must be equal in two equal runs."""
    files = {path.name: path.read_bytes() for path in run.path.glob("online-*.bin")}
    files |= {name: (run.path / name).read_bytes() for name in ("metrics.jsonl", "policy/weights.safetensors")}
    tensors, facts = checkpoint.load(run.checkpoint)
    return {**files, **{name: tensor.numpy().tobytes() for name, tensor in tensors.items()}, "facts": facts}


def session_of(run: Run, data: Dataset, **stage: Any) -> Finetuning:
    """What fine-tuning makes of a run, before its first step."""
    plan = run.plan()
    config = build_config(ALGORITHMS[plan.algorithm], plan.config)
    stages = (Stage(plan.steps, **{"steps": 100, "eval_every": 0, "episodes": 1, **stage}),)
    plan = dataclasses.replace(plan, finetune=stages)
    session = Finetuning(run, plan, config, data, Asked(Simulator.of(Plant), (), True), [None])
    session.trainer.restore()
    return session


# Every algorithm

CAN = sorted(name for name, kind in ALGORITHMS.items() if not kind.OFFLINE_ONLY)


def test_all_algorithms_but_imitation_and_those_in_a_model_can_learn_online() -> None:
    assert set(ALGORITHMS) - set(CAN) == {"bc", "decision-transformer", "mopo"}


@pytest.mark.parametrize("name", CAN)
def test_every_algorithm_that_can_goes_on_from_its_checkpoint(trained: Any, tmp_path: Path, name: str) -> None:
    own = {"actor_hidden_dims": (8,)} if name == "awac" else {}
    run = trained(name, tmp_path / "run", **own)
    before = checkpoint.load(run.checkpoint)[0]
    online(run, steps=12)
    after, facts = checkpoint.load(run.checkpoint)
    assert facts["step"] == run.plan().steps == 22
    assert len(rows_of(run)["rewards"]) == 12
    assert before.keys() - {"source.generator"} <= after.keys()
    assert any(not torch.equal(after[key], before[key]) for key in before if key.startswith("algorithm.actor."))
    assert run.metrics()[-1]["step"] == 22
    assert np.isfinite(load_policy(run.path).act(np.zeros(3, np.float32))).all()


@pytest.mark.parametrize(("name", "spread"), [("td3", True), ("sac", False)])
def test_only_deterministic_policies_act_with_the_noise(trained: Any, tmp_path: Path, name: str, spread: bool) -> None:
    """With noise and without it, the same seeds: the first action differs by the noise alone, or not at all."""
    first = []
    for noise in (0.0, 0.5):
        run = trained(name, tmp_path / f"{noise}")
        first.append(rows_of(online(run, steps=1, noise=noise))["actions"][0])
    assert (first[0] != first[1]).all() == spread


def test_the_learner_starts_from_the_weights_of_the_checkpoint(trained: Any, tmp_path: Path) -> None:
    run = trained("td3", tmp_path / "run")
    policy = load_policy(run.path)
    online(run, steps=1, noise=0.0)
    rows = rows_of(run)
    acted = policy.act(rows["observations"])  # in the plant's units, -2 to 2
    np.testing.assert_allclose(acted / 2, rows["actions"], atol=1e-6)


# What enters batches


def test_old_and_new_transitions_are_drawn_alike_unless_a_share_is_given(trained: Any, tmp_path: Path) -> None:
    """Each row as often as any other: with 60 new ones beside 8,000, about 0.7 in a hundred draws, not none."""
    data = load_dataset("pendulum-mixed")
    session = session_of(trained("sac", tmp_path / "run"), data, updates_per_step=0.001)
    source = session.trainer.source
    assert isinstance(source, EnvironmentSource)
    for _ in range(60):
        source.next_batches()
    draws = [source.sampler.sample(source.generator, 1000).rows for _ in range(100)]
    new = int(sum((rows < 0).sum() for rows in draws))
    share = 60 / (60 + len(data))
    deviation = (100_000 * share * (1 - share)) ** 0.5
    assert abs(new - 100_000 * share) < 5 * deviation
    assert new > 0
    session.close()


@pytest.mark.parametrize(
    ("share", "end", "expected"), [(0.5, None, [8] * 4), (0.25, None, [4] * 4), (1.0, 0.0, [14, 12, 8, 4])]
)
def test_a_share_of_new_transitions_is_kept_or_goes_from_one_to_the_other(
    trained: Any, tmp_path: Path, share: float, end: float | None, expected: list[int]
) -> None:
    given: dict[str, Any] = {"steps": 40, "share": share, "share_end": end}
    session = session_of(trained("sac", tmp_path / "run"), load_dataset("pendulum-mixed"), **given)
    batches = [session.trainer.source.next_batches()[0] for _ in range(40)]
    counts = [int((batch.rows < 0).sum()) for batch in batches]
    assert [counts[i] for i in (3, 9, 19, 29)] == expected
    assert all(len(batch.rewards) == 16 for batch in batches)
    session.close()


def test_an_annealed_share_is_a_straight_line() -> None:
    share = Share(0.8, 0.2, 100)
    assert [share.at(step) for step in (0, 50, 100, 500)] == pytest.approx([0.8, 0.5, 0.2, 0.2])


def test_online_transitions_are_scaled_as_logged_ones(trained: Any, tmp_path: Path) -> None:
    """Normalized with the logged data's mean and deviation, rewards times the logged data's scale."""
    data = load_dataset("pendulum-mixed")
    run = trained("iql", tmp_path / "run", normalize_observations=True, reward_scaling=True)
    session = session_of(run, data, share=1.0)
    source = session.trainer.source
    assert isinstance(source, EnvironmentSource)
    batch = [source.next_batches()[0] for _ in range(20)][-1]
    assert session.log is not None
    session.log.flush()
    rows = rows_of(run)
    scale = 1000 / (data.episode_returns().max() - data.episode_returns().min())
    mean, std = data.observations.mean(axis=0), data.observations.std(axis=0) + 1e-3
    expected = np.column_stack([(rows["observations"] - mean) / std, rows["rewards"] * scale])
    for seen in np.column_stack([batch.observations, batch.rewards]):
        assert np.isclose(seen, expected, rtol=1e-3, atol=1e-4).all(axis=1).any()
    session.close()


def test_a_time_out_is_no_terminal_state(trained: Any, tmp_path: Path) -> None:
    run = trained("sac", tmp_path / "run")
    session = session_of(run, load_dataset("pendulum-mixed"))
    source = session.trainer.source
    assert isinstance(source, EnvironmentSource)
    for _ in range(70):
        source.next_batches()
    assert session.log is not None
    session.log.flush()
    rows = rows_of(run)
    ends = np.arange(70) % 7 == 6
    np.testing.assert_array_equal(rows["terminated"] | rows["truncated"], ends)
    assert rows["truncated"].any()
    assert rows["terminated"].any()
    np.testing.assert_array_equal(source.buffer.columns["terminated"][:70], rows["terminated"].astype(np.float32))
    starts = np.flatnonzero(ends)[:-1] + 1
    assert not np.isclose(rows["observations"][starts], rows["next_observations"][starts - 1]).any()
    session.close()


def test_returns_are_mixed_into_no_online_transition(trained: Any, tmp_path: Path) -> None:
    """Whose return is not known."""
    run = trained("sac", tmp_path / "run", **{"extras.return_mix": 0.5})
    session = session_of(run, load_dataset("pendulum-mixed"), share=1.0)
    batch = [session.trainer.source.next_batches()[0] for _ in range(6)][-1]
    assert session.log is not None
    session.log.flush()
    assert set(batch.rewards.tolist()) <= set(rows_of(run)["rewards"].tolist())
    assert set(batch.terminated.tolist()) == {0.0}
    session.close()


# Steps


@pytest.mark.parametrize(
    ("given", "rows", "updates"),
    [
        ({}, 30, 30),
        ({"updates_per_step": 0.25}, 30, 7),
        ({"updates_per_step": 2.0}, 30, 60),
        ({"environments": 4}, 32, 30),
    ],
)
def test_steps_are_those_of_the_environment_and_updates_follow(
    trained: Any, tmp_path: Path, given: dict[str, Any], rows: int, updates: int
) -> None:
    run = trained("td3", tmp_path / "run")
    before = int(checkpoint.load(run.checkpoint)[0]["algorithm.updates"])
    online(run, **given)
    tensors, facts = checkpoint.load(run.checkpoint)
    assert facts["step"] == 40
    assert len(rows_of(run)["rewards"]) == rows
    assert int(tensors["algorithm.updates"]) - before == updates
    assert [line["step"] for line in run.metrics()] == [5, 10, 15, 20, 25, 30, 35, 40]


def test_environments_side_by_side_have_episodes_of_their_own(trained: Any, tmp_path: Path) -> None:
    run = online(trained("sac", tmp_path / "run"), environments=3, steps=60)
    rows = rows_of(run)
    starts = set()
    for i in range(3):
        own = {name: column[i::3] for name, column in rows.items()}
        ends = np.flatnonzero(own["terminated"] | own["truncated"])
        assert ends.tolist() == [6, 13]
        inside = np.setdiff1d(np.arange(19), ends)
        np.testing.assert_array_equal(own["next_observations"][inside], own["observations"][inside + 1])
        starts |= {own["observations"][0].tobytes(), own["observations"][7].tobytes()}
    assert len(starts) == 6


def test_one_curve_goes_on_from_the_offline_steps(trained: Any, tmp_path: Path) -> None:
    run = trained("sac", tmp_path / "run", eval_every=5, env=Plant)
    online(run, steps=10)
    assert [line["step"] for line in run.evaluations()] == [5, 10, 15, 20]
    assert run.plan().offline_steps == 10
    assert run.plan().finetune[0].words == "10 online"


def test_the_score_of_a_fine_tuned_run_is_that_of_its_last_part_alone(trained: Any, tmp_path: Path) -> None:
    run = trained("sac", tmp_path / "run", eval_every=5, env=Plant)
    (offline,) = load_results([run.path])
    assert offline.mean_return == run.evaluations()[-1]["mean_return"]  # of steps 5 and 10
    online(run, steps=20)
    (result,) = load_results([run.path])
    returns = {line["step"]: line["mean_return"] for line in run.evaluations()}
    assert list(returns) == [5, 10, 15, 20, 25, 30]
    assert result.mean_return == pytest.approx((returns[25] + returns[30]) / 2)
    assert result.mean_return != pytest.approx((returns[20] + returns[25] + returns[30]) / 3)


def test_fine_tuning_says_where_it_acts_what_it_began_with_and_what_was_best(
    trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = online(trained("sac", tmp_path / "run"), steps=8, eval_every=4, environments=2, quiet=False)
    said = capsys.readouterr().err
    assert "online: it acts in 2 of Plant for 8 steps" in said
    lines = run.evaluations()
    best = max(lines, key=lambda line: line["mean_return"])
    assert (
        f"before fine-tuning: return {lines[0]['mean_return']:.1f}; best policy since, of step {best['step']}: "
        f"return {best['mean_return']:.1f}, in {run.path / 'best'}"
    ) in said


# Resuming


def interrupted(run: Run, at: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
    """Fine-tuned in a plant that breaks down."""
    monkeypatch.setattr(Counted, "steps", 0)
    monkeypatch.setattr(Counted, "breaks_at", at)
    monkeypatch.setattr(Counted, "error", error)
    with pytest.raises(MildlyError if error is RuntimeError else error):
        online(run, env=Counted, **given)
    monkeypatch.setattr(Counted, "breaks_at", 0)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"environments": 3, "updates_per_step": 0.5, "share": 0.9, "share_end": 0.1},
]


@pytest.mark.parametrize("given", VARIANTS, ids=["one", "three"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_resumed_fine_tuning_equals_one_that_was_not_interrupted(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], error: type[BaseException]
) -> None:
    """In the middle of an episode, by an environment's failure or a sudden death; twice."""
    whole = online(trained("mcq", tmp_path / "whole"), env=Counted, **given)
    run = trained("mcq", tmp_path / "run")
    interrupted(run, 17, error, monkeypatch, **given)
    assert everything(run)["facts"]["step"] < 40
    interrupted(run, 12, error, monkeypatch)
    online(run, env=Counted)
    assert everything(run) == everything(whole)


def test_a_failing_environment_loses_nothing_and_says_how_to_go_on(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained("sac", tmp_path / "run")
    monkeypatch.setattr(Counted, "steps", 0)
    monkeypatch.setattr(Counted, "breaks_at", 18)
    monkeypatch.setattr(Counted, "error", RuntimeError)
    with pytest.raises(MildlyError) as caught:
        online(run, env=Counted)
    message = str(caught.value)
    assert "'Counted' failed at its step 18: RuntimeError the pump is stuck" in message
    assert "a checkpoint of step 27 is written" in message
    assert f"mildly finetune {run.path}" in message
    assert checkpoint.load(run.checkpoint)[1]["step"] == 27
    assert len(rows_of(run)["rewards"]) == 17


@pytest.mark.parametrize(("reward", "observation"), [(np.nan, 0.0), (0.0, np.inf)])
def test_numbers_that_are_none_never_reach_the_buffer(
    trained: Any, tmp_path: Path, reward: float, observation: float
) -> None:
    class Broken(Plant):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            seen, paid, *rest = super().step(action)
            return (seen + observation, paid + reward, *rest) if self.left == 3 else (seen, paid, *rest)

    run = trained("sac", tmp_path / "run")
    with pytest.raises(MildlyError, match=r"failed at its step 4: its (reward is nan|observation holds NaN)"):
        online(run, env=Broken)
    assert len(rows_of(run)["rewards"]) == 3


def test_where_an_environment_does_not_repeat_itself_the_episode_ends_and_it_is_said(
    trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained("sac", tmp_path / "run")
    online(run, env=Restless, steps=10)
    capsys.readouterr()
    online(run, env=Restless, steps=16, quiet=False)
    assert "'Restless' does not repeat itself" in capsys.readouterr().err
    rows = rows_of(run)
    assert np.flatnonzero(rows["truncated"] | rows["terminated"]).tolist() == [6, 9]
    assert len(rows["rewards"]) == 16


def test_a_part_that_is_complete_is_prolonged_as_if_it_had_been_so_long_at_once(trained: Any, tmp_path: Path) -> None:
    whole = online(trained("td3-bc", tmp_path / "whole"), steps=30)
    run = online(trained("td3-bc", tmp_path / "run"), steps=10)
    online(run, steps=30)
    assert everything(run) == everything(whole)
    assert run.plan().finetune == whole.plan().finetune


# Further logs


def further(folder: Path, shift: float = 0.0, space: ActionSpace | None = None) -> Path:
    """Part of the first data, in other units or moved."""
    data = load_dataset("pendulum-mixed")
    fields = {name: np.array(getattr(data, name)[:400]) for name in ("actions", "rewards", "terminated", "truncated")}
    moved = {name: np.array(getattr(data, name)[:400]) + shift for name in ("observations", "next_observations")}
    if space is not None:
        assert data.meta.action_space is not None
        fields["actions"] = space.to_unit(data.meta.action_space.from_unit(fields["actions"]))
    meta = dataclasses.replace(data.meta, name="further", action_space=space or data.meta.action_space)
    return Dataset.from_arrays(**fields, **moved, meta=meta).save(folder)


@pytest.mark.parametrize("name", ["mcq", "bc", "cql"])
def test_further_logs_are_learned_from_beside_the_first(
    trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = trained(name, tmp_path / "run", normalize_observations=True)
    before = json.loads((run.path / "policy" / "policy.json").read_text())
    finetune(run, dataset=further(tmp_path / "more", shift=20.0), steps=8, share=0.5)
    after, said = json.loads((run.path / "policy" / "policy.json").read_text()), capsys.readouterr().err
    assert after["observation_mean"] == before["observation_mean"]
    assert after["observation_high"][0] > 19 > before["observation_high"][0]
    assert "400 new transitions beside" in said
    assert "100 % of the new observations lie outside the range of the old" in said
    assert "3 of 3 columns of the observations are distributed otherwise" in said
    assert checkpoint.load(run.checkpoint)[1]["step"] == 18
    assert not list(run.path.glob("online-*"))


def test_further_logs_enter_batches_at_their_share_with_their_own_rows(trained: Any, tmp_path: Path) -> None:
    run, data, new = trained("sac", tmp_path / "run"), load_dataset("pendulum-mixed"), further(tmp_path / "more")
    stages = (Stage(10, 8, 0, 1, dataset=str(new), fingerprint="known", share=0.25),)
    plan = dataclasses.replace(run.plan(), finetune=stages)
    config = build_config(ALGORITHMS["sac"], plan.config)
    session = Finetuning(run, plan, config, data, Asked(None, (), True), [load_dataset(new)])
    (batch,) = session.trainer.source.next_batches()
    seen = {row.tobytes() for row in load_dataset(new).observations}
    assert [row.numpy().tobytes() in seen for row in batch.observations[12:]] == [True] * 4
    assert len(batch.rewards) == 16


def test_actions_of_further_logs_are_brought_into_the_runs_units(trained: Any, tmp_path: Path) -> None:
    wide = further(tmp_path / "wide", space=ActionSpace((-4.0,), (4.0,)))
    plain, other = (trained("sac", tmp_path / name) for name in ("one", "two"))
    finetune(plain, dataset=further(tmp_path / "more"), steps=8, quiet=True)
    finetune(other, dataset=wide, steps=8, quiet=True)
    one, two = (load_policy(run.path).act(np.ones(3, np.float32)) for run in (plain, other))
    np.testing.assert_allclose(one, two, rtol=1e-4)


def test_fine_tuning_on_further_logs_can_be_resumed_and_followed_by_others(trained: Any, tmp_path: Path) -> None:
    more, most = further(tmp_path / "more"), further(tmp_path / "most", shift=1.0)
    whole, parted = (trained("td3", tmp_path / name) for name in ("whole", "parted"))
    finetune(whole, dataset=more, steps=12, quiet=True)
    for steps in (5, 12):
        finetune(parted, dataset=more, steps=steps, quiet=True)
    assert everything(parted) == everything(whole)
    for run in (whole, parted):
        online(run, steps=9)
        finetune(run, dataset=most, steps=6, quiet=True)
        online(run, steps=3)
    assert [stage.start for stage in whole.plan().finetune] == [10, 22, 31, 37]
    assert [stage.online for stage in whole.plan().finetune] == [False, True, False, True]
    assert whole.plan().steps == 40
    assert sorted(path.name for path in whole.path.glob("online-*")) == ["online-2.bin", "online-4.bin"]
    assert everything(parted) == everything(whole)


def test_a_table_is_read_as_the_first_one_was(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def table(path: Path, low: float) -> Path:
        rows = ["day,temp,valve,power"]
        rows += [
            f"{i // 10},{random.normal(20):.3f},{random.uniform(low, 9):.3f},{random.random():.3f}" for i in range(60)
        ]
        path.write_text("\n".join(rows) + "\n")
        return path

    first, second = table(tmp_path / "first.csv", 0), table(tmp_path / "second.csv", 4)
    options = ["--obs", "temp", "--action", "valve", "--cost", "power", "--episode", "day"]
    options += ["--action-low", "0", "--action-high", "10"]
    small = [
        "--hidden-dims",
        "8",
        "--batch-size",
        "8",
        "--steps",
        "4",
        "--out",
        str(tmp_path / "run"),
        "--threads",
        "1",
    ]
    assert main(["train", "td3-bc", "--dataset", str(first), *options, *small]) == 0
    assert main(["finetune", str(tmp_path / "run"), "--dataset", str(second), "--steps", "3"]) == 0
    (stage,) = Run(tmp_path / "run").plan().finetune
    assert stage.reading["cost"] == "power"
    assert (stage.reading["action_low"], stage.reading["action_high"]) == ([0.0], [10.0])
    assert main(["finetune", str(tmp_path / "run"), "--dataset", str(second), "--steps", "5"]) == 0  # goes on
    assert checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")[1]["step"] == 9


# The safety net


class Judged(Plant):
    """One that pays less the more steps all of them have made."""

    pay = 0.0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, _, *rest = super().step(action)
        return seen, Judged.pay, *rest


@pytest.fixture
def pays(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], None]:
    """Evaluations bring these rewards for each step, one evaluation after another."""

    def plan(values: list[float]) -> None:
        left, evaluate = iter(values), Finetuning.evaluate

        def next_pay(self: Finetuning, step: int) -> Any:
            monkeypatch.setattr(Judged, "pay", next(left))
            return evaluate(self, step)

        monkeypatch.setattr(Finetuning, "evaluate", next_pay)

    return plan


def test_evaluations_below_the_offline_one_are_told_and_the_best_policy_is_kept(
    trained: Any, tmp_path: Path, pays: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained("sac", tmp_path / "run")
    pays([1.0, 3.0, -1.0])  # before, after 5 steps, after 10
    saved: list[bytes] = []

    def keep(evaluated: Any) -> None:
        saved.append(evaluated.policy.save(tmp_path / "kept").joinpath("weights.safetensors").read_bytes())

    finetune(run, env=Judged, steps=10, eval_every=5, callbacks=[keep])
    lines = run.evaluations()
    assert [line["mean_return"] for line in lines] == [7.0, 21.0, -7.0]
    assert [line["step"] for line in lines] == [10, 15, 20]
    assert (run.path / "best" / "weights.safetensors").read_bytes() == saved[0]
    assert (run.path / "policy" / "weights.safetensors").read_bytes() == saved[1]
    said = capsys.readouterr().err
    assert "warning: step 20: return -7.0, less than the return 7.0 it began with" in said
    assert "policy so far, of step 15" in said


def test_where_it_falls_too_low_it_stops_and_the_best_policy_is_back(trained: Any, tmp_path: Path, pays: Any) -> None:
    run = trained("sac", tmp_path / "run")
    pays([1.0, 2.0, -1.0])
    with pytest.raises(FellBelow, match=r"stopped at step 20: return -7.0, below 0; .* of step 15 \(return 14.0\)"):
        finetune(run, env=Judged, steps=40, eval_every=5, stop_below=0.0, quiet=True)
    best, policy = (run.path / name / "weights.safetensors" for name in ("best", "policy"))
    assert best.read_bytes() == policy.read_bytes()
    assert checkpoint.load(run.checkpoint)[1]["step"] == 20
    assert [line["step"] for line in run.evaluations()] == [10, 15, 20]


class Dearer(Plant):
    """One that pays far more than `Judged` does here."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, _, *rest = super().step(action)
        return seen, 100.0, *rest


def test_another_environment_is_compared_with_its_own_start_alone(
    trained: Any, tmp_path: Path, pays: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finetune(trained("sac", tmp_path / "run"), env=Dearer, steps=5, eval_every=5, quiet=True)
    pays([1.0, 3.0])
    finetune(run, env=Judged, steps=5, eval_every=5)
    found = [(line["step"], line["env_id"], line["mean_return"]) for line in run.evaluations()]
    assert found == [(10, "Dearer", 700.0), (15, "Dearer", 700.0), (15, "Judged", 7.0), (20, "Judged", 21.0)]
    assert "warning" not in capsys.readouterr().err
    best, policy = (run.path / name / "weights.safetensors" for name in ("best", "policy"))
    assert best.read_bytes() == policy.read_bytes()


def test_the_best_policy_of_before_another_environment_is_not_taken_for_the_one_that_is_kept(
    trained: Any, tmp_path: Path, pays: Any
) -> None:
    run = trained("sac", tmp_path / "run")
    pays([30.0, 30.0, 0.0, 0.0, 2.0, -1.0])
    finetune(run, env=Judged, steps=5, eval_every=5, quiet=True)
    finetune(run, env=Dearer, steps=5, eval_every=5, quiet=True)
    with pytest.raises(FellBelow, match=r"of step 20 \(return 14.0\)"):
        finetune(run, env=Judged, steps=5, eval_every=5, stop_below=0.0, quiet=True)
    best, policy = (run.path / name / "weights.safetensors" for name in ("best", "policy"))
    assert best.read_bytes() == policy.read_bytes()


def test_a_part_of_one_step_can_be_prolonged(trained: Any, tmp_path: Path) -> None:
    whole = online(trained("sac", tmp_path / "whole"), env=Plant, steps=6)
    run = online(trained("sac", tmp_path / "run"), env=Plant, steps=1)
    assert len(rows_of(run)["rewards"]) == 1
    online(run, env=Plant, steps=6)
    same = [checkpoint.load(each.checkpoint)[0] for each in (whole, run)]
    assert all(torch.equal(same[0][name], same[1][name]) for name in same[0])


def test_what_is_built_is_built_with_the_plans_threads(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, seen = ALGORITHMS["sac"], list[int]()
    sound = kind.batches

    def watched(learner: Any, data: Dataset) -> Any:
        seen.append(torch.get_num_threads())
        return sound(learner, data)

    run = trained("sac", tmp_path / "run")
    monkeypatch.setattr(kind, "batches", watched)
    torch.set_num_threads(2)
    train_tiny("sac", tmp_path / "other", steps=5, eval_every=0, threads=1)
    resume(tmp_path / "other", steps=6, quiet=True)
    online(run, env=Plant, steps=1)
    assert seen == [1, 1, 1]
    assert torch.get_num_threads() == 2


def test_an_environment_that_fails_while_it_evaluates_leaves_a_checkpoint_and_is_evaluated_on_resuming(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, run = (trained("sac", tmp_path / name) for name in ("whole", "run"))
    online(whole, env=Counted, steps=12, eval_every=4, episodes=1)
    monkeypatch.setattr(Counted, "steps", 0)
    monkeypatch.setattr(Counted, "breaks_at", 7 + 2 + 7 + 4 + 3)  # in the evaluation of step 16
    with pytest.raises(MildlyError, match=f"RuntimeError the pump is stuck.* a checkpoint of step 16 .*{run.path}"):
        online(run, env=Counted, steps=12, eval_every=4, episodes=1)
    online(run, env=Counted, steps=12, eval_every=4, episodes=1)
    assert [line["step"] for line in run.evaluations()] == [10, 12, 16, 20, 22]
    assert run.evaluations() == whole.evaluations()
    assert everything(run) == everything(whole)


# Refusals


def test_imitation_is_refused_online_with_the_reason_and_the_way_out(
    trained: Any, tmp_path: Path, refused: Refused
) -> None:
    run = trained("bc", tmp_path / "run")
    before = sorted(run.path.iterdir())
    message = refused(online, "bc cannot learn online: it imitates", "--dataset", run=run)
    assert "without ever looking at a reward" in message
    assert sorted(run.path.iterdir()) == before


def test_what_cannot_be_meant_is_refused(trained: Any, tmp_path: Path, refused: Refused) -> None:
    run = trained("sac", tmp_path / "run")
    more = further(tmp_path / "more")
    refused(online, "give an environment to act in, or further logs", run=run, dataset=more)
    refused(online, "give an id, or a function that makes", run=run, env=Plant())
    refused(finetune, "environments, noise: for steps in an env", run=run, dataset=more, environments=2, noise=0.2)
    refused(online, "eval_every must be positive, since stop_below looks at", run=run, stop_below=0.0)
    refused(online, "share must be a number from 0 to 1, got 1.5", run=run, share=1.5)
    refused(online, "share_end needs a share", run=run, share_end=0.5)
    refused(online, "updates_per_step must be positive", run=run, updates_per_step=0.0)
    refused(online, "environments must be a whole number from 1", run=run, environments=0)
    refused(online, "has observations (11,)", run=run, env="Hopper-v4")
    refused(finetune, "no run here", run=tmp_path / "nothing")
    assert not run.plan().finetune
    assert not list(run.path.glob("online-*"))


def test_an_unfinished_run_is_refused_with_the_way_to_finish_it(trained: Any, tmp_path: Path, refused: Refused) -> None:
    run = trained("sac", tmp_path / "run")
    run.write_plan(dataclasses.replace(run.plan(), steps=99))
    refused(online, "stands at step 10 of 99", f"mildly train --resume {run.path} --steps 10", run=run)


def test_what_was_begun_keeps_its_settings(trained: Any, tmp_path: Path, refused: Refused) -> None:
    run = online(trained("sac", tmp_path / "run"), steps=4, share=0.5)
    refused(online, "was begun with share 0.5", run=run, share=0.25)
    refused(resume, "was fine-tuned since", f"mildly finetune {run.path}", path=run.path)


def test_an_environment_that_was_given_in_python_must_be_given_again(
    trained: Any, tmp_path: Path, refused: Refused
) -> None:
    run = online(trained("sac", tmp_path / "run"), steps=4)
    assert run.plan().finetune[0].env == "Plant"
    refused(finetune, "'Plant' cannot be made", "mildly.finetune(path, env=...)", run=run, steps=8)


def test_a_run_without_an_environment_says_what_to_give(trained: Any, tmp_path: Path, refused: Refused) -> None:
    data = load_dataset("pendulum-mixed")
    bare = dataclasses.replace(data, meta=dataclasses.replace(data.meta, env_id=None)).save(tmp_path / "bare")
    run = train_tiny("sac", tmp_path / "run", **{**FEW, "dataset": bare})
    refused(finetune, "names no environment to act in", "--env", "--dataset", run=run)
    refused(finetune, "no environment to evaluate in", run=run, dataset=bare, stop_below=0.0, eval_every=2)
    assert not run.plan().finetune


def test_logs_of_other_columns_are_refused(trained: Any, tmp_path: Path, refused: Refused) -> None:
    run = trained("sac", tmp_path / "run")
    refused(finetune, "observations of 11 numbers, but the run was trained on 3", run=run, dataset="hopper-mixed")


def test_what_learns_from_other_than_transitions_is_refused(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    run = trained("sac", tmp_path / "run")
    buffer = Buffer(3, 1, 8, torch.device("cpu"))
    monkeypatch.setattr(ALGORITHMS["sac"], "batches", lambda self, data: Mixture({"a": buffer}, {"a": 1.0}, 8))
    refused(online, "it learns from Mixture, not from single transitions", run=run)


# What algorithms know of rows


def test_what_is_prepared_is_unknown_of_new_transitions_and_known_of_further_logs() -> None:
    data, more = make_dataset(), make_dataset(30, seed=4)
    learner = tiny("cql", calibrated=True, gamma=0.9)
    learner.batches(data)
    known = learner.prepared["returns"].clone()
    sampler = learner.more_batches(more)
    alone = tiny("cql", calibrated=True, gamma=0.9)
    alone.batches(more)
    learner.begin_finetuning()
    assert isinstance(sampler, Transitions)
    torch.testing.assert_close(learner.prepared["returns"][:-1], torch.cat([known, alone.prepared["returns"]]))
    assert learner.prepared["returns"][-1].isnan()
    rows = sampler.sample(torch.Generator().manual_seed(0), 50).rows
    assert 60 <= rows.min() <= rows.max() < 90


def test_a_behavior_model_learns_on_though_it_was_trained_before() -> None:
    for name in ("mcq", "bcq", "bear"):
        learner = tiny(name, **{"behavior.steps": 3, "behavior.cache": True})
        sampler = learner.batches(make_dataset())
        assert learner.behavior.cache is not None
        learner.begin_finetuning()
        learner.update(sampler.sample(torch.Generator().manual_seed(0)))
        assert learner.behavior.updates == 1
        assert learner.behavior.cache is None


def test_iql_goes_on_at_its_full_learning_rate() -> None:
    learner = tiny("iql", decay_steps=2)
    sampler, random = learner.batches(make_dataset()), torch.Generator().manual_seed(0)
    for _ in range(4):
        learner.update(sampler.sample(random))
    assert learner.actor_optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
    learner.begin_finetuning()
    learner.update(sampler.sample(random))
    assert learner.actor_optimizer.param_groups[0]["lr"] == learner.config.actor_lr


@pytest.mark.parametrize("name", ["sac", "td3", "td3-bc"])
def test_the_anchor_is_lifted_where_the_learner_acts_and_stays_with_further_logs(name: str) -> None:
    def actor_loss(weight: float, *, acting: bool) -> torch.Tensor:
        learner = tiny(name, **{"extras.bc_weight": weight})
        sampler = learner.batches(make_dataset())
        learner.begin_finetuning()
        if acting:
            learner.begin_acting()
        batch = sampler.sample(torch.Generator().manual_seed(0))
        drawn = [learner.distribution(batch.observations).rsample(learner.generator)] if name == "sac" else []
        return learner.actor_loss(batch, *drawn)[0].detach()

    free = actor_loss(0.0, acting=False)
    torch.testing.assert_close(actor_loss(0.5, acting=True), free, rtol=0, atol=0)
    assert not torch.isclose(actor_loss(0.5, acting=False), free)


def test_an_anchored_learner_is_told_that_it_acts(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    monkeypatch.setattr(ALGORITHMS["sac"], "begin_acting", lambda self: told.append(self))
    run = trained("sac", tmp_path / "run")
    finetune(run, dataset="pendulum-mixed", steps=5, quiet=True)
    assert not told
    online(run, steps=5)
    assert len(told) == 1


# The command


def test_the_command_goes_on_with_a_run_and_resumes_it(
    trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained("sac", tmp_path / "run")
    args = ["finetune", str(run.path), "--environments", "2", "--eval-every", "10", "--episodes", "1"]
    assert main([*args, "--steps", "10"]) == 0
    out = capsys.readouterr().out
    assert "step 20: mean return" in out
    assert f"next: mildly evaluate {run.path}" in out
    assert main(["finetune", str(run.path), "--steps", "20"]) == 0
    assert [line["step"] for line in run.evaluations()] == [10, 20, 30]
    assert mildly.finetune is finetune


def test_a_model_of_the_environment_is_no_policy_to_go_on_with_or_to_evaluate(
    tmp_path: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = ["model", "fit", "pendulum-mixed", "--preset", "small", "--max-steps", "3", "--out", str(tmp_path / "model")]
    assert main(fit) == 0
    run = Run(tmp_path / "model")
    before = run.plan()
    for options in ({"env": Plant}, {"dataset": "pendulum-mixed"}):
        refused(finetune, "holds a model of the environment (", "no policy to fine-tune", run=run, **options)
    refused(mildly.evaluate, "holds a model of the environment (", run=run)
    assert run.plan() == before
