"""Rollouts in a model: hand-made linear models whose values are known in closed form, and models that are learned."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from logs import periods

from mildly.data.dataset import Dataset, Meta
from mildly.dynamics import DynamicsEnsemble
from mildly.dynamics.ensemble import DynamicsNetworks
from mildly.dynamics.termination import LEARNED, NEVER
from mildly.ope.estimators import Problem, estimate
from mildly.ope.importance import horizon
from mildly.ope.rollouts import model_config, roll_out
from mildly.ope.settings import Settings

GAMMA = 0.9
STEPS = horizon(GAMMA)
SETTINGS = Settings(steps=600, hidden_dims=(32, 32), replications=200)


class Feedback:
    """a = gain s + aim, without noise or as one of two draws."""

    density = "none"

    def __init__(self, gain: float = 0.0, aim: float = 0.0, draws: tuple[float, ...] = (0.0,)) -> None:
        self.gain, self.aim, self.draws = gain, aim, np.array(draws, np.float32)

    def actions(self, observations, seed):
        return (self.gain * observations + self.aim)[:, None] + self.draws[:, None]

    def log_prob(self, observations, actions):
        raise NotImplementedError


def linear(slopes, reward=(1.0, 0.0, 0.0), rule=NEVER, log_var=-60.0, chance=0.0):
    """Members s' = slope s + 0.5 a with rewards reward[0] s + reward[1] a + reward[2]; no hidden layer is needed."""
    networks = DynamicsNetworks(1, 1, (), len(slopes))
    net = networks.gaussians
    with torch.no_grad():
        net.min_log_var.fill_(-200.0)
        net.max_log_var.fill_(200.0)
        for k, slope in enumerate(slopes):  # of (s, a), columns: change, reward, log variances
            net.weights[0][k] = torch.tensor([[slope - 1, reward[0], 0, 0], [0.5, reward[1], 0, 0]])
            net.biases[0][k, 0] = torch.tensor([0, reward[2], log_var, -60.0])
        for parameter in networks.ends.parameters():
            parameter.zero_()
        if chance:
            networks.ends[-1].bias.fill_(math.log(chance / (1 - chance)))
    members = len(slopes)
    return DynamicsEnsemble(networks, torch.arange(members), torch.zeros(members), rule, Meta(""))


def starts(values=(0.2, -0.6, 1.0), low=-2.0, high=2.0):
    """A log whose episodes begin at given places, and whose states and rewards reach from low to high."""
    pairs = [[value, end] for value, end in zip(values, [low, high] * len(values), strict=False)]
    observations = np.array(pairs).reshape(-1, 1)
    cut = np.arange(len(observations)) % 2 == 1
    return Dataset.from_arrays(
        observations, np.zeros_like(observations), observations[:, 0], observations, np.zeros_like(cut), cut,
        meta=Meta("starts"),
    )  # fmt: skip


def closed_form(start, slope, steps=STEPS):
    """Rewards s: the geometric sum of (gamma slope)^t, completed for what comes behind the horizon."""
    ratio = GAMMA * slope
    return start * (1 - ratio**steps) / (1 - ratio) / (1 - GAMMA**steps)


def test_every_member_s_value_of_every_start_is_the_one_in_closed_form():
    """a = -0.4 s makes s' = (slope - 0.2) s."""
    found = roll_out(linear([0.9, 0.6, 0.2]), Feedback(-0.4), starts(), GAMMA, seed=0)
    expected = [[closed_form(start, slope - 0.2) for start in (0.2, -0.6, 1.0)] for slope in (0.9, 0.6, 0.2)]
    assert found.values == pytest.approx(np.array(expected), rel=1e-4)
    assert found.left == 0


def test_noise_of_the_model_averages_out():
    noisy = roll_out(linear([0.7], log_var=math.log(0.1**2)), Feedback(), starts(), GAMMA, seed=0)
    exact = [closed_form(start, 0.7) for start in (0.2, -0.6, 1.0)]
    assert noisy.values[0] == pytest.approx(exact, abs=0.2)  # 67 rollouts of standard deviation about 0.5 each
    assert not np.allclose(noisy.values[0], exact, atol=1e-4)


def test_an_episode_that_ends_earns_nothing_more():
    """With a reward of 1 and a chance p of an end after each step, V = 1 / (1 - gamma (1 - p))."""
    reward = (0.0, 0.0, 1.0)
    found = roll_out(linear([0.5] * 20, reward, LEARNED, chance=0.25), Feedback(), starts(), GAMMA, seed=0)
    assert found.values.mean() == pytest.approx(1 / (1 - GAMMA * 0.75), abs=0.1)
    endless = roll_out(linear([0.5], reward), Feedback(), starts(), GAMMA, seed=0)
    assert endless.values == pytest.approx(1 / (1 - GAMMA))


