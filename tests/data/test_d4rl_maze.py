"""maze2d's files, whose flags are way-points, and whose rows there are no transitions."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from d4rl_files import DATA, assert_rows_equal, assert_schema, columns_of, ends, slow_rows, with_next, write

from mildly.data.formats import arrays
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError


def real_maze() -> Path:
    path = DATA / "maze2d" / "maze2d-umaze-v1-sparse.hdf5"
    if not path.is_file():
        pytest.skip("the maze2d file is not here (looked in ../shared/data of the project's root)")
    return path


def test_the_real_maze_never_terminates_and_loses_two_rows_at_each_way_point() -> None:
    path = real_maze()
    with h5py.File(path, "r") as file:
        assert int(file["terminals"][()].sum()) == 136
    dataset = load_dataset(path)
    assert_schema(dataset)
    assert not dataset.terminated.any()
    # Way-points are never 300 steps apart. 18 of the 136 follow another one, so that 118 other rows come after one.
    assert len(dataset) == 10_000 - 136 - 118 - 1
    assert_rows_equal(dataset, slow_rows(path, horizon=300, terminates=False))
    assert any("At 136 way-points the file repeats" in note for note in dataset.meta.notes)
    assert dataset.meta.env_id == "d4rl/maze2d-umaze-v1"
    assert (dataset.meta.reference_min, dataset.meta.reference_max) == (23.85, 161.86)


def test_every_row_of_the_real_maze_is_one_step_of_its_physics() -> None:
    """MuJoCo's integrator: the ball moves by its new velocity times 0.01 s, walls or not."""
    dataset = load_dataset(real_maze())
    moved = dataset.next_observations[:, :2] - dataset.observations[:, :2]
    np.testing.assert_allclose(moved, 0.01 * dataset.next_observations[:, 2:], atol=2e-6)
    assert not (dataset.next_observations == dataset.observations).all(axis=1).any()


@pytest.mark.parametrize("stores_next", [False, True])
def test_maze2d_never_terminates_and_a_way_point_does_not_hide_a_time_out(tmp_path: Path, stores_next: bool) -> None:
    columns = columns_of(12, terminals=(2, 5, 8), timeouts=(5,))
    path = write(tmp_path / "maze2d-umaze-v1.hdf5", with_next(columns) if stores_next else columns)
    dataset = load_dataset(path)
    assert not dataset.terminated.any()
    assert_rows_equal(dataset, slow_rows(path, terminates=False))
    assert ends(dataset.truncated) == ((5, 11) if stores_next else (4, 9))


def maze_log(steps: int, way_points: tuple[int, ...], *, stale: bool) -> tuple[dict[str, np.ndarray], set[int]]:
    """A walk along a line as maze2d's generator logs it, and which rows hold one step of the walk.

    With `stale` the state after a way-point is not taken over, as in D4RL's generator.
    """
    seen = [0]
    for place in range(1, steps):  # the walk is in place i at step i
        seen.append(seen[-1] if stale and place - 1 in way_points else place)
    one_step = {i for i in range(steps - 1) if (seen[i], seen[i + 1]) == (i, i + 1)}
    columns = columns_of(steps, terminals=way_points, timeouts=None)
    return columns | {"observations": np.array(seen, dtype=np.float64)[:, None]}, one_step


@pytest.mark.parametrize("block", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("way_points", [(4,), (4, 8), (4, 5, 6), (0, 2), (9, 10), (11,), ()], ids=str)
def test_the_rows_of_a_maze_at_way_points_that_are_no_transitions_are_left_out(
    tmp_path: Path, way_points: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, one_step = maze_log(12, way_points, stale=True)
    path = write(tmp_path / "maze2d-umaze-v1.hdf5", columns)
    monkeypatch.setattr(arrays, "_BLOCK_BYTES", 8 * block)  # the widest columns have 8 bytes a row
    dataset = load_dataset(path)
    kept = [columns["rewards"].tolist().index(reward) for reward in dataset.rewards]
    assert set(kept) == one_step
    np.testing.assert_array_equal(dataset.next_observations, dataset.observations + 1)
    assert not dataset.terminated.any()
    # An episode ends where a row is missing, and with the file.
    assert ends(dataset.truncated) == tuple(i for i, row in enumerate(kept) if row + 1 not in kept)
    told = sum("repeats the observation" in note for note in dataset.meta.notes)
    assert told == any(point < 11 for point in way_points)  # the last row has no next one


def test_a_maze_that_takes_over_its_state_at_way_points_keeps_all_rows(tmp_path: Path) -> None:
    columns, one_step = maze_log(12, (4, 8), stale=False)
    dataset = load_dataset(write(tmp_path / "maze2d-umaze-v1.hdf5", columns))
    assert len(dataset) == len(one_step) == 11
    assert ends(dataset.truncated) == (10,)
    assert not any("way-point" in note for note in dataset.meta.notes)


def test_a_flag_that_the_task_would_overrule_is_refused(tmp_path: Path) -> None:
    columns, _ = maze_log(20, (5,), stale=False)
    path = write(tmp_path / "maze2d-umaze-v1.hdf5", {**columns, "mine": columns["terminals"]})
    with pytest.raises(MildlyError, match="never ends for good: --terminated would have no effect"):
        load_dataset(path, terminated="mine")
    assert len(load_dataset(path)) > 0
