"""The comparison with d3rlpy. What needs d3rlpy itself is skipped where `make bench-peers` has not installed it."""

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import make_dataset

from mildly.action_space import ActionSpace
from mildly.algorithms import ALGORITHMS
from mildly.algorithms.config import field_types
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
peers = importlib.import_module("peers")
PEERS = peers.PEERS

NAME = "decision-transformer"
BEARS = ("bear", "bear-put-right")

with_d3rlpy = pytest.mark.skipif(
    not peers.PYTHON.exists(), reason="d3rlpy is not installed in .venv-peers (make bench-peers does it)"
)


def named(name, **meta):
    """The tiny data set under another name."""
    data = make_dataset(**meta)
    return dataclasses.replace(data, meta=dataclasses.replace(data.meta, name=name))


def test_the_baselines_that_both_have_are_compared():
    forms = {"cql-fast", "bcq-fast", "bear-fast", "bear-put-right"}
    assert set(PEERS) == {"bc", "sac", "td3-bc", "cql", "iql", "awac", "bcq", "bear", NAME} | forms
    assert set(map(peers.our_algorithm, PEERS)) < set(ALGORITHMS.values())


@pytest.mark.parametrize("name", PEERS)
def test_every_hyperparameter_of_ours_has_one_place_in_the_table(name):
    peer = PEERS[name]
    placed = [*peer.same, *peer.held, *peer.idle]
    assert sorted(placed) == sorted(field_types(peers.our_algorithm(name).Config))


def test_their_transformer_has_our_sizes_returns_and_rates():
    data = named("pendulum-mixed")
    returns = data.episode_returns()
    arguments = peers.their_arguments(NAME, peers.our_config(NAME, data, "small"), data)
    assert (arguments["encoder_factory"], arguments["num_layers"], arguments["context_size"]) == (64, 2, 10)
    assert arguments["target_return"] == returns.max()
    assert arguments["return_scale"] == abs(returns).max() / 10
    assert {arguments[f"{where}_dropout"] for where in ("attn", "resid", "embed")} == {0.1}
    assert (arguments["learning_rate"], arguments["clip_grad_norm"]) == (1e-3, 0.25)


@pytest.mark.parametrize("name", [name for name in PEERS if name != NAME])
def test_with_small_sizes_both_have_equal_networks_batches_and_rates(name):
    data = load_dataset("pendulum-mixed")
    arguments = peers.their_arguments(name, peers.our_config(name, data, "small"), data)
    assert {tuple(v) for key, v in arguments.items() if key.endswith("encoder_factory")} == {(128, 128)}
    assert arguments["batch_size"] == 128
    assert {v for key, v in arguments.items() if key.endswith("learning_rate")} - {0.0} == {1e-3}


def test_with_the_papers_sizes_their_arguments_are_those_of_the_papers():
    data = named("hopper-medium-recollected")
    returns = data.episode_returns()
    assert peers.their_arguments("iql", peers.our_config("iql", data, "paper"), data) == {
        "batch_size": 256,
        "observation_scaler": False,
        "reward_scaler": [returns.min(), returns.max()],
        "actor_encoder_factory": [256, 256],
        "critic_encoder_factory": [256, 256],
        "value_encoder_factory": [256, 256],
        "actor_optim_factory": 1_000_000,
        "gamma": 0.99,
        "tau": 0.005,
        "actor_learning_rate": 3e-4,
        "critic_learning_rate": 3e-4,
        "weight_temp": 3.0,
        "expectile": 0.7,
        "max_weight": 100.0,
        "n_critics": 2,
    }
    cql = peers.their_arguments("cql", peers.our_config("cql", data, "paper"), data)
    assert cql["actor_encoder_factory"] == [256, 256, 256]
    assert (cql["conservative_weight"], cql["n_action_samples"], cql["alpha_learning_rate"]) == (5.0, 10, 0.0)


def test_two_fields_of_ours_for_one_argument_of_theirs_must_agree():
    data = make_dataset()
    config = dataclasses.replace(peers.our_config("iql", data, "paper"), value_lr=0.5)
    with pytest.raises(MildlyError, match="critic_learning_rate"):
        peers.their_arguments("iql", config, data)


def short(name, data):
    """Our config, with a CVAE that is trained in two steps where it is trained before the others."""
    config = peers.our_config(name, data, "small")
    if not name.startswith(("bcq-", "bear-")):
        return config
    return dataclasses.replace(config, behavior=dataclasses.replace(config.behavior, steps=2))


