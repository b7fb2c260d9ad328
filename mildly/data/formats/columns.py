"""Which column of a table is what: as the user says with patterns, or guessed from the names with an explanation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mildly.data.formats.episodes import DONE
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError

_RUNS = ("run", "trial", "rollout", "demo", "flight", "session", "lap", "drive", "experiment", "attempt")
_SINGLE = {
    "reward": ("reward", "rewards", "rew", "r", "next_reward"),
    "terminated": ("terminated", "terminal", "terminals", "is_terminal", *DONE),
    "truncated": ("truncated", "truncation", "timeout", "timeouts", "time_out", "is_truncated"),
    "episode": (
        *("episode", "episode_id", "episode_index", "episode_number", "ep", "episodes"),
        *("trajectory", "trajectory_id", "traj", "traj_id"),
        *(f"{word}{end}" for word in _RUNS for end in ("", "_id", "_number", "_index", "_no")),
    ),
}
_PREFIXES = {
    "next_obs": ("next_observations", "next_observation", "next_obs", "next_state", "next_states", "next"),
    "action": ("action", "actions", "act", "a", "u", "control", "controls", "command", "cmd"),
    "obs": ("observation", "observations", "obs", "state", "states", "s", "sensor", "sensors"),
}
_STEPS = ("step", "steps", "timestep", "time_step", "step_id", "frame_index", "t")
_CLOCKS = (
    *_STEPS,
    *("time", "timestamp", "elapsed", "date", "datetime"),
    *("index", "row", "frame", "", "unnamed:_0", "__index_level_0__"),
)
_NO_SENSORS = ("id", "return", "returns", "return_to_go", "episode_return", "cumulative_reward", "discount")
# What comes with a step, but is neither observation nor action.
_BESIDE = re.compile(r"(^|_)log_?(p|pi|prob|probs)($|_)|next_(action|act|reward)")
_LATER = re.compile(r"(observations?|obs|states?|s)_next(?:$|[_\[/:]|\d)|.*_next$")
_UNIT = re.compile(r"_?[\[(]?(s|ms|us|ns|sec|seconds|millis)[\])]?$")


@dataclass(frozen=True)
class Columns:
    """The columns of each role, by name."""

    obs: tuple[str, ...]
    action: tuple[str, ...]
    reward: str
    next_obs: tuple[str, ...] = ()
    episode: str | None = None
    terminated: str | None = None
    truncated: str | None = None
    step: str | None = None
    """Not learned from, but looked at: it must increase within an episode."""
    unused: tuple[str, ...] = ()

    @property
    def done_is_over(self) -> bool:
        """Whether the terminal flag is called `done` beside one for cut-offs, and so may be true for these as well."""
        return self.truncated is not None and self.terminated is not None and _plain(self.terminated) in DONE

    @property
    def numbers(self) -> tuple[str, ...]:
        """Those that must hold numbers."""
        return (*self.obs, *self.action, self.reward, *self.next_obs)

    @property
    def flags(self) -> tuple[str, ...]:
        """Those that must hold true or false."""
        return tuple(name for name in (self.terminated, self.truncated) if name is not None)

    def words(self) -> str:
        """For people: `observation = x, y; action = u; ...`."""
        parts = {
            "observation": _listed(self.obs),
            "action": _listed(self.action),
            "reward": self.reward,
            "next observation": _listed(self.next_obs) or "the following row",
            "episode": self.episode or "none",
            "terminated": self.terminated or "none",
            "truncated": self.truncated or "none",
        }
        parts |= {"step": self.step} if self.step else {}
        parts |= {"not used": _listed(self.unused)} if self.unused else {}
        return "; ".join(f"{role} = {names}" for role, names in parts.items())


def choose(names: Sequence[str], numeric: Sequence[str], options: ImportOptions, where: str) -> tuple[Columns, bool]:
    """The columns of each role, and whether any of it was guessed.

    Args:
        names: all columns of the table, in order.
        numeric: those of them that hold numbers.
        options: what the user says.
        where: the file, for messages.
    """
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise MildlyError(f"{where}: two columns are called '{twice[0]}'. Rename one.")
    taken: set[str] = set()
    single: dict[str, str | None] = {}
    for role, usual in _SINGLE.items():
        single[role] = _one(role, names, usual, getattr(options, role), where)
        taken |= {found} if (found := single[role]) else set()
    many: dict[str, tuple[str, ...]] = {}
    for role, said in (("next_obs", options.next_obs), ("action", options.action), ("obs", options.obs)):
        free = [name for name in names if name not in taken]
        many[role] = _matching(role, free, said, where) if said is not None else _guessed(role, free)
        taken |= set(many[role])
    if not many["obs"] and options.obs is None:  # nothing is called an observation: all numbers that are left are
        many["obs"] = tuple(name for name in numeric if name not in taken and not _is_no_sensor(name))
    if not many["action"] or not many["obs"] or single["reward"] is None:
        lacking = "action" if not many["action"] else "reward" if single["reward"] is None else "obs"
        raise MildlyError(
            f"{where}: cannot tell which columns are the {lacking}. Say it with mildly data convert SRC DST "
            f'--{lacking} "NAME", or a pattern such as "{lacking}_*". The columns are {_listed(tuple(names), 40)}.'
        )
    if many["next_obs"] and len(many["next_obs"]) != len(many["obs"]):
        raise MildlyError(
            f"{where}: {len(many['obs'])} observation columns ({_listed(many['obs'])}) but {len(many['next_obs'])} "
            f"next-observation columns ({_listed(many['next_obs'])}). Give both with --obs and --next-obs."
        )
    if options.next_obs is None:
        many["next_obs"] = _in_order_of(many["obs"], many["next_obs"])
    taken |= set(many["obs"])
    free = [name for name in names if name not in taken]
    plain = {_plain(name): name for name in reversed(free) if name in numeric}
    step = next((plain[name] for name in _STEPS if name in plain), None)
    chosen = Columns(
        obs=many["obs"],
        action=many["action"],
        reward=single["reward"],
        next_obs=many["next_obs"],
        episode=single["episode"],
        terminated=single["terminated"],
        truncated=single["truncated"],
        step=step,
        unused=tuple(name or "(no name)" for name in free if name != step),
    )
    return chosen, any(getattr(options, role) is None and getattr(chosen, role) for role in (*_SINGLE, *_PREFIXES))


def _one(role: str, names: Sequence[str], usual: Sequence[str], said: str | None, where: str) -> str | None:
    if said is not None:
        found = _matching(role, names, said, where)
        if len(found) > 1:
            raise MildlyError(f"{where}: --{role} must name one column, but '{said}' fits {_listed(found)}.")
        return found[0]
    plain = {_plain(name): name for name in reversed(names)}
    return next((plain[name] for name in usual if name in plain), None)


def _matching(role: str, names: Sequence[str], said: str, where: str) -> tuple[str, ...]:
    """The columns that fit the patterns, pattern by pattern, in the table's order."""
    found: dict[str, None] = {}
    for pattern in (part.strip() for part in said.split(",")):
        fitting = [name for name in names if name.strip() == pattern]
        fitting = fitting or [name for name in names if fnmatchcase(name.strip(), pattern)]
        if not fitting:
            raise MildlyError(
                f"{where}: no column fits --{role.replace('_', '-')} '{pattern}'. "
                f"The columns are {_listed(tuple(names), 40)}."
            )
        found |= dict.fromkeys(fitting)
    return tuple(found)


