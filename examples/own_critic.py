"""The MCB term in a learner that is not ours: a plain DDPG in PyTorch, on logged data, without and with it.

    python examples/own_critic.py

Everything between the two marked lines is what MCQ adds. It shows how, not why: pendulum-mixed holds random actions in
every state, and from such data a plain learner gets away without.
"""

from __future__ import annotations

import argparse
import copy

import numpy as np
import torch
from torch import Tensor, nn

import mildly
from mildly import mcb
from mildly.behavior.cvae import CVAE
from mildly.evaluation.rollout import rollout


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))


class MyCritic(nn.Module):
    """One critic of the user's own: states (..., o) and actions (..., a) to values (...)."""

    def __init__(self, observation_size: int, action_size: int) -> None:
        super().__init__()
        self.net = network(observation_size + action_size, 1)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        """One value for each state and its action."""
        values: Tensor = self.net(torch.cat([states, actions], dim=-1)).squeeze(-1)
        return values

    def many(self, states: Tensor, actions: Tensor) -> Tensor:
        """What the MCB functions ask for: n actions per state, (S, n, a), to (1, S, n), there being one critic."""
        values: Tensor = self(states.unsqueeze(1).expand(-1, actions.shape[1], -1), actions)
        return values.unsqueeze(0)


def minimize(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step down a loss."""
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()


class MyPolicy:
    """What `rollout` needs of a policy: observations to actions in the environment's units."""

    def __init__(self, actor: nn.Module, space: mildly.ActionSpace) -> None:
        self.actor, self.space = actor, space

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Actions (n, a) for observations (n, o)."""
        with torch.no_grad():
            unit = torch.tanh(self.actor(torch.as_tensor(observations, dtype=torch.float32)))
        return self.space.clip(self.space.from_unit(unit.numpy()))


def learn(dataset: str, steps: int, lam: float, seed: int = 0) -> tuple[float, float]:
    """DDPG on logged data; with lam < 1, DDPG and the MCB term. Returns the score and the critic's mean value."""
    torch.manual_seed(seed)
    data = mildly.load_dataset(dataset)
    o, a = data.observation_size, data.action_size
    critic, actor, behavior = MyCritic(o, a), network(o, a), CVAE(o, a, hidden_dims=(128, 128))
    target = copy.deepcopy(critic)
    critic_adam = torch.optim.Adam(critic.parameters(), 1e-3)
    actor_adam = torch.optim.Adam(actor.parameters(), 1e-3)
    behavior_adam = torch.optim.Adam(behavior.parameters(), 1e-3)
    columns = [torch.as_tensor(np.array(x)) for x in (data.observations, data.actions, data.rewards)]
    following, goes_on = torch.as_tensor(np.array(data.next_observations)), torch.as_tensor(~data.terminated)
    for _ in range(steps):
        rows = torch.randint(len(data), (128,))
        s, actions, r = (column[rows] for column in columns)
        s2 = following[rows]
        with torch.no_grad():
            y = r + 0.99 * goes_on[rows] * target(s2, torch.tanh(actor(s2)))
        loss = (critic(s, actions) - y).square().mean()

        # --- the MCB term ---
        if lam < 1:
            minimize(behavior.loss(s, actions), behavior_adam)
            states = torch.cat([s, s2])
            pseudo = mcb.pseudo_target(critic.many, states, behavior.sample(states, 10))
            ood = torch.tanh(actor(states)).detach().unsqueeze(1)  # one action per state
            loss = lam * loss + (1 - lam) * mcb.ood_loss(critic.many(states, ood), pseudo).sum()
        # --- that was all ---

        minimize(loss, critic_adam)
        minimize(-critic(s, torch.tanh(actor(s))).mean(), actor_adam)
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(critic.parameters()), 0.005)
    space = data.meta.action_space or mildly.ActionSpace.unit(a)
    score = rollout(MyPolicy(actor, space), data.meta, episodes=10, seed=seed).score
    return float(score or 0.0), critic(*columns[:2]).mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dataset", default="pendulum-mixed")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, lam in (("DDPG alone", 1.0), ("with the MCB term", 0.7)):
        score, value = learn(options.dataset, options.steps, lam, options.seed)
        print(f"{name:>18}: score {score:6.1f}   mean value of the data's actions {value:8.1f}")
