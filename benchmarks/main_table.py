"""The main table and its picture from records: data sets by methods, beside the data's own and the paper's scores.

    python benchmarks/main_table.py benchmarks/results/{table1,table1_others}.json --picture docs/images/mujoco.png
        --methods MCQ BC "BC, best tenth" TD3+BC IQL

A score is that of `mildly report`, the mean of a run's last ten evaluations in the second half of its steps, and a cell
the mean over seeds, ± their standard deviation. The data's own score is the mean of its episodes; beside it stands the
best of them. Below are means over all sets and over those without an expert's own, each above that of the paper's
numbers for the method, and the interquartile mean with its bootstrap interval over seeds, if a set has several. A
method that lacks a set has no mean over it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mildly.evaluation.results import final_mean
from mildly.evaluation.statistics import estimate, interquartile_mean
from mildly.paper.reproductions import METHODS, published_scores

RESULTS = Path(__file__).parent / "results"
NAMES = {algorithm: name for name, algorithm in METHODS.items()}
_COLORS = {"MCQ": "#0f6cbd", "BC": "#d1661c", "TD3+BC": "#2e8b57", "IQL": "#8a4fbf"}
_COLORS |= {"BC, best tenth": "#f0b27a", "AWAC": "#c2185b", "SAC": "#8d6e63", "CQL": "#c0a000", "MCQ, λ = 1": "#8fc1ea"}
_COLORS |= {"MCQ-TD3": "#10337a", "MCQ-TD3, λ = 1": "#7f93c9"}
_COLORS |= {"MCQ as printed": "#5b5ea6", "as printed, automatic λ": "#00acc1", "as printed, λ = 0.9": "#90a4ae"}
_VARIANTS = {
    "bc": {"all": "BC", "best-tenth": "BC, best tenth"},
    "mcq": {
        "default": "MCQ",
        "no-term": "MCQ, λ = 1",
        "paper-lam": "MCQ as printed",  # this and the following: of lambda_fifteen.toml
        "auto": "as printed, automatic λ",
        "lam-090": "as printed, λ = 0.9",
        "sac": "SAC",
    },
    "mcq-td3": {"no-term": "MCQ-TD3, λ = 1"},
}
_ENDING = "-recollected"
_APART = 0.5  # of the space between data sets
_KINDS = ("random", "medium", "medium-replay", "medium-expert", "expert")

Table = dict[str, dict[str, list[float]]]
"""By data set, then by method: the scores of all seeds."""


def scores(runs: list[dict[str, Any]], steps: dict[str, int] | None = None) -> Table:
    """The final scores of recorded runs; of some algorithms, after as many steps as are given."""
    table: Table = {}
    for run in runs:
        most = (steps or {}).get(run["algorithm"])
        score = final_mean([one for one in run["evaluations"] if most is None or one["step"] <= most], "score")
        if score is not None:
            row = table.setdefault(run["dataset"].removesuffix(_ENDING), {})
            row.setdefault(_method(run["algorithm"], run.get("variant") or ""), []).append(score)
    return {name: table[name] for name in sorted(table, key=_place)}


def _method(algorithm: str, variant: str) -> str:
    """What a column is called."""
    own = ", ".join(filter(None, (NAMES.get(algorithm, algorithm), variant)))
    return _VARIANTS.get(algorithm, {}).get(variant, own)


def chosen(table: Table, names: Sequence[str]) -> Table:
    """Some of a table's methods, in this order."""
    unknown = set(names) - set(methods(table))
    if unknown:
        raise SystemExit(f"no such method: {', '.join(sorted(unknown))}; there are {', '.join(methods(table))}")
    return {dataset: {name: row[name] for name in names if name in row} for dataset, row in table.items()}


def _place(dataset: str) -> tuple[str, int]:
    """Tasks by name, and the poorest log first."""
    task, _, kind = dataset.partition("-")
    return task, _KINDS.index(kind) if kind in _KINDS else len(_KINDS)


def methods(table: Table) -> list[str]:
    """All methods of a table, in the order in which they are found."""
    return list(dict.fromkeys(name for row in table.values() for name in row))


def markdown(table: Table, data: dict[str, float], best_episodes: dict[str, float]) -> str:
    """A row for each data set, the best of our methods in bold, ± the deviation over seeds (n - 1); rows of means."""
    names, paper = methods(table), {dataset: _published(dataset, "MCQ") for dataset in table}
    head = ["the data", "its best episode", *(_heading(name, table) for name in names), "MCQ in the paper"]
    lines = [f"| | {' | '.join(head)} |", "|" + "---|" * (len(head) + 1)]
    for dataset, row in table.items():
        best = max(statistics.fmean(found) for found in row.values())
        cells = " | ".join(_cell(row.get(name), best) for name in names)
        theirs = "-" if paper[dataset] is None else f"{paper[dataset]:.1f}"
        lines.append(f"| {dataset} | {data[dataset]:.1f} | {best_episodes[dataset]:.1f} | {cells} | {theirs} |")
    for words, some in _parts(list(table)).items():
        columns: list[list[float | None]] = [[of[one] for one in some] for of in (data, best_episodes)]
        columns += [[_mean(table[one].get(name)) for one in some] for name in names]
        columns += [[paper[one] for one in some]]
        lines.append(f"| {words} | {' | '.join(map(_mean_cell, columns))} |")
        printed = [_mean_cell([_published(one, name) for one in some]) for name in names]
        lines.append(f"| {words}, in the paper | | | {' | '.join(printed)} | |")
    if len(table) > 1:
        middle = [_middle([row.get(name) for row in table.values()]) for name in names]
        lines.append(f"| interquartile mean of {len(table)} | | | {' | '.join(middle)} | |")
    return "\n".join(lines)