@pytest.mark.parametrize("name", PEERS)
def test_our_side_takes_its_steps_and_says_how_long(name):
    data = load_dataset("pendulum-mixed")
    ours = peers.Ours(name, short(name, data), data, seed=0)
    before = {key: value.clone() for key, value in ours.learner.state_dict().items()}
    taken = ours.steps(2)
    assert taken["seconds"] > 0
    assert any(not value.equal(before[key]) for key, value in ours.learner.state_dict().items() if key in before)


@pytest.mark.parametrize("sizes", ["small", "paper"])
@pytest.mark.parametrize("name", PEERS)
def test_our_side_has_no_phases_before_the_steps_that_are_compared(name, sizes):
    data = load_dataset("pendulum-mixed")
    config = peers.our_config(name, data, sizes)
    phases = peers.our_algorithm(name)(config, data.observation_size, data.action_size).phases()
    expected = [("behavior model", 5000)] if name in ("bcq-fast", "bear-fast") else []
    assert [(phase.name, phase.steps) for phase in phases] == expected


@pytest.mark.parametrize("name", ["bcq-fast", "bear-fast"])
def test_what_comes_before_our_steps_is_timed_by_itself(name):
    data = load_dataset("pendulum-mixed")
    ours = peers.Ours(name, short(name, data), data, seed=0)
    assert ours.learner.behavior.cache.actions is None
    before = ours.before()
    assert [(part["what"], part["steps"]) for part in before] == [("behavior model", 2), ("kept draws", 1)]
    assert all(part["processor_seconds"] > 0 for part in before)
    kept = ours.learner.behavior.cache.actions
    ours.steps(1)
    assert ours.learner.behavior.cache.actions is kept
    assert ours.learner.behavior.updates == 2


def test_where_theirs_is_the_same_it_is_trained_once():
    data = load_dataset("pendulum-mixed")
    names = ["bcq", "bear-fast", "cql", "bear", "bcq-fast"]
    assert peers.alike(names, data, "small") == [["bcq", "bcq-fast"], ["bear-fast", "bear"], ["cql"]]


def row(seed, ours, theirs):
    """A seed's row in which our blocks take a second and theirs three."""
    sides = {"ours": (ours, 1.0), "theirs": (theirs, 3.0)}
    return {"seed": seed} | {
        side: {
            "returns": scores,
            "scores": scores,
            "rounds": [{"steps": 6, "seconds": seconds, "processor_seconds": 2 * seconds}],
        }
        for side, (scores, seconds) in sides.items()
    }


def test_the_summary_is_of_seeds_and_of_neighboring_blocks():
    found = peers.summary([row(0, [10.0, 12.0], [20.0]), row(1, [13.0], [26.0]), row(2, [9.0], [20.0])])
    assert found["mean"] == {"ours": 11.0, "theirs": 22.0}
    assert found["standard_error_of_difference"] == pytest.approx(np.sqrt((4 + 12) / 3), abs=0.01)
    assert found["not_below"] is False  # 11 lower, which is more than twice 2.31
    assert found["steps_per_second"] == {"ours": 6.0, "theirs": 2.0}
    assert found["speed_ratio"] == 3.0


def test_the_ratio_of_whole_trainings_counts_what_comes_before():
    rows = [row(seed, [1.0], [1.0]) for seed in range(3)]  # 2 s of the processor against 6
    assert "speed_ratio_with_what_comes_before" not in peers.summary(rows)
    for each, seconds in zip(rows, (1.0, 4.0, 2.0), strict=True):
        parts = ("behavior model", "kept draws")
        each["ours"]["before"] = [{"what": part, "steps": 1, "processor_seconds": seconds / 2} for part in parts]
    found = peers.summary(rows)
    assert found["speed_ratio_by_processor_time"] == 3.0
    assert found["speed_ratio_with_what_comes_before"] == 1.5  # the median of 6 / 3, 6 / 6 and 6 / 4


def test_a_difference_within_noise_is_not_below_and_one_seed_tells_nothing():
    assert peers.summary([row(0, [10.0], [11.0]), row(1, [20.0], [22.0])])["not_below"] is True
    assert peers.summary([row(0, [10.0], [11.0])])["not_below"] is None


