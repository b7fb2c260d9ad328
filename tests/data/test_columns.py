"""Which column is what: the guesses a person would make, and a clear question where there is none to make."""

from __future__ import annotations

import pytest
from conftest import Refused

from mildly.data.formats.columns import Columns, choose
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError


def guess(header: str, *, texts: tuple[str, ...] = (), **options: str) -> Columns:
    names = header.split(",")
    return choose(names, [name for name in names if name not in texts], ImportOptions(**options), "log.csv")[0]


def said(columns: Columns) -> dict[str, str]:
    """Only the roles that a column has."""
    roles = {
        "obs": ",".join(columns.obs),
        "action": ",".join(columns.action),
        "reward": columns.reward,
        "next": ",".join(columns.next_obs),
        "episode": columns.episode,
        "term": columns.terminated,
        "trunc": columns.truncated,
    }
    return {role: names for role, names in roles.items() if names}


GUESSES = {
    "episode,step,obs_0,obs_1,action_0,reward,done": {
        "obs": "obs_0,obs_1",
        "action": "action_0",
        "reward": "reward",
        "episode": "episode",
        "term": "done",
    },
    "traj_id,state.x,state.y,u,r,terminal,timeout": {
        "obs": "state.x,state.y",
        "action": "u",
        "reward": "r",
        "episode": "traj_id",
        "term": "terminal",
        "trunc": "timeout",
    },
    "Observation 1,Observation 2,Action,Reward": {
        "obs": "Observation 1,Observation 2",
        "action": "Action",
        "reward": "Reward",
    },
    "EPISODE,OBS_0,ACTION_0,REWARD,DONE": {
        "obs": "OBS_0",
        "action": "ACTION_0",
        "reward": "REWARD",
        "episode": "EPISODE",
        "term": "DONE",
    },
    "obs[0],obs[1],act[0],act[1],rew,terminated,truncated": {
        "obs": "obs[0],obs[1]",
        "action": "act[0],act[1]",
        "reward": "rew",
        "term": "terminated",
        "trunc": "truncated",
    },
    "observations/0,observations/1,actions/0,rewards,terminals,timeouts": {
        "obs": "observations/0,observations/1",
        "action": "actions/0",
        "reward": "rewards",
        "term": "terminals",
        "trunc": "timeouts",
    },
    "obs_0,obs_1,next_obs_0,next_obs_1,action,reward,terminated": {
        "obs": "obs_0,obs_1",
        "action": "action",
        "reward": "reward",
        "next": "next_obs_0,next_obs_1",
        "term": "terminated",
    },
    # Sensors with names of their own: all numbers but clocks, numbers of rows and what others computed.
    "time,x,y,theta,u,reward": {"obs": "x,y,theta", "action": "u", "reward": "reward"},
    "Time (s),x,v,u,r": {"obs": "x,v", "action": "u", "reward": "r"},
    "timestamp_ms,log_pressure,v,u,r": {"obs": "log_pressure,v", "action": "u", "reward": "r"},
    ",x,v,action,reward,done": {"obs": "x,v", "action": "action", "reward": "reward", "term": "done"},
    "Unnamed: 0,x,v,a0,a1,reward": {"obs": "x,v", "action": "a0,a1", "reward": "reward"},
    "x,v,u,reward,__index_level_0__": {"obs": "x,v", "action": "u", "reward": "reward"},
    "robot_id,position,velocity,action,action_log_prob,reward,return": {
        "obs": "position,velocity",
        "action": "action",
        "reward": "reward",
    },
    "sensor_1,sensor_2,cmd_left,cmd_right,reward,session_id": {
        "obs": "sensor_1,sensor_2",
        "action": "cmd_left,cmd_right",
        "reward": "reward",
        "episode": "session_id",
    },
    # What people call an episode.
    **{
        f"{name},x,v,u,r": {"obs": "x,v", "action": "u", "reward": "r", "episode": name}
        for name in ("run", "Trial", "rollout", "demo", "demo_id", "Run Number", "flight", "Session", "lap")
    },
    "run_time,lap_speed,u,r": {"obs": "run_time,lap_speed", "action": "u", "reward": "r"},
    # Two columns that say nearly the same: `done` is neither terminated nor an observation.
    "x,v,u,reward,terminated,truncated,done": {
        "obs": "x,v",
        "action": "u",
        "reward": "reward",
        "term": "terminated",
        "trunc": "truncated",
    },
    # What comes after the step is never an observation of it, and goes in the observations' order.
    "s,a,r,s_next": {"obs": "s", "action": "a", "reward": "r", "next": "s_next"},
    "x,y,y_next,x_next,u,r": {"obs": "x,y", "action": "u", "reward": "r", "next": "x_next,y_next"},
    "x,y,next_x,next_y,u,reward": {"obs": "x,y", "action": "u", "reward": "reward", "next": "next_x,next_y"},
    "obs_1,obs_0,next_obs_0,next_obs_1,action,reward": {
        "obs": "obs_1,obs_0",
        "action": "action",
        "reward": "reward",
        "next": "next_obs_1,next_obs_0",
    },
    "state_0,action_0,reward,next_state_0,next_action_0,done": {
        "obs": "state_0",
        "action": "action_0",
        "reward": "reward",
        "next": "next_state_0",
        "term": "done",
    },
    "x,y,u,r,next_action": {"obs": "x,y", "action": "u", "reward": "r"},
    # A robot-learning layout, whose cells are lists.
    "observation.state,action,episode_index,frame_index,timestamp,next.reward,next.done,index,task_index": {
        "obs": "observation.state",
        "action": "action",
        "reward": "next.reward",
        "episode": "episode_index",
        "term": "next.done",
    },
}


