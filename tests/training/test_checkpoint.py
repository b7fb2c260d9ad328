"""Checkpoints: written whole or not at all, and damage is told."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from mildly.errors import MildlyError
from mildly.files import atomic_write
from mildly.run import OtherFormat
from mildly.training import checkpoint

TENSORS = {
    "weights": torch.linspace(-1, 1, 6).reshape(2, 3),
    "scalar": torch.tensor(3.5),
    "state": torch.Generator().manual_seed(1).get_state(),
    "double": torch.tensor([1e-300, float("inf")], dtype=torch.float64),
    "empty": torch.zeros(0, 4),
}
FACTS = {"step": 7, "metrics": ["a", "b"], "seconds": {"update": 0.1}}


def test_loaded_checkpoint_equals_the_saved_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "checkpoint.safetensors"
    checkpoint.save(path, {**TENSORS, "turned": TENSORS["weights"].T}, FACTS)
    tensors, facts = checkpoint.load(path)
    assert facts == FACTS
    assert torch.equal(tensors.pop("turned"), TENSORS["weights"].T)
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name])


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_is_noticed_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, place: float, flip: int
) -> None:
    """Harmless is only what means the same, such as other white space in the header's padding."""
    path = tmp_path_factory.mktemp("flip") / "checkpoint.safetensors"
    checkpoint.save(path, TENSORS, FACTS)
    damaged = bytearray(path.read_bytes())
    number = damaged.index(b'"format":"') + len('"format":"')
    damaged[int(place * len(damaged))] ^= flip
    path.write_bytes(damaged)
    try:
        tensors, facts = checkpoint.load(path)
    except OtherFormat:
        assert int(place * len(damaged)) == number
        return
    except MildlyError as error:
        damage = str(error)
        assert "damaged" in damage
        assert str(path) in damage
        return
    assert facts == FACTS
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in tensors.items())


def test_a_flipped_format_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, TENSORS, FACTS)
    damaged = path.read_bytes().replace(b'"format":"2"', b'"format":"x"')
    path.write_bytes(damaged)
    with pytest.raises(OtherFormat, match="format x"):
        checkpoint.load(path)


def test_a_flipped_byte_of_the_weights_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, TENSORS, FACTS)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(MildlyError, match="does not match its digest"):
        checkpoint.load(path)


@given(kept=st.floats(0, 1, exclude_max=True))
def test_any_cut_is_noticed(tmp_path_factory: pytest.TempPathFactory, kept: float) -> None:
    path = tmp_path_factory.mktemp("cut") / "checkpoint.safetensors"
    checkpoint.save(path, TENSORS, FACTS)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(MildlyError, match="damaged") as error:
        checkpoint.load(path)
    assert str(path) in str(error.value)


class Hostile:
    """Its pickle would write a file when loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_empty_file_pickle_folder_and_nothing_are_told_and_no_code_runs(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    path = tmp_path / "checkpoint.safetensors"
    for damage in (b"", pickle.dumps(Hostile(victim))):
        path.write_bytes(damage)
        with pytest.raises(MildlyError, match=r"checkpoint\.safetensors: the checkpoint is damaged"):
            checkpoint.load(path)
    torch.save({"weights": torch.zeros(2)}, path)
    with pytest.raises(MildlyError, match="damaged"):
        checkpoint.load(path)
    for missing in (tmp_path, tmp_path / "absent"):
        with pytest.raises(MildlyError, match=r"damaged"):
            checkpoint.load(missing)
    assert not victim.exists()


@pytest.mark.parametrize("number", [checkpoint.FORMAT - 1, checkpoint.FORMAT + 1])
def test_checkpoint_of_an_older_or_later_format_is_refused_and_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    with monkeypatch.context() as other:
        other.setattr(checkpoint, "FORMAT", number)
        checkpoint.save(path, TENSORS, FACTS)
    with pytest.raises(OtherFormat) as caught:
        checkpoint.load(path)
    formats = f"format {number}; this one reads {checkpoint.FORMAT}"
    assert str(caught.value) == (
        f"{path}: of another version of mildly ({formats}). Train it again, or use that version."
    )


def test_failed_write_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, TENSORS, FACTS)
    before = path.read_bytes()

    def half(place: Path, content: bytes) -> None:
        with place.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", half)
        with pytest.raises(OSError, match="No space"):
            checkpoint.save(path, {"weights": torch.zeros(9)}, {"step": 8})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    checkpoint.save(path, {"weights": torch.zeros(9)}, {"step": 8})
    assert checkpoint.load(path)[1] == {"step": 8}
    assert checkpoint.previous(path).read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [checkpoint.previous(path).name, path.name]


def test_writing_makes_no_second_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash would leave one behind whose name tells nobody that it may be removed."""
    files: list[int] = []

    @contextmanager
    def watched(path: Path) -> Iterator[Path]:
        with atomic_write(path) as unfinished:
            files.append(unfinished.stat().st_ino)
            yield unfinished
            files.append(unfinished.stat().st_ino)

    monkeypatch.setattr(checkpoint, "atomic_write", watched)
    checkpoint.save(tmp_path / "checkpoint.safetensors", TENSORS, FACTS)
    first, last = files
    assert first == last


def test_after_a_damaged_checkpoint_the_sound_one_survives_a_write_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = tmp_path / "checkpoint.safetensors", list[str]()
    checkpoint.save(path, TENSORS, FACTS)
    sound = path.read_bytes()
    checkpoint.save(path, TENSORS, {"step": 8})
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert checkpoint.load_latest(path, said.append)[1] == FACTS
    assert "damaged" in said[0]
    replace = os.replace

    def killed(source: Any, target: Any) -> None:
        if Path(target) == path:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(OSError, match="No space"):
            checkpoint.save(path, TENSORS, {"step": 9})
    assert path.read_bytes() == checkpoint.previous(path).read_bytes() == sound
    assert checkpoint.load_latest(path, said.append)[1] == FACTS
    assert len(said) == 1
