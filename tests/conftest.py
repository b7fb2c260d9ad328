"""What all tests share: one thread, repeatable examples, tiny batches, and a slow reference in plain numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from mildly.action_space import ActionSpace
from mildly.actors import Actor, Memory
from mildly.algorithms import ALGORITHMS
from mildly.algorithms.base import Algorithm
from mildly.algorithms.config import build_config, field_types
from mildly.algorithms.decision_transformer import DecisionTransformer
from mildly.cli import main
from mildly.data.batches import Batch, WindowBatch
from mildly.data.convert import convert
from mildly.data.dataset import Dataset, Meta
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError
from mildly.files import temporary_path
from mildly.networks import Critics
from mildly.run import Run
from mildly.training import checkpoint
from mildly.training.offline import train

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


class Refused:
    """What must fail with a helpful message. Each method checks the failure and returns the message."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.request = request

    def __call__(self, call: Callable[..., object], *words: str, **options: Any) -> str:
        """A call that must raise a MildlyError with these words in its message."""
        with pytest.raises(MildlyError) as caught:
            call(**options)
        message = str(caught.value)
        for word in words:
            assert word in message
        return message

    def dataset(self, path: Path, *words: str, **options: Any) -> str:
        """A data set that can neither be loaded nor converted. The message begins with its path."""
        before = sorted(path.parent.iterdir())
        message = self(load_dataset, *words, source=path, **options)
        assert message.startswith((f"{path}: ", f"{path}{os.sep}"))
        assert len(message) < 3000
        if not options:
            self(convert, source=path, target=path.parent / "converted")
        assert sorted(path.parent.iterdir()) == before
        return message

    def command(self, *args: str) -> str:
        """A command that must end with code 2 and one message, and must leave its empty folder empty."""
        capsys = self.request.getfixturevalue("capsys")
        empty = self.request.getfixturevalue("tmp_path") / "empty"
        empty.mkdir(exist_ok=True)
        self.request.getfixturevalue("monkeypatch").chdir(empty)
        capsys.readouterr()
        try:
            code = main(args)
        except SystemExit as ended:  # raised by the parser of flags
            code = ended.code  # type: ignore[assignment]
        out, err = capsys.readouterr()
        assert code == 2
        assert out == ""
        assert "Traceback" not in err
        assert err.strip()
        assert err.startswith("error: ") == (err.count("\n") == 1)  # ours is one line, the parser's a box
        assert list(empty.iterdir()) == []
        return " ".join(err.replace("│", " ").split())


@pytest.fixture
def refused(request: pytest.FixtureRequest) -> Refused:
    return Refused(request)


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


def make_windows(rows: int = 12, seed: int = 0, length: int = 4) -> WindowBatch:
    """Random windows of the tiny problem, padded as those of episodes that end; none is empty."""
    random = torch.Generator().manual_seed(seed)
    there = torch.randint(1, length + 1, (rows, 1), generator=random)
    mask = (torch.arange(length) < there).float()
    first = torch.randint(20, (rows, 1), generator=random)
    return WindowBatch(
        observations=torch.randn(rows, length, OBSERVATIONS, generator=random) * mask.unsqueeze(-1),
        actions=(torch.rand(rows, length, ACTIONS, generator=random) * 2 - 1) * mask.unsqueeze(-1),
        rewards=torch.randn(rows, length, generator=random) * mask,
        returns_to_go=torch.randn(rows, length, generator=random) * mask,
        timesteps=(first + torch.arange(length)) * mask.long(),
        mask=mask,
    )


def batch_for(learner: Algorithm, seed: int = 0) -> Batch | WindowBatch:
    """A random batch of what an algorithm learns from."""
    return make_windows(seed=seed) if isinstance(learner, DecisionTransformer) else make_batch(seed=seed)


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
        meta=Meta("tiny", action_space=ActionSpace((-2.0, 0.0), (1.0, 0.5)), **meta),
    )


TRANSFORMER: dict[str, Any] = {"width": 8, "layers": 2, "heads": 2, "context": 4, "max_timesteps": 30}
"""Fields of a tiny Decision Transformer."""
_FEW = {"passes": 4, "rollout_batch": 20, "dynamics.max_steps": 4}
"""Fields that would make a step or a phase long."""


def tiny_fields(kind: type[Algorithm]) -> dict[str, Any]:
    """Config fields that make any algorithm's networks tiny."""
    types = field_types(kind.Config)
    few = {name: value for name, value in _FEW.items() if name in types}
    few |= TRANSFORMER | {"lr_warmup_steps": 2, "actor_lr": 1e-2} if "context" in types else {}
    return {name: (8, 8) for name in types if name.endswith("hidden_dims")} | {"batch_size": 12} | few


