"""How our hyperparameters and d3rlpy's correspond: one table, used by `peers.py`, for d3rlpy 2.8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.base import Algorithm
from mildly.algorithms.config import make_config
from mildly.algorithms.decision_transformer import target_and_scale
from mildly.data.dataset import Dataset
from mildly.errors import MildlyError

Names = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Peer:
    """d3rlpy's version of an algorithm of ours. Every field of our config is in exactly one of the first three."""

    same: Names
    """Our field: their arguments that mean the same, and get its value."""
    held: Mapping[str, Any]
    """Our fields that they have no argument for, set to what d3rlpy does."""
    config: str
    idle: tuple[str, ...] = ()
    """Our fields that then have no effect."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Their arguments that we have no field for, set to what we do."""
    differences: tuple[str, ...] = ()
    """What no option of either can make equal."""
    paper: str = "paper"
    """Our preset with the paper's sizes."""
    algorithm: str | None = None
    """Our algorithm, if it is not called as the comparison is."""


_ANY: Names = {"batch_size": ("batch_size",), "normalize_observations": ("observation_scaler",)}
_CRITICS: Names = {
    **_ANY,
    "hidden_dims": ("actor_encoder_factory", "critic_encoder_factory"),
    "gamma": ("gamma",),
    "tau": ("tau",),
    "actor_lr": ("actor_learning_rate",),
    "critic_lr": ("critic_learning_rate",),
}
_MANY: Names = {**_CRITICS, "ensemble": ("n_critics",)}
_SOFT: Names = {**_MANY, "alpha_lr": ("temp_learning_rate",), "initial_alpha": ("initial_temperature",)}
_PLAIN = {
    "layer_norm": False,
    "extras.level_start": False,
    "extras.return_mix": 0.0,
    "extras.return_mix_ends": "all",
    "extras.bc_steps": 0,
    "extras.bc_warmup_steps": 0,
    "extras.bc_preference": 0.0,
    "extras.policy_ema": None,
}
_UNANCHORED = {**_PLAIN, "extras.bc_weight": 0.0, "extras.bc_rise": 0.0}
_SOFT_HELD = {
    **_UNANCHORED,
    "log_std_min": -20.0,
    "log_std_max": 2.0,
    "target_entropy": None,
    "alpha_first": True,
    "alpha_max": None,
    "actor_dropout": 0.0,
}
_TEMPERATURE = (
    "temperature: theirs moves between the steps of critics and actor, ours before both; the slope of its loss is in "
    "alpha there and in log alpha here"
)
_SQUASH = "log-density of tanh: ours adds 1e-6 to 1 - tanh^2, as MCQ's code does; theirs is exact"

