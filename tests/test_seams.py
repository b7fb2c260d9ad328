"""What the seams are for: a sequence policy and a learner of two sources, each in a few lines outside the package.

Both go through training, checkpoint, resume, evaluation and collection like any algorithm of the registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import content, train_tiny
from torch import Tensor

import mildly
from mildly.actors import Actor, Memory
from mildly.algorithms import ALGORITHMS
from mildly.algorithms.base import Algorithm, Metrics
from mildly.algorithms.config import AlgorithmConfig
from mildly.algorithms.sac import SAC
from mildly.collect.make_set import make_set, policy_parts
from mildly.collect.rollouts import describe
from mildly.data.batches import Batch, Buffer, Mixture, Sampler, WindowBatch, Windows
from mildly.data.dataset import Dataset
from mildly.networks import mlp
from mildly.optimizer import minimize
from mildly.policy import ACTORS, load_policy
from mildly.training.offline import resume

# A sequence policy: it acts on its last K observations and on the return that it still aims at.

K = 3


class SequenceActor(Actor):
    kind = "toy-sequence"

    def __init__(self, observation_size: int, action_size: int, hidden_dims: Sequence[int]) -> None:
        super().__init__(observation_size, action_size, hidden_dims)
        self.net = mlp((K * observation_size + 1, *hidden_dims, action_size))

    def forward(self, history: Tensor, to_go: Tensor) -> Tensor:
        return torch.tanh(self.net(torch.cat([history.flatten(-2), to_go.unsqueeze(-1) / 1000], dim=-1)))

    def start(self, episodes: int, target_return: float = -200.0) -> Memory:
        return SequenceMemory(self, episodes, target_return)


class SequenceMemory(Memory):
    def __init__(self, actor: SequenceActor, episodes: int, target: float) -> None:
        self.actor, self.target = actor, target
        self.history = torch.zeros(episodes, K, actor.spec["observation_size"])
        self.to_go = torch.full((episodes,), target)

    def act(self, observations: Tensor, rows: Sequence[int], deterministic: bool, generator: object) -> Tensor:
        rows = list(rows)
        self.history[rows] = torch.cat([self.history[rows, 1:], observations.unsqueeze(1)], dim=1)
        actions: Tensor = self.actor(self.history[rows], self.to_go[rows])
        return actions

    def observe(self, rewards: Tensor, rows: Sequence[int]) -> None:
        self.to_go[list(rows)] -= rewards

    def reset(self, rows: Sequence[int]) -> None:
        self.history[list(rows)], self.to_go[list(rows)] = 0.0, self.target


@dataclass(frozen=True)
class SequenceConfig(AlgorithmConfig):
    hidden_dims: tuple[int, ...] = (16,)


class SequenceCloning(Algorithm):
    Config = SequenceConfig
    actor: SequenceActor

    def build(self, seed: int) -> None:
        self.actor = SequenceActor(self.observation_size, self.action_size, self.config.hidden_dims)
        self.optimizer = self.adam(self.actor, lr=1e-2)

    def batches(self, dataset: Dataset) -> Sampler:
        return Windows(dataset, self.config.batch_size, K, self.device)

    def update(self, batch: WindowBatch) -> Metrics:
        last = batch.mask[:, -1]  # windows that an episode's end cuts short do not count
        errors = (self.actor(batch.observations, batch.returns_to_go[:, -1]) - batch.actions[:, -1]).square().sum(-1)
        loss = (last * errors).sum() / last.sum().clamp(min=1)
        minimize(loss, self.optimizer)
        return {"loss_actor": loss.detach()}


# A learner of two sources: SAC on logged transitions and, for a quarter of each batch, on transitions that it made up.


class TwoSources(SAC):
    DERIVED = SAC.DERIVED | {"made"}  # the sampler keeps it

    def batches(self, dataset: Dataset) -> Sampler:
        logged, size = super().batches(dataset), self.config.batch_size
        sizes = self.observation_size, self.action_size
        self.made = Buffer(*sizes, size, self.device, self.preprocessing, capacity=64)
        return Mixture({"logged": logged, "made": self.made}, {"logged": 0.75, "made": 0.25}, size)

    def update(self, batch: Batch) -> Metrics:
        noise = torch.randn(batch.observations.shape, generator=self.generator) * 0.01
        self.made.add({**batch._asdict(), "observations": batch.observations + noise})
        return super().update(batch) | {"made": torch.tensor(float(len(self.made)))}


@pytest.fixture(params=["toy-sequence", "toy-two-sources"])
def toy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(ACTORS, SequenceActor.kind, SequenceActor)
    monkeypatch.setitem(ALGORITHMS, "toy-sequence", SequenceCloning)
    monkeypatch.setitem(ALGORITHMS, "toy-two-sources", TwoSources)
    return str(request.param)


def test_a_toy_trains_resumes_to_the_bit_is_evaluated_and_collects(toy: str, tmp_path: Path) -> None:
    whole = train_tiny(toy, tmp_path / "whole", steps=120)
    part = train_tiny(toy, tmp_path / "part", steps=60, eval_every=60)
    resume(part.path, steps=120)
    kept = {name: value for name, value in content(whole.path).items() if "jsonl" not in name}
    assert kept == {name: value for name, value in content(part.path).items() if "jsonl" not in name}
    losses = [line["loss_actor"] for line in whole.metrics()]
    assert losses[-1] != losses[0]
    evaluation = mildly.evaluate(whole, episodes=3)
    assert evaluation.returns == mildly.evaluate(whole, episodes=3).returns
    made = make_set(
        tmp_path / "set",
        "Pendulum-v1",
        policy_parts([str(whole.path)], "Pendulum-v1", 500, deterministic=True),
        describe("made", "Pendulum-v1"),
        environments=2,
    )
    assert (len(made), len(made.episodes())) == (500, 3)


def test_a_sequence_policy_acts_on_its_history_and_aims_at_a_return(toy: str, tmp_path: Path) -> None:
    if toy != "toy-sequence":
        pytest.skip("about the other toy")
    policy = load_policy(train_tiny(toy, tmp_path / "run", steps=60).path)
    here, there = np.array([[1.0, 0.0, 0.0]]), np.array([[0.0, 1.0, 3.0]])
    one, other = policy.start(1), policy.start(1)
    assert np.array_equal(one.act(here), other.act(here))
    one.act(there), other.act(here)
    assert not np.array_equal(one.act(here), other.act(here))  # the past differs, the present does not
    paid, unpaid = policy.start(1), policy.start(1)
    for acting in (paid, unpaid):
        acting.act(here)
    paid.observe(np.array([-500.0]))
    assert not np.array_equal(paid.act(here), unpaid.act(here))
    paid.reset()
    assert np.array_equal(paid.act(here), policy.start(1).act(here))
    assert not np.array_equal(policy.start(1, target_return=-1500.0).act(here), policy.start(1).act(here))