def test_seeds_join_a_record_that_was_measured_alike_and_replace_any_other():
    entry = {"settings": {"steps": 6}, "data": {}, "configs": {"ours": {"hidden_dims": (8, 8)}}}
    once = peers.merged({}, entry, row(1, [1.0], [1.0]))
    for old in (once, json.loads(json.dumps(once))):  # of this process, or read from the file
        twice = peers.merged(old, entry, row(0, [2.0], [2.0]))
        assert [kept["seed"] for kept in twice["seeds"]] == [0, 1]
    newer = peers.merged(twice, entry, row(0, [2.0], [2.0]) | {"versions": {"ours": "another"}})
    assert [kept["seed"] for kept in newer["seeds"]] == [0]
    again = peers.merged(twice, {**entry, "settings": {"steps": 7}}, row(0, [3.0], [3.0]))
    assert [kept["seed"] for kept in again["seeds"]] == [0]


def test_a_record_is_json_with_a_line_a_seed():
    entry = {"settings": {}, "data": {}, "configs": {}}
    records = {"set": {"bc": peers.merged(peers.merged({}, entry, row(0, [1.0], [1.0])), entry, row(1, [1.0], [1.0]))}}
    text = peers.compact(records)
    assert json.loads(text) == records
    assert sum(line.lstrip().startswith('{"seed"') for line in text.splitlines()) == 2


def test_the_table_has_a_line_for_each_algorithm_and_marks_what_is_below():
    entry = {"settings": {}, "data": {}, "configs": {}}
    low = peers.merged(peers.merged({}, entry, row(0, [1.0], [9.0])), entry, row(1, [2.0], [9.0]))
    lines = peers.table({"bc": peers.merged({}, entry, row(0, [1.0], [2.0])), "iql": low}).splitlines()
    assert lines[1].split() == ["bc", "1", "1.0", "2.0", "6.0", "2.0", "3.00"]
    assert lines[2].split() == ["iql", "2", "1.5", "9.0", "0.5", "6.0", "2.0", "3.00", "below"]


def test_without_d3rlpy_the_command_says_what_to_do(tmp_path, capsys, monkeypatch):
    out = tmp_path / "peers.json"
    monkeypatch.setattr(sys, "argv", ["peers.py", "--python", str(tmp_path / "none"), "--out", str(out)])
    assert peers.main() == 2
    assert "make bench-peers" in capsys.readouterr().err
    assert not out.exists()


def test_their_actions_are_scaled_to_the_environments_units():
    class Fixed:
        def ask(self, do, observations):
            return {"actions": [[-1.0, 1.0], [0.0, 0.0]]}

    meta = dataclasses.replace(make_dataset().meta, action_space=ActionSpace((-2.0, 0.0), (4.0, 1.0)))
    found = peers.TheirPolicy(Fixed(), meta).act(np.zeros((2, 3), np.float32))
    np.testing.assert_allclose(found, [[-2.0, 1.0], [1.0, 0.5]])


@pytest.fixture
def d3rlpy(tmp_path):
    """d3rlpy in its process."""
    theirs = peers.Theirs(peers.PYTHON, tmp_path)
    yield theirs
    theirs.close()


@with_d3rlpy
def test_d3rlpy_takes_the_tables_arguments_and_no_default_of_its_own_slips_in(d3rlpy, tmp_path):
    data = load_dataset("pendulum-mixed")
    d3rlpy.load(data, tmp_path)
    for name, peer in PEERS.items():
        arguments = peers.their_arguments(name, peers.our_config(name, data, "small"), data)
        built = d3rlpy.ask("build", config=peer.config, arguments=arguments, seed=0)["config"]
        plain = {key: value for key, value in built.items() if not isinstance(value, dict)}
        assert set(plain) - set(arguments) <= {"compile_graph", "gamma"}  # BC has no use for a discount
        assert all(arguments[key] == value for key, value in plain.items() if key in arguments)
        assert d3rlpy.ask("steps", count=1, fit=name == "bc")["seconds"] > 0
        remembers = name == "decision-transformer"
        if remembers:
            d3rlpy.ask("begin", episodes=1)
        episode = {"rows": [0], "rewards": [0.0]} if remembers else {}
        assert np.shape(d3rlpy.ask("act", observations=[[1.0, 0.0, 0.0]], **episode)["actions"]) == (1, 1)
    with pytest.raises(MildlyError, match="NoSuchConfig"):
        d3rlpy.ask("build", config="NoSuchConfig", arguments={}, seed=0)


