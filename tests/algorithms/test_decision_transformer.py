"""The Decision Transformer: its loss, its learning rate, what it aims at, its policy in Python and as a command."""

from __future__ import annotations

import copy
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, TRANSFORMER, Refused, make_dataset, make_windows, tiny, train_tiny, unsealed

import mildly
from mildly.algorithms.config import make_config
from mildly.algorithms.decision_transformer import DecisionTransformer, target_and_scale
from mildly.cli import main
from mildly.collect.make_set import make_set, policy_parts
from mildly.collect.rollouts import describe
from mildly.data.batches import WindowBatch
from mildly.data.dataset import Dataset, Meta
from mildly.errors import MildlyError
from mildly.policy import load_policy
from mildly.testing import check_algorithm
from mildly.transformer import DecisionTransformerActor

NAME = "decision-transformer"


def learner_of(**fields: Any) -> DecisionTransformer:
    """A tiny one without dropout, whose weights are all large enough to matter."""
    made: DecisionTransformer = tiny(NAME, **{"dropout": 0.0, **fields})
    random = torch.Generator().manual_seed(4)
    for parameter in made.actor.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=random))
    return made


# The loss


def test_the_loss_is_the_mean_squared_error_of_the_steps_that_there_are() -> None:
    dt, batch = learner_of(), make_windows(seed=2)
    assert 0 < batch.mask.mean() < 1
    total, count = 0.0, 0
    for i in range(len(batch.mask)):
        there = int(batch.mask[i].sum())
        one = [column[i : i + 1, :there] for column in (batch.observations, batch.actions, batch.returns_to_go)]
        predicted = dt.actor(*one, batch.timesteps[i : i + 1, :there])  # a window without any padding
        for t in range(there):
            for k in range(ACTIONS):
                total += (predicted[0, t, k].item() - batch.actions[i, t, k].item()) ** 2
                count += 1
    assert dt.actor_loss(batch).item() == pytest.approx(total / count, rel=1e-5)


def test_no_gradient_reaches_padding_the_last_action_or_timesteps_that_no_step_has() -> None:
    dt, batch = learner_of(), make_windows(seed=2)
    columns = {
        name: getattr(batch, name).clone().requires_grad_() for name in ("observations", "actions", "returns_to_go")
    }
    dt.actor_loss(batch._replace(**columns)).backward()
    padding = batch.mask == 0
    for name, column in columns.items():
        assert column.grad is not None
        reached = column.grad.flatten(2).abs().sum(-1) > 0 if column.ndim == 3 else column.grad != 0
        assert torch.equal(reached, ~padding), name
    known = batch.timesteps[batch.mask > 0].unique()
    rows = dt.actor.embed_timestep.weight.grad
    assert rows is not None
    assert torch.equal(rows.abs().sum(-1).nonzero().flatten(), known)
    last = batch._replace(actions=columns["actions"].detach().clone().requires_grad_())
    only = last.mask.sum(-1) == 1
    predicted = dt.actor(last.observations, last.actions, last.returns_to_go, last.timesteps)
    predicted[only, 0].sum().backward()
    assert last.actions.grad is not None
    assert not last.actions.grad.any()  # a step's own action is no part of what it is predicted from


def test_updates_are_those_of_a_slow_loop_with_torch_s_own_parts() -> None:
    """Warm-up, weight decay and clipping, by torch's AdamW, LambdaLR and clip_grad_norm_ on a copy."""
    fields = {"lr_warmup_steps": 3, "actor_lr": 0.02, "weight_decay": 0.1, "max_gradient_norm": 0.05}
    dt = learner_of(**fields)
    other = copy.deepcopy(dt.actor)
    adam = torch.optim.AdamW(other.parameters(), lr=0.02, weight_decay=0.1)
    rate = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: min((step + 1) / 3, 1))
    rates = []
    for step in range(5):
        batch = make_windows(seed=step)
        predicted = other(batch.observations, batch.actions, batch.returns_to_go, batch.timesteps)
        there = batch.mask.bool()
        loss = (predicted[there] - batch.actions[there]).square().mean()
        adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.05)
        adam.step()
        rate.step()
        metrics = dt.update(batch)
        rates.append(dt.actor_optimizer.param_groups[0]["lr"])
        assert metrics["loss_actor"].item() == pytest.approx(loss.item(), rel=1e-5)
        assert metrics["gradient_norm"].item() == pytest.approx(norm.item(), rel=1e-4)
        assert norm > 0.05
    assert rates == pytest.approx([0.02 / 3, 0.04 / 3, 0.02, 0.02, 0.02])
    for (name, ours), theirs in zip(dt.actor.named_parameters(), other.parameters(), strict=True):
        if (
            not name.endswith("attention.bias") or "norm" in name
        ):  # attention does not depend on a key's offset: rounding alone moves it
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5, msg=name)