def _guessed(role: str, names: Sequence[str]) -> tuple[str, ...]:
    likely = [name for name in names if not _BESIDE.search(_plain(name))]
    found = _by_prefix(likely, _PREFIXES[role])
    if found or role != "next_obs":
        return found
    return tuple(name for name in likely if _LATER.match(_plain(name)))


def _in_order_of(obs: tuple[str, ...], next_obs: tuple[str, ...]) -> tuple[str, ...]:
    """Next observations as the observations go, where what the names differ by says which is whose."""
    whose = dict(zip(_tails(next_obs), next_obs, strict=True))
    tails = _tails(obs)
    return tuple(whose[tail] for tail in tails) if sorted(whose) == sorted(tails) else next_obs


def _tails(names: tuple[str, ...]) -> list[str]:
    plain = [_plain(name).removesuffix("_next") for name in names]
    letters = enumerate(zip(*plain, strict=False))
    common = next((i for i, column in letters if len(set(column)) > 1), min(map(len, plain), default=0))
    return [name[common:] for name in plain]


def _by_prefix(names: Sequence[str], prefixes: Sequence[str]) -> tuple[str, ...]:
    """Columns called `obs`, `obs_0`, `obs.x`, `obs[3]` or `obs3`, but not `s'`; those of the first prefix in use."""
    for prefix in prefixes:
        fits = re.compile(rf"{re.escape(prefix)}(?![a-z'])")
        found = tuple(name for name in names if fits.match(name.strip().lower()))
        if found:
            return found
    return ()


def _is_no_sensor(name: str) -> bool:
    """Whether a name is that of a clock, of a row's number, of what others computed, or of a role that is taken."""
    plain = _plain(name)
    roles = {usual for names in _SINGLE.values() for usual in names}
    clock = plain in _CLOCKS or _UNIT.sub("", plain) in ("t", "time", "timestamp", "elapsed")
    return clock or plain in roles or plain in _NO_SENSORS or plain.endswith("_id") or bool(_BESIDE.search(plain))


def _plain(name: str) -> str:
    return re.sub(r"[\s.-]+", "_", name.strip().lower())


def _listed(names: tuple[str, ...], most: int = 8) -> str:
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])}, ... {names[-1]} ({len(names)} columns)"
