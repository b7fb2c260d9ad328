"""How fast is a gradient step, and how near is it to what this machine can do at all?

The machine's own speed is measured in the same run, in turns with the steps: one matrix product of the largest
shape that the step contains. Their ratio says how much of the time goes into anything but arithmetic, and holds on
a noisy machine, where milliseconds alone do not.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from mildly.algorithms import algorithm_named
from mildly.algorithms.base import Algorithm, make_config
from mildly.data.replay import Batch

_WARM_UP = 3
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
    kind = algorithm_named(algorithm)
    learner = kind(make_config(kind, preset, "", fields), observation_size, action_size, device=device)
    batch = _random_batch(learner)
    _reset_peak_memory(learner.device)
    for _ in range(_WARM_UP):
        learner.update(batch)
    peak = _peak_memory(learner.device)
    gflop, shape = _count(learner, batch)
    product = _product(shape, learner.device)
    for _ in range(_WARM_UP):
        product()
    steps, products = [], []
    for _ in range(repeats):
        steps.append(_seconds(lambda: learner.update(batch), learner.device))
        products.append(_seconds(product, learner.device))
    median = statistics.median(steps)
    machine = 2 * math.prod(shape) / statistics.median(products) / 1e9
    return Row(
        algorithm=algorithm,
        preset=preset,
        ms_median=median * 1e3,
        ms_best=min(steps) * 1e3,
        gflop=gflop,
        gflops=gflop / median,
        machine_gflops=machine,
        ratio=gflop / median / machine,
        peak_memory_mb=peak,
        largest_product="x".join(str(size) for size in shape),
    )


def _random_batch(learner: Algorithm) -> Batch:
    n, o, a = learner.config.batch_size, learner.observation_size, learner.action_size
    generator = torch.Generator().manual_seed(0)
    columns = [torch.randn((n, *width), generator=generator) for width in ((o,), (a,), (), (o,))]
    columns[1].tanh_()
    return Batch(*(column.to(learner.device) for column in (*columns, torch.zeros(n))))


def _count(learner: Algorithm, batch: Batch) -> tuple[float, tuple[int, int, int]]:
    """GFLOP of a step, and the sizes (m, k, n) of its largest single matrix product."""
    with FlopCounterMode(display=False) as flops:
        learner.update(batch)
    with _LargestProduct() as products:  # type: ignore[no-untyped-call]
        learner.update(batch)
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
