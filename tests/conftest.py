"""What all tests share: one thread, repeatable examples, tiny batches, and a slow reference in plain numpy."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.base import Algorithm
from mildly.data.dataset import Dataset, Meta
from mildly.data.replay import Batch
from mildly.networks import Critics
from mildly.run import Run
from mildly.training import checkpoint
from mildly.training.loop import train

torch.set_num_threads(1)
settings.register_profile("repeatable", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Bits depend on the number of threads, so that a test which changes it must not reach the next one."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test downloads anything, or sees what the person who runs it has at home."""
    monkeypatch.setenv("MILDLY_MIRROR", "file:///there/is/nothing")
    monkeypatch.setenv("MILDLY_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("MILDLY_DATA", raising=False)


OBSERVATIONS, ACTIONS = 3, 2
"""Sizes of the tiny problem on which algorithms are tested."""


def make_batch(rows: int = 12, seed: int = 0) -> Batch:
    """Random transitions of the tiny problem; about a third of them terminal."""
    random = torch.Generator().manual_seed(seed)
    return Batch(
        observations=torch.randn(rows, OBSERVATIONS, generator=random),
        actions=torch.rand(rows, ACTIONS, generator=random) * 2 - 1,
        rewards=torch.randn(rows, generator=random),
        next_observations=torch.randn(rows, OBSERVATIONS, generator=random),
        terminated=(torch.rand(rows, generator=random) < 1 / 3).float(),
    )


def make_dataset(rows: int = 60, seed: int = 0, **meta: Any) -> Dataset:
    """Random episodes of ten steps in the schema, with actions whose bounds in the environment are not +-1."""
    random = np.random.default_rng(seed)
    ends = np.arange(1, rows + 1) % 10 == 0
    return Dataset.from_arrays(
        observations=random.normal(3.0, 5.0, (rows, OBSERVATIONS)),
        actions=random.uniform(-1, 1, (rows, ACTIONS)),
        rewards=random.normal(size=rows),
        next_observations=random.normal(3.0, 5.0, (rows, OBSERVATIONS)),
        terminated=ends & (np.arange(rows) % 20 < 10),
        truncated=ends & (np.arange(rows) % 20 >= 10),
        meta=Meta("tiny", action_low=(-2.0, 0.0), action_high=(1.0, 0.5), **meta),
    )


def tiny_fields(kind: type[Algorithm]) -> dict[str, Any]:
    """Config fields that make any algorithm's networks tiny."""
    names = [field.name for field in dataclasses.fields(kind.Config)]
    return {name: (8, 8) for name in names if name.endswith("hidden")} | {"batch_size": 12}


def tiny(name: str, seed: int = 0, **fields: Any) -> Any:
    """An algorithm of the registry with tiny networks."""
    kind = ALGORITHMS[name]
    return kind(kind.Config(**{**tiny_fields(kind), **fields}), OBSERVATIONS, ACTIONS, seed=seed)


def weights(*modules: torch.nn.Module) -> list[torch.Tensor]:
    """A copy of all parameters, to be compared later."""
    return [parameter.detach().clone() for module in modules for parameter in module.parameters()]


def same(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    """Whether two lists of tensors are equal to the bit."""
    return len(before) == len(after) and all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def replay(generator: torch.Generator) -> torch.Generator:
    """A generator that will give the numbers the other is about to give."""
    return torch.Generator().set_state(generator.get_state())


class Layers(list[tuple[np.ndarray, np.ndarray]]):
    """The slow reference of a network: matrices and offsets in double precision, applied to one input at a time."""

    @classmethod
    def of(cls, net: torch.nn.Sequential) -> Layers:
        linear = [layer for layer in net if isinstance(layer, torch.nn.Linear)]
        return cls((layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()) for layer in linear)

    @classmethod
    def of_critic(cls, critics: Critics, j: int) -> Layers:
        pairs = zip(critics.weights, critics.biases, strict=True)
        return cls((w[j].detach().double().numpy().T, b[j, 0].detach().double().numpy()) for w, b in pairs)

    def __call__(self, *inputs: Any) -> np.ndarray:
        x = np.concatenate([np.asarray(given, dtype=np.float64).reshape(-1) for given in inputs])
        for i, (matrix, offset) in enumerate(self):
            x = matrix @ x + offset
            if i < len(self) - 1:
                x = np.where(x > 0, x, 0.0)
        return x


def plain_critic(critics: Critics, j: int) -> torch.nn.Sequential:
    """One critic of an ensemble as layers of its own, for implementations that take one critic at a time."""
    layers: list[torch.nn.Module] = []
    for weight, bias in zip(critics.weights, critics.biases, strict=True):
        layer = torch.nn.Linear(*weight.shape[1:])
        layer.weight.data.copy_(weight.data[j].T)
        layer.bias.data.copy_(bias.data[j, 0])
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def slow_draw(actor: Layers, state: Any, noise: Any, low: float, high: float) -> tuple[np.ndarray, float]:
    """One action of a tanh-Gaussian policy and its log-probability, dimension by dimension."""
    out = actor(state)
    half = len(out) // 2
    action, log_prob = np.zeros(half), 0.0
    for k in range(half):
        mean, log_std = out[k], min(max(out[half + k], low), high)
        z = mean + np.exp(log_std) * float(noise[k])
        action[k] = np.tanh(z)
        log_prob += -0.5 * ((z - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
        log_prob -= np.log(1 - np.tanh(z) ** 2 + 1e-6)
    return action, float(log_prob)


# Whole runs: tiny networks on the built-in set, in this process or as the command in another one.

SCHEDULE: dict[str, Any] = {
    "steps": 300,
    "log_every": 5,
    "eval_every": 50,
    "episodes": 1,
    "checkpoint_every": 20,
    "threads": 1,
}
"""A run of about a second, with several lines, evaluations and checkpoints."""


def run_fields(algorithm: str) -> dict[str, Any]:
    """Config fields with which a step of any algorithm takes about two milliseconds."""
    fields: dict[str, Any] = {"hidden": (16, 16), "batch_size": 16}
    return fields | ({"behavior_hidden": (16, 16), "num_actions": 3} if algorithm.startswith("mcq") else {})


def train_tiny(algorithm: str, out: Path, **given: Any) -> Run:
    """A tiny run in this process."""
    return train(algorithm, **{"dataset": "pendulum-mixed", **SCHEDULE, **run_fields(algorithm), **given}, out=out)


def train_args(algorithm: str, out: Path | str, **given: Any) -> list[str]:
    """The arguments of `mildly` for the run that `train_tiny` makes."""
    args = ["train", algorithm, "--out", str(out)]
    for name, value in {"dataset": "pendulum-mixed", **SCHEDULE, **run_fields(algorithm), **given}.items():
        values = value if isinstance(value, tuple) else (value,)
        args += [f"--{name.replace('_', '-')}", *map(str, values)]
    return args


COMMAND = [sys.executable, "-c", "from mildly.cli import main; raise SystemExit(main())"]


def mildly(*args: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end in another process."""
    return subprocess.run(
        [*COMMAND, *args], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


def content(run: Path) -> dict[str, Any]:
    """All that must be equal in two equal runs, bytes and bits."""
    tensors, facts = checkpoint.load(run / "checkpoint.safetensors")
    files = ("metrics.jsonl", "evaluations.jsonl", "policy/weights.safetensors", "policy/policy.json")
    return {
        **{name: (run / name).read_bytes() for name in files},
        **{name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
        "step": facts["step"],
    }
