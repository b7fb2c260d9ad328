"""Which column of a table is what: as the user says with patterns, or guessed from the names with an explanation."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mildly.data.expression import Expression, UnknownColumn, parse
from mildly.data.findings import NoReward
from mildly.data.formats.episodes import DONE, FIRST, LAST
from mildly.data.options import NO_REWARD, ImportOptions, option_name
from mildly.errors import MildlyError
from mildly.words import listed

_RUNS = ("run", "trial", "rollout", "demo", "flight", "session", "lap", "drive", "experiment", "attempt")
_SINGLE = {
    "terminated": (
        *("terminated", "terminateds", "terminal", "terminals", "termination", "terminations", "is_terminal"),
        *DONE,
    ),
    "truncated": (
        *("truncated", "truncateds", "truncation", "truncations", "timeout", "timeouts", "time_out", "is_truncated"),
    ),
    "episode": (
        *("episode", "episode_id", "episode_ids", "episode_index", "episode_number", "ep", "eps_id", "episodes"),
        *("trajectory", "trajectory_id", "traj", "traj_id"),
        *(f"{word}{end}" for word in _RUNS for end in ("", "_id", "_number", "_index", "_no")),
    ),
}
_REWARDS = ("reward", "rewards", "rew", "r", "next_reward")
_COSTS = ("cost", "costs", "loss", "penalty", "next_cost")
_PREFIXES = {
    "next_obs": ("next_observations", "next_observation", "next_obs", "new_obs", "next_state", "next_states", "next"),
    "action": ("action", "actions", "act", "a", "u", "control", "controls", "command", "cmd"),
    "obs": ("observation", "observations", "obs", "state", "states", "s", "sensor", "sensors"),
}
_WORD = 3  # letters of a name that cannot be taken for a symbol
_TIMES = ("time", "timestamp", "timestamps", "datetime", "date_time", "elapsed", "elapsed_time", "date", "ts")
_STEPS = ("step", "steps", "timestep", "time_step", "step_id", "frame_index", "t")
_ROWS = ("index", "row", "frame", "", "unnamed:_0", "__index_level_0__")
_NO_SENSORS = ("id", "return", "returns", "return_to_go", "episode_return", "cumulative_reward", "discount")
# What comes with a step, but is neither observation nor action.
_BESIDE = re.compile(
    r"(^|_)log_?(p|pi|prob|probs)($|_)|(^|_)(prob|probs|dist_inputs|logits)$|next_(action|act|reward|cost)"
)
_LATER = re.compile(r"(observations?|obs|states?|s)_next(?:$|[_\[/:]|\d)|.*_next$")
_UNIT = re.compile(r"_?[\[(]?(s|ms|us|ns|sec|seconds|millis)[\])]?$")
_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)")


@dataclass(frozen=True)
class Columns:
    """The columns of each role, by name."""

    obs: tuple[str, ...]
    action: tuple[str, ...]
    reward: Expression
    next_obs: tuple[str, ...] = ()
    episode: str | None = None
    terminated: str | None = None
    truncated: str | None = None
    first: str | None = None
    """True in the first row of an episode."""
    last: str | None = None
    """True in the last row of an episode, for whatever reason."""
    time: str | None = None
    """Not learned from, but looked at: it must increase within an episode."""
    unused: tuple[str, ...] = ()

    @property
    def done_is_over(self) -> bool:
        """Whether the terminal flag is called `done` beside one for cut-offs, and so may be true for these as well."""
        return self.truncated is not None and self.terminated is not None and plain(self.terminated) in DONE

    @property
    def numbers(self) -> tuple[str, ...]:
        """Those that must hold numbers."""
        return (*self.obs, *self.action, *self.reward.columns, *self.next_obs)

    @property
    def flags(self) -> tuple[str, ...]:
        """Those that must hold true or false."""
        return tuple(name for name in (self.terminated, self.truncated, self.first, self.last) if name is not None)

    @property
    def field_names(self) -> dict[str, str]:
        """What the fields are called that a data set does not keep the names of."""
        names = {"rewards": str(self.reward), "terminated": self.terminated, "truncated": self.truncated}
        names |= {"next_observations": listed(self.next_obs) or None}
        return {field: name for field, name in names.items() if name is not None}

    @property
    def labels(self) -> tuple[str, ...]:
        """Those that may hold anything that can be compared."""
        return (self.episode,) if self.episode else ()

    def words(self) -> str:
        """For people: `observation = x, y; action = u; ...`. What is not used is named to the last column."""
        parts = {
            "observation": listed(self.obs),
            "action": listed(self.action),
            "reward": str(self.reward),
            "next observation": listed(self.next_obs) or "the following row",
            "episode": self.episode or "none",
            "terminated": self.terminated or "none",
            "truncated": self.truncated or "none",
        }
        parts |= {"first of an episode": self.first} if self.first else {}
        parts |= {"last of an episode": self.last} if self.last else {}
        parts |= {"time": self.time} if self.time else {}
        parts |= {"not used": ", ".join(self.unused)} if self.unused else {}
        return "; ".join(f"{role} = {names}" for role, names in parts.items())


def choose(
    names: Sequence[str],
    numeric: Sequence[str],
    options: ImportOptions,
    where: str,
    *,
    time: str | None = None,
    sensors: Sequence[str] = (),
    named: bool = True,
) -> tuple[Columns, bool]:
    """The columns of each role, and whether any of it was guessed.

    Args:
        names: all columns of the table, in order.
        numeric: those of them that hold numbers.
        options: what the user says.
        where: the file, for messages.
        time: the column that is the clock.
        sensors: columns with a clock's name that are none, and may be observations.
        named: whether the names are the table's own, and not numbers.
    """
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise MildlyError(f"{where}: two columns are called '{twice[0]}'. Rename one.")
    single = {role: one(role, names, usual, getattr(options, role), where) for role, usual in _SINGLE.items()}
    reward = _reward(names, options, where)
    taken = {name for name in single.values() if name} | ({*reward.columns} if reward and reward.is_column else set())
    marks = {role: _mark(names, usual, taken) for role, usual in (("first", FIRST), ("last", (*LAST, *DONE)))}
    taken |= {name for name in marks.values() if name} | ({time} if time else set())
    many: dict[str, tuple[str, ...]] = {}
    for role, said in (("next_obs", options.next_obs), ("action", options.action), ("obs", options.obs)):
        free = [name for name in names if name not in taken]
        many[role] = _matching(role, names, said, where, free) if said is not None else _guessed(role, free)
        taken |= set(many[role])
    if not many["obs"] and options.obs is None:  # nothing is called an observation: all numbers that are left are
        left = (name for name in numeric if name not in taken)
        many["obs"] = tuple(name for name in left if name in sensors or not _is_no_sensor(name))
    if not many["action"] or not many["obs"] or reward is None:
        raise _lacking("action" if not many["action"] else "obs" if not many["obs"] else "reward", names, where, named)
    if many["next_obs"] and len(many["next_obs"]) != len(many["obs"]):
        raise MildlyError(
            f"{where}: {len(many['obs'])} observation columns ({listed(many['obs'])}) but {len(many['next_obs'])} "
            f"next-observation columns ({listed(many['next_obs'])}). Give both with --obs and --next-obs."
        )
    if options.next_obs is None:
        many["next_obs"] = _in_order_of(many["obs"], many["next_obs"])
    learned = {name for some in many.values() for name in some}
    time = None if time in learned and options.time is None else time
    used = taken | learned | {*reward.columns} | ({time} if time else set())
    chosen = Columns(
        obs=many["obs"],
        action=many["action"],
        reward=reward,
        next_obs=many["next_obs"],
        **single,
        **marks,
        time=time,
        unused=tuple(name or "(no name)" for name in names if name not in used),
    )
    said_all = options.reward is not None or options.cost is not None
    return chosen, not said_all or any(
        getattr(options, role) is None and getattr(chosen, role) for role in (*_SINGLE, *_PREFIXES)
    )


def clock_names(names: Sequence[str], options: ImportOptions, where: str) -> list[str]:
    """The column that the user says is the time, or else all that are called so, the likeliest first."""
    if options.time is not None:
        return [one("time", names, (), options.time, where) or ""]
    known = {_UNIT.sub("", plain(name)) if plain(name) not in _STEPS else plain(name): name for name in reversed(names)}
    return [known[usual] for usual in (*_TIMES, *_STEPS) if usual in known]


def counts_steps(name: str) -> bool:
    """Whether a clock's name is that of a counter."""
    return plain(name) in _STEPS