def tiny(name: str, seed: int = 0, **fields: Any) -> Any:
    """An algorithm of the registry with tiny networks; fields of groups by their dotted names, or as a mapping."""
    kind = ALGORITHMS[name]
    return kind(build_config(kind, {**tiny_fields(kind), **fields}), OBSERVATIONS, ACTIONS, seed=seed)


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


# A policy that remembers: it acts by how long its episode has lasted and what that has brought, so that a mix-up of
# episodes shows in every action.


class CountingActor(Actor):
    """The first action is its step in thousandths, the second the return so far, the third follows the observation."""

    kind = "counting"

    def __init__(self, observation_size: int, action_size: int) -> None:
        super().__init__(observation_size, action_size, ())
        self.weight = torch.nn.Parameter(torch.tensor(2.0))

    def start(self, episodes: int, **conditions: float) -> CountingMemory:
        return CountingMemory(self, episodes)


class CountingMemory(Memory):
    """Steps and returns of n episodes."""

    def __init__(self, actor: CountingActor, episodes: int) -> None:
        self.actor, self.steps, self.returns = actor, torch.zeros(episodes), torch.zeros(episodes)

    def act(
        self, observations: torch.Tensor, rows: Sequence[int], deterministic: bool, generator: torch.Generator | None
    ) -> torch.Tensor:
        here = list(rows)
        seen = (self.actor.weight * observations[:, -1]).tanh()
        actions = torch.stack([self.steps[here] / 1000, (self.returns[here] / 100).tanh(), seen], dim=1)
        self.steps[here] += 1
        return actions[:, : self.actor.spec["action_size"]]

    def observe(self, rewards: torch.Tensor, rows: Sequence[int]) -> None:
        self.returns[list(rows)] += rewards

    def reset(self, rows: Sequence[int]) -> None:
        self.steps[list(rows)] = self.returns[list(rows)] = 0.0


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
    if algorithm == "decision-transformer":
        return {**TRANSFORMER, "max_timesteps": 200, "batch_size": 16, "lr_warmup_steps": 100}
    fields: dict[str, Any] = {"hidden_dims": (16, 16), "batch_size": 16}
    behavior = {"behavior.hidden_dims": (16, 16), "num_actions": 3}
    own: dict[str, dict[str, Any]] = {
        "mcq": behavior,
        "cql": {"extras.bc_warmup_steps": 0},
        "bcq": behavior,
        "bear": {**behavior, "warmup_steps": 0},
        "uwac": {**behavior, "warmup_steps": 0, "passes": 4},
        "mopo": {"dynamics.hidden_dims": (16, 16), "dynamics.max_steps": 40, "rollout_every": 50, "rollout_batch": 50},
    }
    return fields | own.get(algorithm.removesuffix("-td3"), {})


def train_tiny(algorithm: str, out: Path, **given: Any) -> Run:
    """A tiny run in this process."""
    return train(
        algorithm,
        **{"dataset": "pendulum-mixed", "preset": "paper", **SCHEDULE, **run_fields(algorithm), **given},
        out=out,
    )


def train_args(algorithm: str, out: Path | str, **given: Any) -> list[str]:
    """The arguments of `mildly` for the run that `train_tiny` makes."""
    args = ["train", algorithm, "--out", str(out)]
    for name, value in {
        "dataset": "pendulum-mixed",
        "preset": "paper",
        **SCHEDULE,
        **run_fields(algorithm),
        **given,
    }.items():
        values = () if value is True else value if isinstance(value, tuple) else (value,)
        args += [f"--{name.replace('_', '-')}", *map(str, values)]
    return args


COMMAND = [sys.executable, "-c", "from mildly.cli import main; raise SystemExit(main())"]


def mildly(*args: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end in another process."""
    return subprocess.run(
        [*COMMAND, *args], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


def unsealed(path: Path) -> dict[str, Any]:
    """What a JSON file of ours holds, without its digest: to be changed and written as somebody may on purpose."""
    values: dict[str, Any] = json.loads(path.read_text())
    values.pop("digest", None)
    return values


def left_by(pid: int, path: Path) -> Path:
    """Where a process of this machine that was killed may have left an unfinished file."""
    return path.with_name(temporary_path(path).name.replace(f".tmp-{os.getpid()}-", f".tmp-{pid}-"))


def content(run: Path) -> dict[str, Any]:
    """All that must be equal in two equal runs, bytes and bits."""
    tensors, facts = checkpoint.load(run / "checkpoint.safetensors")
    files = ("metrics.jsonl", "evaluations.jsonl", "policy/weights.safetensors", "policy/policy.json")
    return {
        **{name: (run / name).read_bytes() for name in files},
        **{name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
        "step": facts["step"],
    }
