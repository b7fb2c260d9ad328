"""A fitted model: predictions, draws, uncertainty and ends by hand; rollouts; files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Refused, same, weights
from systems import fit, pushed, tiny_learner

import mildly
from mildly.dynamics import DynamicsEnsemble, ensemble, load_dynamics
from mildly.dynamics.termination import RULES, rule_for

DATA = pushed(300)
STATES, ACTIONS = torch.randn(6, 2, generator=torch.Generator().manual_seed(1)), torch.zeros(6, 1)


@pytest.fixture(scope="module")
def model() -> DynamicsEnsemble:
    return fit(tiny_learner(DATA, scale_targets=True, max_steps=60), 60)


def test_a_prediction_is_the_state_plus_its_change_in_the_units_of_the_data(model: DynamicsEnsemble) -> None:
    net = model.networks.gaussians
    mean, log_var = net((torch.cat([STATES, ACTIONS], -1) - net.input_mean) / net.input_std)
    means, stds = model.predict(STATES, ACTIONS)
    assert means.shape == stds.shape == (4, 6, 3)
    torch.testing.assert_close(means[..., :2], STATES + mean[..., :2] * net.target_std[:2] + net.target_mean[:2])
    torch.testing.assert_close(means[..., 2], mean[..., 2] * net.target_std[2] + net.target_mean[2])
    torch.testing.assert_close(stds, log_var.exp().sqrt() * net.target_std)


def test_many_rows_are_predicted_as_each_alone(model: DynamicsEnsemble, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model.predict(STATES, ACTIONS)
    monkeypatch.setattr(ensemble, "_ROWS_AT_ONCE", 4)
    for one, other in zip(whole, model.predict(STATES, ACTIONS), strict=True):
        torch.testing.assert_close(one, other)


def test_every_member_can_be_asked_of_states_of_its_own(model: DynamicsEnsemble) -> None:
    own = torch.stack([STATES + i for i in range(4)])
    means, stds = model.predict(own, ACTIONS.expand(4, -1, -1))
    for i in range(4):
        alone = model.predict(own[i], ACTIONS)
        torch.testing.assert_close(means[i], alone.means[i])
        torch.testing.assert_close(stds[i], alone.stds[i])


def test_uncertainty_is_the_largest_norm_over_all_members_by_hand(model: DynamicsEnsemble) -> None:
    stds = torch.tensor([[[0.3, 0.4, 0.0]], [[0.0, 0.0, 0.2]], [[0.1, 0.1, 0.1]], [[0.0, 1.2, 0.5]]])
    scales = model.networks.gaussians.target_std
    by_hand = max(
        float(scales[2]) * np.sqrt(sum((float(s) / float(scale)) ** 2 for s, scale in zip(row[0], scales, strict=True)))
        for row in stds
    )
    assert model.uncertainty(stds).item() == pytest.approx(by_hand, rel=1e-5)
    plain = fit(tiny_learner(DATA), 1)
    assert plain.uncertainty(stds).item() == pytest.approx(1.3)  # of a member that need not be an elite


def test_a_step_draws_from_an_elite_for_each_state(model: DynamicsEnsemble, monkeypatch: pytest.MonkeyPatch) -> None:
    members = torch.tensor([model.elites[0], model.elites[1]] * 3)
    noise = torch.randn(6, 3)
    monkeypatch.setattr(DynamicsEnsemble, "draw_elites", lambda *_: members)
    monkeypatch.setattr(ensemble, "normal", lambda *_: noise)
    step, (means, stds) = model.step(STATES, ACTIONS), model.predict(STATES, ACTIONS)
    for row, k in enumerate(members.tolist()):
        drawn = means[k, row] + stds[k, row] * noise[row]
        torch.testing.assert_close(step.next_states[row], drawn[:2])
        torch.testing.assert_close(step.rewards[row], drawn[2])
    assert step.terminated.dtype == torch.bool
    torch.testing.assert_close(step.uncertainty, model.uncertainty(stds))


def test_only_elites_are_drawn_and_the_same_generator_draws_the_same(model: DynamicsEnsemble) -> None:
    drawn = model.draw_elites(500, torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == set(model.elites.tolist())
    one, other = (model.step(STATES, ACTIONS, torch.Generator().manual_seed(4)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one.next_states, model.step(STATES, ACTIONS, torch.Generator().manual_seed(5)).next_states)


def test_a_rollout_goes_on_from_its_own_states_until_an_episode_ends(
    model: DynamicsEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = iter([[False, True, False, False, True, False], [False] * 4, [True] * 4])
    monkeypatch.setattr(DynamicsEnsemble, "terminated", lambda *_: torch.tensor(next(ends)))
    steps = list(model.rollout(STATES, lambda states: states[:, :1].tanh(), 9, torch.Generator().manual_seed(0)))
    assert [len(step["rewards"]) for step in steps] == [6, 4, 4]
    assert torch.equal(steps[0]["observations"], STATES)
    assert torch.equal(steps[1]["observations"], steps[0]["next_observations"][[0, 2, 3, 5]])
    assert torch.equal(steps[2]["observations"], steps[1]["next_observations"])
    assert torch.equal(steps[1]["actions"], steps[1]["observations"][:, :1].tanh())
    assert not any(column.requires_grad for step in steps for column in step.values())


# Where episodes end


def hopper(height: float, angle: float, speed: float = 0.0) -> list[float]:
    return [height, angle, *[0.0] * 8, speed]


def test_rules_of_the_robots_by_hand() -> None:
    cases = [(hopper(1.2, 0.0), 0), (hopper(0.69, 0.0), 1), (hopper(1.2, -0.21), 1), (hopper(1.2, 0.0, -101.0), 1)]
    cases.append((hopper(float("nan"), 0.0), 1))
    states, expected = zip(*cases, strict=True)
    assert RULES["hopper"].ends(torch.tensor(states)).tolist() == [bool(end) for end in expected]
    walkers = torch.zeros(4, 17)
    walkers[:, 0] = torch.tensor([1.2, 0.79, 2.01, 1.2])
    walkers[3, 1] = 1.1
    assert RULES["walker2d"].ends(walkers).tolist() == [False, True, True, True]
    assert RULES["halfcheetah"].ends(torch.tensor([[0.0] * 17, [99.0] * 17, [101.0] * 17])).tolist() == [0, 0, 1]
    assert RULES["ant"].ends(torch.tensor([[0.2] * 27, [0.1] * 27, [1.1] * 27])).tolist() == [0, 1, 1]
    assert RULES["humanoid"].ends(torch.tensor([[1.4] * 348, [0.9] * 348])).tolist() == [0, 1]
    assert RULES["invertedpendulum"].ends(torch.tensor([[0.0, 0.2, 0, 0], [0.0, 0.21, 0, 0]])).tolist() == [0, 1]
    assert not RULES["pendulum"].ends(torch.randn(5, 3)).any()


@pytest.mark.parametrize(
    ("env_id", "size", "terminal", "rule"),
    [
        ("Hopper-v4", 11, True, "hopper"),
        ("Hopper-v5", 11, False, "hopper"),
        ("Hopper-v4", 7, True, "learned"),  # columns were left out: the rule would look at others
        ("Pendulum-v1", 3, False, "pendulum"),
        ("d4rl/maze2d-umaze-v1", 4, True, "never"),
        ("mine:Plant-v0", 5, True, "learned"),
        (None, 5, True, "learned"),
        (None, 5, False, "never"),
    ],
)
def test_the_rule_follows_from_the_environment_or_the_data(
    env_id: str | None, size: int, terminal: bool, rule: str
) -> None:
    data = DATA
    arrays = {
        "observations": np.zeros((4, size)),
        "actions": np.zeros((4, 1)),
        "rewards": np.zeros(4),
        "next_observations": np.ones((4, size)),
        "terminated": np.array([False, terminal, False, False]),
        "truncated": np.zeros(4, bool),
    }
    made = type(data).from_arrays(**arrays, meta=dataclasses.replace(data.meta, env_id=env_id))
    assert rule_for(made) == rule


@pytest.mark.parametrize(("env_id", "rule"), [("Hopper-v4", "hopper"), ("Walker2d-v4", "walker2d")])
def test_rules_agree_with_the_environment(env_id: str, rule: str) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("mujoco")
    env = gymnasium.make(env_id)
    env.action_space.seed(0)
    states, ends = [], []
    for episode in range(4):
        env.reset(seed=episode)
        ended = False
        while not ended:
            state, _, ended, truncated, _ = env.step(env.action_space.sample())
            states.append(state)
            ends.append(ended)
            ended = ended or truncated
    told = RULES[rule].ends(torch.tensor(np.array(states)))
    assert told.tolist() == ends
    assert any(ends)


# Files


def test_a_saved_model_predicts_the_same_to_the_bit(model: DynamicsEnsemble, tmp_path: Path) -> None:
    model.save(tmp_path / "dynamics")
    for folder in (tmp_path, tmp_path / "dynamics"):  # a run's folder, or its own
        loaded = load_dynamics(folder)
        assert same(weights(model.networks), weights(loaded.networks))
        assert torch.equal(loaded.elites, model.elites)
        assert torch.equal(loaded.held_out_errors, model.held_out_errors)
        assert (loaded.rule, loaded.config, loaded.meta) == (model.rule, model.config, model.meta)
        one, other = (m.step(STATES, ACTIONS, torch.Generator().manual_seed(0)) for m in (model, loaded))
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert mildly.load_dynamics is load_dynamics


def test_a_folder_without_a_sound_model_is_told(model: DynamicsEnsemble, tmp_path: Path, refused: Refused) -> None:
    refused(load_dynamics, "no dynamics model here", "mildly model fit", folder=tmp_path)
    folder = model.save(tmp_path / "dynamics")
    path = folder / "dynamics.json"
    sound = json.loads(path.read_text())
    sound.pop("digest", None)
    for change, words in (
        ({"format": 9}, "format 9"),
        ({"rule": "sometimes"}, "sometimes"),
        ({"elites": [0, 4]}, "elites"),
        ({"spec": {**sound["spec"], "members": 5}}, "shapes"),
        ({"weights_sha256": ["0"]}, "is not the file"),
    ):
        path.write_text(json.dumps({**sound, **change}))
        refused(load_dynamics, words, folder=folder)
