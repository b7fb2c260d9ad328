"""Tables with faults: what is read is what the clean twin holds, and what is wrong is told by column and line."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from conftest import Refused
from hypothesis import given, settings, strategies as st

from mildly.cli import main
from mildly.data.check import check
from mildly.data.convert import convert
from mildly.data.dataset import Dataset
from mildly.data.findings import Remark
from mildly.data.formats import table_file
from mildly.data.options import ImportOptions
from mildly.data.origin import Origin, rows_of_arrays
from mildly.data.registry import load_dataset

EPISODES, STEPS = 4, 9
DROP = ImportOptions(drop_bad_rows=True)


def remark(data: Dataset, code: str) -> Remark:
    (found,) = [one for one in map(Remark.of, data.meta.notes) if one.code == code]
    return found


def write(path: Path, rows: list[int], missing: set[int] = frozenset()) -> Path:  # type: ignore[assignment]
    """Rows of a log of 36 steps, by number: x and the reward are the number, and the clock runs through an episode."""
    lines = ["time,episode,x,u,reward"]
    for row in rows:
        episode, step = divmod(row, STEPS)
        lines.append(f"{10 * step},{episode},{'' if row in missing else row},{row % 3 - 1}.0,{row}")
    path.write_text("\n".join(lines) + "\n")
    return path


def transitions(data: Dataset) -> Counter[tuple[float, float]]:
    """The multiset of transitions, by observation and next observation."""
    return Counter(zip(data.observations[:, 0].tolist(), data.next_observations[:, 0].tolist(), strict=True))


def returns_by_episode(data: Dataset) -> dict[int, float]:
    firsts = [int(data.rewards[rows.start]) // STEPS for rows in data.episodes()]
    return dict(zip(firsts, data.episode_returns().tolist(), strict=True))


@settings(max_examples=60)
@given(
    deleted=st.sets(st.integers(0, EPISODES * STEPS - 1), max_size=8),
    swapped=st.sets(st.integers(0, EPISODES * STEPS - 2), max_size=6),
    block=st.integers(30, 400),
)
def test_order_and_gaps_leave_the_valid_transitions_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, deleted: set[int], swapped: set[int], block: int
) -> None:
    rows = [row for row in range(EPISODES * STEPS) if row not in deleted]
    taken: set[int] = set()
    for i in sorted(swapped):
        here = slice(i, i + 2)
        same = len(rows[here]) == 2 and rows[i] // STEPS == rows[i + 1] // STEPS and rows[i + 1] == rows[i] + 1
        if same and not taken & {i, i + 1}:
            rows[here] = rows[here][::-1]
            taken |= {i, i + 1}
    kept = set(rows)
    expected = Counter((a, a + 1) for a in kept if a + 1 in kept and (a + 1) % STEPS)
    if not expected:
        return
    path = write(tmp_path_factory.mktemp("logs") / "log.csv", rows)
    with mock.patch.object(table_file, "_CSV_BLOCK", block):
        data = load_dataset(path, time="time", max_gap=15.0)
    assert transitions(data) == expected
    clean = load_dataset(write(path.with_name("clean.csv"), list(range(EPISODES * STEPS))))
    whole = [e for e in range(EPISODES) if kept >= set(range(e * STEPS, (e + 1) * STEPS))]
    found, wanted = returns_by_episode(data), returns_by_episode(clean)
    assert {e: found[e] for e in whole} == {e: wanted[e] for e in whole}


@settings(max_examples=60)
@given(
    missing=st.sets(st.integers(0, EPISODES * STEPS - 1), max_size=10),
    fill=st.sampled_from([None, "previous", "interpolate", "0", "x=interpolate,0"]),
    limit=st.integers(1, 4),
)
def test_filling_and_dropping_leave_the_valid_transitions_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, missing: set[int], fill: str | None, limit: int
) -> None:
    folder, rows = tmp_path_factory.mktemp("logs"), list(range(EPISODES * STEPS))
    clean = load_dataset(write(folder / "clean.csv", rows))
    touched = {a for a in rows if a in missing or a + 1 in missing}
    path = write(folder / "log.csv", rows, missing)
    options = ImportOptions(drop_bad_rows=True, fill=fill, max_fill=limit if fill else None)
    data = load_dataset(path, options)
    valid = data.rewards[~np.isin(data.rewards, list(touched))]
    expected = [reward for reward in clean.rewards.tolist() if reward not in touched]
    assert valid.tolist() == expected
    untouched = ~np.isin(data.rewards, list(touched))
    for values in (data.observations, data.next_observations):
        shift = 0 if values is data.observations else 1
        np.testing.assert_array_equal(values[untouched, 0], data.rewards[untouched] + shift)
    found, wanted = returns_by_episode(data), returns_by_episode(clean)
    assert found == {episode: wanted[episode] for episode in found}  # rewards are known where a sensor was silent


# Gaps through conversions


def test_a_converted_set_keeps_episodes_whole_over_rows_that_were_left_out(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", list(range(EPISODES * STEPS)), {3, 14, 15})
    made = convert(log, tmp_path / "set", DROP)
    data = load_dataset(tmp_path / "set")
    assert data.meta.fingerprint == made.meta.fingerprint == load_dataset(log, DROP).meta.fingerprint
    assert data.episode_lengths().tolist() == [STEPS - 1] * EPISODES
    clean = load_dataset(write(tmp_path / "clean.csv", list(range(EPISODES * STEPS))))
    assert data.episode_returns().tolist() == clean.episode_returns().tolist()
    again = convert(tmp_path / "set", tmp_path / "again", ImportOptions(name="again"))
    assert again.episode_returns().tolist() == data.episode_returns().tolist()
    assert again.meta.fingerprint == data.meta.fingerprint


def test_more_rows_may_be_left_out_of_a_set_with_gaps(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", list(range(EPISODES * STEPS)), {3})
    data = load_dataset(log, DROP)
    data.observations[data.rewards == 20] = np.nan
    data.save(tmp_path / "set")
    more = load_dataset(tmp_path / "set", DROP)
    assert more.episode_lengths().tolist() == [STEPS - 1] * EPISODES
    assert more.episode_returns().tolist() == data.episode_returns().tolist()
    assert len(more) == len(data) - 1


def test_a_format_that_cannot_keep_gaps_says_so(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", list(range(EPISODES * STEPS)), {3, 14})
    told: list[str] = []
    convert(log, tmp_path / "set.parquet", DROP, tell=told.append)
    assert any("Rows are missing inside 2 episodes" in note for note in told)
    assert len(load_dataset(tmp_path / "set.parquet").episodes()) == EPISODES + 2


# Decimal signs


@pytest.mark.parametrize(("sign", "own", "other"), [(";", ",", "."), (";", ".", ","), (",", ".", ",")])
@pytest.mark.parametrize("block", [80, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_a_cell_with_the_other_decimal_sign_is_read_and_told(
    tmp_path: Path, sign: str, own: str, other: str, block: int, packed: bool
) -> None:
    rows = [[f"{row}.25", f"{row % 3 - 1}.5", "1.5"] for row in range(30)]
    cells = [[cell.replace(".", own) for cell in row] for row in rows]
    cells[7][0] = rows[7][0].replace(".", other)
    cells[20][0], cells[21][1] = rows[20][0].replace(".", other), rows[21][1].replace(".", other)
    quoted = (f'"{cell}"' if sign in cell else cell for row in cells for cell in row)
    text = "\n".join(["temp;u;reward".replace(";", sign), *map(sign.join, zip(*[quoted] * 3, strict=True))]) + "\n"
    path = tmp_path / ("log.csv.gz" if packed else "log.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    with mock.patch.object(table_file, "_CSV_BLOCK", block):
        data = load_dataset(path)
    assert data.observations[:, 0].tolist() == [row + 0.25 for row in range(29)]
    assert remark(data, "decimal-mixed").evidence == "'temp' in lines 9, 22; 'u' in line 23."
    assert remark(data, "decimal-mixed").severity == "warning"


@pytest.mark.parametrize("cell", ["1.234", "soon", "1.2.3"])
def test_a_cell_that_may_be_thousands_or_no_number_is_refused(tmp_path: Path, cell: str, refused: Refused) -> None:
    lines = [f"{row},25;{row % 3 - 1},5;1" for row in range(30)]
    lines[4], lines[9] = "4.25;0,5;1", f"{cell};0,5;1"
    (tmp_path / "log.csv").write_text("\n".join(["temp;u;reward", *lines]))
    refused.dataset(tmp_path / "log.csv", f"column 'temp' holds '{cell}' in line 11, expected a number")


# Codes for missing values


def coded(path: Path) -> Path:
    rows = [[row / 10, (row * 7) % 11, row % 3 - 0.5, row] for row in range(300)]
    for row in (20, 80, 200):
        rows[row][0] = -999
    rows[100][1], rows[150][3] = 65535, -9999
    lines = ["obs_x,obs_y,action,reward", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_codes_become_missing_and_are_filled_or_left_out(tmp_path: Path) -> None:
    path = coded(tmp_path / "log.csv")
    data = load_dataset(path, missing="-999,obs_y=65535,reward=-9999", fill="interpolate", drop_bad_rows=True)
    np.testing.assert_allclose(data.observations[:, 0] * 10, [row for row in range(299) if row != 150], atol=1e-4)
    assert "A code for a missing value stood in 5 cells." in data.meta.notes
    assert data.observations[100, 1] == pytest.approx(((99 * 7) % 11 + (101 * 7) % 11) / 2)
    assert "--missing had no effect" in str(load_dataset(path, missing="-7777").meta.notes)


def test_the_advice_of_the_check_mends_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = coded(tmp_path / "log.csv")
    (advice,) = [found.advice for found in check(load_dataset(path)) if found.code == "sentinel"]
    command = advice.split("`")[1].replace("SRC", str(path)).replace("DST", str(tmp_path / "set"))
    assert command.endswith("--missing obs_x=-999,obs_y=65535,reward=-9999")
    assert main([*command.split()[1:], "--fill", "interpolate", "--drop-bad-rows"]) == 0
    capsys.readouterr()
    assert "sentinel" not in {found.code for found in check(load_dataset(tmp_path / "set"))}


def test_a_reward_is_never_computed_from_a_code(tmp_path: Path) -> None:
    path = coded(tmp_path / "log.csv")
    options = {"obs": "obs_*", "reward": "obs_x + 1", "missing": "obs_x=-999", "drop_bad_rows": True}
    data = load_dataset(path, **options)
    assert len(data) == 299 - 6
    np.testing.assert_allclose(data.rewards, data.observations[:, 0] + 1)
    assert "A code for a missing value stood in 3 cells." in data.meta.notes
    other = load_dataset(path, obs="obs_y", reward="obs_x + 1", missing="obs_x=-999", drop_bad_rows=True)
    assert other.rewards.min() == 1.0
    assert "A code for a missing value stood in 3 cells." in other.meta.notes


@pytest.mark.parametrize(
    ("given_", "words"), [("none", "--missing takes numbers"), ("z=1", "no column fits --missing 'z'. Known: obs_x")]
)
def test_codes_that_cannot_be_understood_are_refused(tmp_path: Path, given_: str, words: str, refused: Refused) -> None:
    refused(load_dataset, words, source=coded(tmp_path / "log.csv"), missing=given_)


# Places


def test_an_error_names_the_line_and_the_column(tmp_path: Path, refused: Refused) -> None:
    path = write(tmp_path / "log.csv", list(range(EPISODES * STEPS)), {12})
    refused.dataset(path, "'observations' has NaN or infinite values, first in line 14, 'x'")
    refused(load_dataset, "line 2, 'u' is -1", source=path, drop_bad_rows=True, action_low=0, action_high=1)


def test_rows_are_kept_as_stretches_whatever_the_blocks(tmp_path: Path) -> None:
    rows = np.array([0, 1, 2, 5, 6, 9, 8, 10, 11, 12])
    for size in (1, 3, 10):
        origin = Origin(rows_of_arrays)
        for start in range(0, len(rows), size):
            origin.add(rows[start : start + size])
        assert [place.number for place in origin.of(range(len(rows)))] == rows.tolist()
        assert len(origin._starts) == 5


def test_a_converted_set_names_columns_but_no_lines(tmp_path: Path) -> None:
    path = coded(tmp_path / "log.csv")
    convert(path, tmp_path / "set")
    evidence = {
        source: next(found.evidence for found in check(load_dataset(tmp_path / source)) if found.code == "sentinel")
        for source in ("log.csv", "set")
    }
    assert "'obs_x': 3 values of -999 in lines 22, 82, 202" in evidence["log.csv"]
    assert "'obs_x': 3 values of -999 in rows 20, 80, 200" in evidence["set"]