def test_the_learning_rate_goes_on_where_a_checkpoint_stands() -> None:
    one = tiny(NAME, lr_warmup_steps=10)
    for step in range(4):
        one.update(make_windows(seed=step))
    other = tiny(NAME, seed=1, lr_warmup_steps=10)
    other.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    for dt in (one, other):
        dt.update(make_windows(seed=9))
    assert other.actor_optimizer.param_groups[0]["lr"] == one.actor_optimizer.param_groups[0]["lr"] == 0.5 * 1e-2
    assert all(torch.equal(a, b) for a, b in zip(one.actor.parameters(), other.actor.parameters(), strict=True))


def test_dropout_is_for_training_alone() -> None:
    dt, batch = learner_of(dropout=0.5, actor_lr=1e-12), make_windows()
    losses = {round(dt.update(batch)["loss_actor"].item(), 6) for _ in range(4)}
    assert len(losses) == 4
    assert dt.actor_loss(batch).item() == dt.actor_loss(batch).item()


# What it aims at


def returns_of(*episodes: list[float]) -> Dataset:
    rewards = np.concatenate([np.array(episode) for episode in episodes])
    ends = np.cumsum([len(episode) for episode in episodes]) - 1
    rows = len(rewards)
    return Dataset.from_arrays(
        observations=np.ones((rows, OBSERVATIONS)),
        actions=np.zeros((rows, ACTIONS)),
        rewards=rewards,
        next_observations=np.ones((rows, OBSERVATIONS)),
        terminated=np.zeros(rows, bool),
        truncated=np.isin(np.arange(rows), ends),
        meta=Meta("some"),
    )


def test_without_a_word_the_target_is_the_best_return_of_the_data_and_the_largest_is_scaled_to_10() -> None:
    data, default = returns_of([-3.0, -4.0], [-1.0, -1.0, 0.5], [-2.0]), DecisionTransformer.Config()
    assert target_and_scale(data, default) == (-1.5, 0.7)
    told = dataclasses.replace(default, target_return=9.0, return_scale=100.0)
    assert target_and_scale(data, told) == (9.0, 100.0)
    assert target_and_scale(returns_of([0.0, 0.0]), default) == (0.0, 1.0)
    dt = tiny(NAME)
    dt.batches(data)
    assert dt.policy().target_return == -1.5
    assert dt.actor.spec["return_scale"] == 0.7


@pytest.mark.parametrize(
    ("preset", "name", "expected"),
    [
        ("paper", "hopper-medium-v2", (3600.0, 1000.0)),
        ("paper", "halfcheetah-medium-expert-recollected", (12_000.0, 1000.0)),
        ("corl", "walker2d-medium-replay-v2", (5000.0, 1000.0)),
        ("corl", "pen-human-v1", (3100.0, 1.0)),
        ("paper", "pen-human-v1", (None, None)),
        ("default", "hopper-medium-v2", (None, None)),
        ("paper", "log-of-mine", (None, None)),
    ],
)
def test_published_targets_are_those_of_their_presets(preset: str, name: str, expected: tuple[Any, Any]) -> None:
    config = make_config(DecisionTransformer, preset, name, {})
    assert (config.target_return, config.return_scale) == expected


