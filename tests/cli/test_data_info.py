"""`mildly data info` and its picture."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_dataset
from matplotlib.axes import Axes

from mildly.action_space import ActionSpace
from mildly.cli import main
from mildly.data.dataset import Dataset
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError
from mildly.report.dataset import _rewards_to_come, _some, draw

SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def info(*args: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["data", "info", *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_source_and_notes_stand_below_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_dataset(source="a plant's log", notes=("Rows were dropped.", "Actions were clipped."))
    code, out, _ = info(str(data.save(tmp_path / "set")), capsys=capsys)
    assert code == 0
    assert "name" in out.splitlines()[0]
    facts, then = out.split("\n\nnext: ")
    assert facts.endswith("\nsource: a plant's log\n\nnotes:\n- Rows were dropped.\n- Actions were clipped.")
    assert then == f"mildly data check {tmp_path / 'set'}\n"


def test_named_columns_are_told_in_the_log_s_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = named_data(ActionSpace((0.0, -1.0), (100.0, 1.0)), ("%", ""))
    _, out, _ = info(str(data.save(tmp_path / "set")), capsys=capsys)
    lines = {words[0]: words[1:] for words in map(str.split, out.splitlines()) if len(words) > 3}
    valve = 50 * (data.actions[:, 0].astype(np.float64) + 1)
    expected = [valve.min(), np.quantile(valve, 0.5, method="nearest"), valve.max()]
    assert lines["valve"] == ["%", *(f"{value:.4g}" for value in expected)]
    assert float(lines["room"][-1]) == pytest.approx(data.observations[:, 0].max(), rel=1e-3)


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_plot_writes_a_picture_of_the_kind_that_its_name_says(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / f"picture{suffix}"
    picture.write_text("an old one, to be replaced")
    code, out, _ = info("pendulum-mixed", "--plot", str(picture), capsys=capsys)
    assert code == 0
    assert "Pendulum-v1" in out
    assert f"picture: {picture}" in out.splitlines()
    assert picture.read_bytes().startswith(SIGNATURES[suffix])
    assert [entry.name for entry in tmp_path.iterdir()] == [picture.name]


def panels(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What is written on each panel of a picture."""
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1])
    draw(data, tmp_path / "picture.png")
    found = []
    for axes in figures[0].axes[:6]:
        legend = axes.get_legend()
        found.append(
            {
                "title": axes.get_title("left"),
                "x": axes.get_xlabel(),
                "y": axes.get_ylabel(),
                "legend": ", ".join(text.get_text() for text in legend.get_texts()) if legend else "",
                "above": str(len(axes.child_axes)),
            }
        )
    return found


def test_the_panels_show_what_the_set_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returns, lengths, rewards, actions, states, order = panels(load_dataset("hopper-mixed"), tmp_path, monkeypatch)
    assert returns["title"] == "Episode returns (above: normalized score)"
    assert returns["above"] == "1"
    assert returns["y"] == "episodes (logarithmic)"  # most of its episodes fall over at once
    assert lengths["legend"] == "terminated (1,174), truncated (2)"
    assert rewards["y"] == "transitions"
    assert actions["legend"] == "dimension 0, dimension 1, dimension 2"
    assert states["x"].startswith("first principal component (27 %")
    assert order["legend"] == "mean of 58 episodes"


SENSORS = ("room", "wall", "sun")


def named_data(space: ActionSpace, units: tuple[str, ...]) -> Dataset:
    data = make_dataset(rows=100, action_names=("valve", "fan"), observation_names=SENSORS, action_units=units)
    return dataclasses.replace(data, meta=dataclasses.replace(data.meta, action_space=space))


def test_actions_are_drawn_in_the_log_s_units_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = named_data(ActionSpace((0.0, 0.0), (100.0, 100.0)), ("%", "%"))
    drawn: list[Axes] = []
    monkeypatch.setattr(Axes, "stairs", watched(Axes.stairs, drawn))
    _, _, _, actions, states, _ = panels(data, tmp_path, monkeypatch)
    assert (actions["x"], actions["legend"]) == ("action, in %", "valve, fan")
    assert drawn[0].get_xlim() == (-2.5, 102.5)
    steps = [patch.get_data() for patch in drawn[0].patches]
    valve = 50 * (data.actions[:, 0].astype(np.float64) + 1)
    assert steps[0].values.tolist() == np.histogram(valve, np.linspace(0, 100, 51))[0].tolist()
    assert set(states["x"].split("\nmostly ")[1].split(", ")) < set(SENSORS)


