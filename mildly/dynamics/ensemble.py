"""A fitted dynamics model as a plain object: predict, step, roll out, save and load."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mildly.data.dataset import Meta
from mildly.dynamics.config import DynamicsConfig
from mildly.dynamics.network import GaussianEnsemble
from mildly.dynamics.termination import LEARNED, RULES
from mildly.networks import mlp, normal
from mildly.weights import load_module, loading, read_description, save_described

FORMAT = 1
DESCRIPTION = "dynamics.json"
FOLDER = "dynamics"
"""Where a run keeps its model."""
_ROWS_AT_ONCE = 512  # of all members together about what a processor's cache holds
_END_WIDTH = 64


class Prediction(NamedTuple):
    """Gaussians of the next state and, last, of the reward, by every member, (members, n, o + 1)."""

    means: Tensor
    stds: Tensor


class Step(NamedTuple):
    """What may follow n states."""

    next_states: Tensor
    rewards: Tensor
    terminated: Tensor
    """Bool."""
    uncertainty: Tensor
    """The largest norm of a member's standard deviations."""


class DynamicsNetworks(nn.Module):
    """All that is learned: the ensemble, and the network that tells where episodes end."""

    def __init__(self, observation_size: int, action_size: int, hidden_dims: tuple[int, ...], members: int) -> None:
        super().__init__()
        self.observation_size = observation_size
        self.gaussians = GaussianEnsemble(observation_size, action_size, hidden_dims, members)
        self.ends = mlp((observation_size + action_size, _END_WIDTH, _END_WIDTH, 1))

    def end_logits(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Log-odds that a transition ends its episode. Many logs do not show the state that an episode ends in."""
        logits: Tensor = self.ends(self.gaussians.inputs(observations, actions)).squeeze(-1)
        return logits


@dataclass
class DynamicsEnsemble:
    """A model of the environment. Units are the data's: observations and rewards as logged, actions in [-1, 1]."""

    networks: DynamicsNetworks
    elites: Tensor
    """The members that predict in `step`."""
    held_out_errors: Tensor
    """Each member's mean squared error of scaled targets, on rows held out from training."""
    rule: str
    """By what an episode ends: a name in `termination.RULES`, or `learned`."""
    meta: Meta = field(default_factory=lambda: Meta(""))
    """The data's description: names, units, fingerprint."""
    config: DynamicsConfig = field(default_factory=DynamicsConfig)
    """How it was fitted."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers in an observation and in an action."""
        observations = self.networks.observation_size
        return observations, len(self.networks.gaussians.input_mean) - observations

    @property
    def members(self) -> int:
        """Networks in the ensemble."""
        return self.networks.gaussians.members

    @torch.no_grad()
    def predict(self, states: Tensor, actions: Tensor) -> Prediction:
        """What every member expects of n states, (n, o), and actions, (n, a); or of its own ones, (members, n, ...)."""
        net = self.networks.gaussians
        inputs = net.inputs(states, actions)
        at_once = _ROWS_AT_ONCE if inputs.device.type == "cpu" else max(inputs.shape[-2], 1)
        parts = [net(rows) for rows in torch.split(inputs, at_once, dim=-2)]
        mean, log_var = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        means = mean * net.target_std + net.target_mean
        means[..., :-1] += states
        return Prediction(means, torch.exp(0.5 * log_var) * net.target_std)

    @torch.no_grad()
    def step(self, states: Tensor, actions: Tensor, generator: torch.Generator | None = None) -> Step:
        """One draw for each state, each from the Gaussian of an elite drawn for it."""
        means, stds = self.predict(states, actions)
        rows = torch.arange(len(states), device=states.device)
        members = self.draw_elites(len(states), generator)
        drawn = means[members, rows] + stds[members, rows] * normal(means.shape[1:], means, generator)
        next_states, rewards = drawn[:, :-1], drawn[:, -1]
        ends = self.terminated(states, actions, next_states, generator)
        return Step(next_states, rewards, ends, self.uncertainty(stds))

    def draw_elites(self, n: int, generator: torch.Generator | None) -> Tensor:
        """An elite for each of n states."""
        return self.elites[torch.randint(len(self.elites), (n,), generator=generator, device=self.elites.device)]

    @torch.no_grad()
    def terminated(
        self, states: Tensor, actions: Tensor, next_states: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Whether these transitions end their episode, by the environment's rule or by a draw of what was learned."""
        if self.rule != LEARNED:
            return RULES[self.rule].ends(next_states)
        chance = self.networks.end_logits(states, actions).sigmoid()
        return torch.rand(chance.shape, generator=generator, device=chance.device) < chance

    def uncertainty(self, stds: Tensor) -> Tensor:
        """u = max over all members of ||std||, in the reward's unit if targets are scaled, else in the data's own."""
        scales = self.networks.gaussians.target_std
        largest: Tensor = (stds / scales).norm(dim=-1).amax(dim=0) * scales[-1]
        return largest

    def rollout(
        self,
        states: Tensor,
        act: Callable[[Tensor], Tensor],
        length: int,
        generator: torch.Generator | None = None,
    ) -> Iterator[dict[str, Tensor]]:
        """Transitions of a policy in the model, step by step: the columns of a data set, and `uncertainty`.

        Args:
            states: where to start, (n, o).
            act: actions in [-1, 1] for states in the data's units.
            length: steps. Where an episode ends before, its state is missing from the steps that follow.
            generator: of the model's draws.
        """
        for _ in range(length):
            if not len(states):
                return
            actions = act(states)
            step = self.step(states, actions, generator)
            yield {
                "observations": states,
                "actions": actions,
                "rewards": step.rewards,
                "next_observations": step.next_states,
                "terminated": step.terminated,
                "uncertainty": step.uncertainty,
            }
            states = step.next_states[~step.terminated]

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `dynamics.json` and `weights.safetensors`."""
        net = self.networks.gaussians
        description = {
            "format": FORMAT,
            "spec": {
                "observation_size": self.sizes[0],
                "action_size": self.sizes[1],
                "hidden_dims": [int(weight.shape[-1]) for weight in net.weights][:-1],
                "members": self.members,
            },
            "elites": self.elites.tolist(),
            "held_out_errors": self.held_out_errors.tolist(),
            "rule": self.rule,
            "data": self.meta.to_json(),
            "config": dataclasses.asdict(self.config),
        }
        return save_described(Path(folder), DESCRIPTION, description, self.networks.state_dict())


def load_dynamics(folder: str | os.PathLike[str]) -> DynamicsEnsemble:
    """Load a model from the folder of `mildly model fit`, of a run of MOPO, or of the model itself."""
    folder = Path(folder)
    if (folder / FOLDER / DESCRIPTION).is_file():
        folder = folder / FOLDER
    with loading(folder, DESCRIPTION, "dynamics model", "Fit one with 'mildly model fit'."):
        described = read_description(folder, DESCRIPTION, FORMAT, "Fit it again.")
        spec = {**described["spec"], "hidden_dims": tuple(described["spec"]["hidden_dims"])}
        networks = load_module(lambda: DynamicsNetworks(**spec), folder, DESCRIPTION)
        elites, errors = torch.tensor(described["elites"]), torch.tensor(described["held_out_errors"])
        if described["rule"] not in (LEARNED, *RULES):
            raise ValueError(f"unknown rule '{described['rule']}'")
        if elites.dtype != torch.int64 or not len(elites) or not 0 <= elites.min() <= elites.max() < spec["members"]:
            raise ValueError(f"elites are {described['elites']}")
        meta, config = Meta.from_json(described["data"]), DynamicsConfig.from_json(described["config"])
    networks.eval().requires_grad_(False)
    return DynamicsEnsemble(networks, elites, errors, described["rule"], meta, config)
