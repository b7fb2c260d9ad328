"""The paper's score tables with the scores of our runs so far beside the published ones."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mildly.evaluation.results import Result, std_over_seeds
from mildly.paper.matching import changes, closest_to_paper, is_recollected, official_name
from mildly.paper.reproductions import METHODS, PublishedScore, Reproduction, published_scores
from mildly.words import counted

MISSING = "—"


@dataclass(frozen=True)
class ReproducedScore:
    """Our runs of one method on one data set."""

    scores: tuple[float, ...]
    """One per seed: the mean of its last ten evaluations, of those in the second half of its steps."""
    steps: int
    """Gradient steps that all runs have made."""
    recollected: bool
    """Whether the runs were trained on re-collected data instead of the official file."""
    changes: tuple[str, ...] = ()
    """Settings that are not the paper's, such as `num_actions 1`."""
    left_out: int = 0
    """Further runs there are, with other settings or data, or shorter."""

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(np.mean(self.scores))

    @property
    def std(self) -> float:
        """Over seeds, with n - 1; 0 for one seed."""
        return std_over_seeds(self.scores) or 0.0

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f}" if len(self.scores) > 1 else f"{self.mean:.1f}"


@dataclass(frozen=True)
class ScoreTable:
    """A table of the paper, filled as far as there are runs."""

    reproduction: Reproduction
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    cells: dict[tuple[str, str], ReproducedScore]
    not_implemented: tuple[str, ...]
    """Methods that do not exist here yet."""

    def cell(self, dataset: str, method: str) -> ReproducedScore | None:
        """Our runs, if there are any."""
        return self.cells.get((dataset, method))

    def best(self, dataset: str) -> str | None:
        """The method with our highest mean on a data set, where there are two to compare."""
        ours = {method: cell.mean for method in self.methods if (cell := self.cell(dataset, method))}
        return max(ours, key=lambda method: ours[method]) if len(ours) > 1 else None

    def label(self, dataset: str) -> str:
        """The data set's name, marked where re-collected data were used."""
        recollected = any(cell.recollected for (name, _), cell in self.cells.items() if name == dataset)
        return f"{dataset} (re-collected)" if recollected else dataset

    def averages(self) -> dict[str, dict[str, tuple[float | None, float | None]]]:
        """Ours and the paper's means by words and method: of the parts that the paper averages, and of all sets."""
        parts = {words: some for words, some in self.reproduction.parts.items() if set(some) < set(self.datasets)}
        return {words: self._average(some) for words, some in (parts | {"average": self.datasets}).items()}

    def _average(self, datasets: Sequence[str]) -> dict[str, tuple[float | None, float | None]]:
        """By method; None where a cell is missing."""
        found = {}
        for method in self.methods:
            cells = [self.cell(dataset, method) for dataset in datasets]
            papers = [published_scores().get((dataset, method)) for dataset in datasets]
            ours = float(np.mean([cell.mean for cell in cells if cell])) if all(cells) else None
            theirs = float(np.mean([score.mean for score in papers if score])) if all(papers) else None
            found[method] = (ours, theirs)
        return found

    def footnotes(self) -> list[str]:
        """Sentences on steps, seeds, re-collected data, changed settings and missing runs."""
        notes = []
        cells = list(self.cells.values())
        if cells:
            seeds = _range([len(cell.scores) for cell in cells])
            notes.append(
                f"Ours: {_range([cell.steps for cell in cells])} steps, "
                f"{seeds} {'seed' if seeds == '1' else 'seeds'}; the mean of the last ten evaluations "
                "of each, ± the standard deviation over seeds (n - 1). The paper: 1,000,000 steps, 4 seeds."
            )
        if any(cell.recollected for cell in cells):
            notes.append(
                "Re-collected data: made with D4RL's own behavior policies, because the official file is not "
                "here. Their scores are an orientation, not the same measurement."
            )
        changed = dict.fromkeys(
            f"{method}: {', '.join(c.changes)}" for (_, method), c in self.cells.items() if c.changes
        )
        if changed:
            notes.append(f"Settings that are not the paper's: {'; '.join(changed)}.")
        left_out = sum(cell.left_out for cell in cells)
        if left_out:
            notes.append(
                f"Not in the table: {counted(left_out, 'further run')} with other settings or data, or shorter."
            )
        if self.not_implemented:
            notes.append(f"Not implemented yet: {', '.join(self.not_implemented)}.")
        missing = len(self.datasets) * len(self.methods) - len(cells) - len(self.not_implemented) * len(self.datasets)
        if missing:
            notes.append(f"Without a run yet ({MISSING}): {counted(missing, 'cell')}.")
        return [*notes, *self.reproduction.notes]


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def score_table(
    reproduction: Reproduction,
    results: Sequence[Result],
    *,
    datasets: Sequence[str] = (),
    methods: Sequence[str] = (),
    implemented: Sequence[str] = (),
) -> ScoreTable:
    """Fill a table of the paper with the runs there are.

    Args:
        reproduction: which table.
        results: runs, also unfinished ones and such as do not belong to the table.
        datasets: only these rows; all by default.
        methods: only these columns.
        implemented: the algorithms that exist here.
    """
    rows = tuple(name for name in reproduction.datasets if not datasets or name in datasets)
    columns = tuple(name for name in reproduction.methods if not methods or name in methods)
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        dataset = official_name(result.plan.data.name, rows)
        method = next((name for name in columns if METHODS[name] == result.plan.algorithm), None)
        if dataset is None or method is None or result.score is None:
            continue
        groups.setdefault((dataset, method), []).append(result)
    cells = {}
    for key, candidates in groups.items():
        alike = closest_to_paper(candidates)
        cells[key] = ReproducedScore(
            tuple(result.score for result in alike if result.score is not None),
            min(result.step for result in alike),
            is_recollected(alike[0]),
            tuple(changes(alike[0].plan)),
            len(candidates) - len(alike),
        )
    not_implemented = tuple(name for name in columns if METHODS[name] not in implemented)
    return ScoreTable(reproduction, rows, columns, cells, not_implemented)