PEERS: dict[str, Peer] = {
    "bc": Peer(
        config="BCConfig",
        same={**_ANY, "hidden_dims": ("encoder_factory",), "actor_lr": ("learning_rate",)},
        held={"objective": "mse", "best_episodes": None},  # their stochastic policy fits a draw, not a likelihood
        idle=("log_std_min", "log_std_max"),
        fixed={"policy_type": "deterministic"},
        differences=("loss: theirs is a mean over action dimensions, ours a sum; Adam's steps do not know the scale",),
        paper="mse",
    ),
    "sac": Peer(
        config="SACConfig",
        same=_SOFT,
        held=_SOFT_HELD,
        differences=(_TEMPERATURE, _SQUASH),
    ),
    "td3-bc": Peer(
        config="TD3PlusBCConfig",
        same={
            **_MANY,
            "policy_noise": ("target_smoothing_sigma",),
            "noise_clip": ("target_smoothing_clip",),
            "policy_delay": ("update_actor_interval",),
            "alpha": ("alpha",),
        },
        held=_UNANCHORED,
        differences=("with a delay of 2 their actor moves in the 1st, 3rd, ... step, ours in the 2nd, 4th, ...",),
    ),
    "cql": Peer(
        config="CQLConfig",
        same={**_SOFT, "num_actions": ("n_action_samples",), "conservative_weight": ("conservative_weight",)},
        held={**_SOFT_HELD, "lagrange_threshold": None, "gradient_actions": None, "calibrated": False},
        # without a rate their multiplier stays at 1, and the threshold is a constant in the loss
        fixed={
            "alpha_learning_rate": 0.0,
            "initial_alpha": 1.0,
            "alpha_threshold": 0.0,
            "soft_q_backup": False,
            "max_q_backup": False,
        },
        differences=(
            "target: a' is the policy's mean action there, a draw here (with soft_q_backup theirs is a draw, but with "
            "SAC's entropy)",
            "actor: theirs climbs the critics after their step, ours as they were before it",
            _TEMPERATURE,
            _SQUASH,
        ),
    ),
    "iql": Peer(
        config="IQLConfig",
        same={
            **_CRITICS,
            "hidden_dims": ("actor_encoder_factory", "critic_encoder_factory", "value_encoder_factory"),
            "value_lr": ("critic_learning_rate",),
            "beta": ("weight_temp",),
            "expectile": ("expectile",),
            "weight_limit": ("max_weight",),
            "decay_steps": ("actor_optim_factory",),
            "reward_scaling": ("reward_scaler",),
        },
        held={**_PLAIN, "log_std_min": -5.0, "log_std_max": 2.0, "dropout": 0.0},
        fixed={"n_critics": 2},
        differences=(
            "log-std: a sigmoid between the bounds there, starting at -1.5; clipped at them here, starting at 0",
            "order: V and critics step together there, so that the critics learn from V before its step; here after it",
            "initial weights: PyTorch's there, orthogonal here; the data's actions are clipped to 1 - 1e-5 here only",
        ),
    ),
    "awac": Peer(
        config="AWACConfig",
        same={
            **_CRITICS,
            "hidden_dims": ("critic_encoder_factory",),
            "actor_hidden_dims": ("actor_encoder_factory",),
            "beta": ("lam",),
        },
        held={
            **_PLAIN,
            "log_std_min": -6.0,
            "log_std_max": 0.0,
            "advantage_limit": None,
            "baseline": "draw",
            "value_ceiling": None,
            "ignore_terminals": False,
            # their loss is a sum over the batch, ours a mean, so that one decay would not mean the same in both
            "actor_weight_decay": 0.0,
        },
        fixed={"n_critics": 2, "n_action_samples": 1},
        differences=(
            "target: theirs is SAC's with a temperature of 1, a' squashed by tanh and its entropy in it; ours has none",
            "draws of the policy are clipped to [-1, 1] there",
            "actor: theirs weighs by the critics after their step, ours as they were before it",
        ),
    ),
}

_SUPPORT: Names = {
    **_CRITICS,
    "behavior.hidden_dims": ("imitator_encoder_factory",),
    "behavior.lr": ("imitator_learning_rate",),
    "min_weight": ("lam",),
}
_SUPPORT_HELD = {
    "layer_norm": False,
    "behavior.model": "cvae",
    "behavior.steps": None,
    "behavior.cache": False,
    "behavior.latent_size": None,
    "behavior.latent_clip": 0.5,
    "behavior.log_std_min": -4.0,
    "behavior.log_std_max": 15.0,
    "behavior.kl_weight": 0.25,  # of sums over dimensions, which is 0.5 of means
}
_SUPPORT_IDLE = ("behavior.cache_megabytes", "behavior.refresh_every")
PEERS["bcq"] = Peer(
    config="BCQConfig",
    same={**_SUPPORT, "num_actions": ("n_action_samples",), "reach": ("action_flexibility",)},
    held={**_SUPPORT_HELD, "candidates": 10},  # one number there for the target and for acting
    idle=_SUPPORT_IDLE,
    fixed={"n_critics": 2, "update_actor_interval": 1, "rl_start_step": 0, "beta": 0.5},
    differences=(
        "CVAE: where d3rlpy asks its decoder for squashed actions it gets them before tanh, and the other way round",
        "acting: candidates are drawn anew at every call there, one seeded set for all states here",
    ),
)
PEERS["bear"] = Peer(
    config="BEARConfig",
    same={
        **_SUPPORT,
        "num_actions": ("n_target_samples",),
        "candidates": ("n_action_samples",),
        "kernel": ("mmd_kernel",),
        "kernel_width": ("mmd_sigma",),
        "mmd_actions": ("n_mmd_action_samples",),
        "mmd_threshold": ("alpha_threshold",),
        "dual_lr": ("alpha_learning_rate",),
    },
    held={
        **_SUPPORT_HELD,
        "log_std_min": -20.0,
        "log_std_max": 2.0,
        "log_dual_min": -5.0,
        "log_dual_max": 10.0,
        "warmup_steps": 0,
    },
    idle=_SUPPORT_IDLE,
    # theirs has SAC's entropy besides, which a temperature of next to 0 takes out
    fixed={
        "n_critics": 2,
        "warmup_steps": 0,
        "initial_alpha": 1.0,
        "vae_kl_weight": 0.5,
        "initial_temperature": 1e-12,
        "temp_learning_rate": 0.0,
    },
    differences=(
        "actor: the gradient of the constraint cancels there, so that theirs climbs the critics alone",
        "CVAE: as of BCQ, so that their distance compares its squashed actions with the policy's before tanh",
        "dual variable: its rate is the actor's there, and it moves before the actor",
        "actor: theirs climbs the critics after their step, ours as they were before it",
        "acting: candidates are drawn anew at every call there, one seeded set for all states here",
    ),
)

