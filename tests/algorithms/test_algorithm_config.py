"""Every algorithm's configuration: presets, groups of fields, and what is said of wrong ones."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
from itertools import pairwise
from typing import ClassVar

import pytest
from conftest import ACTIONS, OBSERVATIONS, batch_for, tiny, tiny_fields
from learners import ANCHORED, FIELDS, WITH_EXTRAS, all_finite, every_algorithm, every_preset, every_with_extras

from mildly.algorithms import ALGORITHMS, algorithm_named
from mildly.algorithms.bc import BC
from mildly.algorithms.config import build_config, field_types, make_config
from mildly.algorithms.extras import Extras
from mildly.algorithms.mcq import MildlyConservative
from mildly.errors import MildlyError


def groups(config: object) -> list[object]:
    """The groups of a config's fields."""
    values = [getattr(config, field.name) for field in dataclasses.fields(config)]
    return [value for value in values if dataclasses.is_dataclass(value)]


# Presets


@every_preset
def test_every_preset_builds_and_takes_a_step(name, preset):
    kind = ALGORITHMS[name]
    config = make_config(kind, preset, "hopper-medium-v2", {})
    assert make_config(kind, preset, "some set of mine", {}) == build_config(kind, kind.PRESETS[preset])
    learner = kind(config, OBSERVATIONS, ACTIONS, seed=0)
    for update in [*(phase.update for phase in learner.phases()), learner.step]:
        assert all_finite(update(batch_for(learner)))


@every_algorithm
def test_the_papers_preset_is_the_default(name):
    kind = ALGORITHMS[name]
    assert make_config(kind, "paper", "some set of mine", {}) == kind.Config()


@every_algorithm
def test_the_users_fields_win_over_a_preset(name):
    for preset in ALGORITHMS[name].PRESETS:
        assert make_config(ALGORITHMS[name], preset, "hopper-medium-v2", {"batch_size": 77}).batch_size == 77


# Fields


@every_algorithm
def test_every_config_field_has_a_docstring(name):
    config = ALGORITHMS[name].Config
    for part in (config, *(type(group) for group in groups(config()))):
        documented = set()
        for kind in part.__mro__:
            if not dataclasses.is_dataclass(kind):
                continue
            body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
            for field, after in pairwise(body):
                constant = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                text = after.value.value if constant else ""
                if isinstance(field, ast.AnnAssign) and isinstance(text, str) and len(text.split()) > 1:
                    documented.add(field.target.id)
        assert {field.name for field in dataclasses.fields(part)} - documented == set()
        assert part.__doc__


@every_algorithm
def test_the_fields_that_people_change_first_are_fields(name):
    first = ALGORITHMS[name].KEY_FIELDS
    assert len(first) == len(set(first)) >= 4
    assert set(first) <= FIELDS[name]


@every_algorithm
def test_a_config_is_frozen_and_survives_json(name):
    kind = ALGORITHMS[name]
    config = build_config(kind, tiny_fields(kind))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.batch_size = 1
    for group in groups(config):
        field = dataclasses.fields(group)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(group, field, None)
    assert build_config(kind, json.loads(json.dumps(dataclasses.asdict(config)))) == config


@every_algorithm
def test_a_wrong_name_is_an_error_that_shows_the_nearest(name):
    with pytest.raises(MildlyError, match=r"unknown preset 'papr'. Did you mean 'paper'\?"):
        make_config(ALGORITHMS[name], "papr", "", {})
    with pytest.raises(MildlyError, match=r"unknown hyperparameter 'bach_size'. Did you mean 'batch_size'\?"):
        make_config(ALGORITHMS[name], "paper", "", {"bach_size": 3})
    with pytest.raises(MildlyError, match=rf"unknown algorithm '{name}x'. Did you mean '{name}'\?"):
        algorithm_named(f"{name}x")
    assert algorithm_named(name) is ALGORITHMS[name]


@every_algorithm
def test_a_batch_of_no_transitions_is_refused(name):
    with pytest.raises(MildlyError, match="batch_size must be at least 1"):
        ALGORITHMS[name].Config(batch_size=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lam": "0.5"}, "lam must be a number or 'auto', got '0.5'"),
        ({"hidden_dims": 256}, "hidden_dims must be whole numbers, got 256"),
        ({"num_actions": 2.5}, "num_actions must be a whole number, got 2.5"),
        ({"one_sided": 1}, "one_sided must be True or False, got 1"),
        ({"batch_size": True}, "batch_size must be a whole number, got True"),
        ({"lamb": 0.5}, "unknown hyperparameter 'lamb'. Did you mean 'lam'"),
        ({"behavior.steps": 2.5}, "behavior.steps must be a whole number or None, got 2.5"),
        ({"behavior": {"model": "oracle"}}, "behavior.model must be one of cvae, cgan, flow, got oracle"),
        ({"behavior": {"step": 3}}, "unknown hyperparameter 'behavior.step'. Did you mean 'behavior.steps'"),
        ({"behavior": "flow"}, "unknown hyperparameter 'behavior'"),
        ({"extras.return_mx": 0.1}, "unknown hyperparameter 'extras.return_mx'. Did you mean 'extras.return_mix'"),
        ({"return_mix": 0.1}, "unknown hyperparameter 'return_mix'. Did you mean 'extras.return_mix'"),
    ],
    ids=str,
)
def test_a_field_of_the_wrong_type_or_name_is_named(fields, message):
    with pytest.raises(MildlyError, match=re.escape(message)):
        make_config(ALGORITHMS["mcq"], "paper", "", fields)