def may_be_sensor(name: str) -> bool:
    """Whether a clock's name is as well that of something measured: t is a temperature, too."""
    return plain(name) == "t"


def episode_column(names: Sequence[str], options: ImportOptions, where: str) -> str | None:
    """The column that tells the episodes apart."""
    return one("episode", names, _SINGLE["episode"], options.episode, where)


def one(role: str, names: Sequence[str], usual: Sequence[str], said: str | None, where: str) -> str | None:
    """The one column of a role: what the user says, or the first of the usual names."""
    if said is not None:
        found = _matching(role, names, said, where)
        if len(found) > 1:
            raise MildlyError(f"{where}: --{role} must name one column, but '{said}' fits {listed(found)}.")
        return found[0]
    known = {plain(name): name for name in reversed(names)}
    return next((known[name] for name in usual if name in known), None)


def _mark(names: Sequence[str], usual: Sequence[str], taken: set[str]) -> str | None:
    return one("", [name for name in names if name not in taken], usual, None, "")


def _reward(names: Sequence[str], options: ImportOptions, where: str) -> Expression | None:
    if options.cost is not None:
        cost = _formula("cost", names, options.cost, where)
        if cost.is_column:
            return Expression.of_column(cost.columns[0], negative=True)
        return Expression(f"-({cost})", cost.columns, ast.UnaryOp(ast.USub(), cost.tree), cost.known)
    if options.reward is None:
        found = one("reward", names, _REWARDS, None, where)
        return Expression.of_column(found) if found is not None else None
    if options.reward == NO_REWARD and NO_REWARD not in names:
        return Expression.constant(0.0, NO_REWARD)
    return _formula("reward", names, options.reward, where)


