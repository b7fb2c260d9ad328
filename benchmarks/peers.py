r"""Our baselines against d3rlpy's: the same data, networks and hyperparameters, trained and timed by turns.

    make bench-peers                                            # installs d3rlpy into .venv-peers, then pendulum-mixed
    make bench-peers ARGS='--datasets FOLDER --steps 8000'                 # another set
    make bench-peers ARGS='--datasets FOLDER --steps 200 --sizes paper'    # networks as large as the papers'

For each data set, algorithm and seed both learners are built, and take their gradient steps in blocks, ours and
theirs by turns, each in its own process on one thread while the other waits. A block is timed by the clock and by the
processor's time. Where two comparisons ask the same of d3rlpy (`bcq` and `bcq-fast`), it is trained once and all three
take turns. In a block we do what our training loop does (`Sampler.sample` and `step`), and d3rlpy what its `fit` does
(`sample_transition_batch` of its own buffer and `update`), both without logging; with `--fit` it is their public `fit`,
its logging included and its files left out. What we train before the main steps is timed by itself. Then both policies
act deterministically in episodes of equal seeds.

How the hyperparameters correspond, and what no option can make equal, is said in `peer_table.py`. What is recorded is
everything: configs, versions, every block's time and every episode's return.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_table import PEERS, our_algorithm, our_config, their_arguments

from mildly.data.dataset import FIELDS, Array, Dataset, Meta
from mildly.data.registry import load_dataset
from mildly.environments import stored_action_space
from mildly.errors import MildlyError
from mildly.evaluation.rollout import Acts, Starts, rollout
from mildly.files import atomic_write
from mildly.run import versions

WORKER = Path(__file__).with_name("peer_worker.py")
PYTHON = Path(__file__).parents[1] / ".venv-peers" / "bin" / "python"
NOISE = 2.0  # standard errors of the difference between two means of seeds that pass for noise


class Ours:
    """A learner of ours with its minibatches."""

    def __init__(self, name: str, config: Any, data: Dataset, seed: int) -> None:
        self.learner = our_algorithm(name)(config, data.observation_size, data.action_size, seed=seed)
        self.batches = self.learner.batches(data)
        self.generator = self.learner.random_stream(seed, "batches")

    def before(self) -> list[dict[str, Any]]:
        """What comes before the main steps, timed: phases, and the draws that a behavior model keeps."""
        taken = [
            {"what": phase.name, "steps": phase.steps, **self._timed(phase.update, phase.steps)}
            for phase in self.learner.phases()
        ]
        kept = getattr(self.learner, "behavior", None)
        if kept is not None and kept.cache is not None:
            taken.append({"what": "kept draws", "steps": 1, **timed(kept.fill)})
        return taken

    def steps(self, count: int) -> dict[str, float]:
        """Gradient steps, timed."""
        return self._timed(self.learner.step, count)

    def _timed(self, update: Callable[[Any], Any], count: int) -> dict[str, float]:
        def take() -> None:
            for _ in range(count):
                update(self.batches.sample(self.generator))

        return timed(take)


def timed(call: Callable[[], None]) -> dict[str, float]:
    """How long a call takes, by the clock and by the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    taken = {"seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - processor}
    return {key: round(value, 5) for key, value in taken.items()}


class Theirs:
    """d3rlpy in a process of its own, told what to do by lines of JSON."""

    def __init__(self, python: Path, folder: Path) -> None:
        if not python.exists():
            raise MildlyError(f"{python}: no such Python with d3rlpy. `make bench-peers` installs one.")
        self.messages = folder / "messages"
        with self.messages.open("w") as messages:
            self.process = subprocess.Popen(
                [str(python.absolute()), "-W", "ignore", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                text=True,
            )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """The answer to one request."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it has ended"}
        if "error" in answer:
            last = "".join(self.messages.read_text().splitlines(keepends=True)[-5:])
            raise MildlyError(f"d3rlpy cannot do '{do}': {answer['error']}.\n{last}")
        return answer

    def load(self, data: Dataset, folder: Path) -> None:
        """Give it the data, and be sure that it draws from as many transitions as we do."""
        path = folder / "data.npz"
        columns: dict[str, Any] = {name: np.asarray(getattr(data, name)) for name in FIELDS}
        np.savez(path, **columns)
        held = self.ask("load", path=str(path))["transitions"]
        path.unlink()
        if held != len(data):
            raise MildlyError(f"{data.meta.name}: d3rlpy holds {held} transitions of {len(data)}.")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass(frozen=True)
class TheirPolicy:
    """d3rlpy's policy in the environment's units, for the same rollout as ours."""

    theirs: Theirs
    meta: Meta

    def act(self, observations: Array) -> Array:
        """Deterministic actions."""
        return in_units(self.theirs.ask("act", observations=observations.tolist())["actions"], self.meta)


@dataclass(frozen=True)
class TheirTransformer:
    """The same for a policy that remembers its episodes and is told their rewards."""

    theirs: Theirs
    meta: Meta

    def start(self, episodes: int, **_conditions: Any) -> TheirEpisodes:
        """Episodes that begin now."""
        self.theirs.ask("begin", episodes=episodes)
        return TheirEpisodes(self.theirs, self.meta, np.zeros(episodes))


@dataclass(frozen=True)
class TheirEpisodes:
    """Its episodes side by side, with the last reward of each."""

    theirs: Theirs
    meta: Meta
    rewards: Array

    def act(self, observations: Array, rows: Sequence[int]) -> Array:
        """Deterministic actions."""
        told = {"rows": list(rows), "rewards": self.rewards[list(rows)].tolist()}
        return in_units(self.theirs.ask("act", observations=observations.tolist(), **told)["actions"], self.meta)

    def observe(self, rewards: Array, rows: Sequence[int]) -> None:
        """Kept until the next action is asked for."""
        self.rewards[list(rows)] = rewards


def in_units(actions: list[list[float]], meta: Meta) -> Array:
    """Actions in [-1, 1] in the environment's units."""
    found, space = np.asarray(actions, np.float32), meta.action_space
    return found if space is None else space.clip(space.from_unit(found))


def open_data(source: str) -> Dataset:
    """A data set that knows its environment and the bounds of its actions."""
    data = load_dataset(source)
    if data.meta.env_id is None:
        raise MildlyError(f"'{data.meta.name}' names no environment to compare policies in.")
    if data.meta.action_space is not None:
        return data
    space = stored_action_space(data.meta.env_id)
    return dataclasses.replace(data, meta=dataclasses.replace(data.meta, action_space=space))


def alike(names: Sequence[str], data: Dataset, sizes: str) -> list[list[str]]:
    """Comparisons in groups for which d3rlpy gets the same arguments, so that one training of it serves the group."""
    groups: dict[str, list[str]] = {}
    for name in names:
        arguments = their_arguments(name, our_config(name, data, sizes), data)
        groups.setdefault(json.dumps([PEERS[name].config, arguments]), []).append(name)
    return list(groups.values())


def compare(
    names: Sequence[str], data: Dataset, theirs: Theirs, seed: int, args: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Train all by turns, then let all act. The result is by name a record's `configs` and its row for this seed."""
    first = names[0]
    configs = {name: our_config(name, data, args.sizes) for name in names}
    ours = {name: Ours(name, config, data, seed) for name, config in configs.items()}
    arguments = their_arguments(first, configs[first], data)
    built = theirs.ask("build", config=PEERS[first].config, arguments=arguments, seed=seed)
    before = {name: learner.before() for name, learner in ours.items()}
    rounds: dict[str, list[dict[str, float]]] = {side: [] for side in (*names, "theirs")}
    for i in range(args.rounds):
        count = args.steps // args.rounds + (i < args.steps % args.rounds)
        for side in rounds if i % 2 == 0 else reversed(rounds):  # neither is always the first
            taken = theirs.ask("steps", count=count, fit=args.fit) if side == "theirs" else ours[side].steps(count)
            rounds[side].append({"steps": count, **{key: round(value, 5) for key, value in taken.items()}})
    kind = TheirTransformer if first == "decision-transformer" else TheirPolicy
    policies: dict[str, Acts | Starts] = {name: learner.learner.policy(data.meta) for name, learner in ours.items()}
    sides: dict[str, Any] = {}
    for side, policy in (policies | {"theirs": kind(theirs, data.meta)}).items():
        result = rollout(policy, data.meta, episodes=args.episodes, seed=seed)
        scores = None if result.scores is None else [round(value, 2) for value in result.scores]
        returns = [round(value, 2) for value in result.returns]
        sides[side] = {"returns": returns, "scores": scores, "lengths": result.lengths, "rounds": rounds[side]}
        sides[side] |= {"before": before[side]} if before.get(side) else {}
    found = {"ours": versions(), "theirs": theirs.ask("versions")["versions"]}
    return {
        name: {
            "configs": {"ours": dataclasses.asdict(configs[name]), "theirs": built["config"]},
            "row": {"seed": seed, "versions": found, "ours": sides[name], "theirs": sides["theirs"]},
        }
        for name in names
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores and speeds over all seeds. A round's ratio is of two blocks that were run one after the other."""
    values = {
        side: [statistics.fmean(row[side]["scores"] or row[side]["returns"]) for row in rows]
        for side in ("ours", "theirs")
    }
    means = {side: round(statistics.fmean(of_seeds), 2) for side, of_seeds in values.items()}
    error = None
    if len(rows) > 1:
        error = math.sqrt(sum(statistics.variance(of_seeds) / len(of_seeds) for of_seeds in values.values()))
    pairs = [pair for row in rows for pair in zip(row["ours"]["rounds"], row["theirs"]["rounds"], strict=True)]
    speeds = {
        side: round(statistics.median(block["steps"] / block["seconds"] for block in blocks), 1)
        for side, blocks in zip(("ours", "theirs"), zip(*pairs, strict=True), strict=True)
    }
    ratios = {
        key: round(statistics.median(theirs[key] / ours[key] for ours, theirs in pairs), 2)
        for key in ("seconds", "processor_seconds")
    }
    whole = {"speed_ratio_with_what_comes_before": with_before(rows)} if "before" in rows[0]["ours"] else {}
    return {
        "measure": "score" if rows[0]["ours"]["scores"] else "return",
        "mean": means,
        "standard_error_of_difference": None if error is None else round(error, 2),
        "not_below": None if error is None else means["ours"] >= means["theirs"] - NOISE * error,
        "steps_per_second": speeds,
        "speed_ratio": ratios["seconds"],
        "speed_ratio_by_processor_time": ratios["processor_seconds"],
        **whole,
    }


def with_before(rows: list[dict[str, Any]]) -> float:
    """The ratio of whole trainings, by processor time: with our phases and kept draws, for the steps that were run."""

    def total(parts: list[dict[str, Any]]) -> float:
        return math.fsum(part["processor_seconds"] for part in parts)

    ratios = [total(row["theirs"]["rounds"]) / total(row["ours"]["before"] + row["ours"]["rounds"]) for row in rows]
    return round(statistics.median(ratios), 2)


def merged(old: dict[str, Any], entry: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """A record with a seed's row in it. Rows of other seeds stay if the same code measured them in the same way."""
    entry = json.loads(json.dumps(entry))  # a tuple is a list in a record that was read
    alike = all(old.get(key) == entry[key] for key in ("settings", "data", "configs"))
    kept = [other for other in old.get("seeds", []) if other["seed"] != row["seed"]] if alike else []
    others = [other for other in kept if other.get("versions") == row.get("versions")]
    rows = sorted([*others, row], key=lambda kept: int(kept["seed"]))
    return {**entry, "summary": summary(rows), "seeds": rows}


def compact(records: dict[str, dict[str, Any]]) -> str:
    """JSON with a line for each part and each seed, so that a diff can be read."""
    sets = []
    for dataset, algorithms in records.items():
        entries = []
        for name, entry in algorithms.items():
            parts = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entry.items() if key != "seeds"]
            parts.append('  "seeds": [\n   ' + ",\n   ".join(map(json.dumps, entry["seeds"])) + "\n  ]")
            entries.append(f" {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
        sets.append(f"{json.dumps(dataset)}: {{\n" + ",\n".join(entries) + "\n}")
    return "{\n" + ",\n".join(sets) + "\n}\n"


def run(args: argparse.Namespace, folder: Path) -> None:
    """All comparisons, each written down as soon as it is done."""
    records: dict[str, dict[str, Any]] = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    chosen = {name: getattr(args, name) for name in ("sizes", "steps", "rounds", "episodes")}
    settings = {**chosen, "threads": 1, "fit": args.fit}
    flags = " ".join(f"--{name} {value}" for name, value in chosen.items()) + (" --fit" if args.fit else "")
    for source in args.datasets:
        data = open_data(source)
        label = f"{data.meta.name}, {args.sizes}"
        of_set = records.setdefault(label, {})
        theirs = Theirs(args.python, folder)
        try:
            theirs.load(data, folder)
            groups = alike(args.algorithms, data, args.sizes)
            for names, seed in ((names, seed) for names in groups for seed in args.seeds):
                command = f"python benchmarks/peers.py --datasets {data.meta.name} {flags} --algorithms"
                for name, result in compare(names, data, theirs, seed, args).items():
                    entry = {
                        "command": f"{command} {' '.join(names)} --seeds SEED",
                        "settings": settings,
                        "data": {"env_id": data.meta.env_id, "rows": len(data), "fingerprint": data.meta.fingerprint},
                        "configs": result["configs"],
                        "differences": list(PEERS[name].differences),
                    }
                    of_set[name] = merged(of_set.get(name, {}), entry, result["row"])
                    print(f"{label}, {name}, to seed {seed}: {json.dumps(of_set[name]['summary'])}", flush=True)
                if args.out:
                    with atomic_write(args.out) as unfinished:
                        unfinished.write_text(compact(records))
        finally:
            theirs.close()
        print(f"\n{label}\n{table(of_set)}\n", flush=True)


def table(of_set: dict[str, Any]) -> str:
    """What was found on a data set, a line for each algorithm."""
    lines = [f"{'':10} {'seeds':>5} {'ours':>8} {'d3rlpy':>8} {'+-':>6}   {'steps/s':>8} {'d3rlpy':>8} {'ratio':>6}"]
    for name, entry in of_set.items():
        found = entry["summary"]
        error, speed = found["standard_error_of_difference"], found["steps_per_second"]
        scores = (
            f"{found['mean']['ours']:8.1f} {found['mean']['theirs']:8.1f} {'' if error is None else f'{error:.1f}':>6}"
        )
        speeds = f"{speed['ours']:8.1f} {speed['theirs']:8.1f} {found['speed_ratio']:6.2f}"
        lines.append(
            f"{name:10} {len(entry['seeds']):5} {scores}   {speeds}{'   below' if found['not_below'] is False else ''}"
        )
    return "\n".join(lines)


def main() -> int:
    """Parse, compare, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["pendulum-mixed"], help="names or folders")
    parser.add_argument("--algorithms", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--sizes", choices=["small", "paper"], default="small", help="2 x 128 networks, or the papers'")
    parser.add_argument("--steps", type=int, default=6000, help="gradient steps of a training")
    parser.add_argument("--rounds", type=int, default=10, help="blocks that these are taken in, by turns")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fit", action="store_true", help="time d3rlpy's public fit(), its logging included")
    parser.add_argument("--python", type=Path, default=PYTHON, help="the Python that has d3rlpy")
    parser.add_argument("-o", "--out", type=Path, help="JSON file to write; what is not run anew keeps its record")
    args = parser.parse_args()
    if not 1 <= args.rounds <= args.steps or args.episodes < 1:
        parser.error("rounds must be at least 1 and at most steps, episodes at least 1")
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="mildly-peers-") as folder:
            run(args, Path(folder))
    except MildlyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
