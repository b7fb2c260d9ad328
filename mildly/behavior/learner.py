"""A behavior model in training: its optimizer, and the actions it proposes, fresh or kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from mildly.behavior.base import BehaviorModel
from mildly.behavior.cache import ActionCache, Draw
from mildly.behavior.config import BehaviorConfig
from mildly.behavior.models import BEHAVIOR_MODELS
from mildly.data.batches import Batch
from mildly.data.dataset import Dataset
from mildly.data.normalize import Normalizer
from mildly.optimizer import Adam, minimize
from mildly.state import Stateful

_CVAE_FIELDS = ("latent_size", "latent_clip", "log_std_min", "log_std_max", "kl_weight")


def make_behavior(config: BehaviorConfig, observation_size: int, action_size: int) -> BehaviorModel:
    """The model that a config describes."""
    model = BEHAVIOR_MODELS[config.model]
    options = {name: getattr(config, name) for name in _CVAE_FIELDS} if config.model == "cvae" else {}
    made: BehaviorModel = model(observation_size, action_size, config.hidden_dims or model.HIDDEN_DIMS, **options)
    return made


def draw_sets(sets: int, draw: Callable[[], Tensor]) -> Tensor:
    """One set of actions, (states, n, a), or several, (sets, states, n, a)."""
    return draw() if sets == 1 else torch.stack([draw() for _ in range(sets)])


class BehaviorLearner(Stateful):
    """The model, its optimizer, and its kept actions. Its random numbers are the algorithm's, which saves them."""

    DERIVED: ClassVar = frozenset({"config", "cache", "generator", "draw"})

    def __init__(
        self,
        config: BehaviorConfig,
        observation_size: int,
        action_size: int,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        self.config, self.generator = config, generator
        self.model = make_behavior(config, observation_size, action_size).to(device)
        settings = self.model.ADAM | ({} if config.lr is None else {"lr": config.lr})
        self.optimizer = Adam(self.model.parameters(), **settings)
        self.updates = self.draws = 0
        self.cache: ActionCache | None = None
        self.draw: Draw = self.model.sample
        """What is drawn, and kept if asked for."""

    def keep_actions(self, dataset: Dataset, n: int, device: torch.device, normalizer: Normalizer | None) -> None:
        """Keep n actions for every state of the data, if asked for and if memory allows."""
        if self.config.cache:
            cache = ActionCache(dataset, n, device, normalizer)
            self.cache = cache if cache.megabytes <= self.config.cache_megabytes else None

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One step of the model towards the data's actions."""
        loss = self.model.loss(batch.observations, batch.actions, self.generator, self.updates)
        minimize(loss, self.optimizer)
        self.updates += 1
        return {"loss_behavior": loss.detach()}

    def actions(self, states: Tensor, rows: Tensor, n: int, sets: int = 1) -> Tensor:
        """N actions per state, where the states are s and then s' of some rows of the data: kept ones, or fresh ones.

        To be called once in a step: it counts them.

        Args:
            states: (2 batch, o).
            rows: (batch,), or empty where the states are of no data.
            n: how many.
            sets: how many times over, in a leading dimension where it is more than once.
        """
        self.begin_step()
        if self.cache is None or not len(rows):
            return draw_sets(sets, lambda: self.draw(states, n, self.generator))
        self.fill()
        return self.cache.gather(rows)

    def actions_in(self, states: Tensor, rows: Tensor, n: int, successors: bool) -> Tensor:
        """The same in one state of each row, s or its successor s': n of the kept ones, (batch, n, a), or n fresh ones.

        It may be called several times in a step, which `begin_step` has counted.
        """
        if self.cache is None or not len(rows):
            return self.draw(states, n, self.generator)
        self.fill()
        return self.cache.pick(rows, successors, n, self.generator)

    def begin_step(self) -> None:
        """Count a step that draws: kept actions are drawn anew after every so many."""
        self.draws += 1

    def fill(self) -> None:
        """Draw what is to be kept, unless it is there; the first step that needs it does so by itself."""
        every = self.config.refresh_every
        if self.cache is not None:
            self.cache.fill(self.draw, self.draws // every if every else 0, self.generator.initial_seed())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        if self.cache is not None:
            self.cache.edition = -1  # actions that were kept came from the weights before