def _formula(role: str, names: Sequence[str], said: str, where: str) -> Expression:
    """A column if there is one of this name, or else a formula, or else a pattern that fits one column."""
    exact = [name for name in names if name.strip() == said.strip()]
    if exact:
        return Expression.of_column(exact[0])
    try:
        return parse(said, names, f"{where}: {option_name(role)}")
    except MildlyError as error:
        fitting = [name for name in names if fnmatchcase(name.strip(), said.strip())]
        if fitting or (isinstance(error, UnknownColumn) and said.strip().isidentifier()):
            return Expression.of_column(one(role, names, (), said, where) or "")
        raise


def _lacking(role: str, names: Sequence[str], where: str, named: bool) -> MildlyError:
    """What to say where a role has no column."""
    if not named:
        return MildlyError(
            f"{where}: the first line holds numbers, so that its {len(names)} columns have no names. Give their "
            "numbers, counted from 0, such as --obs 0-7 --action 8,9 --reward 10, or put a line of names such as "
            "obs_0,obs_1,action,reward,episode before it."
        )
    if list(names) == ["item"]:
        return MildlyError(
            f"{where}: holds RLlib's packed episodes, which are not read. Write a table with "
            "output_write_episodes=False and output_compress_columns=[]."
        )
    have = f"The columns are {listed(tuple(names), 40)}."
    if role != "reward":
        return MildlyError(
            f'{where}: cannot tell which columns are the {role}. Say it with --{role} "NAME", or a pattern such as '
            f'"{role}_*". {have}'
        )
    cost = _mark(names, _COSTS, set())
    hint = f" Is it '{cost}', which should be small? Then give --cost \"{cost}\"." if cost else ""
    return NoReward(
        f'{where}: cannot tell which column is the reward. Say it with --reward "NAME", compute it, such as --reward '
        f'"-power - 10 * abs(temp - 21)", or give what should be small with --cost "NAME".{hint} With --reward none '
        f"the log is read without one, for bc. {have}"
    )