def test_draws_of_a_stochastic_policy_count_as_often_as_they_are_drawn():
    policy = Feedback(draws=(1.0, 1.0, 1.0, -1.0))
    found = roll_out(linear([0.0] * 20, (0.0, 1.0, 0.0)), policy, starts(), GAMMA, seed=0)
    assert found.values.mean() == pytest.approx(0.5 / (1 - GAMMA), abs=0.1)


def test_a_model_that_runs_away_is_held_at_the_data_s_range_and_doubted(tmp_path):
    data = starts((0.5, 0.6, 0.7))
    made = Problem(Feedback(), data, GAMMA, SETTINGS, tmp_path, print)
    vars(made)["model"] = linear([2.0, 2.0])
    found = estimate("model", made)
    assert found.facts["left the data's range"] == 1
    assert found.doubts == ("100 % of the rollouts leave what the data have seen",)
    assert found.value < 2.0 / (1 - GAMMA)  # the highest reward of the data, at every step


def test_the_interval_reaches_from_member_to_member_and_over_the_starts(tmp_path):
    made = Problem(Feedback(), starts((0.5, 0.6, 0.7)), GAMMA, SETTINGS, tmp_path, print)
    slopes = (0.1, 0.5, 0.6)
    vars(made)["model"] = linear(slopes)
    found = estimate("model", made)
    of_members = [closed_form(0.6, slope) for slope in slopes]
    assert found.value == pytest.approx(np.mean(of_members), rel=1e-4)
    assert found.facts["spread of members"] == pytest.approx(np.std(of_members, ddof=1), rel=1e-4)
    assert closed_form(0.5, 0.1) * 0.999 <= found.low < of_members[0]
    assert of_members[2] < found.high <= closed_form(0.7, 0.6) * 1.001
    assert not found.doubts


def test_of_many_episodes_some_starts_are_enough_and_few_are_used_several_times():
    model = linear([0.5], (0.0, 0.0, 1.0), LEARNED, chance=0.5)
    many = roll_out(model, Feedback(), starts(tuple(np.linspace(-1, 1, 500))), GAMMA, seed=0)
    assert many.values.shape == (1, 200)
    assert len(set(many.episodes.tolist())) == 200
    few = roll_out(model, Feedback(), starts(), GAMMA, seed=0)
    assert few.values.shape == (1, 3)
    assert np.abs(few.values * 67 - np.round(few.values * 67)).max() > 1e-3  # means of several lengths of episodes


def test_a_fit_on_small_data_does_not_end_for_a_few_steps_without_progress():
    assert model_config(256, (8,), 100).patience == 1000
    assert model_config(1_000_000, (8,), 100).patience == 5


# Learned


def test_a_learned_model_knows_the_value_in_a_linear_system(tmp_path):
    """x' = 0.7 x + 0.5 a + noise and r = x: from E x_0 = 0, a constant action c is worth c gamma / 2 / (...)."""
    gamma, action = 0.8, 0.4
    truth = sum(gamma**t * 0.5 * action * (1 - 0.7**t) / 0.3 for t in range(200))
    data = periods()
    made = Problem(Feedback(aim=action), data, gamma, SETTINGS, tmp_path, lambda text: None)
    found = estimate("model", made)
    from_starts = data.observations[::15].mean() / (1 - 0.7 * gamma)  # the log's starts are not 0 on average
    assert found.value == pytest.approx(truth + from_starts, abs=0.1)
    assert found.low < truth + from_starts < found.high
    again = Problem(Feedback(aim=action), data, gamma, SETTINGS, tmp_path, pytest.fail)
    assert estimate("model", again) == found  # what was fitted is kept


def test_ends_are_learned_where_no_rule_is_known(tmp_path):
    """A point moves by 0.1 + 0.1 a; its episode ends beyond 1, and every step earns 1: slower is better."""
    random = np.random.default_rng(0)
    rows = []
    for _ in range(150):
        x, over = random.uniform(0, 0.3), False
        while not over:
            action = random.uniform(-0.8, 1)
            following = x + 0.1 + 0.1 * action
            over = following > 1
            rows.append((x, action, 1.0, following, over))
            x = following
    x, action, reward, following, over = (np.array(column) for column in zip(*rows, strict=True))
    data = Dataset.from_arrays(
        x[:, None], action[:, None], reward, following[:, None], over, np.zeros_like(over), meta=Meta("moves")
    )
    made = Problem(Feedback(aim=0.5), data, GAMMA, SETTINGS, tmp_path, lambda text: None)
    begin = np.array([data.observations[episode.start, 0] for episode in data.episodes()])
    for speed in (0.5, -0.5):
        made = made.for_policy(Feedback(aim=speed), tmp_path / str(speed), "")
        lengths = np.floor((1 - begin) / (0.1 + 0.1 * speed)) + 1
        truth = ((1 - GAMMA**lengths) / (1 - GAMMA)).mean()
        assert estimate("model", made).value == pytest.approx(truth, rel=0.08)
    assert not (tmp_path / "-0.5").exists()  # one model for all policies
