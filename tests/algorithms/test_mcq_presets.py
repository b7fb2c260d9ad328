"""The configuration of both forms of MCQ: ranges, the paper's defaults, and what presets do by data set."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, make_batch, tiny, weights

from mildly.algorithms.config import build_config, flatten, make_config
from mildly.algorithms.extras import AnchoredExtras
from mildly.algorithms.mcq import MCQ, MildConfig
from mildly.algorithms.mcq_td3 import MCQTD3
from mildly.algorithms.sac import SAC
from mildly.algorithms.td3 import TD3
from mildly.behavior import BehaviorConfig
from mildly.errors import MildlyError


@pytest.mark.parametrize("lam", [0.0, -0.1, 1.01, math.nan])
def test_lam_outside_its_range_is_an_error_that_names_it(lam):
    with pytest.raises(MildlyError, match=r"^lam must be in \(0, 1\]"):
        MCQ.Config(lam=lam)


both_kinds = pytest.mark.parametrize("kind", [MCQ, MCQTD3])


@both_kinds
@pytest.mark.parametrize(
    "fields",
    [
        {"num_actions": 0},
        {"ood_actions": 0},
        {"ood_weight": 0.0},
        {"delta": -1.0},
        {"delta_scale": -0.1},
        {"pseudo_reduction": "max"},
        {"pseudo_critics": "both"},
        {"ood_distance_min": -0.1},
        {"gamma": 1.0},
    ],
    ids=str,
)
def test_a_field_out_of_range_is_an_error_that_names_it(kind, fields):
    (name,) = fields
    with pytest.raises(MildlyError, match=rf"^{name} must be .*, got {re.escape(str(fields[name]))}\.$"):
        kind.Config(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "oracle"},
        {"hidden_dims": (0,)},
        {"lr": 0.0},
        {"steps": 0},
        {"refresh_every": 0},
        {"cache_megabytes": 0.0},
        {"latent_size": 0},
        {"latent_clip": 0.0},
        {"kl_weight": -1.0},
        {"log_std_min": 15.0},
    ],
    ids=str,
)
def test_a_field_of_the_behavior_model_out_of_range_is_an_error_that_names_it_with_its_group(fields):
    (name,) = fields
    with pytest.raises(MildlyError, match=rf"^behavior\.{name} must be .*, got {re.escape(str(fields[name]))}\.$"):
        BehaviorConfig(**fields)


@both_kinds
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"behavior.cache": True}, "behavior.steps must be given where actions are kept"),
        ({"behavior.steps": 3, "behavior.refresh_every": 2}, "behavior.refresh_every must be None where no actions"),
        ({"ood_distance_min": 0.1, "ood_actions": 11}, "ood_actions must be at most num_actions with a mask, got 11"),
        (
            {"behavior.steps": 3, "behavior.cache": True, "independent_samples": True},
            "independent_samples must be False where actions are kept",
        ),
    ],
    ids=str,
)
def test_fields_that_do_not_go_together_are_told(kind, fields, message):
    with pytest.raises(MildlyError, match=f"^{re.escape(message)}"):
        build_config(kind, fields)


def test_the_config_reaches_the_behavior_model():
    fields = {"latent_size": 3, "latent_clip": None, "log_std_min": -1.0, "log_std_max": 1.0, "kl_weight": 0.3}
    mcq = tiny("mcq", behavior={**fields, "lr": 0.07})
    model = mcq.behavior.model
    assert (model.latent_size, model.latent_clip, model.kl_weight) == (3, None, 0.3)
    assert model.log_std_range == (-1.0, 1.0)
    assert mcq.behavior.optimizer.param_groups[0]["lr"] == 0.07


def test_the_defaults_are_the_papers():
    c = MCQ.Config()
    assert (c.hidden_dims, c.batch_size, c.num_actions) == ((400, 400), 256, 10)
    assert (c.actor_lr, c.critic_lr, c.alpha_lr) == (3e-4, 3e-4, 3e-4)
    mcq = MCQ(c, OBSERVATIONS, ACTIONS)
    assert [len(layer.bias) for layer in mcq.behavior.model.decoder[::2]] == [750, 750, ACTIONS]
    assert mcq.behavior.optimizer.param_groups[0]["lr"] == 1e-3
    assert (c.gamma, c.tau, c.log_std_min, c.log_std_max) == (0.99, 5e-3, -20.0, 2.0)
    assert (c.delta, c.one_sided, c.ood_distance_min, c.pseudo_floor) == (0.0, False, None, None)
    assert (c.pseudo_reduction, c.independent_samples, c.normalize_observations) == ("min", False, False)
    b = c.behavior
    assert (b.model, b.steps, b.cache, b.kl_weight) == ("cvae", None, False, 1.0)
    assert (b.latent_size, b.latent_clip, b.log_std_min, b.log_std_max) == (None, 0.5, -4.0, 15.0)
    assert c.extras == AnchoredExtras()


LAM = {
    "halfcheetah-random-v2": 0.95,
    "halfcheetah-medium-v2": 0.95,
    "halfcheetah-medium-replay-v2": 0.95,
    "halfcheetah-medium-expert-v2": 0.7,
    "halfcheetah-expert-v2": 0.5,
    "hopper-random-v2": 0.6,
    "hopper-medium-v2": 0.7,
    "hopper-medium-replay-v2": 0.9,
    "hopper-medium-expert-v2": 0.5,
    "hopper-expert-v2": 0.5,
    "walker2d-random-v2": 0.8,
    "walker2d-medium-v2": 0.9,
    "walker2d-medium-replay-v2": 0.9,
    "walker2d-medium-expert-v2": 0.8,
    "walker2d-expert-v2": 0.3,
    "maze2d-umaze-v1": 0.7,
    "maze2d-umaze-dense-v1": 0.95,
    "maze2d-medium-v1": 0.9,
    "maze2d-medium-dense-v1": 0.9,
    "pen-human-v0": 0.3,
    "door-human-v0": 0.7,
    "relocate-human-v0": 0.3,
    "hammer-human-v0": 0.7,
    "pen-cloned-v0": 0.9,
    "door-cloned-v0": 0.3,
    "relocate-cloned-v0": 0.3,
    "hammer-cloned-v0": 0.5,
}
STRICT = {  # the five sets with delta, one side and a mask in the authors' code
    "hopper-medium-v2",
    "hopper-medium-expert-v2",
    "hopper-expert-v2",
    "halfcheetah-medium-expert-v2",
    "halfcheetah-expert-v2",
}


def test_lam_of_every_data_set_is_the_papers():
    assert len(LAM) == 27
    for name, lam in LAM.items():
        assert MCQ.for_dataset(name, "paper") == {"lam": lam}
        assert make_config(MCQ, "paper", name, {}) == MCQ.Config(lam=lam)


def test_a_recollected_set_has_the_hyperparameters_of_its_original():
    for preset in ("paper", "official"):
        for name in LAM:
            assert MCQ.for_dataset(f"{name}-recollected", preset) == MCQ.for_dataset(name, preset)


@pytest.mark.parametrize(
    "name", ["", "mine", "pendulum-mixed", "hopper", "hopper-medium-very-noisy", "my-hopper-medium"]
)
def test_an_unknown_set_has_no_hyperparameters_of_its_own(name):
    assert MCQ.for_dataset(name, "paper") == {}
    assert MCQ.for_dataset(name, "official") == {}


def test_a_field_the_user_gives_wins_over_the_data_sets():
    config = make_config(MCQ, "official", "hopper-medium-v2", {"lam": 0.55, "one_sided": False})
    assert (config.lam, config.one_sided, config.delta) == (0.55, False, 5.0)


def test_the_official_preset_is_what_the_authors_code_does_on_every_set():
    for name, lam in LAM.items():
        config = make_config(MCQ, "official", name, {})
        expected = {
            "lam": lam,
            "hidden_dims": (400, 400, 400),
            "log_std_min": -5.0,
            "log_std_max": 2.0,
            "behavior.latent_clip": 0.5,
            "behavior.log_std_min": -4.0,
            "behavior.log_std_max": 15.0,
            "pseudo_floor": 0.0,
            "independent_samples": True,
            "delta": 5.0 if name in STRICT else 0.0,
            "one_sided": name in STRICT or name.startswith("maze2d"),
            "ood_distance_min": 0.1 if name in STRICT else None,
            "alpha_first": True,
            "normalize_observations": False,
        }
        flat = flatten(config)
        assert {field: flat[field] for field in expected} == expected, name
        assert config == build_config(MCQ, expected), name


@pytest.mark.parametrize("dataset", ["hopper-medium-v2", "maze2d-umaze-v1", "pen-human-v0"])
def test_a_step_of_the_official_preset_runs(dataset):
    config = make_config(MCQ, "official", dataset, {"batch_size": 4})
    mcq = MCQ(config, OBSERVATIONS, ACTIONS, seed=0)
    assert [w.shape for w in mcq.critics.weights] == [(2, 5, 400), (2, 400, 400), (2, 400, 400), (2, 400, 1)]
    assert sum(isinstance(layer, torch.nn.Linear) for layer in mcq.actor.net) == 4
    before = weights(mcq.actor, mcq.critics, mcq.behavior.model)
    metrics = mcq.update(make_batch(4))
    assert all(torch.isfinite(value) for value in metrics.values())
    assert metrics["pseudo_target"] >= 0
    after = weights(mcq.actor, mcq.critics, mcq.behavior.model)
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# Deterministic MCQ


def test_lam_of_deterministic_mcq_is_mcqs_but_on_one_set():
    for name, lam in (LAM | {"hopper-medium-expert-v2": 0.4}).items():
        for preset in MCQTD3.PRESETS:
            assert make_config(MCQTD3, preset, name, {}) == build_config(MCQTD3, {"lam": lam, **MCQTD3.PRESETS[preset]})
    assert MCQTD3.for_dataset("hopper-medium-expert-recollected", "paper") == {"lam": 0.4}
    assert MCQTD3.for_dataset("some set of mine", "paper") == {}
    assert make_config(MCQTD3, "paper", "hopper-medium-expert-v2", {"lam": 0.8}).lam == 0.8


def test_what_the_authors_code_does_on_some_sets_besides_does_not_reach_deterministic_mcq():
    for name in LAM:
        assert MCQTD3.for_dataset(name, "official").keys() == {"lam"}


def test_the_papers_deterministic_mcq_has_mcqs_sizes_and_rates_and_neither_noise_nor_delay():
    c = make_config(MCQTD3, "paper", "", {})
    assert (c.policy_noise, c.policy_delay) == (0.0, 1)
    for field in dataclasses.fields(MildConfig):
        assert getattr(c, field.name) == getattr(MCQ.Config(), field.name), field.name


def test_noise_and_delay_of_td3_come_back_when_asked_for():
    own = {"policy_noise": 0.2, "policy_delay": 2, "hidden_dims": (256, 256)}
    c = make_config(MCQTD3, "paper", "", own)
    for field in dataclasses.fields(TD3.Config):
        assert getattr(c, field.name) == getattr(TD3.Config(), field.name), field.name


@both_kinds
def test_a_preset_with_a_lam_of_its_own_keeps_it_on_every_set(kind):
    for name in LAM:
        assert make_config(kind, "default", name, {}) == build_config(kind, kind.PRESETS["default"])
        assert make_config(kind, "default", name, {"lam": 0.6}).lam == 0.6


@both_kinds
def test_lists_of_the_table_of_presets_are_tuples_in_a_config(kind):
    default = make_config(kind, "default", "", {})
    assert default.hidden_dims == default.behavior.hidden_dims == (256, 256)
    small = make_config(kind, "small", "", {})
    assert small.hidden_dims == small.behavior.hidden_dims == (128, 128)


@both_kinds
def test_the_small_preset_is_that_of_the_method_with_a_small_behavior_model(kind):
    method = kind.__mro__[2]
    assert method in (SAC, TD3)
    small = build_config(kind, {**method.PRESETS["small"], "behavior.hidden_dims": (128, 128)})
    assert make_config(kind, "small", "", {}) == small