@with_d3rlpy
@pytest.mark.slow
def test_the_command_records_blocks_and_episodes_of_both(tmp_path, monkeypatch):
    out = tmp_path / "peers.json"
    flags = ["--steps", "3", "--rounds", "2", "--episodes", "2", "--seeds", "0", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["peers.py", *flags])
    assert peers.main() == 0
    record = json.loads(out.read_text())["pendulum-mixed, small"]
    assert list(record) == list(PEERS)
    for entry in record.values():
        for side in ("ours", "theirs"):
            assert [block["steps"] for block in entry["seeds"][0][side]["rounds"]] == [2, 1]
            assert len(entry["seeds"][0][side]["returns"]) == 2


@with_d3rlpy
def test_d3rlpy_holds_exactly_our_transitions(tmp_path):
    """With a terminal, a time-out and a step that the data skip."""
    observations = np.arange(14, dtype=np.float32).reshape(7, 2)
    following = observations + 2
    following[2] = 50  # a time-out in row 2, whose next observation is not that of row 3
    following[5] = 60  # rows 5 and 6 do not follow each other, though no episode ends
    flags = {"terminated": np.arange(7) == 4, "truncated": np.isin(np.arange(7), [2, 6])}
    columns = {"actions": observations[:, :1] / 20, "rewards": observations[:, 0], "next_observations": following}
    np.savez(tmp_path / "data.npz", observations=observations, **columns, **flags)
    code = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import peer_worker
worker = peer_worker.Worker()
assert worker.load({str(tmp_path / "data.npz")!r}) == {{"transitions": 7}}
buffer = worker.buffer
for i in range(7):
    t = buffer.transition_picker(*buffer.buffer[i])
    print(*t.observation, t.action[0], t.reward[0], *t.next_observation, t.terminal, file=sys.stderr)
"""
    done = subprocess.run([str(peers.PYTHON), "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    held = np.array([[float(x) for x in line.split()] for line in done.stderr.splitlines()[-7:]])
    following[4] = 0  # never used after a terminal state, and d3rlpy keeps none
    expected = np.column_stack([observations, columns["actions"], columns["rewards"], following, flags["terminated"]])
    np.testing.assert_allclose(held, expected, rtol=1e-6)


@with_d3rlpy
def test_the_bear_that_is_put_right_squashes_where_it_is_asked_to_and_feels_its_constraint():
    data = load_dataset("pendulum-mixed")
    arguments = {name: peers.their_arguments(name, peers.our_config(name, data, "small"), data) for name in BEARS}
    assert arguments["bear-put-right"] == arguments["bear"] | {"put_right": True}
    code = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import d3rlpy, peer_worker, numpy as np, torch
columns = {{name: np.random.default_rng(0).uniform(-0.9, 0.9, (20, n)) for name, n in zip("oar", (3, 1, 1))}}
buffer = d3rlpy.dataset.create_infinite_replay_buffer(
    [d3rlpy.dataset.Episode(*(column.astype(np.float32) for column in columns.values()), terminated=True)]
)
worker = peer_worker.Worker()
worker.buffer = buffer
for right in (False, True):
    worker.build("BEARConfig", {{"put_right": right, "batch_size": 8}}, 0)
    impl = worker.algorithm.impl
    decoder, x = impl.modules.vae_decoder, torch.zeros(1, 3)
    decoder._fc.bias.data.fill_(5.0)
    decoded = [decoder(x, torch.zeros(1, 2), with_squash=asked).item() > 1 for asked in (True, False)]
    batch = d3rlpy.torch_utility.TorchMiniBatch.from_batch(
        buffer.sample_transition_batch(8), gamma=0.99, compute_returns_to_go=False, device="cpu"
    )
    norms = []
    for weight in (1e-9, 100.0):
        impl.modules.log_alpha._parameter.data.fill_(float(np.log(weight)))
        torch.manual_seed(0)
        impl.compute_actor_grad(batch)
        norms.append(float(sum(p.grad.square().sum() for p in impl.modules.policy.parameters())))
    feels = abs(norms[1] / norms[0] - 1) > 0.01
    assert (decoded, feels) == ([not right, right], right), (right, decoded, norms)
"""
    done = subprocess.run([str(peers.PYTHON), "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
