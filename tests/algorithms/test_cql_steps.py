"""CQL's step: against a plain implementation, what sees what before its step, and how much it costs."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, Layers, make_batch, plain_critic, replay, same, tiny, weights
from learners import walk
from torch import Tensor, nn
from torch.distributions import Normal

from mildly.actors import Actor
from mildly.algorithms.cql import CQL
from mildly.data.batches import Batch
from mildly.networks import Critics


class Plain:
    """CQL as its authors write it, with a critic at a time, separate calls for each kind of action, and Adam."""

    def __init__(self, cql: CQL) -> None:
        self.c, self.random = cql.config, replay(cql.generator)
        self.actor, self.critics = copy.deepcopy(cql.actor.net), [plain_critic(cql.critics, j) for j in range(2)]
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.log_multiplier = torch.zeros((), requires_grad=True)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=self.c.actor_lr)
        self.critic_adams = [torch.optim.Adam(q.parameters(), lr=self.c.critic_lr) for q in self.critics]
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=self.c.alpha_lr)
        self.multiplier_adam = torch.optim.Adam([self.log_multiplier], lr=self.c.critic_lr)

    def draw(self, states: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(states).chunk(2, dim=-1)
        normal = Normal(mean, log_std.clamp(self.c.log_std_min, self.c.log_std_max).exp())
        z = normal.mean + normal.stddev * noise
        return z.tanh(), (normal.log_prob(z) - (1 - z.tanh() ** 2 + 1e-6).log()).sum(-1)

    def step(self, number: int, batch: Batch) -> None:
        c, (s, a, r, s_next, d) = self.c, batch[:5]
        before = copy.deepcopy(self.critics)
        action, log_pi = self.draw(s, torch.randn(a.shape, generator=self.random))
        alpha = self.log_alpha.exp().detach()
        if c.alpha_first:
            self.step_alpha(log_pi)
            alpha = self.log_alpha.exp().detach()
        if number <= c.extras.bc_warmup_steps:
            mean, log_std = self.actor(s).chunk(2, dim=-1)
            normal = Normal(mean, log_std.clamp(c.log_std_min, c.log_std_max).exp())
            log_prob = (normal.log_prob(a.atanh()) - (1 - a**2 + 1e-6).log()).sum(-1)
            actor_loss = (alpha * log_pi - log_prob).mean()
        else:
            actor_loss = (alpha * log_pi - torch.min(*(value(q, s, action) for q in before))).mean()
        losses = self.critic_losses(s, a, r, s_next, d)
        self.step_multiplier([gap.detach() for _, gap in losses])
        for (error, gap), adam in zip(losses, self.critic_adams, strict=True):
            penalty = c.conservative_weight * gap
            if c.lagrange_threshold is not None:
                penalty = self.multiplier * (penalty - c.lagrange_threshold)
            adam.zero_grad()
            (error + penalty).backward()
            adam.step()
        self.actor_adam.zero_grad()
        actor_loss.backward()
        self.actor_adam.step()
        if not c.alpha_first:
            self.step_alpha(log_pi)
        for network, target in zip(self.critics, self.targets, strict=True):
            for new, old in zip(network.parameters(), target.parameters(), strict=True):
                old.data.copy_(c.tau * new.data + (1 - c.tau) * old.data)

    def critic_losses(self, s: Tensor, a: Tensor, r: Tensor, s_next: Tensor, d: Tensor) -> list[tuple[Tensor, Tensor]]:
        n, rows = self.c.num_actions, len(s)
        with torch.no_grad():
            a_next, _ = self.draw(s_next, torch.randn(a.shape, generator=self.random))
            y = r + self.c.gamma * (1 - d) * torch.min(*(value(q, s_next, a_next) for q in self.targets))
            noise = torch.randn(2 * rows, n, ACTIONS, generator=self.random)
            uniform = torch.rand(rows, n, ACTIONS, generator=self.random) * 2 - 1
            sets = [(uniform[:, k], torch.full((rows,), math.log(0.5**ACTIONS))) for k in range(n)]
            sets += [self.draw(s, noise[:rows, k]) for k in range(n)]
            sets += [self.draw(s_next, noise[rows:, k]) for k in range(n)]
        found = []
        for q in self.critics:
            corrected = torch.stack([value(q, s, actions) - density for actions, density in sets])
            gap = corrected.logsumexp(0).mean() - value(q, s, a).mean()
            found.append((nn.functional.mse_loss(value(q, s, a), y), gap))
        return found

    def step_alpha(self, log_pi: Tensor) -> None:
        self.alpha_adam.zero_grad()
        (-(self.log_alpha * (log_pi.detach() - ACTIONS)).mean()).backward()
        self.alpha_adam.step()

    def step_multiplier(self, gaps: list[Tensor]) -> None:
        self.multiplier = self.log_multiplier.exp().detach()  # critics see it as it is before its step
        if self.c.lagrange_threshold is None:
            return
        excess = [self.c.conservative_weight * gap - self.c.lagrange_threshold for gap in gaps]
        self.multiplier_adam.zero_grad()
        (-0.5 * self.log_multiplier.exp() * sum(excess)).backward()
        self.multiplier_adam.step()


def value(critic: nn.Module, states: Tensor, actions: Tensor) -> Tensor:
    return critic(torch.cat([states, actions], dim=1)).squeeze(1)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"extras.bc_warmup_steps": 3},
        {"alpha_first": False},
        {"conservative_weight": 1.0, "lagrange_threshold": 5.0},
        {"conservative_weight": 2.0, "lagrange_threshold": 0.5},
    ],
    ids=str,
)
def test_many_steps_equal_those_of_a_plain_implementation(fields):
    rates = {"actor_lr": 0.01, "critic_lr": 0.02, "alpha_lr": 0.1}
    cql = tiny("cql", seed=1, **{"extras.bc_warmup_steps": 0, "num_actions": 3, "tau": 0.1, **rates, **fields})
    plain, start = Plain(cql), weights(cql.actor, cql.critics)
    updates = [update for _, update in walk(cql, 6 - cql.config.extras.bc_warmup_steps)]
    assert len(updates) == 6
    for number, update in enumerate(updates, start=1):
        batch = make_batch(seed=number)
        plain.step(number, batch)
        update(batch)
    assert not same(start, weights(cql.actor, cql.critics))
    assert cql.log_alpha.item() == pytest.approx(plain.log_alpha.item(), abs=1e-4)
    assert abs(cql.log_alpha.item()) > 0.1
    for one, other in zip(cql.actor.net.parameters(), plain.actor.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)
    for ensemble, networks in ((cql.critics, plain.critics), (cql.target_critics, plain.targets)):
        for j in range(2):
            for (matrix, offset), layer in zip(Layers.of_critic(ensemble, j), networks[j][::2], strict=True):
                np.testing.assert_allclose(matrix, layer.weight.detach(), atol=2e-4, rtol=1e-3)
                np.testing.assert_allclose(offset, layer.bias.detach(), atol=2e-4, rtol=1e-3)
    if cql.config.lagrange_threshold is not None:
        assert cql.log_multiplier.item() == pytest.approx(plain.log_multiplier.item(), abs=1e-4)
        assert abs(cql.log_multiplier.item()) > 0.05


def test_the_actor_climbs_the_critics_as_they_were_before_their_step():
    slow, quick = (tiny("cql", critic_lr=rate) for rate in (1e-9, 0.5))
    for learner in (slow, quick):
        learner.update(make_batch())
    assert not same(weights(slow.critics), weights(quick.critics))
    for one, other in zip(weights(slow.actor), weights(quick.actor), strict=True):
        torch.testing.assert_close(one, other)


def test_the_critics_learn_from_the_actor_as_it_was_before_its_step():
    slow, quick = (tiny("cql", actor_lr=rate) for rate in (1e-9, 0.5))
    for learner in (slow, quick):
        learner.update(make_batch())
    assert not same(weights(slow.actor), weights(quick.actor))
    for one, other in zip(weights(slow.critics), weights(quick.critics), strict=True):
        torch.testing.assert_close(one, other)


def test_all_actions_of_a_step_go_through_the_critics_at_once_and_the_actor_runs_once_a_state(monkeypatch):
    cql, rows = tiny("cql"), {"critics": [], "actor": []}
    forward, run = Critics.forward, type(cql.actor).forward

    def counted(self: Critics, states: Tensor, actions: Tensor, freeze: bool = False) -> Tensor:
        rows["critics"].append(tuple(actions.shape))
        return forward(self, states, actions, freeze)

    def counted_actor(self: Actor, states: Tensor, *dropout: Any) -> Any:
        rows["actor"].append(len(states))
        return run(self, states, *dropout)

    monkeypatch.setattr(Critics, "forward", counted)
    monkeypatch.setattr(type(cql.actor), "forward", counted_actor)
    cql.update(make_batch(12))
    assert sorted(rows["critics"]) == [(12, ACTIONS), (12, ACTIONS), (12, 31, ACTIONS)]
    assert max(rows["actor"]) == 24
