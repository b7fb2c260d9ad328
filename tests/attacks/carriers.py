"""One sound file of each kind that others may hand to us, to be made hostile."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import train_tiny, unsealed
from mutations import toml_text

from mildly.collect.agent import AgentPlan
from mildly.data.convert import export
from mildly.data.dataset import FIELDS, Dataset
from mildly.data.registry import load_dataset

PAPER = "halfcheetah-medium-v2"
"""What the data are called, so that the paper's tables take the run."""
SPEC: dict[str, Any] = {
    "algorithms": ["bc", "mcq"],
    "datasets": ["pendulum-mixed"],
    "seeds": [0, 1],
    "preset": "small",
    "steps": 100,
    "env": "Pendulum-v1",
    "fields": {"hidden_dims": [4, 4], "batch_size": [4, 8]},
    "mcq": {"steps": 50, "behavior": {"model": "cvae"}, "variants": {"careful": {"lam": 0.3}, "other": {"lam": 0.5}}},
}


def one_of_each(folder: Path) -> None:
    """Fill a folder. Its JSON has no digest, so that a change is not refused for the digest alone."""
    whole = load_dataset("pendulum-mixed")
    rows = {name: np.array(getattr(whole, name)[:60]) for name in FIELDS}
    rows["truncated"][19::20] = True
    data = Dataset.from_arrays(**rows, meta=dataclasses.replace(whole.meta, name=PAPER))
    data.save(folder / "set")
    for ending in ("csv", "csv.gz", "npz", "hdf5", "parquet"):
        export(data, folder / f"log.{ending}")
    run = train_tiny("mcq", folder / "run", dataset=data.save(folder / "kept"), steps=10, eval_every=5).path
    for path in (run / "run.json", run / "policy" / "policy.json", folder / "set" / "dataset.json"):
        path.write_text(json.dumps(unsealed(path)))
    np.savez(folder / "policy.npz", **policy_arrays(action_size=1))
    plan = dataclasses.asdict(AgentPlan.preset("small", "Pendulum-v1"))
    (folder / "agent").mkdir()
    (folder / "agent" / "agent.json").write_text(json.dumps({"format": 2, "steps": 1000, "plan": plan}))
    (folder / "spec.toml").write_text(toml_text(SPEC))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
        shutil.move(minari_set(lambda spec: None), folder / "episodes")


def policy_arrays(action_size: int) -> dict[str, Any]:
    """A small network as `.npz` files keep it, for three observations."""
    draw = np.random.default_rng(0).normal
    arrays: dict[str, Any] = {"act": "tanh", "squash": "tanh", "obs_mean": np.zeros(3), "obs_std": np.ones(3)}
    arrays |= {"obs_clip": np.array(5.0), "log_std": np.zeros(action_size)}
    arrays |= {"W0": draw(size=(4, 3)), "b0": np.zeros(4)}
    return arrays | {"W1": draw(size=(action_size, 4)), "b1": np.zeros(action_size)}


def minari_set(change: Callable[[dict[str, Any]], None]) -> Path:
    """The folder of a Minari set whose description of the environment was changed."""
    minari = pytest.importorskip("minari")
    import gymnasium as gym
    from minari.data_collector import EpisodeBuffer

    box = gym.spaces.Box(-1, 1, (2,), np.float32)
    steps = np.zeros((4, 2), np.float32)
    ends = np.array([False, False, False, True])
    buffer = EpisodeBuffer(
        id=0, observations=np.zeros((5, 3), np.float32), actions=steps, rewards=np.ones(4), terminations=ends,
        truncations=~ends & False,
    )  # fmt: skip
    made = minari.create_dataset_from_buffers(
        dataset_id="stranger/set-v0", buffer=[buffer], env="Pendulum-v1", action_space=box,
        observation_space=gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
    )  # fmt: skip
    place = Path(made.storage.data_path)
    described = json.loads((place / "metadata.json").read_text())
    spec = json.loads(described["env_spec"])
    change(spec)
    (place / "metadata.json").write_text(json.dumps({**described, "env_spec": json.dumps(spec)}))
    return place.parent
