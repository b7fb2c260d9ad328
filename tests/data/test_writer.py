"""A set written in pieces is the set saved at once, and appears whole or not at all."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import make_dataset
from hypothesis import given, settings, strategies as st

from mildly.data.dataset import FIELDS, Dataset
from mildly.data.writer import Writer
from mildly.errors import MildlyError

DATA = make_dataset(rows=100)


def rows(start: int, stop: int) -> dict[str, np.ndarray]:
    return {field: getattr(DATA, field)[start:stop] for field in FIELDS}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 100), max_size=6))
def test_pieces_of_any_size_give_the_bytes_of_a_set_saved_at_once(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("writer")
    edges = [0, *sorted(cuts), 100]
    with Writer(folder / "new" / "pieces") as writer:
        for start, stop in pairwise(edges):
            writer.append(rows(start, stop))
            assert writer.rows == stop
        assert writer.finish(DATA.meta) == folder / "new" / "pieces"
    DATA.save(folder / "whole")
    assert files(folder / "new" / "pieces") == files(folder / "whole")
    for field in FIELDS:  # byte for byte what numpy itself writes
        np.save(folder / "numpy.npy", getattr(DATA, field))
        assert (folder / "numpy.npy").read_bytes() == (folder / "whole" / f"{field}.npy").read_bytes()


def test_nothing_stays_behind_without_an_end(tmp_path: Path) -> None:
    def interrupted() -> None:
        with Writer(tmp_path / "set") as writer:
            writer.append(rows(0, 10))
            assert not (tmp_path / "set").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_the_columns_so_far_can_be_read_and_mended_before_more_is_added(tmp_path: Path) -> None:
    with Writer(tmp_path / "set") as writer:
        writer.append(rows(0, 37))
        arrays = writer.arrays()
        assert len(arrays["rewards"]) == 37
        np.testing.assert_array_equal(arrays["observations"], DATA.observations[:37])
        arrays["rewards"][36] = 1234.5
        writer.append(rows(37, 100))
        writer.finish(DATA.meta.__class__(name="mended"))
    mended = Dataset.load(tmp_path / "set")
    assert (len(mended), mended.meta.name, mended.rewards[36]) == (100, "mended", 1234.5)
    np.testing.assert_array_equal(mended.next_observations, DATA.next_observations)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_values_are_cast_to_the_types_of_the_schema(tmp_path: Path) -> None:
    with Writer(tmp_path / "set") as writer:
        columns = {name: array.astype(np.float64) for name, array in rows(0, 100).items()}
        columns["observations"] = np.asfortranarray(columns["observations"])
        writer.append(columns)
        writer.finish(DATA.meta)
    assert Dataset.load(tmp_path / "set").meta.fingerprint == DATA.meta.fingerprint


@pytest.mark.parametrize(
    "change",
    [{"rewards": DATA.rewards[:5]}, {"actions": DATA.actions[:10, :0]}],
    ids=["another number of rows", "another width"],
)
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, np.ndarray]) -> None:
    with Writer(tmp_path / "set") as writer:
        writer.append(rows(0, 10))
        with pytest.raises(ValueError, match="do not fit"):
            writer.append(rows(10, 20) | change)
        assert writer.rows == 10


def test_an_existing_folder_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(MildlyError, match="exists already"):
        Writer(tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_set_without_rows_is_refused(tmp_path: Path) -> None:
    with Writer(tmp_path / "set") as writer, pytest.raises(MildlyError, match="no transitions"):
        writer.finish(DATA.meta)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MildlyError, match="cannot be written"):
        Writer(tmp_path / "file" / "set")
