"""d3rlpy at work in its own environment: started by `peers.py`, told what to do by lines of JSON, answering likewise.

    {"do": "versions"}                                     what is installed here
    {"do": "load", "path": NPZ}                            transitions into d3rlpy's own replay buffer
    {"do": "build", "config": NAME, "arguments": {...}, "seed": 0}    an algorithm, ready to learn
    {"do": "steps", "count": N, "fit": false}              gradient steps, timed
    {"do": "act", "observations": [[...], ...]}            the policy's deterministic actions
    {"do": "begin", "episodes": N}                         episodes of a policy that remembers them; `act` then takes
                                                           "rows", which of them are meant, and "rewards", their last
    {"do": "judge", "arguments": {...}, "seed": 0}         its fitted Q evaluation, which takes the next steps
    {"do": "value", "observations": [[...], ...]}          what it says that the policy earns from there, on average

An answer is an object, with the key `error` where something went wrong.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import d3rlpy  # type: ignore[import-not-found]
import numpy as np
import torch
from d3rlpy.algos.qlearning.torch.bear_impl import BEARImpl  # type: ignore[import-not-found]
from d3rlpy.logging import NoopAdapterFactory  # type: ignore[import-not-found]
from d3rlpy.models.encoders import VectorEncoderFactory  # type: ignore[import-not-found]
from d3rlpy.models.torch.imitators import VAEDecoder  # type: ignore[import-not-found]
from d3rlpy.optimizers import (  # type: ignore[import-not-found]
    AdamFactory,
    AdamWFactory,
    CosineAnnealingLRFactory,
    WarmupSchedulerFactory,
)
from d3rlpy.preprocessing import (  # type: ignore[import-not-found]
    MultiplyRewardScaler,
    ReturnBasedRewardScaler,
    StandardObservationScaler,
)

DECODE, UPDATE_ALPHA = VAEDecoder.forward, BEARImpl.update_alpha
RETURN_RANGE = 1000.0  # what IQL's authors scale the difference of the best and the worst return to


class Worker:
    """The buffer and the algorithm that the driver asks for."""

    def __init__(self) -> None:
        self.buffer: Any = None
        self.observations = np.empty((0, 0), np.float32)
        self.algorithm: Any = None
        self.trajectories: Any = None
        self.target = 0.0
        self.episodes: list[Any] = []

    def versions(self) -> dict[str, Any]:
        """What is installed here."""
        found = {"python": platform.python_version(), "d3rlpy": d3rlpy.__version__}
        return {"versions": found | {"torch": torch.__version__, "numpy": np.__version__}}

    def load(self, path: str) -> dict[str, Any]:
        """Transitions into d3rlpy's own replay buffer; the answer says how many it holds."""
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
        self.observations = data["observations"]
        buffer = d3rlpy.dataset.InfiniteBuffer()
        self.buffer = d3rlpy.dataset.ReplayBuffer(buffer, episodes=episodes_of(data))
        whole = episodes_of(data, following=False)
        self.trajectories = d3rlpy.dataset.ReplayBuffer(d3rlpy.dataset.InfiniteBuffer(), episodes=whole)
        return {"transitions": self.buffer.transition_count}

    def build(self, config: str, arguments: dict[str, Any], seed: int) -> dict[str, Any]:
        """An algorithm with new weights; the answer is its whole config, as d3rlpy itself writes it."""
        d3rlpy.seed(seed)
        self.target = arguments.pop("target_return", 0.0)
        right = arguments.pop("put_right", False)
        VAEDecoder.forward = squashed_if_asked if right else DECODE
        BEARImpl.update_alpha = of_alpha_alone if right else UPDATE_ALPHA
        given = {name: self.argument(name, value) for name, value in arguments.items()}
        if "context_size" in given:
            given = of_transformer(given)
        made = getattr(d3rlpy.algos, config)(**given)
        self.algorithm = made.create(device=False)
        self.algorithm.build_with_dataset(self.buffer)
        return {"config": json.loads(made.serialize())}

    def judge(self, arguments: dict[str, Any], seed: int) -> dict[str, Any]:
        """Fitted Q evaluation of the algorithm, with new weights."""
        d3rlpy.seed(seed)
        given = {name: self.argument(name, value) for name, value in arguments.items()}
        algorithm = getattr(self.algorithm, "algo", self.algorithm)
        self.algorithm = d3rlpy.ope.FQE(algo=algorithm, config=d3rlpy.ope.FQEConfig(**given))
        self.algorithm.build_with_dataset(self.buffer)
        return {"config": json.loads(self.algorithm.config.serialize())}

    def value(self, observations: list[list[float]]) -> dict[str, Any]:
        """The mean value of the policy's actions."""
        states = np.asarray(observations, np.float32)
        return {"value": float(self.algorithm.predict_value(states, self.algorithm.predict(states)).mean())}

    def argument(self, name: str, value: Any) -> Any:
        """What JSON cannot say: encoders from widths, scalers, and an optimizer whose rate decays."""
        if name.endswith("encoder_factory") and isinstance(value, int):  # a linear embedding
            return VectorEncoderFactory(hidden_units=[value], exclude_last_activation=True)
        if name.endswith("encoder_factory"):
            return VectorEncoderFactory(hidden_units=value, activation="relu")
        if name.endswith("optim_factory"):
            schedule = None if value is None else CosineAnnealingLRFactory(T_max=value)
            return AdamFactory(lr_scheduler_factory=schedule)
        if name == "position_encoding_type":
            return d3rlpy.PositionEncodingType(value)
        if name == "observation_scaler" and value:
            mean, std = (f(self.observations, axis=0, dtype=np.float64) for f in (np.mean, np.std))
            return StandardObservationScaler(mean=mean, std=std)
        if name == "reward_scaler" and value:
            lowest, highest = value
            return ReturnBasedRewardScaler(return_max=highest, return_min=lowest, multiplier=RETURN_RANGE)
        return None if name.endswith("_scaler") else value

    def steps(self, count: int, fit: bool) -> dict[str, Any]:
        """Gradient steps: batches from its own buffer and its own `update`, or the whole of its public `fit`."""
        wall, processor = time.perf_counter(), time.process_time()
        config = self.algorithm.config
        windows = hasattr(config, "context_size")
        if fit:
            self.algorithm.fit(
                self.trajectories if windows else self.buffer,
                n_steps=count,
                n_steps_per_epoch=count,
                logger_adapter=NoopAdapterFactory(),
                show_progress=False,
            )
        else:
            for _ in range(count):
                if windows:
                    batch = self.trajectories.sample_trajectory_batch(config.batch_size, config.context_size)
                else:
                    batch = self.buffer.sample_transition_batch(config.batch_size)
                self.algorithm.update(batch)
        return {"seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - processor}

    def begin(self, episodes: int) -> dict[str, Any]:
        """Episodes side by side of a policy that remembers them."""
        self.episodes = [self.algorithm.as_stateful_wrapper(self.target) for _ in range(episodes)]
        return {}

    def act(
        self, observations: list[list[float]], rows: list[int] | None = None, rewards: list[float] | None = None
    ) -> dict[str, Any]:
        """The deterministic actions, in [-1, 1]."""
        states = np.asarray(observations, np.float32)
        if rows is None or rewards is None:
            return {"actions": self.algorithm.predict(states).tolist()}
        episodes = [self.episodes[row] for row in rows]
        asked = zip(episodes, states, rewards, strict=True)
        return {"actions": [episode.predict(state, reward).tolist() for episode, state, reward in asked]}


def squashed_if_asked(decoder: Any, x: Any, latent: Any, with_squash: bool) -> Any:
    """What d3rlpy's decoder gives with the flag turned: 2.8.1 squashes actions where it is asked not to."""
    return DECODE(decoder, x, latent, not with_squash)


def of_alpha_alone(learner: Any, mmd_loss: Any) -> None:
    """BEAR's step of the constraint's weight, without what it leaves behind in the actor.

    2.8.1 goes down minus the constraint through weight and actor both, and then up it for the actor: the two cancel,
    and the actor never feels the constraint.
    """
    UPDATE_ALPHA(learner, mmd_loss)
    for parameter in learner.modules.policy.parameters():
        parameter.grad = None


def of_transformer(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments with an optimizer and a scaler of returns made of those numbers that are none of d3rlpy's."""
    own = {name: given.pop(name) for name in ("warmup_steps", "weight_decay", "clip_grad_norm", "return_scale")}
    warm_up = WarmupSchedulerFactory(warmup_steps=own["warmup_steps"])
    rates = {"weight_decay": own["weight_decay"], "clip_grad_norm": own["clip_grad_norm"]}
    scaler = MultiplyRewardScaler(multiplier=1 / own["return_scale"])
    return {**given, "optim_factory": AdamWFactory(**rates, lr_scheduler_factory=warm_up), "reward_scaler": scaler}


def episodes_of(data: dict[str, Any], following: bool = True) -> list[Any]:
    """Episodes in d3rlpy's form, which have exactly the transitions of the data.

    d3rlpy keeps the observations of an episode and takes the next one of a step from the step after it, so that it
    would drop the last transition before a time-out. A further row that holds only the observation after it keeps that
    transition; the row itself is never drawn. Where the data skip a step, an episode is cut in the same way. Windows of
    trajectories would show that row, so that they are cut from episodes that do not have it (`following=False`).
    """
    observations, after = data["observations"], data["next_observations"]
    ends = data["terminated"] | data["truncated"]
    ends[:-1] |= (after[:-1] != observations[1:]).any(axis=1)
    ends[-1] = True
    episodes, start = [], 0
    for end in np.flatnonzero(ends) + 1:
        rows, terminated = slice(start, end), bool(data["terminated"][end - 1])
        parts = [observations[rows], data["actions"][rows], data["rewards"][rows, None]]
        if following and not terminated:
            last = [after[end - 1], np.zeros_like(data["actions"][0]), np.zeros(1, np.float32)]
            parts = [np.concatenate([part, row[None]]) for part, row in zip(parts, last, strict=True)]
        episodes.append(d3rlpy.dataset.Episode(*parts, terminated=terminated))
        start = int(end)
    return episodes


def main() -> None:
    """Answer line by line until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # d3rlpy's own messages must not come between the answers
    torch.set_num_threads(1)
    worker = Worker()
    tasks: dict[str, Callable[..., dict[str, Any]]] = {
        name: getattr(worker, name) for name in ("versions", "load", "build", "steps", "begin", "act", "judge", "value")
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = tasks[request.pop("do")](**request)
        except Exception as error:  # the driver says it to the user
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