def watched(stairs: Callable[..., Any], drawn: list[Axes]) -> Callable[..., Any]:
    """As it is, but with a list of the axes that it was used on."""
    return lambda self, *args, **options: (drawn.append(self), stairs(self, *args, **options))[1]


def test_actions_with_bounds_of_their_own_are_drawn_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = named_data(ActionSpace((0.0, -1.0), (100.0, 1.0)), ("%", ""))
    found = panels(data, tmp_path, monkeypatch)[3]
    assert found["x"] == "% of the range between the bounds"
    assert found["legend"] == "valve: 0 to 100 %, fan: -1 to 1"


def test_many_action_dimensions_are_drawn_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_dataset(rows=100)
    meta = dataclasses.replace(data.meta, action_space=None)
    wide = dataclasses.replace(data, actions=np.tile(data.actions, 5)[:, :9], meta=meta)
    found = panels(wide, tmp_path, monkeypatch)
    assert found[3]["legend"] == "all 9 dimensions"
    assert found[0]["above"] == "0"  # no references, no score


def test_one_episode_shows_rewards_in_the_order_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_dataset(rows=100)
    never = np.zeros(100, bool)
    whole = dataclasses.replace(data, terminated=never, truncated=np.arange(100) == 99)
    assert panels(whole, tmp_path, monkeypatch)[5]["title"] == "Rewards in the order of the log"


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (13, 1), (13, 3)])
@pytest.mark.filterwarnings("error")
def test_tiny_sets_and_constant_ones_can_be_drawn(rows: int, columns: int, tmp_path: Path) -> None:
    data = make_dataset(rows=rows)
    observations = data.observations[:, :columns] * (columns == 1)  # either one column, or three that never change
    tiny = dataclasses.replace(data, observations=observations, rewards=np.full_like(data.rewards, 2.0))
    assert draw(tiny, tmp_path / "picture.png").stat().st_size > 10_000


def test_rewards_that_follow_are_summed_to_the_end_of_the_episode() -> None:
    data = make_dataset(rows=60)
    rows = np.array([0, 7, 9, 10, 59])
    slow = [
        sum(0.99**k * float(data.rewards[row + k]) for k in range(10 - row % 10))  # episodes have ten steps
        for row in rows
    ]
    np.testing.assert_allclose(_rewards_to_come(data, rows), slow, rtol=1e-6)


def test_samples_spread_over_everything() -> None:
    assert list(_some(3, 10)) == [0, 1, 2]
    assert list(_some(101, 5)) == [0, 25, 50, 75, 100]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("picture.jpeg", "must end in .png, .svg or .pdf"),
        ("picture", "must end in .png"),
        ("nowhere/a.png", "no folder"),
    ],
)
def test_a_wrong_picture_name_is_told_before_anything_is_read(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = info("no-such-set", "--plot", name, capsys=capsys)
    assert (code, out) == (2, "")
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    def fail(self: Figure, path: Path, **options: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("no space left")

    picture = tmp_path / "picture.png"
    picture.write_text("old")
    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="no space left"):
        draw(make_dataset(), picture)
    assert picture.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["picture.png"]


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MildlyError, match=r"pip install 'mildly\[plot\]'"):
        draw(make_dataset(), tmp_path / "picture.png")
    assert list(tmp_path.iterdir()) == []


def test_info_and_check_without_a_picture_load_neither_matplotlib_nor_torch() -> None:
    code = """
import sys
from mildly.cli import main
main(["data", "info", "pendulum-mixed"])
main(["data", "check", "pendulum-mixed"])
assert not {"matplotlib", "torch"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_every_reward_is_counted_however_many_there_are(monkeypatch):
    """More than a block of rows, and more than any sample that might be drawn."""
    from matplotlib.figure import Figure

    from mildly.report import dataset as picture

    axes, rewards = Figure().subplots(), np.repeat(np.arange(3.0, dtype=np.float32), 100_000)
    monkeypatch.setattr("mildly.data.content.BLOCK", 70_000)
    picture._bars(axes, [rewards], ["blue"])
    heights = [bar.get_height() for bar in axes.patches]
    assert sum(heights) == 300_000
    assert sorted(heights)[-3:] == [100_000] * 3


def test_a_legend_stands_below_the_bars_and_covers_none(tmp_path):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from mildly.report import dataset as picture

    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    picture._bars(axes, [np.arange(10.0), np.arange(5.0)], ["blue", "red"], ["terminated", "truncated"])
    picture._legend(axes)
    figure.canvas.draw()
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_window_extent().y1 < axes.get_window_extent().y0
