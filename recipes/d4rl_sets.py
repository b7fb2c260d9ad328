"""How the fifteen MuJoCo sets of the paper's main table are made again, without the official files.

    python recipes/d4rl_sets.py SETS --policies POLICIES
    python recipes/d4rl_sets.py SETS --policies POLICIES --tasks hopper --kinds medium medium-replay

    random          uniformly random actions
    medium          the policy that made D4RL's medium set, drawn from
    expert          a trained agent, drawn from
    medium-expert   half medium, half expert
    medium-replay   all that a SAC agent experiences until its evaluations reach the return of the medium set

A set that is there is kept. All of them take minutes: the agents learned for up to an hour, but their actions are kept
in `recipes/agents`, and the simulator plays them again. With another folder as `--agents` they learn anew in
SETS/agents, go on from their last checkpoint if they were interrupted, and leave their actions in that folder. Equal
bits on an equal machine; `--record` writes down sizes, returns and checksums, and a line says where a checksum is not
the recorded one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mildly.collect.agent import Agent, AgentPlan, play_again, train_agent
from mildly.collect.make_set import Part, describe_set, make_set, policy_parts
from mildly.data.dataset import Dataset
from mildly.run import versions

ENVIRONMENTS = {"hopper": "Hopper-v4", "halfcheetah": "HalfCheetah-v4", "walker2d": "Walker2d-v4"}
EXPERTS = {"hopper": "zoo-trpo", "halfcheetah": "zoo-tqc", "walker2d": "zoo-trpo"}
KINDS = ("random", "medium", "expert", "medium-expert", "medium-replay")
TRANSITIONS = 300_000
AGENTS = Path(__file__).parent / "agents"
_MOST_AGENT_STEPS = 1_000_000


def parts_of(task: str, kind: str, sets: Path, policies: Path, agents: Path = AGENTS) -> list[Part]:
    """Who makes which part of a set."""
    files = {
        "random": "random",
        "medium": str(policies / f"{task}_d4rl-medium-v2.npz"),
        "expert": str(policies / f"{task}_{EXPERTS[task]}.npz"),
    }
    if kind == "medium-replay":
        return replay_parts(task, sets, agents)
    makers = [files[part] for part in (kind.split("-") if kind == "medium-expert" else [kind])]
    return policy_parts(makers, ENVIRONMENTS[task], TRANSITIONS)


def replay_parts(task: str, sets: Path, agents: Path) -> list[Part]:
    """The experience of an agent until it is medium, which is what the medium set returns on average."""
    plan, kept = AgentPlan(ENVIRONMENTS[task]), agents / f"{task}.npz"
    if not kept.exists():
        medium = Dataset.load(sets / set_name(task, "medium"), verify=False)
        level = float(medium.episode_returns().mean())
        agent, step, value = train_until(sets / "agents" / task, plan, level)
        agents.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(kept, actions=agent.experience(step)["actions"], reached=value)
    with np.load(kept) as arrays:
        actions, value = arrays["actions"], float(arrays["reached"])
    words = f"a SAC agent while it learned (until its return reached {value:.1f})"
    return [Part(words, len(actions), play_again(plan, actions))]


def train_until(folder: Path, plan: AgentPlan, level: float) -> tuple[Agent, int, float]:
    """An agent, and the first evaluation of it that reaches a return."""
    steps = 0
    while steps < _MOST_AGENT_STEPS:
        steps += plan.eval_every
        agent = train_agent(folder, plan, steps)
        steps = max(steps, agent.steps // plan.eval_every * plan.eval_every)  # one that went on is never cut back
        for step, value in agent.evaluations():
            if value >= level:
                return agent, step, value
        step, value = agent.evaluations()[-1]
        print(f"  {folder}: step {step}, return {value:.1f} of {level:.1f}", flush=True)
    raise SystemExit(f"{folder}: no evaluation reached {level:.1f} in {_MOST_AGENT_STEPS} steps")


def set_name(task: str, kind: str) -> str:
    """What a set is called."""
    return f"{task}-{kind}-recollected"


def make(task: str, kind: str, sets: Path, policies: Path, agents: Path = AGENTS) -> Dataset:
    """The set, made now unless it is there."""
    name = set_name(task, kind)
    if not (sets / name).exists():
        meta = describe_set(name, ENVIRONMENTS[task])
        make_set(sets / name, ENVIRONMENTS[task], parts_of(task, kind, sets, policies, agents), meta)
    return Dataset.load(sets / name, verify=False)


def facts(dataset: Dataset) -> dict[str, Any]:
    """What identifies a set."""
    returns, meta = dataset.episode_returns(), dataset.meta
    score = dataset.score(returns)
    return {
        "name": meta.name,
        "transitions": len(dataset),
        "episodes": len(returns),
        "mean_return": round(float(returns.mean()), 1),
        "score": None if score is None else round(float(score.mean()), 1),
        "best_score": None if score is None else round(float(score.max()), 1),
        "fingerprint": meta.fingerprint,
        "source": meta.source,
    }


def recorded(path: Path, rows: Iterator[dict[str, Any]], show: Callable[[str], None] = print) -> None:
    """Write the facts of all sets that are new or differ, a line each; what else is in the file stays."""
    known = {row["name"]: row for row in json.loads(path.read_text())["sets"]} if path.exists() else {}
    for row in rows:
        before = known.get(row["name"])
        known[row["name"]] = row
        show(f"{row['name']:36} {row['transitions']:>8,} {row['mean_return']:>10,.1f} {row['score'] or 0:>6.1f}")
        if before == row:
            continue
        if before is not None and before["fingerprint"] != row["fingerprint"]:
            show("  not the bits that were recorded: another machine, or another version of the simulator")
        lines = ",\n ".join(json.dumps(known[name]) for name in sorted(known))
        path.write_text(f'{{"versions": {json.dumps(versions())},\n"sets": [\n {lines}\n]}}\n')


def main() -> None:
    """Parse, make, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, help="folder to make the sets in")
    parser.add_argument("--policies", type=Path, required=True, help="folder of the behavior policies (.npz)")
    parser.add_argument("--agents", type=Path, default=AGENTS, help="folder of the actions of agents that learned")
    parser.add_argument("--tasks", nargs="+", choices=sorted(ENVIRONMENTS), default=sorted(ENVIRONMENTS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results/d4rl_sets.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.sets.mkdir(parents=True, exist_ok=True)
    wanted = [(task, kind) for kind in args.kinds for task in args.tasks]
    folders = args.sets, args.policies, args.agents
    recorded(args.record, (facts(make(task, kind, *folders)) for task, kind in wanted))


if __name__ == "__main__":
    main()
