"""The command: good input works from end to end, bad input gets one clear message, code 2 and no folder."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from conftest import COMMAND, Refused, mildly, train_args, train_tiny

from mildly.cli import COMMANDS, main
from mildly.data.registry import load_dataset
from mildly.data.tasks import PAPER_DATASETS
from mildly.errors import MildlyError
from mildly.run import FORMAT


def write_hdf5(path: Path, **changes: np.ndarray | None) -> Path:
    """A small D4RL file with some keys changed or, where None, left out."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray | None] = {
        "observations": random.normal(size=(30, 3)),
        "actions": random.uniform(-1, 1, (30, 1)),
        "rewards": random.normal(size=30),
        "terminals": np.zeros(30, bool),
        "timeouts": np.arange(30) % 10 == 9,
    }
    with h5py.File(path, "w") as file:
        for name, array in (arrays | changes).items():
            if array is not None:
                file[name] = array
    return path


def test_unknown_names_are_told_with_the_nearest_known_one(refused: Refused) -> None:
    assert "unknown command 'trian'. Did you mean 'train'?" in refused.command("trian")
    assert "unknown data command 'ls'" in refused.command("data", "ls")
    assert "unknown algorithm 'mcp'. Did you mean 'mcq'?" in refused.command(
        "train", "mcp", "--dataset", "pendulum-mixed"
    )
    unknown = refused.command("train", "mcq", "--dataset", "pendulum-mixd")
    assert "unknown data set 'pendulum-mixd'. Did you mean 'pendulum-mixed'?" in unknown
    assert "unknown preset 'papr'" in refused.command("train", "mcq", "--dataset", "pendulum-mixed", "--preset", "papr")
    unknown = refused.command("train", "mcq", "--dataset", "pendulum-mixed", "--lamb", "0.5")
    assert "unknown option '--lamb'. Did you mean '--lam'? 'mildly train mcq --help' shows" in unknown
    assert "unknown option '--sedd'. Did you mean '--seed'?" in refused.command("evaluate", "somewhere", "--sedd", "0")
    assert "name an algorithm first" in refused.command("train", "--dataset", "pendulum-mixed")
    assert "--dataset SET must be given" in refused.command("train", "mcq")
    assert "RUN must be given" in refused.command("evaluate")
    assert "hopper_medium-v2.hdf5" in refused.command("train", "mcq", "--dataset", "hopper-medium-v2")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lam", "0"), "lam must be in (0, 1] or 'auto', got 0"),
        (("--lam", "1.5"), "lam must be in (0, 1] or 'auto', got 1.5"),
        (("--lam", "-1"), "lam must be in (0, 1] or 'auto', got -1"),
        (("--lam", "nan"), "lam must be in (0, 1] or 'auto', got nan"),
        (("--lam", "much"), "--lam must be a number or auto, got 'much'"),
        (("--steps", "0"), "steps must be at least 1, got 0"),
        (("--steps", "1.5"), "--steps must be a whole number, got '1.5'"),
        (("--pseudo-reduction", "max"), "--pseudo-reduction must be min or mean, got 'max'"),
        (("--layer-norm", "True"), "--layer-norm takes no value: --layer-norm or --no-layer-norm"),
        (("--lam",), "--lam needs a value"),
        (("5",), "'5' belongs to no option"),
        (("--seed", "-1"), "seed must be at least 0"),
        (("--threads", "-1"), "threads must be at least 1"),
        (("--batch-size", "0"), "batch_size must be at least 1"),
        (("--hidden-dims", "16", "0"), "hidden_dims must be positive widths"),
        (("--behavior.hidden-dims", "16", "0"), "behavior.hidden_dims must be positive widths"),
        (("--behavior.model", "gan"), "behavior.model must be one of cvae, cgan, flow, got gan"),
        (("--behavior.steps", "None"), "behavior.steps must be given where actions are kept"),
        (("--extras.return-mix", "2"), "extras.return_mix must be in [0, 1], got 2"),
        (("--extras.bc-warmup-steps", "-1"), "extras.bc_warmup_steps must be at least 0"),
        (("--ensemble", "1" + 15 * "0"), f"ensemble {10**15:,} and batch_size 128 need at least"),
        (("--ensemble", "1" + 30 * "0"), f"ensemble {10**30:,} and batch_size 128 need at least"),
        (("--behavior.latent-size", "1" + 15 * "0"), f"behavior.latent_size 1{15 * '0'}. Lower the largest."),
        (("--device", "gpu9"), "device 'gpu9' cannot be used here"),
        (("--device", "meta"), "device 'meta' cannot be used here"),
        (("--env", "Nowhere-v3"), "environment 'Nowhere-v3' cannot be made"),
        (("--env", "Hopper-v4"), "environment 'Hopper-v4' has observations (11,)"),
        (("--env", "CartPole-v1"), "Discrete(2)"),
    ],
)
def test_value_that_cannot_be_is_named(refused: Refused, flags: tuple[str, ...], message: str) -> None:
    assert message in refused.command("train", "mcq", "--dataset", "pendulum-mixed", *flags)


