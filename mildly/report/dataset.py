"""A picture of a data set, so that a person sees what is in it (needs matplotlib: the extra `plot`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from mildly.action_space import ActionSpace
from mildly.data.dataset import Array, Dataset, blocks
from mildly.errors import MildlyError
from mildly.files import atomic_write, writable
from mildly.report.chart_files import plain_text
from mildly.words import counted

FORMATS = (".png", ".svg", ".pdf")

_BLUE, _ORANGE, _GREY = "#0072b2", "#d55e00", "#5a5a5a"
_DIMENSIONS = (_BLUE, _ORANGE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d1f")  # for any color vision
_STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 8,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": "#333333",
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.12,
}
_ROWS, _STATES, _EPISODES = 200_000, 4_000, 5_000  # drawn at most
_DISCOUNT, _AHEAD = 0.99, 500
_UNSEEN = 100  # times as high as the usual bar
_LEADING = 2  # columns named for a direction
_FEW = 5  # episodes, too few for a histogram


def draw(data: Dataset, path: str | os.PathLike[str]) -> Path:
    """Six panels: returns, lengths, rewards, actions, a map of the states, and returns in the order of the log.

    Args:
        data: the data set; of a large one, a sample of the rows is drawn.
        path: the file to write; its ending decides the format (.png, .svg, .pdf).
    """
    path = picture_path(path)
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise MildlyError("plots need matplotlib: pip install 'mildly[plot]'.") from error
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(13, 7.4), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, panel in zip(figure.subplots(2, 3).flat, _PANELS, strict=True):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.2, linewidth=0.6)
            axes.set_axisbelow(True)
            panel(axes, data)
            axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        figure.suptitle(plain_text(_title(data)), x=0.012, ha="left", fontsize=13, fontweight="bold")
        with atomic_write(path) as unfinished:
            figure.savefig(unfinished, dpi=150, format=path.suffix[1:].lower())
    return path


def picture_path(path: str | os.PathLike[str]) -> Path:
    """The path of a picture; an error where its ending is unknown or it cannot be written."""
    path = Path(path).expanduser()
    if path.suffix.lower() not in FORMATS:
        raise MildlyError(f"{path}: a picture's name must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")
    return writable(path)


def _title(data: Dataset) -> str:
    episodes = len(data.episodes())
    facts = [data.meta.name, counted(len(data), "transition"), counted(episodes, "episode")]
    return "    ".join([*facts, *([data.meta.env_id] if data.meta.env_id else [])])


def _returns(axes: Any, data: Dataset) -> None:
    """How good episodes are, with the normalized score on top where it is known."""
    returns, meta = data.known_returns(), data.meta
    axes.set(title="Episode returns", xlabel="return", ylabel="episodes")
    _bars(axes, [returns], [_BLUE])
    best = np.sort(returns)[-max(1, len(returns) // 10) :].mean()
    axes.axvline(returns.mean(), color=_GREY, linestyle="--", linewidth=1.4, label="mean")
    if len(returns) >= 10:
        axes.axvline(best, color=_ORANGE, linestyle=":", linewidth=1.8, label="mean of the best tenth")
    _legend(axes)
    if meta.reference_min is not None and meta.reference_max is not None:
        low, span = meta.reference_min, (meta.reference_max - meta.reference_min) / 100
        scores = axes.secondary_xaxis("top", functions=(lambda x: (x - low) / span, lambda x: x * span + low))
        scores.spines["top"].set_color("#999999")
        axes.set_title("Episode returns (above: normalized score)")


def _lengths(axes: Any, data: Dataset) -> None:
    """How long episodes last, by what ended them."""
    episodes = data.episodes()
    lengths = data.episode_lengths()
    terminated = data.terminated[[episode.stop - 1 for episode in episodes]]
    kinds = {"terminated": (terminated, _BLUE), "truncated": (~terminated, _ORANGE)}
    shown = {name: (which, color) for name, (which, color) in kinds.items() if which.any()}
    labels = [f"{name} ({which.sum():,})" for name, (which, _) in shown.items()]
    _bars(axes, [lengths[which] for which, _ in shown.values()], [color for _, color in shown.values()], labels)
    _legend(axes)
    axes.set(title="Episode lengths", xlabel="steps", ylabel="episodes")


def _rewards(axes: Any, data: Dataset) -> None:
    """The rewards of single steps."""
    axes.set(title="Rewards", xlabel="reward of a step", ylabel="transitions")
    _bars(axes, [data.rewards], [_BLUE])


def _actions(axes: Any, data: Dataset) -> None:
    """How actions spread between their bounds, in their own units: each a line, or all in one where they are many.

    Actions with bounds of their own cannot share an axis of units: they are drawn by how far they are between them.
    """
    meta, size = data.meta, data.action_size
    space = meta.action_space or ActionSpace.unit(size)
    units, names = meta.action_units or ("",) * size, meta.action_names or [f"dimension {i}" for i in range(size)]
    kinds = list(zip(space.low, space.high, units, strict=True))
    shared = len(set(kinds)) == 1
    ranges = [
        f"{name}: {low:g} to {high:g} {unit}".strip() for name, (low, high, unit) in zip(names, kinds, strict=True)
    ]
    drawn, labels = (space, names) if shared else (ActionSpace((0.0,) * size, (100.0,) * size), ranges)
    low, high, unit = drawn.low[0], drawn.high[0], units[0]
    actions = drawn.from_unit(data.actions[_some(len(data), _ROWS)])
    pooled = size > len(_DIMENSIONS)
    columns = [actions.ravel()] if pooled else list(actions.T)
    edges = np.linspace(low, high, 51)
    for i, (column, color) in enumerate(zip(columns, _DIMENSIONS, strict=False)):
        label = f"all {size} dimensions" if pooled else plain_text(labels[i])
        share = 100 * np.histogram(np.clip(column, low, high), edges)[0] / len(column)
        area = {"fill": True, "baseline": 0} if len(columns) == 1 else {"baseline": None}
        axes.stairs(share, edges, color=color, linewidth=1.6, alpha=0.85, label=label, **area)
    axes.set_ylim(bottom=0)
    if len(columns) > 1 or pooled or not shared:
        _legend(axes, columns=4)
    about = plain_text(names[0]) if size == 1 and meta.action_names else "action"
    own = f"{about}, in {plain_text(unit)}" if unit else about
    axes.set(title="Actions", xlabel=own if shared else "% of the range between the bounds")
    axes.set(ylabel="% of transitions", xlim=(low - 0.025 * (high - low), high + 0.025 * (high - low)))


def _states(axes: Any, data: Dataset) -> None:
    """The two directions in which observations vary most, colored by the rewards that follow."""
    rows = _some(len(data), _STATES)
    following = _rewards_to_come(data, rows)
    observations = data.observations[rows].astype(np.float64)
    deviation = observations.std(axis=0)
    varying = deviation > 1e-6 * np.maximum(np.abs(observations).max(axis=0), 1e-9)
    axes.set(title="States", xlabel="an observation that never changes", ylabel="discounted rewards that follow")
    places = np.zeros((len(rows), 1))
    if varying.any():
        scaled = (observations - observations.mean(axis=0))[:, varying] / deviation[varying]
        _, sizes, directions = np.linalg.svd(scaled, full_matrices=False)
        places = scaled @ directions[:2].T
        share = np.square(sizes) / np.square(sizes).sum()
        names = np.array(data.meta.observation_names)[varying] if data.meta.observation_names else None
        led = [_leading(direction, names) for direction in directions[:2]]
        axes.set_xlabel(f"first principal component ({100 * share[0]:.0f} % of the variance){led[0]}")
        if places.shape[1] > 1:
            axes.set_ylabel(f"second principal component ({100 * share[1]:.0f} %){led[1]}")
    y = places[:, 1] if places.shape[1] > 1 else following
    low, high = np.quantile(following, (0.02, 0.98))
    dots = axes.scatter(
        places[:, 0], y, c=following, s=5, alpha=0.7, linewidths=0, cmap="viridis", vmin=low, vmax=high, rasterized=True
    )
    bar = axes.figure.colorbar(dots, ax=axes, pad=0.02, aspect=30)
    bar.set_label("discounted rewards that follow")
    bar.outline.set_visible(False)
    bar.solids.set_alpha(1)


def _leading(direction: Array, names: Array | None) -> str:
    """The names of the columns that a direction goes along most."""
    if names is None:
        return ""
    return "\nmostly " + plain_text(", ".join(names[np.argsort(-np.abs(direction))[:_LEADING]]))


def _order(axes: Any, data: Dataset) -> None:
    """Returns as the log goes on: an agent that learned, or a change of policy, shows here."""
    returns = data.known_returns()
    if len(returns) < _FEW:
        edges = np.linspace(0, len(data), min(len(data), 200) + 1).astype(np.int64)
        means = np.add.reduceat(data.rewards.astype(np.float64), edges[:-1]) / np.diff(edges)
        axes.stairs(means, edges, baseline=None, color=_BLUE, linewidth=1.6)
        axes.set(title="Rewards in the order of the log", xlabel="row", ylabel="mean reward of a stretch")
        return
    shown = _some(len(returns), _EPISODES)
    axes.plot(shown, returns[shown], ".", color=_BLUE, markersize=4 if len(shown) < 300 else 2.5, alpha=0.55)
    window = len(returns) // 20
    if window > 1:
        mean = np.convolve(returns, np.ones(window) / window, mode="valid")
        middle = np.arange(len(mean)) + (window - 1) / 2
        axes.plot(middle, mean, color=_ORANGE, linewidth=1.8, label=f"mean of {window} episodes")
        _legend(axes)
    axes.set(title="Returns in the order of the log", xlabel="episode", ylabel="return")


_PANELS = (_returns, _lengths, _rewards, _actions, _states, _order)


def _some(number: int, most: int) -> Array:
    """Indices spread evenly over a range, at most so many."""
    return np.linspace(0, number - 1, min(number, most)).astype(np.int64)


def _bars(axes: Any, groups: list[Array], colors: list[str], labels: list[str] | None = None) -> None:
    """A histogram of one group, or of two stacked; logarithmic where bars would be too small to see.

    Every value counts: those of a mapped set are read block by block.
    """
    ends = np.array([(group[rows].min(), group[rows].max()) for group in groups for rows in blocks(len(group))], float)
    low, high = ends.min(), ends.max()
    bins = int(np.clip(np.sqrt(sum(map(len, groups))) * 1.5, 11, 50))
    if low == high:  # one bar in the middle, not as wide as the picture
        low, high, bins = low - max(abs(low), 1.0) / 2, high + max(abs(high), 1.0) / 2, 11
    edges = np.linspace(low, high, bins + 1)
    each = [np.sum([np.histogram(group[rows], edges)[0] for rows in blocks(len(group))], axis=0) for group in groups]
    look = {"stacked": True, "color": colors, "label": labels, "alpha": 0.85, "edgecolor": "white", "linewidth": 0.4}
    axes.hist([edges[:-1]] * len(groups), edges, weights=each, **look)
    counts = np.sum(each, axis=0)
    if len(groups) == 1 and counts.max() > _UNSEEN * np.median(counts[counts > 0]):
        axes.set_yscale("log")
        axes.set_ylabel(f"{axes.get_ylabel()} (logarithmic)")
    else:
        axes.locator_params(axis="y", integer=True)


def _legend(axes: Any, columns: int = 2) -> None:
    """Below the panel, where it covers nothing."""
    axes.legend(frameon=False, fontsize=8.5, ncols=columns, loc="upper left", bbox_to_anchor=(-0.02, -0.17))


def _rewards_to_come(data: Dataset, rows: Array) -> Array:
    """For each row, the discounted rewards of the rest of its episode (of 500 steps, after which they hardly count)."""
    ends = np.array([episode.stop for episode in data.episodes()])
    stop = ends[np.searchsorted(ends, rows, side="right")]
    total = np.zeros(len(rows))
    for ahead in range(min(_AHEAD, int((stop - rows).max()))):
        at = rows + ahead
        inside = at < stop
        total[inside] += _DISCOUNT**ahead * data.rewards[at[inside]].astype(np.float64)
    return total
