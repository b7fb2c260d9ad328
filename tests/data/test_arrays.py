"""Arrays, one a field: .npz, folders of .npy, HDF5 that is not D4RL's. Golden, in any blocks, and what is refused."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
from conftest import Refused
from hypothesis import given, settings, strategies as st
from slow_log import Row, assert_same, ended_by_ids, logs, steps_of, transitions

from mildly.action_space import ActionSpace
from mildly.data.dataset import Dataset, Meta
from mildly.data.formats import arrays
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError

LOG = {
    "observations": np.array([[0, 1.5], [0.5, 1.25], [1, 1], [10, -1.5], [11, -1.25], [12, -1]]),
    "actions": np.array([[-2], [4], [0], [-2], [3], [1]]),
    "rewards": np.array([1, 2, 4, 8, 16, 32]),
    "terminals": np.array([0, 0, 1, 0, 0, 0]),
    "timeouts": np.array([0, 0, 0, 0, 0, 1]),
}

Save = Callable[[Path, dict[str, Any]], Path]


def save_npz(folder: Path, columns: dict[str, Any]) -> Path:
    np.savez(folder / "log.npz", **columns)
    return folder / "log.npz"


def save_packed(folder: Path, columns: dict[str, Any]) -> Path:
    np.savez_compressed(folder / "log.npz", **columns)
    return folder / "log.npz"


def save_npy(folder: Path, columns: dict[str, Any]) -> Path:
    (folder / "log").mkdir()
    for name, values in columns.items():
        np.save(folder / "log" / f"{name}.npy", values)
    return folder / "log"


def save_hdf5(folder: Path, columns: dict[str, Any]) -> Path:
    with h5py.File(folder / "log.h5", "w") as file:
        for name, values in columns.items():
            file[name] = values
    return folder / "log.h5"


EVERY: dict[str, Save] = {"npz": save_npz, "packed": save_packed, "npy": save_npy, "hdf5": save_hdf5}
every_format = pytest.mark.parametrize("save", EVERY.values(), ids=EVERY)


def assert_golden(dataset: Dataset) -> None:
    assert dataset.meta.name == "log"
    assert (len(dataset), dataset.observation_size, dataset.action_size) == (5, 2, 1)
    np.testing.assert_array_equal(dataset.observations, LOG["observations"][:5])
    np.testing.assert_array_equal(dataset.next_observations[[0, 1, 3, 4]], LOG["observations"][[1, 2, 4, 5]])
    np.testing.assert_allclose(dataset.actions[:, 0], [-1, 1, -1 / 3, -1, 2 / 3], rtol=1e-6)
    assert dataset.meta.action_space == ActionSpace((-2.0,), (4.0,))
    assert dataset.terminated.tolist() == [False, False, True, False, False]
    assert dataset.truncated.tolist() == [False, False, False, False, True]
    assert dataset.episode_returns().tolist() == [7, 24]


# Golden


@every_format
def test_a_log_of_arrays(tmp_path: Path, save: Save) -> None:
    dataset = load_dataset(save(tmp_path, LOG))
    assert_golden(dataset)
    assert "Stored as float64; kept as float32." in dataset.meta.notes
    assert any("found in the data: -2 to 4" in note for note in dataset.meta.notes)
    assert any(note.startswith("The last row of 1 episode") for note in dataset.meta.notes)
    assert dataset.meta.source.split(" ")[-1].startswith("log")


@every_format
@pytest.mark.parametrize(
    "names",
    [
        ("obs", "acts", "rews", "dones", "timeouts"),
        ("states", "action", "reward", "terminated", "truncated"),
        ("observation", "act", "rew", "terminations", "truncations"),
    ],
)
def test_the_usual_names_are_known(tmp_path: Path, save: Save, names: tuple[str, ...]) -> None:
    assert_golden(load_dataset(save(tmp_path, dict(zip(names, LOG.values(), strict=True)))))


@every_format
def test_other_names_can_be_said(tmp_path: Path, save: Save, refused: Refused) -> None:
    names = ("sensors", "torque", "score", "crashed", "stopped")
    path = save(tmp_path, dict(zip(names, LOG.values(), strict=True)))
    refused.dataset(path, "lacks observations", "found crashed, score, sensors, stopped, torque", "--obs NAME")
    said = dict(zip(("obs", "action", "reward", "terminated", "truncated"), names, strict=True))
    refused.dataset(
        path, "lacks next_observations (an array called later)", "--next-obs NAME", **said, next_obs="later"
    )
    assert_golden(load_dataset(path, **said))


@every_format
@pytest.mark.parametrize("ids", [[0, 0, 0, 1, 1, 1], [7.0, 7, 7, 3, 3, 3], [True, True, True, False, False, False]])
def test_episode_numbers_end_episodes(tmp_path: Path, save: Save, ids: list[float]) -> None:
    columns = {name: values for name, values in LOG.items() if name != "timeouts"}
    assert_golden(load_dataset(save(tmp_path, {**columns, "episode_ids": np.array(ids)})))


def test_episodes_may_have_names(tmp_path: Path) -> None:
    columns = {name: values for name, values in LOG.items() if name != "timeouts"}
    assert_golden(load_dataset(save_npz(tmp_path, {**columns, "episode": np.array(["one"] * 3 + ["another"] * 3)})))


@every_format
def test_columns_and_rows_may_be_exchanged_in_memory_or_have_a_dimension_more(tmp_path: Path, save: Save) -> None:
    columns = {**LOG, "observations": np.asfortranarray(LOG["observations"]), "actions": LOG["actions"][:, 0]}
    columns |= {"rewards": LOG["rewards"][:, None], "terminals": LOG["terminals"][:, None].astype(np.float64)}
    assert_golden(load_dataset(save(tmp_path, columns)))


@every_format
@pytest.mark.parametrize("dtype", [np.float16, np.int16, ">f8", np.longdouble])
def test_numbers_of_any_type(tmp_path: Path, save: Save, dtype: Any) -> None:
    assert_golden(load_dataset(save(tmp_path, {**LOG, "actions": LOG["actions"].astype(dtype)})))


# Marks of episodes, and what is not used


@every_format
@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("episode_starts", [1, 0, 0, 1, 0, 0]),
        ("is_first", [1, 0, 0, 1, 0, 0]),
        ("episode_terminals", [0, 0, 1, 0, 0, 1]),
        ("is_last", [0, 0, 1, 0, 0, 1]),
    ],
)
def test_marks_open_and_close_episodes(tmp_path: Path, save: Save, name: str, marks: list[int]) -> None:
    columns = {field: values for field, values in LOG.items() if field != "timeouts"}
    assert_golden(load_dataset(save(tmp_path, {**columns, name: np.array(marks, bool)})))


@every_format
def test_marks_must_be_true_or_false_for_every_row(tmp_path: Path, save: Save, refused: Refused) -> None:
    words = "'episode_starts' holds 3, expected true or false"
    refused.dataset(save(tmp_path, {**LOG, "episode_starts": np.array([0, 3, 0, 0, 0, 0])}), words)


def test_marks_by_position_are_refused(tmp_path: Path, refused: Refused) -> None:
    refused.dataset(save_npz(tmp_path, {**LOG, "episode_starts": np.array([0, 3])}), "'episode_starts' has shape (2,)")


def test_in_rlds_the_last_row_is_the_final_observation(tmp_path: Path) -> None:
    columns = {
        "observation": np.arange(12.0).reshape(6, 2),
        "action": np.array([[0.5], [-0.5], [0.0], [0.25], [0.75], [0.0]]),
        "reward": np.array([1.0, 2, 0, 4, 8, 0]),
        "is_first": np.array([1, 0, 0, 1, 0, 0], bool),
        "is_last": np.array([0, 0, 1, 0, 0, 1], bool),
        "is_terminal": np.array([0, 0, 1, 0, 0, 0], bool),
    }
    data = load_dataset(save_npz(tmp_path, columns))
    assert data.observations[:, 0].tolist() == [0, 2, 6, 8]
    assert data.next_observations[:, 0].tolist() == [2, 4, 8, 10]
    assert data.terminated.tolist() == [False, True, False, False]
    assert data.truncated.tolist() == [False, False, False, True]
    assert data.rewards.tolist() == [1, 2, 4, 8]
    assert any("Taken for final observations: 2 rows marked by 'is_last'" in note for note in data.meta.notes)
    (tmp_path / "log.npz").unlink()
    real = {**columns, "reward": np.array([1.0, 2, 3, 4, 8, 16])}  # a last step with a reward is a step
    data = load_dataset(save_npz(tmp_path, real))
    assert data.rewards.tolist() == [1, 2, 3, 4, 8]
    assert data.terminated.tolist() == [False, False, True, False, False]


@every_format
def test_every_array_that_is_not_used_is_named(tmp_path: Path, save: Save) -> None:
    more = {f"extra_{i}": np.zeros((6, 2)) for i in range(30)}
    others = {"action_dist_inputs": np.zeros((6, 4)), "obs": LOG["observations"], "seed": np.array(3), **more}
    dataset = load_dataset(save(tmp_path, {**LOG, **others}))
    assert_golden(dataset)
    (note,) = [note for note in dataset.meta.notes if "not used" in note]
    named = note.removeprefix("Arrays that are not used: ").removesuffix(".").split(", ")
    assert sorted(named) == sorted({*others} - {"seed"})


@every_format
def test_without_an_end_for_good_the_notes_say_so(tmp_path: Path, save: Save) -> None:
    dataset = load_dataset(save(tmp_path, {name: LOG[name] for name in ("observations", "actions", "rewards")}))
    assert not dataset.terminated.any()
    assert any("No array says where an episode ended for good" in note for note in dataset.meta.notes)


@every_format
def test_a_row_that_is_both_terminal_and_a_cut_off_is_terminal(tmp_path: Path, save: Save) -> None:
    columns = {**LOG, "timeouts": np.array([0, 0, 1, 0, 0, 0])}
    assert load_dataset(save(tmp_path, columns)).terminated.tolist() == [False, False, True, False, False]


@every_format
@pytest.mark.parametrize("name", ["done", "dones", "next_done"])
def test_a_row_that_is_both_done_and_a_cut_off_is_a_cut_off(tmp_path: Path, save: Save, name: str) -> None:
    columns = {**LOG, name: np.array([0, 0, 1, 0, 0, 1])}
    del columns["terminals"]
    dataset = load_dataset(save(tmp_path, columns))
    assert_golden(dataset)
    assert any(note.startswith(f"Both {name} and cut off: 1 row.") for note in dataset.meta.notes)


def test_d4rl_s_rules_hold_for_files_of_its_tasks_only(tmp_path: Path) -> None:
    columns = {**LOG, "terminals": np.array([0, 0, 1, 0, 0, 1]), "timeouts": np.array([0, 0, 1, 0, 0, 0])}
    path = save_hdf5(tmp_path, {**columns, "actions": LOG["actions"] / 4})
    assert load_dataset(path).terminated.tolist() == [False, False, True, False, False, True]
    assert load_dataset(path.rename(tmp_path / "hopper-mine-v2.hdf5")).terminated.tolist() == [False] * 4


@every_format
def test_a_flag_within_an_episode_is_told(tmp_path: Path, save: Save) -> None:
    dataset = load_dataset(save(tmp_path, {**LOG, "episode_id": np.zeros(6)}))
    assert_golden(dataset)
    assert any(
        "(flag-inside-episode)" in note and "1 row, flagged by 'terminals' or 'timeouts': row 2." in note
        for note in dataset.meta.notes
    )


# Any block size


@settings(max_examples=80)
@given(
    logs(),
    st.none() | st.lists(st.integers(1, 5), min_size=14, max_size=14),
    st.sampled_from([save_npz, save_npy]),
    st.integers(1, 6),
    st.booleans(),
)
def test_any_flags_and_episodes_in_any_blocks_follow_the_slow_rules(
    rows: list[Row], lengths: list[int] | None, save: Save, size: int, drop: bool
) -> None:
    columns = {name: values for name, values in steps_of(rows)._asdict().items() if values is not None}
    rows = [row if not row.terminated else Row(**{**vars(row), "truncated": False}) for row in rows]
    if lengths is not None:
        columns["episodes"] = np.repeat(np.arange(len(lengths)), lengths)[: len(rows)]
        rows = ended_by_ids(rows, columns["episodes"].tolist())
    expected = transitions(rows, drop_bad_rows=drop)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(arrays, "_BLOCK_BYTES", 8 * size):
        path = save(Path(folder), columns)
        if not expected:
            with pytest.raises(MildlyError, match="no row has a next observation"):
                load_dataset(path, drop_bad_rows=drop)
            return
        assert_same(load_dataset(path, scaled=True, drop_bad_rows=drop, verify=False), expected)


# Mistakes


@every_format
@pytest.mark.parametrize("field", ["observations", "actions", "rewards"])
def test_a_missing_array_is_named_with_the_option(tmp_path: Path, save: Save, field: str, refused: Refused) -> None:
    option = {"observations": "--obs", "actions": "--action", "rewards": "--reward"}[field]
    path = save(tmp_path, {name: values for name, values in LOG.items() if name != field})
    refused.dataset(path, f"lacks {field}", f"mildly data convert SRC DST {option} NAME")


BAD_TYPES: dict[str, Any] = {
    "text": np.array(["left", "right", "left", "right", "left", "left"]),
    "complex": LOG["rewards"] * 1j,
    "bytes": np.array([b"x"] * 6),
    "structure": np.zeros(6, dtype=[("x", "f4"), ("y", "i2")]),
}


@every_format
@pytest.mark.parametrize("kind", BAD_TYPES)
@pytest.mark.parametrize("field", ["rewards", "terminals"])
def test_arrays_that_hold_no_numbers_are_named(
    tmp_path: Path, save: Save, kind: str, field: str, refused: Refused
) -> None:
    values = BAD_TYPES[kind]
    if save is save_hdf5 and values.dtype.kind == "U":
        values = values.tolist()
    refused.dataset(save(tmp_path, {**LOG, field: values}), f"'{field}' holds", "expected numbers")


@pytest.mark.parametrize("save", [save_npz, save_npy])
@pytest.mark.parametrize("kind", ["datetime64[s]", "timedelta64[s]"])
def test_dates_are_no_numbers(tmp_path: Path, save: Save, kind: str, refused: Refused) -> None:
    refused.dataset(
        save(tmp_path, {**LOG, "rewards": np.arange(6).astype(kind)}), "'rewards' holds", "expected numbers"
    )


@every_format
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("observations", np.zeros((6, 2, 2))),
        ("observations", np.zeros((6, 0))),
        ("actions", np.zeros((5, 1))),
        ("rewards", np.zeros((6, 2))),
        ("rewards", np.float32(1)),
        ("terminals", np.zeros((1, 6))),
        ("timeouts", np.zeros(0)),
    ],
)
def test_shapes_that_do_not_fit_are_named(
    tmp_path: Path, save: Save, field: str, values: Any, refused: Refused
) -> None:
    refused.dataset(save(tmp_path, {**LOG, field: values}), f"'{field}' has shape")


@every_format
def test_episodes_as_a_dimension_of_their_own_are_told_what_is_expected(
    tmp_path: Path, save: Save, refused: Refused
) -> None:
    columns = {"obs": np.zeros((4, 200, 3)), "actions": np.zeros((4, 200, 1)), "rewards": np.zeros((4, 200))}
    words = "'obs' has shape (4, 200, 3), as if it were (episodes, steps, size)", "(800, 3)", "'timeouts'"
    refused.dataset(save(tmp_path, columns), *words)


def test_arrays_in_groups_of_another_kind_are_told_what_is_expected(tmp_path: Path, refused: Refused) -> None:
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        file["sensors/gripper"] = np.zeros((5, 2))
        file["commands/torque"] = np.zeros((5, 2))
    words = "its arrays are in groups (commands/torque, sensors/gripper, ...)"
    refused.dataset(tmp_path / "log.hdf5", words, "'observations', 'actions' and 'rewards'", "'timeouts'")


@every_format
def test_no_rows_are_no_log(tmp_path: Path, save: Save, refused: Refused) -> None:
    refused.dataset(save(tmp_path, {name: values[:0] for name, values in LOG.items()}), "'observations' has no rows")


@every_format
def test_a_flag_that_is_nan_is_named(tmp_path: Path, save: Save, refused: Refused) -> None:
    refused.dataset(save(tmp_path, {**LOG, "terminals": np.array([0, 0, np.nan, 0, 0, 0])}), "'terminals' has NaN")


def test_a_folder_with_nothing_of_ours_is_no_data_set(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    refused.dataset(tmp_path, "not a data set")


def test_images_are_told_to_be_unsupported(tmp_path: Path) -> None:
    images = np.zeros((6, 8, 8, 3))
    path = save_npz(tmp_path, {"observations": images, "actions": np.zeros((6, 1)), "rewards": np.zeros(6)})
    with pytest.raises(MildlyError, match=r"'observations' has shape \(6, 8, 8, 3\): images are not supported"):
        load_dataset(path)
    columns = {name: np.zeros(6) for name in ("rewards", "terminated", "truncated")}
    with pytest.raises(MildlyError, match="images are not supported"):
        Dataset.from_arrays(
            observations=images, actions=np.zeros((6, 1)), next_observations=images, meta=Meta("x"), **columns
        )