def test_file_that_is_no_data_set_is_named_with_what_is_wrong(refused: Refused, tmp_path: Path) -> None:
    normal = np.random.default_rng(0).normal(size=(30, 3))
    with_nan = normal.copy()
    with_nan[17, 1] = np.nan
    (tmp_path / "text.hdf5").write_text("no HDF5 at all")
    (tmp_path / "notes.txt").write_text("nor this")
    (tmp_path / "folder").mkdir()
    cases = {
        tmp_path / "absent.hdf5": "no such file",
        tmp_path / "absent" / "folder": "no such file or folder",
        tmp_path / "text.hdf5": "not what its name says",
        tmp_path / "notes.txt": "do not know this kind of file",
        tmp_path / "folder": "no dataset.json, no .npy files, no tables",
        write_hdf5(tmp_path / "keyless.hdf5", rewards=None): "lacks rewards",
        write_hdf5(tmp_path / "nan.hdf5", observations=with_nan): "'observations' has NaN or infinite values",
        write_hdf5(tmp_path / "short.hdf5", actions=np.zeros((29, 1))): "'actions' has shape (29, 1)",
        write_hdf5(tmp_path / "hopper-wide-v2.hdf5", actions=np.full((30, 1), 7.5)): "is 7.5",
    }
    for path, message in cases.items():
        for said in (
            refused.command("data", "info", str(path)),
            refused.command("train", "bc", "--dataset", str(path)),
        ):
            assert message in said
            assert str(path) in said


def test_folder_that_cannot_be_resumed_or_evaluated_is_named(refused: Refused, tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=10, eval_every=0).path
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert f"{nothing}: no run here" in refused.command("train", "--resume", str(nothing))
    assert f"{nothing}: no policy here" in refused.command("evaluate", str(nothing))
    assert f"{nothing / 'absent'}: no policy here" in refused.command("evaluate", str(nothing / "absent"))
    assert "steps must be at least 1" in refused.command("train", "--resume", str(run), "--steps", "0")
    assert "--resume" in refused.command("train", "--resume")
    assert "environment 'Nowhere-v3'" in refused.command("evaluate", str(run), "--env", "Nowhere-v3")
    assert "environment 'Hopper-v4' has observations (11,)" in refused.command(
        "evaluate", str(run), "--env", "Hopper-v4"
    )
    assert "episodes must be at least 1" in refused.command("evaluate", str(run), "--episodes", "0")
    assert "holds a run already" in refused.command(*train_args("bc", run))

    whole = (run / "checkpoint.safetensors").read_bytes()
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    for damage in (bytes(damaged), whole[:-10], b""):
        (run / "checkpoint.safetensors").write_bytes(damage)
        said = refused.command("train", "--resume", str(run), "--steps", "20")
        assert f"{run / 'checkpoint.safetensors'}: the checkpoint is damaged" in said
    for damage in (b"", b"{", b"[]", b'{"format": %d}' % FORMAT, b"\xff\xfe"):
        (run / "run.json").write_bytes(damage)
        assert f"{run / 'run.json'}: damaged" in refused.command("train", "--resume", str(run))
    (run / "run.json").write_text('{"format": 1}')
    other = f"{run / 'run.json'}: of another version of mildly (format 1; this one reads {FORMAT})"
    assert other in refused.command("train", "--resume", str(run))
    (run / "policy" / "weights.safetensors").write_bytes(b"junk")
    assert f"{run / 'policy'}: the policy is damaged" in refused.command("evaluate", str(run))


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(MildlyError, match="unknown command"):
        main(["nonsense", "--debug"])
    shown = mildly("evaluate", "--debug", "nowhere", cwd=tmp_path)
    assert shown.returncode != 0
    assert "Traceback" in shown.stderr
    assert "nowhere: no policy here" in shown.stderr


