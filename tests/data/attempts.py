"""What the tests of bad files share: a small log, and attempts to read and convert whatever was made of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mildly.data.convert import convert
from mildly.data.dataset import Dataset
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError

LOG = {
    "observations": np.arange(12.0).reshape(6, 2),
    "actions": np.array([[-1.0], [1], [0.5], [0.5], [-0.5], [0]]),
    "rewards": np.arange(6.0),
    "terminals": np.array([False] * 5 + [True]),
}


def attempt(path: Path, **options: Any) -> Dataset | None:
    """A good set; or None where both loading and converting give an error, which names the file and leaves nothing."""
    target = path.parent / "made"
    try:
        data = load_dataset(path, **options)
    except MildlyError as error:
        message = str(error)
    else:
        for array in (data.observations, data.actions, data.rewards, data.next_observations):
            assert np.isfinite(array).all()
        assert np.abs(data.actions).max() <= 1
        return data
    assert str(path) in message
    assert len(message) < 3000
    with pytest.raises(MildlyError):
        convert(path, target)
    assert sorted(path.parent.iterdir()) == [path]
    return None


def attempt_bytes(name: str, content: bytes) -> Dataset | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        return attempt(path)