def test_lists_and_whole_numbers_pass_where_tuples_and_floats_are_meant():
    fields = {"hidden_dims": [8, 8], "lam": 1, "behavior.latent_clip": None, "behavior.hidden_dims": [4]}
    config = make_config(ALGORITHMS["mcq"], "paper", "", fields)
    assert (config.hidden_dims, config.lam) == ((8, 8), 1)
    assert (config.behavior.latent_clip, config.behavior.hidden_dims) == (None, (4,))


# Groups


def test_fields_of_a_group_are_given_by_dotted_names_or_as_a_mapping():
    kind = ALGORITHMS["mcq"]
    dotted = make_config(kind, "paper", "", {"behavior.steps": 3, "extras.return_mix": 0.1})
    assert (dotted.behavior.steps, dotted.extras.return_mix) == (3, 0.1)
    assert make_config(kind, "paper", "", {"behavior": {"steps": 3}, "extras": {"return_mix": 0.1}}) == dotted


def test_fields_of_a_group_that_are_not_given_are_those_of_the_preset_and_of_the_algorithm():
    kit = make_config(ALGORITHMS["mcq"], "kit", "", {"behavior.steps": 3, "extras": {"policy_ema": 0.1}})
    assert (kit.behavior.steps, kit.behavior.kl_weight, kit.behavior.model) == (3, 0.5, "cvae")
    assert (kit.extras.level_start, kit.extras.policy_ema, kit.extras.return_mix) == (False, 0.1, 0.0)
    cql = make_config(ALGORITHMS["cql"], "paper", "", {"extras.policy_ema": 0.1})
    assert (cql.extras.bc_warmup_steps, cql.extras.policy_ema) == (40_000, 0.1)


# Extras


def test_algorithms_with_critics_have_extras_and_those_that_clone_by_advantage_no_anchor():
    assert "bc" not in WITH_EXTRAS
    assert {"cql", "mcq", "mcq-td3", "sac", "td3", "td3-bc"} <= set(ANCHORED)
    assert {"awac", "iql"} <= set(WITH_EXTRAS) - set(ANCHORED)
    assert "bc_weight" not in field_types(Extras)


@pytest.mark.parametrize("name", ["awac", "iql"])
def test_an_anchor_is_no_field_of_an_actor_whose_own_loss_clones(name):
    kind = ALGORITHMS[name]
    assert not hasattr(kind.Config().extras, "bc_weight")
    with pytest.raises(MildlyError, match=r"unknown hyperparameter 'extras\.bc_weight'"):
        make_config(kind, "paper", "", {"extras.bc_weight": 0.1})


OUT_OF_RANGE = [
    ("return_mix", 1.1, "in [0, 1]"),
    ("return_mix", -0.1, "in [0, 1]"),
    ("bc_warmup_steps", -1, "at least 0"),
    ("bc_weight", -0.1, "at least 0"),
    ("bc_rise", 11.0, "in [0, 10]"),
    ("policy_ema", 0.0, "in (0, 1]"),
    ("policy_ema", 1.5, "in (0, 1]"),
]


@every_with_extras
def test_an_extra_out_of_range_is_an_error_that_names_it(name):
    for field, value, expected in OUT_OF_RANGE:
        if f"extras.{field}" in FIELDS[name]:
            message = f"extras.{field} must be {expected}, got {value}."
            with pytest.raises(MildlyError, match=f"^{re.escape(message)}$"):
                tiny(name, **{f"extras.{field}": value})


@every_algorithm
def test_the_preset_default_suits_data_in_any_units(name):
    kind = ALGORITHMS[name]
    c = make_config(kind, "default", "", {})
    assert c.normalize_observations
    if name != "decision-transformer":  # has no such layers, and longer steps
        assert c.hidden_dims == (256, 256)
        few = issubclass(kind, MildlyConservative)  # behind phases of 65,000
        assert kind.steps_of("default") == (15_000 if few else 100_000) < kind.steps_of("paper") == 1_000_000
    assert "paper" in kind.PRESETS
    assert len(kind.PRESETS) <= 5


def test_an_algorithm_that_names_no_default_has_its_config_s_own_values():
    class Plain(BC):
        PRESETS: ClassVar = {"paper": {}}

    assert make_config(Plain, "default", "", {}) == BC.Config()
    with pytest.raises(MildlyError, match=r"unknown preset 'defalt'. Did you mean 'default'"):
        make_config(Plain, "defalt", "", {})


def test_a_data_sets_values_give_way_to_the_presets_and_a_method_may_have_no_default() -> None:
    class Mine(ALGORITHMS["iql"]):  # type: ignore[misc, name-defined]
        PRESETS: ClassVar = {"paper": {}, "own": {"beta": 7.0}}

    adroit = [make_config(Mine, preset, "pen-human-v0", {}) for preset in ("default", "paper", "own")]
    assert [(config.beta, config.dropout) for config in adroit] == [(0.5, 0.1), (0.5, 0.1), (7.0, 0.1)]
    assert make_config(Mine, "own", "pen-human-v0", {"beta": 2.0}).beta == 2.0