def test_help_and_version_are_quick_and_load_no_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = """
import sys
from mildly.cli import main
for args in (["--help"], ["--version"], []):
    assert main(args) == 0
import mildly
heavy = {"torch", "numpy", "gymnasium", "rich", "h5py"} & sys.modules.keys()
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, capture_output=True, timeout=60)
    took = []
    for _ in range(3):  # the best of three, since the machine may be busy
        start = time.perf_counter()
        subprocess.run([*COMMAND, "--help"], check=True, cwd=tmp_path, capture_output=True, timeout=60)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.5
    main(["--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    main(["--version"])
    assert capsys.readouterr().out.startswith("mildly 0.")


def test_data_list_and_info_show_the_built_in_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--all"]) == 0
    listed = capsys.readouterr().out
    data = load_dataset("pendulum-mixed")
    assert ["pendulum-mixed", f"{len(data):,}"] in [line.split()[:2] for line in listed.splitlines()]
    assert all(name in listed for name in PAPER_DATASETS)
    assert main(["data", "info", "pendulum-mixed"]) == 0
    shown = capsys.readouterr().out
    meta = data.meta
    references = f"{meta.reference_min}, {meta.reference_max}"
    for fact in ("Pendulum-v1", f"{len(data):,}", str(len(data.episodes())), references, meta.fingerprint[:16]):
        assert fact in shown
    assert main(["data"]) == 2
    assert main(["data", "--help"]) == 0


def test_train_then_evaluate_in_other_processes_with_progress_as_plain_lines(tmp_path: Path) -> None:
    """The folder's name holds what a formatter of text could mistake for its own marks."""
    trained = mildly(*train_args("mcq", "runs/a[b]:cat:"), cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    progress = trained.stderr.splitlines()
    assert any(line.startswith("mcq on pendulum-mixed  100/300") and "steps/s" in line for line in progress)
    assert any(line.startswith("mcq on pendulum-mixed  300/300") and "score" in line for line in progress)
    assert "\x1b" not in trained.stderr + trained.stdout
    assert "run: runs/a[b]:cat:\n" in trained.stdout
    assert "normalized score" in trained.stdout
    log = load_dataset("pendulum-mixed")
    mean, scores = log.episode_returns().mean(), log.score(log.episode_returns())
    assert scores is not None
    (earned,) = (line for line in progress if line.startswith("the log's own episodes"))
    assert f"mean return {mean:.1f}" in earned
    assert earned.endswith(f"normalized score {scores.mean():.1f}, best {scores.max():.1f}")

    shown = mildly("evaluate", "runs/a[b]:cat:", "--episodes", "2", "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "2/2 episodes" in shown.stderr
    result = json.loads(shown.stdout)
    assert result["seeds"] == [100, 101]
    assert result["lengths"] == [200, 200]
    assert result["mean_return"] == pytest.approx(sum(result["returns"]) / 2)
    worst, best = (getattr(load_dataset("pendulum-mixed").meta, f"reference_{end}") for end in ("min", "max"))
    assert result["score"] == pytest.approx(100 * (result["mean_return"] - worst) / (best - worst))
    last = json.loads((tmp_path / "runs" / "a[b]:cat:" / "evaluations.jsonl").read_text().splitlines()[-1])
    assert f"{last['mean_return']:.1f}" in trained.stdout
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs"]


def test_phases_are_told_and_shown_with_counts_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    phases = {"behavior.steps": 20, "extras.bc_warmup_steps": 30}
    assert main(train_args("mcq", tmp_path / "run", **{"steps": 50, **phases})) == 0
    told = [" ".join(line.split()[:7]).rstrip(":") for line in capsys.readouterr().err.splitlines()[1:]]
    starts = [
        "steps: 20 of behavior model, 30 of",
        "mcq on pendulum-mixed, behavior model: 20 steps",
        "mcq on pendulum-mixed, behavior model 20/20",
        "mcq on pendulum-mixed, bc warm-up: 30 steps",
        "mcq on pendulum-mixed, bc warm-up 30/30",
        "mcq on pendulum-mixed 50/50",
        "the log's own episodes: mean return",
    ]
    assert all(line.startswith(start) for line, start in zip(told, starts, strict=False)), told
    assert len(told) - len(starts) in (0, 1)  # after so few steps it may earn less than the log, and is told so


def test_evaluate_shows_every_episode_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=5, eval_every=0, seed=4).path
    capsys.readouterr()
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["episode", "seed", "return", "length", "score"]
    assert [row[:2] for row in rows[1:3]] == [["1", "4100"], ["2", "4101"]]
    assert rows[-1][:3] == ["Pendulum-v1:", "mean", "return"]
    assert main(["evaluate", str(run), "--episodes", "1", "--seed", "9"]) == 0
    assert " 9100 " in capsys.readouterr().out


def test_evaluate_takes_so_many_threads(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=5, eval_every=0).path
    assert main(["evaluate", str(run), "--episodes", "1", "--threads", "2"]) == 0
    assert torch.get_num_threads() == 2


def test_flag_wins_over_the_data_sets_value_and_that_over_the_preset(tmp_path: Path) -> None:
    """The paper's lam of hopper-random is 0.6; a file's name tells the data set."""
    path = write_hdf5(tmp_path / "hopper_random-v2.hdf5", observations=np.zeros((30, 11)), actions=np.zeros((30, 3)))
    small = ["--preset", "small", "--steps", "1", "--eval-every", "0", "--threads", "1"]

    def config(out: str, dataset: str, *flags: str) -> dict[str, Any]:
        assert main(["train", "mcq", "--dataset", dataset, *small, "--out", str(tmp_path / out), *flags]) == 0
        return dict(json.loads((tmp_path / out / "run.json").read_text())["config"])

    preset = config("preset", "pendulum-mixed")
    assert (preset["lam"], preset["hidden_dims"], preset["critic_lr"]) == (0.7, [128, 128], 1e-3)
    data = config("data", str(path))
    assert (data["lam"], data["hidden_dims"], data["critic_lr"]) == (0.6, [128, 128], 1e-3)
    own = ["--hidden-dims", "16", "--behavior.lr", "0.5", "--extras.level-start"]
    flags = config("flags", str(path), "--lam", "0.7", "--critic-lr", "3e-4", *own)
    assert (flags["lam"], flags["hidden_dims"], flags["critic_lr"]) == (0.7, [16], 3e-4)
    for of, level in ((preset, False), (data, False), (flags, True)):  # a group's other fields stay the preset's
        assert (of["behavior"]["hidden_dims"], of["behavior"]["model"]) == ([128, 128], "cvae")
        assert of["extras"]["level_start"] is level
    assert (data["behavior"]["lr"], flags["behavior"]["lr"]) == (None, 0.5)


def test_output_into_a_closed_pipe_ends_without_a_message(tmp_path: Path) -> None:
    command = subprocess.Popen(
        [*COMMAND, "data", "list"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    command.stdout.close()
    assert command.stderr is not None
    message = command.stderr.read()
    command.wait(timeout=60)
    command.stderr.close()
    assert message == ""
