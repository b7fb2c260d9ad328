"""Training of a dynamics model: when it ends, what it keeps, what it learns, and what gradients reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import same, weights
from systems import NOISE, fit, pushed, tiny_learner

from mildly.data.batches import Batch
from mildly.dynamics import DynamicsLearner

DATA = pushed(200)


def scripted(learner: DynamicsLearner, errors: list[list[float]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the held-out errors be these, the first before any step, then one after every epoch."""
    script = iter(errors)
    monkeypatch.setattr(learner, "error_on", lambda batch: torch.tensor(next(script)))


def member(net: Any, k: int) -> list[torch.Tensor]:
    return [parameter[k].detach().clone() for parameter in (*net.weights, *net.biases)]


def test_training_ends_when_no_member_improves_and_keeps_the_best_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: a member counts as better when its error falls by more than 1 % below its best."""
    learner = tiny_learner(DATA, patience=2)
    history = [
        [9.0, 9.0, 9.0, 9.0],
        [1.0, 2.0, 3.0, 4.0],  # all are better than nothing
        [0.991, 1.9, 3.0, 4.0],  # the first by too little, the second by enough
        [0.995, 2.0, 3.0, 3.97],  # nobody
        [0.98, 1.89, 3.1, 4.1],  # the first, against its best of 1.0
        [0.98, 1.89, 3.1, 4.1],
        [0.98, 1.89, 2.98, 4.1],  # nobody for the second time
    ]
    scripted(learner, history, monkeypatch)
    random, kept, ended = torch.Generator().manual_seed(0), [], []
    assert learner.sampler is not None
    for step in range(1, 6 * learner.steps_per_epoch + 1):
        learner.update(learner.sampler.sample(random))
        ended.append(learner.finished())
        if step % learner.steps_per_epoch == 0:
            kept.append([member(learner.networks.gaussians, k) for k in range(4)])
    assert ended.index(True) == len(ended) - 1
    torch.testing.assert_close(learner.best_errors, torch.tensor([0.98, 1.9, 3.0, 4.0]))
    for k, epoch in enumerate((3, 1, 0, 0)):
        assert same(member(learner.best.gaussians, k), kept[epoch][k])
    assert torch.equal(learner.best.gaussians.max_log_var, learner.networks.gaussians.max_log_var)  # of the last
    assert learner.ensemble().elites.tolist() == [0, 1]


def test_elites_are_the_members_with_the_lowest_errors() -> None:
    learner = tiny_learner(elites=3)
    learner.errors = torch.tensor([0.4, 0.1, 0.3, 0.2])
    assert learner.ensemble().elites.tolist() == [1, 3, 2]


def test_before_an_epoch_is_over_the_model_is_what_was_learned_so_far() -> None:
    learner = tiny_learner(DATA)
    assert learner.steps_per_epoch > 3
    assert same(weights(fit(learner, 3).networks), weights(learner.networks))
    model = fit(learner, learner.steps_per_epoch - 2)
    assert same(weights(model.networks), weights(learner.best))
    assert not same(weights(model.networks), weights(learner.networks))


def test_inputs_are_standardized_with_the_rows_that_are_learned_from_and_targets_if_asked_for() -> None:
    plain, scaled = (fit(tiny_learner(DATA, scale_targets=scale, max_steps=1), 1) for scale in (False, True))
    for model in (plain, scaled):
        net = model.networks.gaussians
        assert net.input_mean.any()
    assert (plain.networks.gaussians.target_std == 1).all()
    change = DATA.next_observations - DATA.observations
    np.testing.assert_allclose(scaled.networks.gaussians.target_std[:2], change.std(0), rtol=0.2)


def test_it_learns_a_noisy_system_and_how_noisy_it_is() -> None:
    learner = tiny_learner(pushed(2000), hidden_dims=(32,), batch_size=64, lr=3e-3, scale_targets=True, max_steps=300)
    model = fit(learner, 300)
    other = pushed(400, seed=5)
    states, actions = torch.from_numpy(other.observations.copy()), torch.from_numpy(other.actions.copy())
    means, stds = model.predict(states, actions)
    truth = np.stack([states[:, 0] + 0.1 * states[:, 1], 0.9 * states[:, 1] + 0.5 * actions[:, 0]], axis=1)
    error = np.abs(means[model.elites].mean(0)[:, :2].numpy() - truth).mean()
    assert error < 0.4 * NOISE
    np.testing.assert_allclose(stds[..., :2].mean(dim=(0, 1)), NOISE, rtol=0.4)


def test_ends_are_learned_where_no_rule_is_known() -> None:
    data = pushed(2000, ends=True)
    learner = tiny_learner(data, batch_size=64, lr=5e-3, max_steps=200)
    assert learner.rule == "learned"
    networks = fit(learner, 200).networks
    states, actions = torch.from_numpy(data.observations.copy()), torch.from_numpy(data.actions.copy())
    chance = networks.end_logits(states, actions).sigmoid().numpy()
    assert chance[data.terminated].mean() > 5 * chance[~data.terminated].mean()
    rate, ends = data.terminated.mean(), data.terminated
    constant = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert -np.log(np.where(ends, chance, 1 - chance)).mean() < 0.7 * constant


def test_a_known_rule_leaves_nothing_to_learn_of_ends() -> None:
    learner = tiny_learner(pushed(100))
    assert learner.rule == "never"
    before = weights(learner.networks.ends)
    fit(learner, 3)
    assert same(before, weights(learner.networks.ends))


def test_each_loss_reaches_its_own_networks_and_the_best_so_far_has_no_gradient() -> None:
    learner = tiny_learner()
    batch = Batch(torch.randn(9, 2), torch.rand(9, 1), torch.randn(9), torch.randn(9, 2), torch.ones(9))
    loss, _ = learner.networks.gaussians.loss(*learner.pairs(batch), learner.config.layer_decays())
    loss.backward()
    assert all(parameter.grad is None for parameter in learner.networks.ends.parameters())
    assert all(parameter.grad is not None for parameter in learner.networks.gaussians.parameters())
    learner.networks.zero_grad(set_to_none=True)
    learner.update_ends(batch)
    assert all(parameter.grad is None for parameter in learner.networks.gaussians.parameters())
    assert not any(parameter.requires_grad for parameter in learner.best.parameters())


def test_held_out_rows_and_test_episodes_do_not_matter_to_what_is_learned() -> None:
    """Their numbers may be anything: the same weights come out."""
    learner = tiny_learner(DATA, test_episodes=0.2, max_steps=5)
    model = fit(learner, 5)
    assert learner.sampler is not None
    used = set(learner.sampler.rows.tolist())
    arrays = {name: np.array(getattr(DATA, name)) for name in ("observations", "actions", "next_observations")}
    held_out = [row for row in range(len(DATA)) if row not in used]
    assert len(held_out) > 40
    for column in arrays.values():
        column[held_out] = 0.5
    changed = type(DATA).from_arrays(
        **arrays, rewards=DATA.rewards, terminated=DATA.terminated, truncated=DATA.truncated, meta=DATA.meta
    )
    other = fit(tiny_learner(changed, test_episodes=0.2, max_steps=5), 5)
    assert same(weights(model.networks), weights(other.networks))
