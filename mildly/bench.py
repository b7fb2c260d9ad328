"""How fast is a gradient step, and how near is it to what this machine can do at all?

The machine's own speed is measured in the same run, in turns with the steps: one matrix product of the largest
shape that the step contains. Their ratio says how much of the time goes into anything but arithmetic, and holds on
a noisy machine, where milliseconds alone do not. For the same reason several algorithms and presets take turns, and
each is measured in its main steps, with its phases behind it.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from mildly.algorithms import algorithm_named
from mildly.algorithms.base import Algorithm
from mildly.algorithms.config import make_config
from mildly.data.dataset import Dataset, Meta
from mildly.device import memory_for

_WARM_UP = 3
_ROWS = 2048  # transitions of the random data
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


@dataclass(frozen=True)
class Row:
    """One measured combination."""

    algorithm: str
    preset: str
    ms_median: float
    ms_best: float
    gflop: float
    """Billions of floating-point operations of a step, counted by torch."""
    gflops: float
    """Billions a second reached by the median step."""
    machine_gflops: float
    """Billions a second of one matrix product of the step's largest shape, median."""
    ratio: float
    """gflops / machine_gflops."""
    speed: float | None
    """Steps a second, as a multiple of those of the preset `compared_with`; None where no other was measured."""
    compared_with: str
    """The algorithm's preset `paper`, or the first of those that were measured in the same run."""
    peak_memory_mb: float
    largest_product: str

    def to_json(self) -> dict[str, Any]:
        """As a plain dictionary."""
        return dataclasses.asdict(self)


def bench(
    algorithm: str = "mcq",
    preset: str = "paper",
    *,
    observation_size: int = 17,
    action_size: int = 6,
    repeats: int = 30,
    device: str = "cpu",
    **fields: Any,
) -> Row:
    """Time gradient steps of an algorithm on random data of the given sizes."""
    candidate = Candidate(algorithm, preset, observation_size, action_size, device, fields)
    return measure([candidate], repeats)[0]


class Candidate:
    """An algorithm with a preset, ready to take the steps that are timed."""

    def __init__(
        self,
        algorithm: str,
        preset: str,
        observation_size: int,
        action_size: int,
        device: str,
        fields: Mapping[str, Any],
    ) -> None:
        self.algorithm, self.preset = algorithm, preset
        kind = algorithm_named(algorithm)
        self.learner = kind(make_config(kind, preset, "", fields), observation_size, action_size, device=device)
        with memory_for(f"for a step of {algorithm} ({preset}). Lower the sizes, batch_size or num_actions."):
            self._prepare()

    def _prepare(self) -> None:
        """Batch and product, the first steps behind them."""
        data = _random_data(self.learner)
        self.batch = self.learner.batches(data).sample(self.learner.random_stream(0, "batches"))
        _reset_peak_memory(self.learner.device)
        for _ in range(_WARM_UP):
            self.step()
        self.peak = _peak_memory(self.learner.device)
        self.gflop, self.shape = _count(self.learner, self.batch)
        self.product = _product(self.shape, self.learner.device)
        for _ in range(_WARM_UP):
            self.product()
        self.steps: list[float] = []
        self.products: list[float] = []

    def step(self) -> None:
        """One gradient step."""
        self.learner.step(self.batch)

    def turn(self) -> None:
        """Time one step and one product."""
        self.steps.append(_seconds(self.step, self.learner.device))
        self.products.append(_seconds(self.product, self.learner.device))


def measure(candidates: Sequence[Candidate], repeats: int) -> list[Row]:
    """Time the candidates by turns."""
    for _ in range(repeats):
        for candidate in candidates:
            candidate.turn()
    medians = [statistics.median(candidate.steps) for candidate in candidates]
    timed = list(zip(candidates, medians, strict=True))
    base = {c.algorithm: (c.preset, median) for c, median in reversed(timed)}
    base |= {c.algorithm: (c.preset, median) for c, median in timed if c.preset == "paper"}
    alone = {name for name, count in Counter(c.algorithm for c in candidates).items() if count == 1}
    return [_row(c, median, *base[c.algorithm], alone=c.algorithm in alone) for c, median in timed]


def _row(candidate: Candidate, median: float, compared_with: str, base: float, *, alone: bool) -> Row:
    machine = 2 * math.prod(candidate.shape) / statistics.median(candidate.products) / 1e9
    return Row(
        algorithm=candidate.algorithm,
        preset=candidate.preset,
        ms_median=median * 1e3,
        ms_best=min(candidate.steps) * 1e3,
        gflop=candidate.gflop,
        gflops=candidate.gflop / median,
        machine_gflops=machine,
        ratio=candidate.gflop / median / machine,
        speed=None if alone else base / median,
        compared_with=compared_with,
        peak_memory_mb=candidate.peak,
        largest_product="x".join(str(size) for size in candidate.shape),
    )


def _random_data(learner: Algorithm) -> Dataset:
    n, o, a = max(_ROWS, learner.config.batch_size), learner.observation_size, learner.action_size
    random = np.random.default_rng(0)
    return Dataset.from_arrays(
        observations=random.normal(size=(n, o)),
        actions=np.tanh(random.normal(size=(n, a))),
        rewards=random.normal(size=n),
        next_observations=random.normal(size=(n, o)),
        terminated=np.zeros(n, bool),
        truncated=np.zeros(n, bool),
        meta=Meta("random"),
    )


def _count(learner: Algorithm, batch: Any) -> tuple[float, tuple[int, int, int]]:
    """GFLOP of a step, and the sizes (m, k, n) of its largest single matrix product."""
    with FlopCounterMode(display=False) as flops:
        learner.step(batch)
    with _LargestProduct() as products:  # type: ignore[no-untyped-call]
        learner.step(batch)
    return flops.get_total_flops() / 1e9, products.largest


class _LargestProduct(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches matrix products go by and remembers the largest."""

    largest = (1, 1, 1)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.name().split(".")[0] in _PRODUCTS:
            left, right = args[-2:]
            shape = (int(left.shape[-2]), int(left.shape[-1]), int(right.shape[-1]))
            self.largest = max(self.largest, shape, key=math.prod)
        return func(*args, **(kwargs or {}))


def _product(shape: tuple[int, int, int], device: torch.device) -> Callable[[], object]:
    m, k, n = shape
    left, right = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
    out = torch.empty(m, n, device=device)
    return lambda: torch.mm(left, right, out=out)


def _seconds(function: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _reset_peak_memory(device: torch.device) -> None:
    """Linux forgets the process's peak when asked; elsewhere the peak is that of the whole process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak_memory(device: torch.device) -> float:
    """Megabytes: of the device where there is one, else resident memory of the process, libraries included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        status = Path("/proc/self/status").read_text()
        kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        return int(kilobytes) / 1e3
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
