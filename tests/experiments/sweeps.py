"""What the tests of sweeps share: specs of tiny runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conftest import SCHEDULE, run_fields

from mildly.experiments.spec import Job, Spec, expand, read_spec

TINY = {key: value for key, value in SCHEDULE.items() if key != "threads"}
BOTH = 'algorithms = ["bc", "mcq"]\ndatasets = ["pendulum-mixed", "hopper-mixed"]\n'
EIGHTEEN = """
algorithms = ["bc", "sac", "mcq"]
datasets = ["pendulum-mixed", "hopper-mixed"]
seeds = 3
preset = "small"
steps = 1500
eval_every = 750
episodes = 2
[bc]
steps = 4000
eval_every = 2000
[mcq]
steps = 200
eval_every = 100
checkpoint_every = 50
behavior.steps = 100
extras.bc_warmup_steps = 60
"""


def toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def write_spec(path: Path, text: str = "", *, algorithms: tuple[str, ...] = ("bc",), **options: Any) -> Path:
    """A spec of tiny runs: options, then `text`, then the fields that make networks tiny."""
    top = {"algorithms": algorithms, "datasets": ["pendulum-mixed"], "preset": "paper", **TINY, **options}
    lines = [f"{name} = {toml(value)}" for name, value in top.items()]
    lines += ["[fields]", *(f"{name} = {toml(value)}" for name, value in run_fields("bc").items()), text]
    if "mcq" in algorithms:
        own = {name: value for name, value in run_fields("mcq").items() if name not in run_fields("bc")}
        lines += ["[mcq]", *(f"{name} = {toml(value)}" for name, value in own.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def jobs_of(path: Path, *args: Any, **options: Any) -> list[Job]:
    return expand(read_spec(write_spec(path / "spec.toml", *args, **options)))


def parsed(tmp_path: Path, text: str) -> Spec:
    (tmp_path / "spec.toml").write_text(text)
    return read_spec(tmp_path / "spec.toml")