PEERS["decision-transformer"] = Peer(
    config="DecisionTransformerConfig",
    same={
        **_ANY,
        "context": ("context_size",),
        "width": ("encoder_factory",),
        "layers": ("num_layers",),
        "heads": ("num_heads",),
        "activation": ("activation_type",),
        "dropout": ("attn_dropout", "resid_dropout", "embed_dropout"),
        "max_timesteps": ("max_timestep",),
        "actor_lr": ("learning_rate",),
        # the worker makes an optimizer, a scaler and a target of these
        "lr_warmup_steps": ("warmup_steps",),
        "weight_decay": ("weight_decay",),
        "max_gradient_norm": ("clip_grad_norm",),
        "return_scale": ("return_scale",),
        "target_return": ("target_return",),
    },
    held={"timestep_std": 0.02},
    fixed={"position_encoding_type": "simple"},
    differences=(
        "windows: theirs end at a row that is drawn, ours begin at one, as the authors', so that an episode's first "
        "steps are seen less often here, and its last ones there",
        "loss: theirs is a sum over action dimensions and a mean over padded steps too, ours a mean of what there is",
        "normalization of tokens adds 0.003 to variances there, 1e-5 here; timesteps begin at 1 in their acting",
    ),
)

_KEPT: dict[str, Any] = {
    "behavior.steps": 5_000,
    "behavior.cache": True,
    "behavior.cache_megabytes": 2000.0,
    "behavior.refresh_every": None,
}
for _name in ("bcq", "bear"):
    _exact = PEERS[_name]
    PEERS[f"{_name}-fast"] = replace(
        _exact,
        algorithm=_name,
        held={**_exact.held, **_KEPT},
        idle=(),
        differences=(
            "CVAE: trained in every step there, here in 5,000 steps before them (`before` in a row is their time)",
            "its draws: new ones in every step there, here ten in each state of the data, drawn once",
            *_exact.differences,
        ),
    )

_BEAR = PEERS["bear"]
PEERS["bear-put-right"] = replace(  # theirs with the first two differences mended in memory
    _BEAR, algorithm="bear", fixed={**_BEAR.fixed, "put_right": True}, differences=_BEAR.differences[2:]
)

_CQL = PEERS["cql"]
PEERS["cql-fast"] = replace(
    _CQL,
    algorithm="cql",
    held={**_CQL.held, "gradient_actions": 4},
    differences=(
        "gap: its slope goes through all 30 actions there, here through 4 of them, drawn by their weight in it",
        *_CQL.differences,
    ),
)


def our_algorithm(name: str) -> type[Algorithm]:
    """Our algorithm in a comparison."""
    return ALGORITHMS[PEERS[name].algorithm or name]


def our_config(name: str, data: Dataset, sizes: str) -> Any:
    """Our config: the preset for `small` or `paper` sizes, with what d3rlpy has no argument for set to what it does."""
    peer = PEERS[name]
    preset = peer.paper if sizes == "paper" else "small"
    return make_config(our_algorithm(name), preset, data.meta.name, peer.held)


def their_arguments(name: str, config: Any, data: Dataset) -> dict[str, Any]:
    """Their arguments for a config of ours, as JSON can say them; the worker makes encoders and scalers of them."""
    arguments = dict(PEERS[name].fixed)
    for ours, theirs in PEERS[name].same.items():
        value = attrgetter(ours)(config)
        if ours == "reward_scaling" and value:
            returns = data.episode_returns()
            value = [float(returns.min()), float(returns.max())]
        if ours in ("target_return", "return_scale"):
            value = dict(zip(("target_return", "return_scale"), target_and_scale(data, config), strict=True))[ours]
        value = list(value) if isinstance(value, tuple) else value
        for argument in theirs:
            if arguments.setdefault(argument, value) != value:
                raise MildlyError(
                    f"{name}: {ours} is {value}, but d3rlpy's {argument} is {arguments[argument]} already."
                )
    return arguments