def test_presets_have_the_published_values() -> None:
    paper = make_config(DecisionTransformer, "paper", "hopper-medium-v2", {})
    assert (paper.context, paper.width, paper.layers, paper.heads, paper.dropout) == (20, 128, 3, 1, 0.1)
    assert (paper.batch_size, paper.actor_lr, paper.lr_warmup_steps) == (64, 1e-4, 10_000)
    assert (paper.weight_decay, paper.max_gradient_norm, paper.activation) == (1e-4, 0.25, "relu")
    assert paper.max_timesteps == 1000
    corl = make_config(DecisionTransformer, "corl", "hopper-medium-v2", {})
    same = {"batch_size": 64, "actor_lr": 1e-4, "activation": "relu", "timestep_std": 1.0}
    assert (corl.batch_size, corl.actor_lr, corl.activation, corl.timestep_std) == (4096, 8e-4, "gelu", 0.02)
    assert dataclasses.replace(corl, **same) == paper
    assert DecisionTransformer.steps_of("paper") == DecisionTransformer.steps_of("corl") == 100_000


def test_timesteps_start_at_the_spread_that_is_asked_for_and_nothing_else_changes() -> None:
    one, other = (tiny(NAME, timestep_std=std, max_timesteps=1000).actor.state_dict() for std in (1.0, 0.02))
    embeddings = one.pop("embed_timestep.weight"), other.pop("embed_timestep.weight")
    assert embeddings[0].std().item() == pytest.approx(1.0, abs=0.05)
    torch.testing.assert_close(embeddings[1], 0.02 * embeddings[0])
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_windows_are_drawn_from_the_data_with_the_context_s_length_and_normalized() -> None:
    dt, data = tiny(NAME, context=7), make_dataset()
    batch = dt.batches(data).sample(torch.Generator().manual_seed(0))
    assert isinstance(batch, WindowBatch)
    assert batch.observations.shape == (12, 7, OBSERVATIONS)
    there = batch.mask.bool()
    assert not there.all()
    normalized = (data.observations - data.observations.mean(0)) / (data.observations.std(0) + 1e-3)
    first = np.abs(normalized[:, None] - batch.observations[:, 0].numpy()).sum(-1).argmin(0)
    rewards = data.rewards.reshape(6, 10)
    for i, row in enumerate(first):
        assert batch.returns_to_go[i, 0].item() == pytest.approx(rewards[row // 10, row % 10 :].sum(), abs=1e-4)
        assert batch.timesteps[i, 0] == row % 10
    assert dt.preprocessing.reward_scale == 1.0


def test_episodes_longer_than_the_known_timesteps_are_told() -> None:
    dt = tiny(NAME, max_timesteps=5)
    dt.batches(make_dataset())
    assert dt.notes == ("episodes have up to 10 steps, timesteps end at 5 (--max-timesteps)",)
    dt = tiny(NAME, max_timesteps=10)
    dt.batches(make_dataset())
    assert dt.notes == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 3}, "heads must be a divisor of width 8, got 3."),
        ({"context": 31}, "context must be at most max_timesteps 30, got 31."),
        ({"context": 0}, "context must be at least 1, got 0."),
        ({"layers": 65}, "width and layers must be at most 64 widths, got 65."),
        ({"layers": 10**15}, "width and layers must be at most 64 widths, got 100000."),
        ({"dropout": 1.0}, "dropout must be in [0, 1), got 1.0."),
        ({"return_scale": 0.0}, "return_scale must be positive, got 0.0."),
        ({"max_timesteps": 10**9}, "max_timesteps must be at most 100,000, got 1000000000."),
        ({"max_gradient_norm": 0.0}, "max_gradient_norm must be positive, got 0.0."),
        ({"timestep_std": 0.0}, "timestep_std must be positive, got 0.0."),
    ],
)
def test_values_out_of_range_are_errors_that_name_the_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(MildlyError) as caught:
        tiny(NAME, **fields)
    assert str(caught.value) == message


# The policy


def test_it_passes_what_authors_of_algorithms_are_given(tmp_path: Path) -> None:
    check_algorithm(NAME, tmp_path, **TRANSFORMER)


def test_its_policy_collects_data(tmp_path: Path) -> None:
    run = train_tiny(NAME, tmp_path / "run", steps=20, eval_every=0)
    parts = policy_parts([str(run.path)], "Pendulum-v1", 250, deterministic=True)
    made = make_set(tmp_path / "set", "Pendulum-v1", parts, describe("made", "Pendulum-v1"), environments=2)
    assert (len(made), len(made.episodes())) == (250, 2)