@pytest.mark.parametrize("header", GUESSES)
def test_a_header_is_understood_as_a_person_would(header: str) -> None:
    assert said(guess(header)) == GUESSES[header]


def test_text_columns_are_never_observations() -> None:
    columns = guess("operator,x,comment,u,reward", texts=("operator", "comment"))
    assert columns.obs == ("x",)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("time,temperature,valve,reward", ["the action", 'mildly data convert SRC DST --action "NAME"', "valve"]),
        ("x,y,u1,u2,cost", ["the reward", '--reward "NAME"', "cost"]),
        ("reward,action,time,episode", ["the obs", '--obs "NAME"']),
        ("obs_0,obs_1,a,r,next_x", ["2 observation columns (obs_0, obs_1)", "(next_x)", "--obs and --next-obs"]),
        ("obs_0,obs_0,a,r", ["two columns are called 'obs_0'", "Rename one"]),
    ],
)
def test_where_there_is_no_telling_the_question_names_the_option(
    header: str, words: list[str], refused: Refused
) -> None:
    refused(lambda: guess(header), "log.csv: ", *words)


def test_patterns_say_which_columns_in_the_order_of_the_patterns() -> None:
    columns = guess("b_1,b_0,a_0,speed,u,v,cost", obs="speed,b_*", action="u, v", reward="cost")
    assert said(columns) == {"obs": "speed,b_1,b_0", "action": "u,v", "reward": "cost"}


def test_a_name_with_a_star_or_bracket_in_it_is_meant_as_it_is() -> None:
    assert guess("obs[0],obs[1],x,u,r", obs="obs[1]").obs == ("obs[1]",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"obs": "senzor_*"}, r"no column fits --obs 'senzor_\*'. The columns are "),
        ({"next_obs": "later"}, "no column fits --next-obs 'later'"),
        ({"reward": "obs_*"}, r"--reward must name one column, but 'obs_\*' fits obs_0, obs_1"),
        ({"episode": "run"}, "no column fits --episode 'run'"),
        ({"obs": ""}, "no column fits --obs ''"),
    ],
)
def test_a_pattern_that_fits_nothing_or_too_much_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(MildlyError, match=f"^log.csv: .*{words}"):
        guess("obs_0,obs_1,action,reward,episode", **options)


def test_what_was_chosen_is_told_in_words_and_long_lists_are_shortened() -> None:
    columns = guess(",".join([*(f"obs_{i}" for i in range(20)), "action,reward,episode"]))
    assert columns.words().startswith("observation = obs_0, obs_1, obs_2, ")
    assert "... obs_19 (20 columns); action = action; reward = reward; next observation = the following row" in (
        columns.words()
    )


def test_columns_that_are_not_used_are_told_and_a_step_is_looked_at() -> None:
    columns = guess("Timestamp,Operator,t,Step,x,u,reward,done,terminated", texts=("Timestamp", "Operator"))
    assert (columns.step, columns.unused) == ("Step", ("Timestamp", "Operator", "t", "done"))
    assert columns.words().endswith("truncated = none; step = Step; not used = Timestamp, Operator, t, done")


def test_a_step_that_holds_text_or_is_learnt_from_is_not_looked_at() -> None:
    assert guess("step,x,u,r", texts=("step",)).step is None
    assert guess("t,x,u,r", obs="t,x").step is None


def test_done_means_over_only_beside_a_flag_of_cut_offs() -> None:
    assert guess("x,u,r,next.done,timeout").done_is_over
    assert not guess("x,u,r,done").done_is_over
    assert not guess("x,u,r,terminal,timeout").done_is_over


def test_blanks_around_a_name_do_not_matter() -> None:
    assert said(guess("p, q, w, c", obs="p,q", action="w", reward="c")) == {
        "obs": "p, q",
        "action": " w",
        "reward": " c",
    }


def test_a_guess_is_told_from_what_was_said() -> None:
    names = ["x", "u", "r", "run"]
    assert choose(names, names, ImportOptions(), "f")[1]
    options = ImportOptions(obs="x", action="u", reward="r")
    assert choose(names, names, options, "f")[1]  # the episode
    assert not choose(names[:3], names[:3], options, "f")[1]
