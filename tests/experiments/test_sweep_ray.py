"""Sweeps on a Ray cluster of two nodes, both on this machine: the results are those of a sweep without Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import COMMAND, SCHEDULE, content, run_fields
from sweeps import EIGHTEEN

from mildly.errors import MildlyError
from mildly.experiments import on_ray
from mildly.experiments.process import checkpoint_step
from mildly.experiments.spec import expand, read_spec
from mildly.experiments.sweep import run_sweep
from mildly.run import Run

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
STEPS = 2500


def write_spec(path: Path) -> Path:
    schedule = {**SCHEDULE, "steps": STEPS, "eval_every": 1250, "log_every": 50, "checkpoint_every": 100}
    top = {"algorithms": ["mcq", "sac"], "datasets": "pendulum-mixed", "seeds": 2, **schedule}
    own = {name: value for name, value in run_fields("mcq").items() if name not in run_fields("sac")}
    tables = {"": {name: value for name, value in top.items() if name != "threads"}}
    tables |= {"[fields]": run_fields("sac"), "[mcq]": own}
    text = [
        f"{title}\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for title, table in tables.items()
    ]
    path.write_text("".join(text))
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    """Two nodes with a CPU each; the cache of a node lies in the temporary folder that it was started with."""
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    try:
        yield made, made.add_node(**small)
    finally:
        made.shutdown()


@pytest.mark.slow
def test_a_sweep_that_loses_a_node_brings_the_bits_of_a_sweep_without_ray(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, node = cluster
    spec, out = write_spec(tmp_path / "spec.toml"), tmp_path / "ray"
    jobs = expand(read_spec(spec))
    first = [out / "mcq" / "pendulum-mixed" / f"seed-{seed}" for seed in (0, 1)]
    command = [*COMMAND, "sweep", str(spec), "--out", str(out), "--ray", both.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweep:
        deadline = time.monotonic() + 120
        while not all(checkpoint_step(run) > 0 for run in first):
            assert sweep.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        both.remove_node(node, allow_graceful=False)
        assert min(checkpoint_step(run) for run in first) < STEPS, "the node was lost too late"
        told, errors = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, errors
    assert "4 of 4 jobs complete" in told
    logs = [run.with_name(f"{run.name}.log").read_text() for run in first]
    assert sorted(log.count("--- ") for log in logs) == [1, 2], "one of the two was begun again"
    assert sum("from step" in log for log in logs) == 1, "and resumed"
    assert run_sweep(jobs, tmp_path / "local") == {}
    for job in jobs:
        assert content(out / job.name) == content(tmp_path / "local" / job.name), job.name
        assert Run(out / job.name).plan().dataset == "pendulum-mixed"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_eighteen_jobs_on_a_cluster_that_loses_a_node_equal_those_run_here(tmp_path: Path, cluster: Any) -> None:
    both, node = cluster
    spec, out = tmp_path / "spec.toml", tmp_path / "ray"
    spec.write_text(EIGHTEEN)
    jobs = expand(read_spec(spec))
    command = [*COMMAND, "sweep", str(spec), "--out", str(out), "--ray", both.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as sweep:
        while sum(checkpoint_step(out / job.name) >= job.plan.steps for job in jobs) < 6:
            assert sweep.poll() is None
            time.sleep(0.1)
        both.remove_node(node, allow_graceful=False)
        told, _ = sweep.communicate(timeout=1200)
    assert sweep.returncode == 0
    assert "18 of 18 jobs complete" in told
    assert run_sweep(jobs, tmp_path / "local") == {}
    for job in jobs:
        assert content(out / job.name) == content(tmp_path / "local" / job.name), job.name


def test_without_ray_and_without_a_cluster_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(on_ray, "import_module", absent)
    with pytest.raises(MildlyError, match=r"pip install 'mildly\[ray\]'"):
        run_sweep(expand(read_spec(write_spec(tmp_path / "spec.toml"))), tmp_path / "out", ray="auto")


def test_no_cluster_at_the_address_is_told(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    with pytest.raises(MildlyError, match="no Ray cluster answers at 'auto'"):
        run_sweep(expand(read_spec(write_spec(tmp_path / "spec.toml"))), tmp_path / "out", ray="auto")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["complete", "failed", "interrupted", "interrupted twice"])
def test_no_copy_of_the_data_stays_on_a_node_however_the_sweep_ends(tmp_path: Path, ending: str) -> None:
    """On a real cluster, which the command itself starts; Ctrl-C reaches all of its processes, as in a terminal."""
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    spec, out, cache = write_spec(tmp_path / "spec.toml"), tmp_path / "out", on_ray._cache_folder().name
    steps = 10**6 if ending.startswith("interrupted") else 100
    spec.write_text(spec.read_text().replace(f"steps = {STEPS}", f"steps = {steps}").replace("1250", "0"))
    in_the_way = out / "sac" / "pendulum-mixed" / "seed-0"
    if ending == "failed":
        in_the_way.parent.mkdir(parents=True)
        in_the_way.write_text("not a folder")
    command = [*COMMAND, "sweep", str(spec), "--out", str(out), "--ray", "local", "--retries", "0"]
    with tempfile.TemporaryDirectory() as short:  # Ray's sockets allow no long paths
        environment = {**os.environ, "TMPDIR": str(tmp_path), "RAY_TMPDIR": short}
        sweep = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
        copies: set[str] = set()
        while sweep.poll() is None:
            copies.update(path.name for path in tmp_path.glob(f"{cache}/*/dataset.json"))
            if steps > 100 and list(out.rglob("checkpoint.safetensors")):
                os.killpg(sweep.pid, signal.SIGINT)
                if ending == "interrupted twice":
                    time.sleep(0.2)
                    os.killpg(sweep.pid, signal.SIGINT)
                break
            time.sleep(0.02)
        _, message = sweep.communicate(timeout=120)
    assert sweep.returncode == {"complete": 0, "failed": 1}.get(ending, 130), message
    assert ("sac/pendulum-mixed/seed-0: failed" in message) == (ending == "failed")
    assert ("those under way have checkpoints" in message) == (ending == "interrupted")
    assert copies
    assert [path.name for path in (tmp_path / cache).iterdir() if path.suffix != ".lock"] == []