def test_a_loaded_policy_knows_its_target_and_acts_as_the_learner_did(tmp_path: Path) -> None:
    run = train_tiny(NAME, tmp_path / "run", steps=60, eval_every=60)
    policy, data = load_policy(run.path), mildly.load_dataset("pendulum-mixed")
    assert policy.target_return == pytest.approx(data.episode_returns().max())
    (line,) = run.evaluations()
    assert line["target_return"] == policy.target_return
    assert mildly.evaluate(run, episodes=1).returns == line["returns"]
    with pytest.raises(MildlyError, match=r"remembers its episode.*start\(\) it"):
        policy.act(data.observations[0])
    here = data.observations[:1]
    one, other = policy.start(1), policy.start(1, target_return=-1500.0)
    assert not np.array_equal(one.act(here), other.act(here))
    one.observe(np.array([-3.0]))
    assert one.memory.to_go.item() == pytest.approx(policy.target_return + 3.0)  # type: ignore[union-attr]


def test_several_targets_are_evaluated_in_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_tiny(NAME, tmp_path / "run", steps=60, eval_every=0)
    capsys.readouterr()
    given = ["evaluate", str(run.path), "--episodes", "2"]
    targets = ["--target-return", "-150", "-1500.5"]
    assert main([*given, *targets]) == 0
    out, err = capsys.readouterr()
    assert "4/4 episodes" in err
    rows = [line.split() for line in out.splitlines() if line.split() and line.split()[0].startswith("-1")]
    assert [row[0] for row in rows] == ["-150.0", "-1500.5"]
    assert main([*given, *targets, "--json"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["target_return"] for result in results] == [-150.0, -1500.5]
    assert results[0]["returns"] != results[1]["returns"]
    for row, result, target in zip(rows, results, (-150.0, -1500.5), strict=True):
        assert row[1] == f"{result['mean_return']:.1f}"
        assert result["returns"] == mildly.evaluate(run, episodes=2, target_return=target).returns
    assert main(given) == 0
    own = load_policy(run.path).target_return
    assert f"aiming at {own:.1f}: mean return" in capsys.readouterr().out


def test_a_target_for_a_policy_that_aims_at_none_is_refused(tmp_path: Path, refused: Refused) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=20, eval_every=0)
    told = refused.command("evaluate", str(run.path), "--target-return", "5")
    assert "this policy knows no target_return" in told
    dt = train_tiny(NAME, tmp_path / "dt", steps=20, eval_every=0)
    assert "target_return must be a finite number" in refused.command(
        "evaluate", str(dt.path), "--target-return", "nan"
    )


@pytest.mark.parametrize(
    "change", [{"layers": 10**9}, {"width": 10**9}, {"context": 10**9}, {"return_scale": float("nan")}, {"heads": 3}]
)
def test_a_policy_file_with_absurd_sizes_is_damaged(change: dict[str, Any], tmp_path: Path) -> None:
    dt = tiny(NAME)
    folder = dt.policy().save(tmp_path / "policy")
    load_policy(folder)
    description = unsealed(folder / "policy.json")
    description["spec"] |= change
    (folder / "policy.json").write_text(json.dumps(description))
    with pytest.raises(MildlyError, match="the policy is damaged"):
        load_policy(folder)


# Cost


@pytest.mark.slow
def test_acting_at_the_paper_s_size_takes_at_most_3_ms_a_step_on_one_core() -> None:
    """Processor time, so that a busy machine does not matter; with full windows, the slower half of acting."""
    actor = DecisionTransformerActor(17, 6, target_return=5000.0, return_scale=1000.0).requires_grad_(False)
    with torch.inference_mode():
        memory, observations, spent = actor.start(1), torch.randn(1, 17), []
        for _ in range(220):
            start = time.process_time()
            memory.act(observations, [0], True, None)
            memory.observe(torch.ones(1), [0])
            spent.append(time.process_time() - start)
    assert statistics.median(spent[20:]) < 3e-3