def _heading(method: str, table: Table) -> str:
    """The method, and of how many seeds its scores are the mean if of several."""
    counts = sorted({len(row[method]) for row in table.values() if method in row})
    return method if counts == [1] else f"{method} ({' or '.join(map(str, counts))} seeds)"


def _published(dataset: str, method: str) -> float | None:
    """What the paper prints for a method, if anything."""
    score = published_scores().get((f"{dataset}-v2", method))
    return score.mean if score else None


def _parts(datasets: list[str]) -> dict[str, list[str]]:
    """Which sets are averaged, by the words of their row."""
    others = [name for name in datasets if not name.endswith("-expert") or name.endswith("medium-expert")]
    parts = {f"mean of {len(datasets)}": datasets}
    parts |= {f"mean of the {len(others)} that are not an expert's": others} if len(others) < len(datasets) else {}
    return {words: some for words, some in parts.items() if some}


def _mean(scores: list[float] | None) -> float | None:
    return statistics.fmean(scores) if scores else None


def _mean_cell(scores: list[float | None]) -> str:
    """The mean, or a dash if one is missing."""
    found = [score for score in scores if score is not None]
    return f"{statistics.fmean(found):.1f}" if len(found) == len(scores) else "-"


def _middle(scores: list[list[float] | None]) -> str:
    """The interquartile mean, with its 95 % interval if any set has several seeds; a dash if a set is missing."""
    runs = {str(place): found for place, found in enumerate(scores) if found}
    if len(runs) < len(scores):
        return "-"
    found = estimate(runs, interquartile_mean)
    several = any(len(seeds) > 1 for seeds in runs.values())
    return f"{found.value:.1f}" + (f" [{found.low:.1f}, {found.high:.1f}]" if several else "")


def _cell(found: list[float] | None, best: float) -> str:
    if not found:
        return "-"
    mean = statistics.fmean(found)
    text = f"{mean:.1f}" if len(found) == 1 else f"{mean:.1f} ± {statistics.stdev(found):.1f}"
    return f"**{text}**" if mean == best else text


def draw(table: Table, data: dict[str, float], path: Path) -> None:
    """A line for each data set: the data's own score, and a dot for each method, apart so that none is hidden."""
    from matplotlib.figure import Figure

    places = {name: place for place, name in enumerate(reversed(table))}
    figure = Figure(figsize=(7.2, 0.9 + 0.27 * len(places)), layout="constrained", dpi=150)
    axes = figure.subplots()
    own = [data[name] for name in places]
    axes.scatter(own, range(len(own)), marker="|", s=130, color="#555555", label="the data")
    names = methods(table)
    for method in names[::-1]:  # the first is drawn last, on top
        apart = _APART * (0.5 - names.index(method) / max(len(names) - 1, 1))
        found = {
            place: statistics.fmean(table[name][method]) for name, place in places.items() if method in table[name]
        }
        color, size = _COLORS.get(method, "#6b6b6b"), 52 if method.startswith("MCQ") else 36
        heights = [place + apart for place in found]
        axes.scatter(list(found.values()), heights, s=size, color=color, label=method, zorder=3)
    axes.set_yticks(range(len(places)), list(places))
    axes.set_xlabel("normalized score (0 random, 100 expert)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    columns = {"ncols": len(names) + 1, "columnspacing": 0.9, "handletextpad": 0.1, "fontsize": "small"}
    figure.legend(frameon=False, loc="outside upper center", **columns)
    figure.savefig(path)


def main() -> None:
    """Parse, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", help="records of benchmarks/record.py")
    parser.add_argument(
        "--sets", type=Path, default=RESULTS / "d4rl_sets.json", help="what recipes/d4rl_sets.py wrote down"
    )
    parser.add_argument("--picture", type=Path, help="the picture to draw")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="the columns in this order, if not all of them")
    cut = "count an algorithm's first steps alone, to compare runs of unequal length; may be given several times"
    parser.add_argument("--steps", nargs=2, action="append", default=[], metavar=("ALGORITHM", "STEPS"), help=cut)
    args = parser.parse_args()
    steps = {algorithm: int(most) for algorithm, most in args.steps}
    table = scores([run for path in args.records for run in json.loads(path.read_text())["runs"]], steps)
    table = chosen(table, args.methods) if args.methods else table
    known = json.loads(args.sets.read_text())["sets"]
    data, best = ({row["name"].removesuffix(_ENDING): row[key] for row in known} for key in ("score", "best_score"))
    print(markdown(table, data, best))
    if args.picture:
        draw(table, data, args.picture)


if __name__ == "__main__":
    main()
