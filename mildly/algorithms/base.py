"""The contract that every algorithm fulfills. Adding one is one file and one line in the registry.

An algorithm is a class with a frozen dataclass `Config`, `build` (networks and optimizers) and `update(batch)` (one
gradient step that reads as the paper's pseudocode). The rest has defaults: `batches` says what is sampled, `prepare`
what is known of each row besides, `phases` what happens before the main steps, `for_dataset` which hyperparameters a
paper uses where. Whatever an algorithm keeps as attributes is in the checkpoint by itself (`mildly/state.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from mildly.actors import Actor
from mildly.algorithms.config import AlgorithmConfig
from mildly.algorithms.extras import ActorCriticExtras, Metrics as Metrics, Phase as Phase
from mildly.behavior import BehaviorLearner
from mildly.data.batches import Batch, Preprocessing, Sampler, Transitions
from mildly.data.dataset import Array, Dataset, Meta
from mildly.data.normalize import Normalizer
from mildly.device import memory_for
from mildly.errors import MildlyError
from mildly.optimizer import Adam, minimize
from mildly.policy import Policy
from mildly.run import flatten
from mildly.state import Stateful, stream_seed

_SIZES = ("hidden_dims", "ensemble", "latent_size", "members", "width", "layers", "max_timesteps")
"""How the names of those fields end that decide how large networks are."""


class Savable(Protocol):
    """What writes itself into a folder."""

    def save(self, folder: Path) -> Path:
        """Replace what is there."""
        ...


class Algorithm(Stateful, ABC):
    """A learner. Subclasses build their networks in `build` and learn in `update`."""

    Config: ClassVar[type[Any]] = AlgorithmConfig
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {"normalize_observations": True}, "paper": {}}
    """Named sets of config fields: `default` for new data, `paper` for the tables of the paper, and others."""
    PRESET_NOTES: ClassVar[Mapping[str, str]] = {
        "default": "for data of your own",
        "paper": "as published",
        "small": "small networks, for small tasks and a first look",
    }
    PRESET_STEPS: ClassVar[Mapping[str, int]] = {"default": 100_000, "small": 20_000}
    """How many steps a preset takes, if not the paper's million."""
    ACTS: ClassVar[bool] = True
    """Whether it learns a policy, and not just a part of one."""
    KEY_FIELDS: ClassVar[tuple[str, ...]] = ()
    """The few fields that people change first."""
    OFFLINE_ONLY: ClassVar[str] = ""
    """Why it cannot learn from its own actions, in a sentence that `mildly finetune` tells; empty where it can."""
    DERIVED: ClassVar = frozenset(
        {"config", "observation_size", "action_size", "device", "preprocessing", "notes", "prepared", "known_rows"}
    )

    actor: nn.Module
    """The network that learns to act."""
    actor_optimizer: torch.optim.Optimizer
    extras: ActorCriticExtras | None = None

    def __init__(
        self, config: Any, observation_size: int, action_size: int, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config
        self.observation_size, self.action_size = observation_size, action_size
        self.device = torch.device(device)
        self.preprocessing = Preprocessing()
        self.notes: tuple[str, ...] = ()  # what to tell the user of the data that were selected
        self.known_rows = 0  # of the data, of which an update may know more than their transitions
        self.prepared: dict[str, Tensor] = {}
        """What `prepare` knows of each row: `self.prepared["next_actions"][batch.rows]`."""
        self.generator = self.random_stream(seed, "policy")
        with torch.random.fork_rng(devices=[]), memory_for(f"for networks with {self._sizes()}. Lower the largest."):
            torch.manual_seed(stream_seed(seed, "weights"))
            self.build(seed)

    def _sizes(self) -> str:
        """All that makes networks large, in words."""
        sizes = {"observation_size": self.observation_size, "action_size": self.action_size}
        sizes |= {name: value for name, value in flatten(self.config).items() if name.endswith(_SIZES)}
        return ", ".join(f"{name} {value}" for name, value in sizes.items())

    @abstractmethod
    def build(self, seed: int) -> None:
        """Create networks and optimizers; torch's random numbers are seeded around this call."""

    @abstractmethod
    def update(self, batch: Any) -> Metrics:
        """One gradient step. Returns scalars as tensors, without waiting for the device."""

    def clone(self, batch: Batch) -> Metrics:
        """A step of the actor alone, which clones the data's actions; for algorithms with extras."""
        loss = self.bc_loss(batch)
        minimize(loss, self.actor_optimizer)
        return {"loss_bc": loss.detach()}

    def bc_loss(self, batch: Batch) -> Tensor:
        """How far the actor is from the data's actions, on average."""
        assert self.extras is not None
        return self.extras.mean_loss(self.bc_losses(batch), batch)

    def bc_losses(self, batch: Batch) -> Tensor:
        """How far the actor is from the data's actions, (batch,); for algorithms with extras."""
        raise NotImplementedError(f"{type(self).__name__} does not clone")

    def warm_up(self, batch: Batch) -> Metrics:
        """As `update`, but with an actor that clones the data's actions; for algorithms with extras."""
        raise NotImplementedError(f"{type(self).__name__} has no warm-up")

    def step(self, batch: Any) -> Metrics:
        """A main step as the trainer takes it: the update, then the extras."""
        metrics = self.update(batch)
        if self.extras is not None:
            self.extras.after_step(self.actor)
        return metrics

    def phases(self) -> list[Phase]:
        """What is trained before the main steps, in order."""
        return [] if self.extras is None else self.extras.phases(self)

    def finished(self) -> bool:
        """Whether the main steps end here, before all are made: here, never."""
        return False

    def products(self) -> Mapping[str, Savable]:
        """What a run leaves besides its policy, by the name of a folder in it: here, nothing."""
        return {}

    @classmethod
    def steps_of(cls, preset: str) -> int:
        """How many main steps a training takes unless it is told."""
        return cls.PRESET_STEPS.get(preset, 1_000_000)

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """The paper's hyperparameters for a data set, as config fields, where the preset does not say otherwise."""
        return {}

    def select(self, dataset: Dataset) -> Dataset:
        """The part of the data to train on: here, all of it."""
        return dataset

    def preprocess(self, dataset: Dataset) -> Preprocessing:
        """What happens to every transition: here, observations are normalized if asked for."""
        normalize = self.config.normalize_observations
        return Preprocessing(Normalizer.of(dataset, self.device) if normalize else None)

    def prepare(self, data: Dataset) -> Mapping[str, Array]:
        """What an update needs to know of each row besides the transition: here, nothing.

        It follows from the data alone, so that it is computed anew when a run is resumed and is in no checkpoint. Rows
        of which nothing is known may be NaN.
        """
        return {}

    def batches(self, dataset: Dataset) -> Sampler:
        """What to sample from: here, transitions. Called once, before the first step; it trains nothing."""
        data = self.select(dataset)
        self.notes = data.meta.notes[len(dataset.meta.notes) :]
        self.known_rows = len(data)
        self.preprocessing = self.preprocess(data)
        self.prepared = {name: self._on_device(rows) for name, rows in self.prepare(data).items()}
        for name, rows in self.prepared.items():
            if len(rows) != len(data):
                raise ValueError(f"prepare gives {len(rows)} rows of '{name}' for {len(data)} of the data")
        mixed = {} if self.extras is None else self.extras.start(data, self.preprocessing, self.device)
        return Transitions(data, self.config.batch_size, self.device, self.preprocessing, mixed)

    def more_batches(self, dataset: Dataset) -> Transitions:
        """Further logged data, to be sampled beside those of `batches`: selected and preprocessed as these were."""
        data, known_rows = self.select(dataset), self.known_rows
        self.known_rows += len(data)
        known = self.prepare(data)
        self.prepared = {name: torch.cat([rows, self._on_device(known[name])]) for name, rows in self.prepared.items()}
        mixed = {} if self.extras is None else self.extras.include(data, self.preprocessing, self.device)
        return Transitions(data, self.config.batch_size, self.device, self.preprocessing, mixed, known_rows)

    def begin_finetuning(self) -> None:
        """Called once all data are known, before steps in which others than the first data are learned from.

        Of a transition that is in no data set nothing is prepared: its row is -1, which is NaN in all that is.
        """
        if self.extras is not None:
            self.extras.begin_finetuning()
        for name, rows in self.prepared.items():
            if not rows.is_floating_point():
                raise MildlyError(
                    f"{type(self).__name__} prepares whole numbers for each row ('{name}'), and cannot say that of a "
                    "new transition nothing is known. Let 'prepare' return floats."
                )
            self.prepared[name] = torch.cat([rows, rows.new_full((1, *rows.shape[1:]), float("nan"))])

    def begin_acting(self) -> None:
        """Called before steps in which the learner acts itself and learns from what follows."""
        if self.extras is not None:
            self.extras.begin_acting()

    def _on_device(self, rows: Array) -> Tensor:
        tensor = torch.as_tensor(rows, device=self.device)
        return tensor.float() if tensor.is_floating_point() else tensor

    def acting(self) -> Actor:
        """What the learned policy acts with: here the actor, or its running average."""
        average = None if self.extras is None else self.extras.average
        actor = self.actor if average is None else average
        assert isinstance(actor, Actor), "an algorithm whose actor cannot act alone says what can"
        return actor

    def policy(self, meta: Meta | None = None) -> Policy:
        """The learned policy, acting in the units of the environment that `meta` describes."""
        meta = meta or Meta("")
        return Policy(
            self.acting(),
            normalizer=self.preprocessing.normalizer,
            action_space=meta.action_space,
            reward_scale=self.preprocessing.reward_scale,
            action_names=meta.action_names,
            action_units=meta.action_units,
        )

    def adam(self, *modules: nn.Module | Tensor, **settings: Any) -> Adam:
        """Adam over the parameters of modules or over single tensors."""
        return Adam([p for m in modules for p in (m.parameters() if isinstance(m, nn.Module) else (m,))], **settings)

    def random_stream(self, seed: int, stream: str) -> torch.Generator:
        """A generator on the learner's device with numbers of its own."""
        return torch.Generator(device=self.device).manual_seed(stream_seed(seed, stream))


def behavior_phases(behavior: BehaviorLearner) -> list[Phase]:
    """The steps in which a behavior model is trained before all others, if it has any."""
    steps = behavior.config.steps
    return [Phase("behavior model", steps, behavior.update, "behavior.steps")] if steps else []
