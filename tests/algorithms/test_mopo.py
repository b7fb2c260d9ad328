"""MOPO: what it rolls out, pays and keeps, what it learns from, and OfflineRL-Kit's own numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from authors import below, differences, recorded
from conftest import Refused, make_batch, make_dataset, same, tiny, tiny_fields, train_tiny, weights
from learners import DATA, starting, with_gradient

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.config import make_config
from mildly.algorithms.mopo import MOPO
from mildly.cli import main
from mildly.data.batches import Mixture
from mildly.dynamics import DynamicsEnsemble, ensemble
from mildly.run import Run
from mildly.training.offline import resume, train


def made(learner: MOPO) -> dict[str, torch.Tensor]:
    """What the model has made so far."""
    assert learner.made is not None
    return {name: column[: len(learner.made)] for name, column in learner.made.columns.items()}


# Rollouts


def test_rewards_of_the_model_are_lowered_by_its_uncertainty(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    rollout = DynamicsEnsemble.rollout

    def watched(*args: Any) -> Iterator[dict[str, torch.Tensor]]:
        for step in rollout(*args):
            seen.append(step)
            yield step

    monkeypatch.setattr(DynamicsEnsemble, "rollout", watched)
    learner = starting("mopo", penalty=2.5, rollout_length=3)
    metrics = learner.update(make_batch())
    kept = made(learner)
    whole = {name: torch.cat([step[name] for step in seen]) for name in seen[0]}
    assert len(seen) == 3
    torch.testing.assert_close(kept["rewards"], whole["rewards"] - 2.5 * whole["uncertainty"])
    for name in ("observations", "actions", "next_observations"):
        assert torch.equal(kept[name], whole[name])
    assert torch.equal(kept["terminated"], whole["terminated"].float())
    torch.testing.assert_close(metrics["uncertainty"], whole["uncertainty"].mean())
    torch.testing.assert_close(metrics["penalty"], 2.5 * whole["uncertainty"].mean())
    torch.testing.assert_close(metrics["model_reward"], whole["rewards"].mean())


def test_rollouts_start_from_states_of_the_data_and_follow_the_policy_on_normalized_ones() -> None:
    learner = starting("mopo", normalize_observations=True, rollout_length=1)
    learner.actor.net[-1].bias.data[2:] = -20.0  # no noise to speak of
    learner.roll_out()
    kept = made(learner)
    logged = {tuple(row) for row in DATA.observations.tolist()}
    assert {tuple(row) for row in kept["observations"].tolist()} <= logged
    mean, std = torch.tensor(DATA.observations.mean(0)), torch.tensor(DATA.observations.std(0) + 1e-3)
    expected = learner.actor.act((kept["observations"] - mean) / std, deterministic=True)
    torch.testing.assert_close(kept["actions"], expected, atol=1e-4, rtol=1e-4)
    assert learner.made.preprocessing is learner.preprocessing


def test_rollouts_come_when_they_are_due() -> None:
    learner = starting("mopo", rollout_every=3, rollout_length=1)
    added = []
    for step in range(7):
        learner.update(make_batch(seed=step))
        added.append(learner.made.added)
    assert added == [20, 20, 20, 40, 40, 40, 60]


def test_the_oldest_rollouts_give_way() -> None:
    """Room for two rollouts of 20 states: the first is gone when the third has come."""
    learner = starting("mopo", rollout_every=1, rollout_length=1, rollouts_kept=2)
    rounds = []
    for step in range(3):
        before = learner.made.added
        learner.update(make_batch(seed=step))
        assert learner.made.added == before + 20
        rows = torch.arange(before, before + 20) % 40
        rounds.append(learner.made.columns["next_observations"][rows].clone())
    kept = {tuple(row) for row in made(learner)["next_observations"].tolist()}
    assert len(learner.made) == 40
    assert kept == {tuple(row) for part in rounds[1:] for row in part.tolist()}


def test_a_batch_has_the_given_share_of_logged_transitions() -> None:
    learner = tiny("mopo", real_share=0.25)
    sampler = learner.batches(DATA)
    assert isinstance(sampler, Mixture)
    assert sampler.counts(12) == {"logged": 12}  # nothing is made yet
    learner.roll_out()
    assert sampler.counts(12) == {"logged": 3, "made": 9}
    batch = sampler.sample(torch.Generator().manual_seed(0))
    logged = {tuple(row) for row in DATA.next_observations.tolist()}
    assert [tuple(row) in logged for row in batch.next_observations.tolist()] == [True] * 3 + [False] * 9
    paper = MOPO(make_config(MOPO, "paper", "", {**tiny_fields(MOPO), "batch_size": 256}), 3, 2)
    sampler = paper.batches(DATA)
    paper.roll_out()
    assert sampler.counts(256) == {"logged": 13, "made": 243}


# Learning


def test_a_main_step_is_that_of_sac_and_leaves_the_model_alone() -> None:
    learner, sac = tiny("mopo", target_entropy=None), tiny("sac")
    sac.load_state_dict({key: value for key, value in learner.state_dict().items() if key in sac.state_dict()})
    before = weights(learner.dynamics.networks, learner.dynamics.best)
    for step in range(3):
        theirs, ours = sac.update(make_batch(seed=step)), learner.update(make_batch(seed=step))
        assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    assert same(weights(sac.actor, sac.critics), weights(learner.actor, learner.critics))
    assert same(before, weights(learner.dynamics.networks, learner.dynamics.best))


def test_no_gradient_of_sac_reaches_the_model_and_none_of_the_model_reaches_sac() -> None:
    learner = starting("mopo")
    learner.update(make_batch())
    assert with_gradient(learner) == {"actor", "critics", "log_alpha"}
    fresh = starting("mopo")
    (phase,) = fresh.phases()
    phase.update(phase.sampler.sample(torch.Generator().manual_seed(0)))
    assert with_gradient(fresh) == {"dynamics.networks"}


def test_the_actors_learning_rate_follows_half_a_cosine() -> None:
    learner, rates = tiny("mopo", decay_steps=4, actor_lr=0.01), []
    for step in range(6):
        learner.update(make_batch(seed=step))
        rates.append(learner.actor_optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.01 * 0.5 * (1 + np.cos(np.pi * min(i / 4, 1))) for i in range(6)])


# Hyperparameters


def test_lengths_and_penalties_are_those_of_the_authors_and_of_the_kit() -> None:
    def values(preset: str, name: str) -> tuple[int, float]:
        config = make_config(MOPO, preset, name, {})
        return config.rollout_length, config.penalty

    assert values("paper", "halfcheetah-medium-v0") == (1, 1.0)
    assert values("paper", "hopper-medium-recollected") == (5, 5.0)
    assert values("paper", "walker2d-medium-expert-v2") == (1, 2.0)
    assert values("kit", "halfcheetah-medium-v2") == (5, 0.5)
    assert values("kit", "walker2d-medium-replay-v2") == (1, 2.5)
    assert values("kit", "mine") == values("paper", "mine") == (5, 1.0)
    assert values("default", "hopper-medium-v2") == (5, 1.0)  # in units of the reward's deviation


def test_the_authors_aim_at_one_entropy_and_the_kit_at_the_actions_dimensions() -> None:
    paper, kit = (make_config(MOPO, preset, "", {}) for preset in ("paper", "kit"))
    assert (paper.target_entropy, kit.target_entropy) == (-3.0, None)
    assert MOPO.steps_of("kit") == kit.decay_steps == 3_000_000


@pytest.mark.parametrize(
    ("field", "value"), [("penalty", -1.0), ("rollout_length", 0), ("real_share", 0.0), ("rollouts_kept", 0)]
)
def test_wrong_values_are_refused(field: str, value: float, refused: Refused) -> None:
    refused(MOPO.Config, field, **{field: value})


def test_there_is_no_anchor_since_it_would_clone_the_policys_own_actions(refused: Refused) -> None:
    fields = {"extras.bc_weight": 0.1}
    refused(make_config, "extras.bc_weight", algorithm=MOPO, preset="default", dataset="", fields=fields)


# A model that is there already


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    fields: dict[str, Any] = {"hidden_dims": (9,), "members": 3, "elites": 2, "max_steps": 30}
    out = tmp_path_factory.mktemp("fitted") / "run"
    return train("dynamics", "pendulum-mixed", preset="small", out=out, steps=30, eval_every=0, quiet=True, **fields)


def test_a_given_model_is_used_as_it_is_and_saves_the_phase(fitted: Run, tmp_path: Path) -> None:
    run = train_tiny("mopo", tmp_path / "run", model=str(fitted.path), steps=20, eval_every=0)
    assert run.metrics("dynamics model") == []
    for name in ("weights.safetensors", "dynamics.json"):
        assert (run.path / "dynamics" / name).read_bytes() == (fitted.path / "dynamics" / name).read_bytes()
    again = train_tiny("mopo", tmp_path / "again", model=str(run.path), steps=20, eval_every=0, penalty=3.0)
    assert (again.path / "dynamics" / "weights.safetensors").is_file()


def test_a_model_of_other_data_is_told_and_one_of_other_sizes_refused(fitted: Run, refused: Refused) -> None:
    kind = ALGORITHMS["mopo"]
    config = make_config(kind, "small", "", {**tiny_fields(kind), "model": str(fitted.path)})
    words = ("3 observations and 1 actions", "5 and 2")
    refused(lambda: kind(config, 5, 2), *words)
    learner = kind(config, 3, 1)
    data = make_dataset()
    learner.batches(type(data).from_arrays(**{**vars_of(data), "actions": data.actions[:, :1]}))
    assert "fitted on other data, 'pendulum-mixed'" in learner.notes[0]


def vars_of(data: Any) -> dict[str, Any]:
    """The columns of a set, and a description without bounds."""
    from mildly.data.dataset import FIELDS, Meta

    return {name: getattr(data, name) for name in FIELDS} | {"meta": Meta("other")}


# OfflineRL-Kit's code, whose results on these inputs were recorded in double precision


@pytest.fixture
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


KIT = {"hidden_dims": (4, 4), "dynamics.hidden_dims": (5, 4), "dynamics.members": 4, "dynamics.elites": 3}


def kit_learner(golden: dict[str, torch.Tensor]) -> MOPO:
    """Ours, with the model that the recorded steps have left."""
    learner = MOPO(make_config(MOPO, "kit", "hopper-medium-v2", {**KIT, "penalty": 2.5, "decay_steps": None}), 11, 3)
    net = learner.dynamics.networks.gaussians
    net.load_state_dict({**net.state_dict(), **below(golden, "model.before.")})
    return learner


@pytest.mark.usefixtures("doubles")
def test_steps_of_the_model_end_with_the_kits_weights_and_elites() -> None:
    golden = recorded("mopo-kit")
    dynamics = kit_learner(golden).dynamics
    net = dynamics.networks.gaussians
    inputs, targets = golden["model.inputs"], golden["model.targets"]
    for step in range(3):
        rows = slice(5 * step, 5 * step + 5)
        loss, _ = net.loss(inputs[:, rows], targets[:, rows], dynamics.config.layer_decays())
        dynamics.optimizer.zero_grad()
        loss.backward()
        dynamics.optimizer.step()
    state = net.state_dict()
    for name, theirs in below(golden, "model.after.").items():
        assert (theirs - golden[f"model.before.{name}"]).abs().max() > 1e-4  # their code has moved it
        torch.testing.assert_close(state[name], theirs, rtol=0, atol=1e-12)
    errors = net.errors(golden["validation.inputs"], golden["validation.targets"])
    torch.testing.assert_close(errors, golden["validation.errors"], rtol=0, atol=1e-12)
    dynamics.errors = errors
    assert dynamics.ensemble().elites.tolist() == golden["elites"].tolist()


@pytest.mark.usefixtures("doubles")
def test_a_rollout_on_recorded_draws_is_the_kits(monkeypatch: pytest.MonkeyPatch) -> None:
    from mildly import actors

    golden = recorded("mopo-kit")
    learner = kit_learner(golden)
    learner.load_state_dict({**learner.state_dict(), **below(golden, "before.")})
    dynamics, net = learner.dynamics, learner.dynamics.networks.gaussians
    net.load_state_dict({**net.state_dict(), **below(golden, "model.after.")})
    net.input_mean.copy_(golden["scaler.mean"])
    net.input_std.copy_(golden["scaler.std"])
    dynamics.errors, dynamics.rule = golden["validation.errors"], "hopper"
    draws = {
        name: iter([golden[f"rollout.draw.{i}.{name}"] for i in range(3)]) for name in ("actor", "elites", "model")
    }
    monkeypatch.setattr(actors, "normal", lambda *_: next(draws["actor"]))
    monkeypatch.setattr(ensemble, "normal", lambda *_: next(draws["model"]))
    monkeypatch.setattr(DynamicsEnsemble, "draw_elites", lambda *_: next(draws["elites"]).long())
    with torch.no_grad():
        steps = list(dynamics.ensemble().rollout(golden["rollout.starts"], learner.explore, 3))
    whole = {name: torch.cat([step[name] for step in steps]) for name in steps[0]}
    assert [len(step["rewards"]) for step in steps] == [5, 4, 4]  # one has fallen
    whole["rewards"] = whole["rewards"] - learner.config.penalty * whole["uncertainty"]
    names = {"obss": "observations", "actions": "actions", "next_obss": "next_observations", "rewards": "rewards"}
    for theirs, ours in names.items():
        expected = golden[f"rollout.{theirs}"]
        torch.testing.assert_close(whole[ours], expected.view_as(whole[ours]), rtol=0, atol=1e-12)
    assert torch.equal(whole["terminated"], golden["rollout.terminals"].view(-1).bool())


@pytest.mark.usefixtures("doubles")
def test_updates_of_the_policy_are_the_kits(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = recorded("mopo-kit")
    learner = kit_learner(golden)
    policy = {key: value for key, value in golden.items() if key.startswith(("before.", "after.", "batch.", "draw."))}
    largest = differences(learner, policy, monkeypatch)
    assert largest.keys() == {"actor", "critics", "target_critics", "log_alpha"}
    assert max(largest.values()) < 1e-12


def test_a_run_with_a_model_named_from_here_goes_on_from_elsewhere(
    fitted: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fitted.path.parent)
    run = train_tiny("mopo", tmp_path / "run", model=fitted.path.name, steps=10, eval_every=0)
    monkeypatch.chdir(tmp_path)
    assert resume(run.path, steps=12, quiet=True).metrics()[-1]["step"] == 12


def test_a_model_is_checked_on_the_episodes_that_its_run_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_tiny("mopo", tmp_path / "run", steps=5, eval_every=0, holdout=0.3)
    assert main(["model", "check", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == len(run.plan().held_out) > 3
