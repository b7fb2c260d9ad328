"""MOPO: Model-based Offline Policy Optimization (Yu et al., NeurIPS 2020), SAC in a learned model of the environment.

First a dynamics model is fitted (`mildly/dynamics`): Gaussians N(m_i, s_i) of next state and reward, i = 1..7. Then,
every `rollout_every` steps, from states of the data:

    action     a ~ pi(.|s)
    model      s', r ~ N(m_i(s, a), s_i(s, a)),  i drawn from the elites, anew in each step
    penalty    r~ = r - lam max_i ||s_i(s, a)||,  over all members
    buffer     (s, a, r~, s', d) for h steps, or until an episode ends; the oldest transitions give way

Each step is one of SAC on a batch of which `real_share` are logged transitions and the others the model's. No gradient
of SAC reaches the model. (h, lam) of the authors and of OfflineRL-Kit by data set are in `mopo.toml`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, ClassVar

import torch
from torch import Tensor

from mildly.algorithms.base import Algorithm, Metrics, Phase, Savable
from mildly.algorithms.config import DEFAULT, KEYS, SMALL, require, require_at_least
from mildly.algorithms.extras import Extras
from mildly.algorithms.sac import SAC, SACConfig
from mildly.data.batches import Batch, Buffer, Mixture, Sampler, Transitions
from mildly.data.dataset import Dataset
from mildly.data.tasks import base_name
from mildly.dynamics import DynamicsConfig, DynamicsLearner, load_dynamics
from mildly.dynamics.config import PRESETS as MODEL_PRESETS
from mildly.dynamics.ensemble import FOLDER
from mildly.errors import MildlyError
from mildly.optimizer import decay_cosine

TABLES: dict[str, dict[str, list[float]]] = tomllib.loads((files("mildly.algorithms") / "mopo.toml").read_text())
"""h and lam by preset and data set."""


@dataclass(frozen=True)
class MOPOConfig(SACConfig):
    """Hyperparameters of MOPO; the defaults are its authors'."""

    hidden_dims: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    penalty: float = 1.0
    """lam: what a unit of the model's uncertainty costs in each step."""
    rollout_length: int = 5
    """h: steps of the policy in the model from a state of the data."""
    rollout_every: int = 1000
    """Steps between rollouts."""
    rollout_batch: int = 50_000
    """States of the data from which rollouts start."""
    rollouts_kept: int = 5
    """How many of the last rollouts the buffer has room for."""
    real_share: float = 0.05
    """Share of logged transitions in a batch; the others are the model's."""
    model: str | None = None
    """Folder of a model that is fitted already, by 'mildly model fit' or in another run of MOPO. It takes the place of
    the phase in which one is fitted, and of all fields of the group dynamics."""
    target_entropy: float | None = -3.0
    """Entropy that alpha steers towards; minus the number of action dimensions if None. -3 is the authors' for all."""
    decay_steps: int | None = None
    """Main steps over which the actor's learning rate falls to 0 along half a cosine; constant if not given."""
    dynamics: DynamicsConfig = DynamicsConfig()
    """The dynamics model."""
    extras: Extras = Extras()  # type: ignore[assignment]  # no anchor: most actions of a batch are the policy's own
    """Options beyond the method."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, penalty=0, rollout_length=1, rollout_every=1, rollout_batch=1, rollouts_kept=1)
        require_at_least(self, decay_steps=1)
        if self.model is not None:  # the run may be gone on with from elsewhere
            object.__setattr__(self, "model", os.path.abspath(self.model))
        require(0 < self.real_share <= 1, "real_share", "in (0, 1]", self.real_share)


def _model(preset: str) -> dict[str, Any]:
    return {f"dynamics.{name}": value for name, value in MODEL_PRESETS[preset].items()}


class MOPO(SAC):
    """SAC on transitions of a dynamics model, whose rewards are lowered by its uncertainty."""

    Config = MOPOConfig
    config: MOPOConfig
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {**DEFAULT, "target_entropy": None, "rollout_batch": 20_000, **_model("default")},
        "paper": {},
        "kit": {
            "target_entropy": None,
            "actor_lr": 1e-4,
            "alpha_lr": 1e-4,
            "alpha_first": False,
            "alpha_max": 1.0,
            "log_std_min": -5.0,
            "decay_steps": 3_000_000,
        },
        "small": {
            **SMALL,
            "alpha_lr": 1e-3,
            "target_entropy": None,
            "rollout_every": 250,
            "rollout_batch": 5_000,
            **_model("small"),
        },
    }
    PRESET_NOTES: ClassVar[Mapping[str, str]] = {
        **Algorithm.PRESET_NOTES,
        "kit": "OfflineRL-Kit's version, with its values for version 2 of D4RL's sets",
    }
    PRESET_STEPS: ClassVar[Mapping[str, int]] = {**Algorithm.PRESET_STEPS, "kit": 3_000_000}
    KEY_FIELDS = ("penalty", "rollout_length", "real_share", "model", *KEYS)
    OFFLINE_ONLY = (
        "its model of the environment is fitted once, and would not learn from what is new. Train it anew on all logs"
    )
    DERIVED: ClassVar = SAC.DERIVED | {"logged", "made"}  # the sampler keeps what the model made

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """h and lam for a data set. Presets that scale the model's targets have penalties in other units."""
        values = TABLES.get(preset, {}).get(base_name(name), [])
        return dict(zip(("rollout_length", "penalty"), values, strict=False))

    def build(self, seed: int) -> None:
        super().build(seed)
        given = None if self.config.model is None else load_dynamics(self.config.model)
        sizes = self.observation_size, self.action_size
        config = self.config.dynamics if given is None else given.config
        self.dynamics = DynamicsLearner(config, *sizes, self.device)
        if given is not None:
            if given.sizes != sizes:
                raise MildlyError(
                    f"{self.config.model}: the model is of {given.sizes[0]} observations and {given.sizes[1]} actions, "
                    f"but the data have {sizes[0]} and {sizes[1]}."
                )
            self.dynamics.adopt(given)
        self.updates = 0
        self.uncertainty, self.model_reward = (torch.zeros((), device=self.device) for _ in range(2))
        """Means over the last rollouts."""
        self.logged: Transitions | None = None
        self.made: Buffer | None = None

    def batches(self, dataset: Dataset) -> Sampler:
        """Logged transitions, and the model's as they come."""
        c, logged = self.config, super().batches(dataset)
        assert isinstance(logged, Transitions)
        if c.model is None:
            self.dynamics.start(dataset, self.device)
        elif self.dynamics.meta.fingerprint != dataset.meta.fingerprint:
            self.notes = (*self.notes, f"{c.model}: fitted on other data, '{self.dynamics.meta.name}'")
        room = c.rollout_batch * c.rollout_length * c.rollouts_kept
        sizes = self.observation_size, self.action_size
        self.logged, self.made = logged, Buffer(*sizes, c.batch_size, self.device, self.preprocessing, room)
        sources = {"logged": logged, "made": self.made}
        return Mixture(sources, {"logged": c.real_share, "made": 1 - c.real_share}, c.batch_size)

    def phases(self) -> list[Phase]:
        """The model is fitted before anything else, unless it is given."""
        model = self.dynamics
        steps, field = model.config.max_steps, "dynamics.max_steps"
        fit = Phase("dynamics model", steps, model.update, field, model.sampler, model.finished)
        return ([fit] if self.config.model is None else []) + super().phases()

    def products(self) -> Mapping[str, Savable]:
        """The model, for other runs and for a look at it."""
        return {FOLDER: self.dynamics.ensemble()}

    def update(self, batch: Batch) -> Metrics:
        """Rollouts if they are due, and a step of SAC."""
        c = self.config
        if self.updates % c.rollout_every == 0:
            self.roll_out()
        if c.decay_steps is not None:
            decay_cosine(self.actor_optimizer, c.actor_lr, self.updates / c.decay_steps)
        self.updates += 1
        means = {"model_reward": self.model_reward, "uncertainty": self.uncertainty}
        return super().update(batch) | means | {"penalty": c.penalty * self.uncertainty}

    @torch.no_grad()
    def roll_out(self) -> None:
        """Let the policy act in the model from states of the data, and keep what it meets."""
        if self.logged is None or self.made is None:  # there are no data
            return
        c, observations = self.config, self.logged.columns["observations"]
        rows = torch.randint(len(observations), (c.rollout_batch,), generator=self.generator, device=self.device)
        rewards, uncertainties = [], []
        starts = observations.index_select(0, rows)
        for step in self.dynamics.ensemble().rollout(starts, self.explore, c.rollout_length, self.generator):
            self.made.add({**step, "rewards": step["rewards"] - c.penalty * step["uncertainty"]})
            rewards.append(step["rewards"])
            uncertainties.append(step["uncertainty"])
        self.model_reward, self.uncertainty = torch.cat(rewards).mean(), torch.cat(uncertainties).mean()

    def explore(self, states: Tensor) -> Tensor:
        """A draw of the policy in states of the data's units."""
        normalizer = self.preprocessing.normalizer
        seen = states if normalizer is None else normalizer.apply(states)
        return self.distribution(seen).rsample(self.generator).actions
