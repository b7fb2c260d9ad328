"""The D4RL reader against a slow loop over h5py: on the real files where they are, on written ones everywhere."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
from conftest import Refused
from d4rl_files import DATA, assert_rows_equal, assert_schema, columns_of, ends, slow_rows, with_next, write
from hypothesis import assume, given, settings, strategies as st

from mildly.data.formats import d4rl
from mildly.data.registry import load_dataset


class Expected(NamedTuple):
    """What a real file must give, worked out by hand from its flags."""

    name: str
    rows: int
    terminated: tuple[int, ...]
    truncated: tuple[int, ...]
    env_id: str
    reference: tuple[float, float]


CHEETAH = ("HalfCheetah-v4", (-280.178953, 12135.0))
HOPPER = ("Hopper-v4", (-20.272305, 3234.3))
WALKER = ("Walker2d-v4", (1.629008, 4592.3))
PEN = ("d4rl/pen-v0", (96.262799, 3076.8331017826877))
DOOR = ("d4rl/door-v0", (-56.512833, 2880.5693087298737))

REAL = {
    # Without next observations: time-out rows and the file's last row are gone.
    "adroit/door-cloned-v0": Expected("door-cloned-v0", 298, (), (198, 297), *DOOR),
    "adroit/door-human-v0": Expected("door-human-v0", 298, (), (198, 297), *DOOR),
    "adroit/door-human-v1": Expected("door-human-v1", 598, (), (298, 597), *DOOR),
    "adroit/pen-cloned-v0": Expected("pen-cloned-v0", 198, (), (98, 197), *PEN),
    "adroit/pen-expert-v0": Expected("pen-expert-v0", 198, (), (98, 197), *PEN),
    "adroit/pen-human-v0": Expected("pen-human-v0", 198, (), (98, 197), *PEN),
    "mujoco/halfcheetah_medium": Expected("halfcheetah-medium-v0", 1897, (898,), (1896,), *CHEETAH),
    "mujoco/hopper_medium": Expected("hopper-medium-v0", 523, (210,), (522,), *HOPPER),
    # With next observations: every row is kept.
    "mujoco/halfcheetah_medium-v2": Expected("halfcheetah-medium-v2", 2000, (), (999, 1999), *CHEETAH),
    "mujoco/halfcheetah_medium_replay-v1": Expected("halfcheetah-medium-replay-v1", 2000, (), (999, 1999), *CHEETAH),
    "mujoco/halfcheetah_random-v1": Expected("halfcheetah-random-v1", 2000, (), (999, 1999), *CHEETAH),
    "mujoco/hopper_medium-v2": Expected("hopper-medium-v2", 911, (469, 910), (), *HOPPER),
    "mujoco/hopper_medium_replay-v1": Expected("hopper-medium-replay-v1", 49, (39, 48), (), *HOPPER),
    "mujoco/hopper_random-v1": Expected("hopper-random-v1", 50, (30, 49), (), *HOPPER),
    "mujoco/walker2d_medium-v2": Expected("walker2d-medium-v2", 2000, (), (999, 1999), *WALKER),
}


def real(name: str) -> Path:
    path = DATA / "d4rl_slices" / f"{name}.hdf5"
    if not path.is_file():
        pytest.skip(f"the D4RL slice {name}.hdf5 is not here (looked in ../shared/data of the project's root)")
    return path


# Real files


@pytest.mark.parametrize("file", REAL)
def test_a_real_file_gives_the_rows_of_the_slow_loop(file: str) -> None:
    dataset = load_dataset(real(file))
    assert_schema(dataset)
    assert len(dataset) == REAL[file].rows
    assert_rows_equal(dataset, slow_rows(real(file)))


@pytest.mark.parametrize("file", REAL)
def test_a_real_file_has_its_episode_ends_and_meta(file: str) -> None:
    dataset, expected = load_dataset(real(file)), REAL[file]
    assert (ends(dataset.terminated), ends(dataset.truncated)) == (expected.terminated, expected.truncated)
    assert (dataset.meta.name, dataset.meta.env_id) == (expected.name, expected.env_id)
    assert (dataset.meta.reference_min, dataset.meta.reference_max) == expected.reference
    assert Path(file).name in dataset.meta.source


def test_every_real_file_is_in_the_golden_table() -> None:
    folder = DATA / "d4rl_slices"
    if not folder.is_dir():
        pytest.skip("the folder of D4RL slices is not here (looked in ../shared/data of the project's root)")
    found = {f"{path.parent.name}/{path.stem}" for path in folder.glob("*/*.hdf5")}
    assert found == set(REAL)


# Written files, one of each layout


def test_v0_layout_shifts_the_observations_and_drops_time_outs_and_the_last_row(tmp_path: Path) -> None:
    path = write(tmp_path / "hopper_medium.hdf5", columns_of(10, terminals=(3,), timeouts=(7,)))
    dataset = load_dataset(path)
    assert_schema(dataset)
    assert_rows_equal(dataset, slow_rows(path))
    assert len(dataset) == 8
    # Row 7 is gone: row 6 is the last of its episode, row 8 (now 7) the last of the file.
    assert (ends(dataset.terminated), ends(dataset.truncated)) == ((3,), (6, 7))
    assert dataset.meta.name == "hopper-medium-v0"


def test_v1_layout_of_float64_and_column_rewards_keeps_every_row(tmp_path: Path) -> None:
    columns = with_next(columns_of(10, terminals=(3,), timeouts=(7,), dtype=np.float64))
    columns["rewards"] = columns["rewards"][:, None]
    for key in ("terminals", "timeouts"):
        columns[key] = columns[key].astype(np.float64)
    path = write(tmp_path / "hopper_medium_replay-v1.hdf5", columns)
    dataset = load_dataset(path)
    assert_schema(dataset)
    assert_rows_equal(dataset, slow_rows(path))
    assert len(dataset) == 10
    assert (ends(dataset.terminated), ends(dataset.truncated)) == ((3,), (7, 9))
    assert dataset.meta.name == "hopper-medium-replay-v1"


def test_v2_layout_keeps_every_row_with_its_own_next_observation(tmp_path: Path) -> None:
    columns = with_next(columns_of(10, terminals=(4,), timeouts=(9,)))
    path = write(tmp_path / "walker2d_medium_expert-v2.hdf5", columns)
    dataset = load_dataset(path)
    assert_schema(dataset)
    assert_rows_equal(dataset, slow_rows(path))
    np.testing.assert_array_equal(dataset.next_observations, columns["next_observations"])
    assert (ends(dataset.terminated), ends(dataset.truncated)) == ((4,), (9,))
    assert (dataset.meta.name, dataset.meta.env_id) == ("walker2d-medium-expert-v2", "Walker2d-v4")


def test_adroit_layout_of_mixed_types_is_shifted(tmp_path: Path) -> None:
    columns = columns_of(12, terminals=(11,), timeouts=(5,), dtype=np.float64)
    columns["actions"] = columns["actions"].astype(np.float32)
    path = write(tmp_path / "door-cloned-v0.hdf5", columns)
    dataset = load_dataset(path)
    assert_schema(dataset)
    assert_rows_equal(dataset, slow_rows(path))
    assert (ends(dataset.terminated), ends(dataset.truncated)) == ((), (4, 9))
    assert (dataset.meta.name, dataset.meta.env_id) == ("door-cloned-v0", "d4rl/door-v0")


def test_a_file_without_time_outs_has_them_at_the_task_s_horizon(tmp_path: Path) -> None:
    # pen's horizon is 100. The fall in row 30 starts the count again: time-outs in rows 130 and 230.
    path = write(tmp_path / "pen-human-v0.hdf5", columns_of(240, terminals=(30,), timeouts=None))
    dataset = load_dataset(path)
    assert_rows_equal(dataset, slow_rows(path, horizon=100))
    assert len(dataset) == 237
    assert (ends(dataset.terminated), ends(dataset.truncated)) == ((30,), (129, 228, 236))


def test_a_file_of_no_known_task_has_no_time_outs_of_its_own_and_no_references(tmp_path: Path) -> None:
    path = write(tmp_path / "my_robot-v3.hdf5", columns_of(1500, timeouts=None))
    dataset = load_dataset(path)
    assert len(dataset) == 1499
    assert ends(dataset.truncated) == (1498,)
    assert dataset.meta.name == "my_robot-v3"
    assert (dataset.meta.env_id, dataset.meta.reference_min, dataset.meta.reference_max) == (None, None, None)


def test_a_time_out_is_never_terminated_in_either_layout(tmp_path: Path) -> None:
    columns = columns_of(9, timeouts=(2, 5, 8))
    for number, layout in enumerate((columns, with_next(columns))):
        dataset = load_dataset(write(tmp_path / f"hopper-expert-v{number}.hdf5", layout))
        assert not dataset.terminated.any()
        assert len(dataset.episodes()) == 3


def test_a_fall_in_the_very_step_of_the_time_limit_follows_d4rl(tmp_path: Path) -> None:
    columns = columns_of(9, terminals=(4,), timeouts=(4,))
    # Stored next observations: the row is kept, and the fall ends the value.
    kept = load_dataset(write(tmp_path / "hopper-expert-v2.hdf5", with_next(columns)))
    assert (ends(kept.terminated), ends(kept.truncated)) == ((4,), (8,))
    # None stored: the time-out row is dropped, as D4RL drops it.
    shifted = load_dataset(write(tmp_path / "hopper-expert-v0.hdf5", columns))
    assert (len(shifted), ends(shifted.terminated), ends(shifted.truncated)) == (7, (), (3, 6))


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("hopper_medium-v2", "hopper-medium-v2"),
        ("halfcheetah_medium_expert-v2", "halfcheetah-medium-expert-v2"),
        ("hopper_mixed", "hopper-medium-replay-v0"),
        ("walker2d_random", "walker2d-random-v0"),
        ("maze2d-umaze-dense-v1", "maze2d-umaze-dense-v1"),
        ("pen-demos-v0-bc-combined", "pen-cloned-v0"),
        ("my_robot", "my_robot"),
    ],
)
def test_the_file_name_tells_the_data_set_s_name(stem: str, name: str) -> None:
    assert d4rl.dataset_name(Path(f"/somewhere/{stem}.hdf5")) == name


flags = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(flags, st.sampled_from(["hopper-medium-v0", "maze2d-medium-v1"]))
def test_the_shifted_view_equals_the_slow_loop_on_any_flags(drawn: list[tuple[bool, bool]], name: str) -> None:
    columns = columns_of(len(drawn))
    columns["terminals"], columns["timeouts"] = np.array(drawn).T
    assume(not columns["timeouts"][:-1].all())  # else no row has a successor
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / f"{name}.hdf5", columns)
        dataset = load_dataset(path)
        rows = slow_rows(path, terminates=name.startswith("hopper"))
    assert_rows_equal(dataset, rows)
    assert not (dataset.terminated & dataset.truncated).any()
    # Inside an episode each row continues the one before it.
    for episode in dataset.episodes():
        inside = slice(episode.start, episode.stop - 1), slice(episode.start + 1, episode.stop)
        np.testing.assert_array_equal(dataset.next_observations[inside[0]], dataset.observations[inside[1]])


# Bad input


def test_a_missing_file_is_named(tmp_path: Path, refused: Refused) -> None:
    refused.dataset(tmp_path / "hopper-medium-v2.hdf5", "no such file")
    refused.dataset(tmp_path, "not a data set")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95])
def test_a_file_cut_short_is_named(tmp_path: Path, share: float, refused: Refused) -> None:
    path = write(tmp_path / "hopper-medium-v2.hdf5", columns_of(200))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused.dataset(path, "cut short")


def test_a_real_file_cut_short_is_named(tmp_path: Path, refused: Refused) -> None:
    content = real("mujoco/hopper_medium-v2").read_bytes()
    path = tmp_path / "hopper_medium-v2.hdf5"
    path.write_bytes(content[: len(content) // 2])
    refused.dataset(path, "cut short")


def test_a_file_that_is_not_hdf5_is_named(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "hopper-medium-v2.hdf5"
    path.write_text("observations,actions\n1,2\n")
    refused.dataset(path, "not what its name says")


@pytest.mark.parametrize("key", ["observations", "actions", "rewards", "terminals"])
@pytest.mark.parametrize("instead", ["nothing", "group"])
def test_a_required_key_that_is_absent_or_a_group_is_named(
    tmp_path: Path, key: str, instead: str, refused: Refused
) -> None:
    path = write(tmp_path / "hopper-medium-v2.hdf5", columns_of(6))
    with h5py.File(path, "a") as file:
        del file[key]
        if instead == "group":
            file.create_group(key)["values"] = np.zeros(6)
    refused.dataset(path, key)


@pytest.mark.parametrize("key", ["next_observations", "timeouts"])
def test_an_optional_key_that_is_a_group_is_named(tmp_path: Path, key: str, refused: Refused) -> None:
    path = write(tmp_path / "hopper-medium-v2.hdf5", with_next(columns_of(6)))
    with h5py.File(path, "a") as file:
        del file[key]
        file.create_group(key)["values"] = np.zeros(6)
    refused.dataset(path, f"'{key}'")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("key", ["observations", "actions", "rewards", "next_observations", "terminals", "timeouts"])
def test_values_that_are_not_finite_are_named(tmp_path: Path, key: str, value: float, refused: Refused) -> None:
    columns = with_next(columns_of(6))
    columns[key] = columns[key].astype(np.float64)
    columns[key][2] = value
    refused.dataset(write(tmp_path / "hopper-medium-v2.hdf5", columns), f"'{key}'", "NaN or infinite")


def test_values_too_large_for_float32_are_refused(tmp_path: Path, refused: Refused) -> None:
    columns = columns_of(6, dtype=np.float64)
    columns["rewards"][2] = 1e300
    refused.dataset(write(tmp_path / "hopper-medium-v2.hdf5", columns), "'rewards'", "infinite")


@pytest.mark.parametrize("key", ["actions", "rewards", "terminals", "timeouts", "next_observations"])
@pytest.mark.parametrize("change", ["a row less", "a dimension more", "a scalar"])
def test_shapes_that_disagree_are_named(tmp_path: Path, key: str, change: str, refused: Refused) -> None:
    columns: dict[str, Any] = with_next(columns_of(6))
    if change == "a row less":
        columns[key] = columns[key][:-1]
    elif change == "a dimension more":
        columns[key] = np.stack([columns[key]] * 2, axis=-1)
    else:
        columns[key] = columns[key].flat[0]
    refused.dataset(write(tmp_path / "hopper-medium-v2.hdf5", columns), f"'{key}'", "6 rows")


def test_next_observations_of_another_width_are_named(tmp_path: Path, refused: Refused) -> None:
    columns = with_next(columns_of(6))
    columns["next_observations"] = columns["next_observations"][:, :2]
    refused.dataset(write(tmp_path / "hopper-medium-v2.hdf5", columns), "'next_observations'")


@pytest.mark.parametrize("stores_next", [False, True])
def test_actions_far_outside_the_bounds_are_named(tmp_path: Path, stores_next: bool, refused: Refused) -> None:
    columns = columns_of(6)
    columns["actions"][1, 1] = 2.5
    columns = with_next(columns) if stores_next else columns
    refused.dataset(write(tmp_path / "hopper-medium-v2.hdf5", columns), "'actions'", "row 1, column 1", "2.5")


@pytest.mark.parametrize("key", ["observations", "actions", "rewards", "terminals", "timeouts"])
def test_strings_instead_of_numbers_are_named(tmp_path: Path, key: str, refused: Refused) -> None:
    columns: dict[str, Any] = columns_of(6)
    columns[key] = ["left", "right"] * 3
    refused.dataset(write(tmp_path / "hopper-medium-v2.hdf5", columns), f"'{key}'", "expected numbers")


@pytest.mark.parametrize("stores_next", [False, True])
def test_empty_arrays_are_refused(tmp_path: Path, stores_next: bool, refused: Refused) -> None:
    columns = with_next(columns_of(6)) if stores_next else columns_of(6)
    path = write(tmp_path / "hopper-medium-v2.hdf5", {key: value[:0] for key, value in columns.items()})
    refused.dataset(path, "'observations'", "no rows")


def test_a_null_dataspace_is_refused(tmp_path: Path, refused: Refused) -> None:
    columns: dict[str, Any] = columns_of(6)
    columns["observations"] = h5py.Empty("f4")
    refused.dataset(write(tmp_path / "hopper-medium-v2.hdf5", columns))


def test_a_shifted_file_whose_rows_all_lack_a_successor_is_refused(tmp_path: Path, refused: Refused) -> None:
    refused.dataset(write(tmp_path / "hopper-medium-v0.hdf5", columns_of(1)), "no row has a next observation")
    refused.dataset(write(tmp_path / "hopper-random-v0.hdf5", columns_of(3, timeouts=(0, 1))), "next observation")
