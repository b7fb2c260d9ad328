"""One flipped bit anywhere in what we write is noticed; and a crash between two writes leaves what can be loaded."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import content, make_dataset, train_tiny

from mildly import files
from mildly.actors import TanhGaussianActor
from mildly.data.dataset import Dataset
from mildly.errors import MildlyError
from mildly.policy import Policy, load_policy
from mildly.run import Run
from mildly.training import checkpoint
from mildly.training.offline import resume

FLIPS = [60, pytest.param(300, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny("bc", tmp_path_factory.mktemp("sound") / "run", steps=40, eval_every=0).path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset().save(tmp_path_factory.mktemp("sound") / "data")


READERS: dict[str, Callable[[Path], object]] = {
    "policy/weights.safetensors": load_policy,
    "policy/policy.json": load_policy,
    "run.json": lambda path: Run.open(path).plan(),
    "checkpoint.safetensors": lambda path: checkpoint.load(path / "checkpoint.safetensors"),
}


def _same_json(path: Path, sound: bytes) -> bool:
    """Whether a flip has changed nothing that the file says: a space that became another, say."""
    try:
        return bool(json.loads(path.read_bytes()) == json.loads(sound))
    except ValueError:
        return False


def unnoticed(folder: Path, name: str, read: Callable[[Path], object], flips: int, seed: int) -> list[int]:
    """The bits whose flip changes what is read without an error."""
    path, missed = folder / name, []
    sound = path.read_bytes()
    draw = random.Random(seed)
    for bit in draw.sample(range(8 * len(sound)), min(flips, 8 * len(sound))):
        hurt = bytearray(sound)
        hurt[bit // 8] ^= 1 << bit % 8
        path.write_bytes(hurt)
        try:
            read(folder)
        except MildlyError:
            continue
        if not (name.endswith(".json") and _same_json(path, sound)):
            missed.append(bit)
    path.write_bytes(sound)
    read(folder)
    return missed


@pytest.mark.parametrize("flips", FLIPS)
@pytest.mark.parametrize("name", READERS)
def test_a_flipped_bit_of_a_run_is_noticed(tmp_path: Path, run: Path, name: str, flips: int) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    assert unnoticed(copy, name, READERS[name], flips, seed=1) == []


@pytest.mark.parametrize("flips", FLIPS)
def test_a_flipped_bit_of_a_data_set_is_noticed(tmp_path: Path, data: Path, flips: int) -> None:
    copy = Path(shutil.copytree(data, tmp_path / "data"))
    for number, path in enumerate(sorted(copy.iterdir())):
        before = [np.array(getattr(Dataset.load(data), name)) for name in ("rewards", "truncated")]
        missed = unnoticed(copy, path.name, Dataset.load, flips, seed=number)
        for bit in missed:  # a space in an array's header that says the same as before
            assert bit // 8 < 128, (path.name, bit)
            hurt = bytearray((data / path.name).read_bytes())
            hurt[bit // 8] ^= 1 << bit % 8
            path.write_bytes(hurt)
            now = Dataset.load(copy)
            assert all(map(np.array_equal, before, (now.rewards, now.truncated)))
            assert now.meta == Dataset.load(data).meta
        shutil.copy(data / path.name, path)


def test_files_without_a_digest_are_still_read(tmp_path: Path, data: Path) -> None:
    copy = Path(shutil.copytree(data, tmp_path / "data"))
    values = json.loads((copy / "dataset.json").read_text())
    assert values.pop("digest")
    (copy / "dataset.json").write_text(json.dumps(values))
    assert Dataset.load(copy).meta == Dataset.load(data).meta


def test_a_crash_at_any_moment_of_saving_leaves_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rename and every write of the second save is once the last thing that happens."""

    class Crash(BaseException):
        pass

    def made(seed: int) -> Policy:
        torch.manual_seed(seed)
        return Policy(TanhGaussianActor(3, 2, (6,)))

    seen, zero = set(), np.zeros(3, np.float32)
    answers = [made(seed).act(zero).tolist() for seed in (1, 2)]
    for moment in range(20):
        folder, count = tmp_path / str(moment), 0
        made(1).save(folder)
        replace, write = files.os.replace, Path.write_bytes

        def crashing(call: Callable[..., object], *args: object, moment: int = moment) -> object:
            nonlocal count
            count += 1
            if count == moment + 1:
                raise Crash
            return call(*args)

        with monkeypatch.context() as patch:
            patch.setattr(files.os, "replace", lambda *args, call=replace: crashing(call, *args))
            patch.setattr(Path, "write_bytes", lambda *args, call=write: crashing(call, *args))
            try:
                made(2).save(folder)
                ended = True
            except Crash:
                ended = False
        answer = load_policy(folder).act(zero).tolist()
        assert answer in answers
        seen.add(answers.index(answer))
        if ended:
            break
    assert moment == 4
    assert seen == {0, 1}


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_a_damaged_last_checkpoint_falls_back_and_the_run_ends_with_the_same_bits(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train_tiny("td3-bc", tmp_path / "whole", steps=60, eval_every=30).path
    run = train_tiny("td3-bc", tmp_path / "run", steps=50, eval_every=30).path
    last = run / "checkpoint.safetensors"
    sound = last.read_bytes()
    if damage == "gone":
        last.unlink()
    else:
        hurt = bytearray(sound if damage == "flip" else sound[: len(sound) // 2 if damage == "cut" else 0])
        if damage == "flip":
            hurt[-9] ^= 4
        last.write_bytes(hurt)
    # the last line of a run that ends early is not one of a longer run: as if it had been killed at step 50
    capsys.readouterr()
    resume(run, steps=60)
    assert "going on from the checkpoint before it, at step 40" in capsys.readouterr().err
    assert content(run) == content(whole)


def test_two_damaged_checkpoints_are_told(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=40, eval_every=0).path
    for path in (run / "checkpoint.safetensors", checkpoint.previous(run / "checkpoint.safetensors")):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(MildlyError, match="the checkpoint is damaged"):
        resume(run, steps=60)