def to_markdown(table: ScoreTable) -> str:
    """A Markdown table: our score, then the published one in brackets."""
    lines = [f"| | {' | '.join(table.methods)} |", "|---|" + "---|" * len(table.methods)]
    for dataset in table.datasets:
        cells = []
        for method in table.methods:
            ours, theirs = table.cell(dataset, method), published_scores().get((dataset, method))
            text = str(ours) if ours else MISSING
            text = f"**{text}**" if ours and table.best(dataset) == method else text
            cells.append(f"{text} ({format_published(theirs)})")
        lines.append(f"| {table.label(dataset)} | {' | '.join(cells)} |")
    for words, means in table.averages().items():
        cells = [f"{format_mean(ours)} ({format_mean(theirs)})" for ours, theirs in means.values()]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    notes = "\n".join(f"- {note}" for note in ["In brackets the paper's number.", *table.footnotes()])
    return "\n".join(lines) + f"\n\n{notes}\n"


def to_latex(table: ScoreTable) -> str:
    """The same as a LaTeX table; it needs the package booktabs."""
    lines = [rf"\begin{{tabular}}{{l{'l' * len(table.methods)}}}", r"\toprule"]
    lines.append(" & ".join(["", *table.methods]) + r" \\")
    lines.append(r"\midrule")
    for dataset in table.datasets:
        cells = [table.label(dataset)]
        for method in table.methods:
            ours, theirs = table.cell(dataset, method), published_scores().get((dataset, method))
            text = str(ours) if ours else MISSING
            text = rf"\textbf{{{text}}}" if ours and table.best(dataset) == method else text
            cells.append(f"{text} ({format_published(theirs)})")
        row = " & ".join(cells).replace(" ± ", r"$\pm$").replace(MISSING, "--")
        lines.append(row + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def to_csv(table: ScoreTable) -> str:
    """One line per data set and method."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["dataset", "method", "mean", "std", "seeds", "steps", "recollected", "paper_mean", "paper_std"])
    for dataset in table.datasets:
        for method in table.methods:
            ours, theirs = table.cell(dataset, method), published_scores().get((dataset, method))
            mine = [ours.mean, ours.std, len(ours.scores), ours.steps, ours.recollected] if ours else [""] * 5
            writer.writerow([dataset, method, *mine, *(theirs or ["", ""])])
    return text.getvalue()


def format_published(score: PublishedScore | None) -> str:
    """The paper's cell as text."""
    if score is None:
        return MISSING
    return f"{score.mean:.1f}" if score.std is None else f"{score.mean:.1f} ± {score.std:.1f}"


def format_mean(value: float | None) -> str:
    """A mean as text."""
    return MISSING if value is None else f"{value:.1f}"