def _matching(
    role: str, names: Sequence[str], said: str, where: str, free: Sequence[str] | None = None
) -> tuple[str, ...]:
    """The columns that fit the patterns, pattern by pattern, in the table's order.

    Names mean any column, patterns those that are `free`: not taken by another role.
    """
    found: dict[str, None] = {}
    for pattern in (part.strip() for part in said.split(",")):
        fitting = [name for name in names if name.strip() == pattern] or _numbered(names, pattern)
        fitting = fitting or [name for name in (names if free is None else free) if fnmatchcase(name.strip(), pattern)]
        if not fitting:
            raise MildlyError(
                f"{where}: no column fits {option_name(role)} '{pattern}'. The columns are {listed(tuple(names), 40)}."
            )
        found |= dict.fromkeys(fitting)
    return tuple(found)


def _numbered(names: Sequence[str], pattern: str) -> list[str]:
    """The columns 0 to 7 that `0-7` means, if they are called so."""
    found = _RANGE.fullmatch(pattern)
    if found is None or not {found[1], found[2]} <= set(names):
        return []
    return [name for name in names if name.isdecimal() and int(found[1]) <= int(name) <= int(found[2])]


def _guessed(role: str, names: Sequence[str]) -> tuple[str, ...]:
    likely = [name for name in names if not _BESIDE.search(plain(name))]
    found = _by_prefix(likely, _PREFIXES[role])
    if found or role != "next_obs":
        return found
    return tuple(name for name in likely if _LATER.match(plain(name)))


def _in_order_of(obs: tuple[str, ...], next_obs: tuple[str, ...]) -> tuple[str, ...]:
    """Next observations as the observations go, where what the names differ by says which is whose."""
    whose = dict(zip(_tails(next_obs), next_obs, strict=True))
    tails = _tails(obs)
    return tuple(whose[tail] for tail in tails) if sorted(whose) == sorted(tails) else next_obs


def _tails(names: tuple[str, ...]) -> list[str]:
    short = [plain(name).removesuffix("_next") for name in names]
    letters = enumerate(zip(*short, strict=False))
    common = next((i for i, column in letters if len(set(column)) > 1), min(map(len, short), default=0))
    return [name[common:] for name in short]


def _by_prefix(names: Sequence[str], prefixes: Sequence[str]) -> tuple[str, ...]:
    """Columns called `obs`, `obs_0`, `obs.x`, `obs[3]` or `obs3`, but not `s'`; those of the first prefix in use.

    Exact names win: beside `action` or `actions`, `action_dist_inputs` is none of them.
    """
    exact = next((word for word in prefixes if len(word) >= _WORD and word in map(plain, names)), None)
    for prefix in prefixes:
        fits = re.compile(rf"{re.escape(prefix)}(?![a-z'])")
        found = tuple(name for name in names if fits.match(name.strip().lower()))
        counted = tuple(name for name in found if re.fullmatch(r"[\W_]*\d*[\W_]*", plain(name)[len(prefix) :]))
        if prefix in map(plain, found):
            return counted
        if counted or (found and exact is None):
            return found
    return ()


def _is_no_sensor(name: str) -> bool:
    """Whether a name is that of a clock, of a row's number, of what others computed, or of a role that is taken."""
    short = plain(name)
    roles = {usual for names in (*_SINGLE.values(), _REWARDS, FIRST, LAST) for usual in names}
    clock = short in (*_TIMES, *_STEPS, *_ROWS) or _UNIT.sub("", short) in ("t", "time", "timestamp", "elapsed")
    return clock or short in roles or short in _NO_SENSORS or short.endswith("_id") or bool(_BESIDE.search(short))


def plain(name: str) -> str:
    """A name in small letters, with `_` where blanks, points and dashes are."""
    return re.sub(r"[\s.-]+", "_", name.strip().lower())
