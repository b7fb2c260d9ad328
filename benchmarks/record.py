"""Turn run folders into one small record: config, versions, every episode's return, thinned diagnostics.

Usage:

    python benchmarks/record.py RUN... -o benchmarks/results/NAME.json
    python benchmarks/record.py RUN... --add -o benchmarks/results/NAME.json   # the file's other runs stay
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mildly.run import Run

_LINES = 200


def record(run: Run, lines: int = _LINES) -> dict[str, Any]:
    """What must last of a run; its metrics are thinned to about so many lines."""
    values = json.loads((run.path / "run.json").read_text())
    evaluations = [
        {
            "step": line["step"],
            "score": None if line["score"] is None else round(line["score"], 2),
            "returns": [round(value, 1) for value in line["returns"]],
            "lengths": line["lengths"],
        }
        for line in run.evaluations()
    ]
    metrics = run.metrics()
    thinned = metrics[:: max(1, len(metrics) // lines)]
    if values["config"].get("model"):  # of MOPO: a folder
        values["config"]["model"] = Path(values["config"]["model"]).name
    values["dataset"] = Path(values["dataset"] or values["data"]["name"]).name
    return {
        "run": run.path.name,
        **{key: value for key, value in values.items() if key != "format"},
        "seconds": run.timing(),
        "steps_done": metrics[-1]["step"] if metrics else 0,
        "evaluations": evaluations,
        "metrics": [{k: v if k == "step" else float(f"{v:.5g}") for k, v in line.items()} for line in thinned],
    }


def main() -> None:
    """Parse, record, print a line per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--note", default="", help="what a reader should know, e.g. the command")
    parser.add_argument("--add", action="store_true", help="keep what is in the file, but for runs with equal settings")
    parser.add_argument("--variant", default="", help="what to call the runs' settings, where no sweep has named them")
    args = parser.parse_args()
    records = [record(Run.open(path)) for path in args.runs]
    for row in records:
        row["variant"] = row["variant"] or args.variant
    known: dict[str, Any] = json.loads(args.out.read_text()) if args.add else {"note": "", "runs": []}
    write(args.out, args.note or known["note"], [*others(known["runs"], records), *records])
    for row in records:
        scores = [line["score"] for line in row["evaluations"]]
        print(
            f"{row['algorithm']} {row['data']['name']} seed {row['seed']}: {row['steps_done']} steps, scores {scores}"
        )


def others(known: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The known runs but for those of which a new one has the same method, settings, data and seed."""

    def kind(row: dict[str, Any]) -> str:
        return json.dumps([row[key] for key in ("algorithm", "variant", "config", "dataset", "seed")], sort_keys=True)

    again = {kind(row) for row in found}
    return [row for row in known if kind(row) not in again]


def write(path: Path, note: str, records: list[dict[str, Any]]) -> None:
    """JSON with a line for each evaluation and each set of metrics, so that a diff can be read."""
    runs = []
    for row in records:
        parts = [f'"{key}": {json.dumps(value)}' for key, value in row.items() if key not in ("evaluations", "metrics")]
        for key in ("evaluations", "metrics"):
            lines = ",\n  ".join(json.dumps(line) for line in row[key])
            parts.append(f'"{key}": [\n  {lines}\n ]')
        runs.append("{\n " + ",\n ".join(parts) + "\n}")
    path.write_text('{"note": ' + json.dumps(note) + ',\n"runs": [\n' + ",\n".join(runs) + "\n]}\n")


if __name__ == "__main__":
    main()
