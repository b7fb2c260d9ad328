"""Which column is what: the guesses a person would make, and a clear question where there is none to make."""

from __future__ import annotations

import pytest
from conftest import Refused

from mildly.data.formats.columns import Columns, choose, clock_names
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError


def guess(header: str, *, texts: tuple[str, ...] = (), time: str | None = None, **options: str) -> Columns:
    names = header.split(",")
    numeric = [name for name in names if name not in texts]
    return choose(names, numeric, ImportOptions(**options), "log.csv", time=time)[0]


def said(columns: Columns) -> dict[str, str]:
    """Only the roles that a column has."""
    roles = {
        "obs": ",".join(columns.obs),
        "action": ",".join(columns.action),
        "reward": str(columns.reward),
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
        ("time,temperature,valve,reward", ["the action", '--action "NAME"', "valve"]),
        ("x,y,u1,u2,cost", ["the reward", '--reward "NAME"', "-power - 10", '--cost "cost"', "--reward none"]),
        ("item", ["RLlib's packed episodes", "output_write_episodes=False"]),
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


def test_columns_that_are_not_used_are_told_to_the_last_one() -> None:
    columns = guess("Operator,t,Step,x,u,reward,terminated", texts=("Operator",), time="Step")
    assert (columns.time, columns.unused) == ("Step", ("Operator", "t"))
    assert columns.words().endswith("truncated = none; time = Step; not used = Operator, t")
    many = [f"remark_{i}" for i in range(60)]
    columns = guess(",".join([*many, "obs,action,reward"]))
    assert columns.words().endswith(f"; not used = {', '.join(many)}")


def test_a_clock_that_is_learned_from_is_none_unless_the_user_says_both() -> None:
    names = ["t", "x", "u", "r"]
    options = ImportOptions(obs="t,x")
    assert choose(names, names, options, "f", time="t")[0].time is None
    both = choose(names, names, ImportOptions(obs="t,x", time="t"), "f", time="t")[0]
    assert (both.time, both.obs) == ("t", ("t", "x"))


def test_a_clock_s_name_may_be_that_of_a_sensor() -> None:
    names = ["T", "x", "u", "r"]
    assert choose(names, names, ImportOptions(), "f", sensors=["T"])[0].obs == ("T", "x")
    assert choose(names, names, ImportOptions(), "f")[0].unused == ("T",)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (["x", "time", "T", "step"], ["time", "step", "T"]),
        (["Timestamp [ms]", "x"], ["Timestamp [ms]"]),
        (["t_ms", "elapsed_s", "steps"], ["elapsed_s", "steps", "t_ms"]),
        (["run_time", "lap", "index"], []),
    ],
)
def test_clocks_are_known_by_their_names_the_likeliest_first(header: list[str], expected: list[str]) -> None:
    assert clock_names(header, ImportOptions(), "f") == expected


# As other libraries write them


def test_exact_names_win_over_longer_ones() -> None:
    header = "eps_id,agent_id,module_id,obs,actions,rewards,new_obs,terminateds,truncateds,action_logp"
    columns = guess(f"{header},action_dist_inputs,action_prob,weights_seq_no")
    assert said(columns) == {
        "obs": "obs",
        "action": "actions",
        "reward": "rewards",
        "next": "new_obs",
        "episode": "eps_id",
        "term": "terminateds",
        "trunc": "truncateds",
    }
    assert "action_dist_inputs" in columns.unused


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("action,action_mask,obs,r", "action"),
        ("action_mask,actions,obs,r", "actions"),
        ("action,action.1,action_2,action_type,obs,r", "action,action.1,action_2"),
        ("action_0,action_1,u,obs,r", "action_0,action_1"),
        ("action_left,action_right,u,obs,r", "action_left,action_right"),
    ],
)
def test_numbered_columns_go_with_an_exact_name_and_symbols_win_over_nothing(header: str, expected: str) -> None:
    assert ",".join(guess(header).action) == expected


@pytest.mark.parametrize("name", ["episode_starts", "is_first"])
def test_a_mark_of_the_first_row_is_known(name: str) -> None:
    columns = guess(f"x,u,r,{name}")
    assert (columns.first, columns.last, columns.obs, columns.flags) == (name, None, ("x",), (name,))


@pytest.mark.parametrize("name", ["episode_terminals", "is_last", "done"])
def test_a_mark_of_the_last_row_is_known_beside_a_terminal_flag(name: str) -> None:
    columns = guess(f"x,u,r,{name},terminal")
    assert (columns.terminated, columns.last, columns.truncated) == ("terminal", name, None)
    assert "last of an episode = " + name in columns.words()


# Rewards


@pytest.mark.parametrize(
    ("options", "words", "inputs", "obs"),
    [
        ({"reward": "-p - 10*abs(q - 21)"}, "-p - 10*abs(q - 21)", ("p", "q"), ("p", "q", "e b")),
        ({"reward": "p"}, "p", ("p",), ("q", "e b")),
        ({"reward": "e b"}, "e b", ("e b",), ("p", "q")),
        ({"reward": "e*"}, "e b", ("e b",), ("p", "q")),
        ({"reward": "p*q"}, "p*q", ("p", "q"), ("p", "q", "e b")),
        ({"cost": "p"}, "-p", ("p",), ("q", "e b")),
        ({"cost": "p + `e b`"}, "-(p + `e b`)", ("p", "e b"), ("p", "q", "e b")),
        ({"reward": "none"}, "none", (), ("p", "q", "e b")),
        ({"reward": "0"}, "0", (), ("p", "q", "e b")),
    ],
)
def test_a_reward_is_a_column_or_computed_from_some(
    options: dict[str, str], words: str, inputs: tuple[str, ...], obs: tuple[str, ...]
) -> None:
    columns = guess("p,q,e b,u", **options)
    assert (str(columns.reward), columns.reward.columns, columns.obs) == (words, inputs, obs)


def test_what_a_reward_is_made_of_may_be_observed_too_and_is_used() -> None:
    columns = guess("p,q,u,k", obs="p,q", cost="p")
    assert (columns.obs, columns.unused) == (("p", "q"), ("k",))
    assert guess("obs_1,p,u", reward="-p**2").unused == ()


# Without names


def test_columns_without_names_are_given_by_number() -> None:
    names = [str(i) for i in range(12)]
    options = ImportOptions(obs="0-7,10", action="8,9", reward="11")
    columns, guessed = choose(names, names, options, "f", named=False)
    assert (columns.obs, columns.action) == ((*names[:8], "10"), ("8", "9"))
    assert not guessed


def test_columns_without_names_and_without_numbers_are_refused_with_an_example(refused: Refused) -> None:
    names = ["0", "1", "2"]
    refused(
        lambda: choose(names, names, ImportOptions(), "log.csv", named=False),
        "the first line holds numbers, so that its 3 columns have no names",
        "--obs 0-7 --action 8,9 --reward 10",
    )
    assert "3-9" in refused(lambda: guess("0,1,2", obs="3-9", action="1", reward="2"), "no column fits --obs")


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
