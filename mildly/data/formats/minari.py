"""Minari's data sets, through the `minari` package: `minari:NAME` for those it has here, or the folder of one.

An episode has one observation more than it has steps, so no row is lost. Observations that are dictionaries (goals,
say) are flattened as gymnasium does it, and so is the environment when a policy is evaluated.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mildly.action_space import ActionSpace
from mildly.data.assemble import Log, Steps
from mildly.data.dataset import Array, Dataset, Meta
from mildly.data.formats.arrays import DAMAGE
from mildly.data.memory import Limit, memory_limit
from mildly.data.options import ImportOptions
from mildly.data.tasks import task_of_env
from mildly.errors import MildlyError

PREFIX = "minari:"
_AT_ONCE = 100  # episodes handed over together, so that a large set is never held whole


def is_folder(path: Path) -> bool:
    """Whether a folder is one of Minari's data sets."""
    return (path / "data" / "metadata.json").is_file() or (path / "data" / "main_data.hdf5").is_file()


def read(source: str | Path, options: ImportOptions) -> Log:
    """A data set that Minari has on this machine, by its name (with the prefix) or by its folder."""
    with _minari(source) as minari:
        if isinstance(source, Path):
            data = minari.MinariDataset(source / "data")
        else:
            try:
                data = minari.load_dataset(source.removeprefix(PREFIX))
            except FileNotFoundError as error:
                name = source.removeprefix(PREFIX)
                raise MildlyError(f"{source}: not on this machine. Get it with: minari download {name}") from error
        notes: list[str] = []
        meta = _meta(data, options, notes, source)
        size = _expected_bytes(data, memory_limit(options.max_memory), str(source))
        log = Log(meta, iter(()), where=str(source), size=size, notes=notes)
        log.steps = _rows(data, source)
    return log


@contextmanager
def _minari(source: str | Path) -> Iterator[ModuleType]:
    try:
        import minari
    except ImportError as error:
        raise MildlyError(f"{source}: Minari's sets need the minari package: pip install 'mildly[minari]'.") from error
    try:
        yield minari
    except (*DAMAGE, AttributeError, AssertionError, IndexError) as error:
        raise MildlyError(f"{source}: not a Minari data set, or damaged ({error}).") from error


def _meta(data: Any, options: ImportOptions, notes: list[str], source: str | Path) -> Meta:
    from gymnasium.spaces import Box

    space = data.action_space
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise MildlyError(f"{source}: its actions are {space}; continuous actions (a flat Box) are needed.")
    env_id = data.env_spec.id if data.env_spec is not None else None
    task = task_of_env(env_id) if env_id else None
    stored = data.storage.metadata
    low, high = stored.get("ref_min_score"), stored.get("ref_max_score")
    if low is None or high is None:
        low, high = (task.reference_min, task.reference_max) if task else (None, None)
        if task:
            notes.append("Minari gives no reference scores for this set; D4RL's for its environment are used.")
    return Meta(
        name=data.spec.dataset_id,
        env_id=env_id,
        action_space=None if options.action_low is not None else _action_space(space, source),
        reference_min=None if low is None else float(low),
        reference_max=None if high is None else float(high),
        source=f"Minari data set {data.spec.dataset_id}",
    )


def _expected_bytes(data: Any, limit: Limit, where: str) -> int | None:
    """What the transitions will take by the shapes that the file claims; an episode is read at once."""
    path = Path(data.storage.data_path) / "main_data.hdf5"
    if not path.is_file():
        return None
    import h5py

    total = 0
    with h5py.File(path, "r") as file:
        for name, episode in file.items():
            sizes = {"": 0}

            def add(inner: str, found: Any, sizes: dict[str, int] = sizes) -> None:
                if isinstance(found, h5py.Dataset):
                    chunk = math.prod(found.chunks or ()) * found.dtype.itemsize
                    sizes[inner] = max(int(found.nbytes), chunk)

            if isinstance(episode, h5py.Group):
                episode.visititems(add)
            limit.check_piece(where, f"'{name}'", sum(sizes.values()))
            total += sum(sizes.values())
            total += sum(size for inner, size in sizes.items() if inner.startswith("observations"))
    return total


def _action_space(space: Any, source: str | Path) -> ActionSpace | None:
    """The bounds that Minari states; none where they are endless."""
    if not np.isfinite([space.low, space.high]).all():
        return None
    try:
        return ActionSpace.of(space.low, space.high)
    except MildlyError as error:
        raise MildlyError(
            f"{source}: the action bounds it states cannot be used: {error} Give others with --action-low and "
            "--action-high."
        ) from error


def _rows(data: Any, source: str | Path) -> Iterator[Steps]:
    """One block an episode."""
    with _minari(source):
        for episode in data.iterate_episodes():
            observations = flattened(data.observation_space, episode.observations)
            steps = len(episode.rewards)
            if len(observations) != steps + 1:
                raise MildlyError(f"{source}: an episode has {len(observations)} observations for {steps} steps.")
            if steps == 0:
                continue
            terminated = np.array(episode.terminations, dtype=bool)
            truncated = np.array(episode.truncations, dtype=bool) & ~terminated
            truncated[-1] |= not terminated[-1]
            yield Steps(
                observations[:-1],
                np.asarray(episode.actions),
                np.asarray(episode.rewards),
                terminated,
                truncated,
                observations[1:],
            )


def flattened(space: Any, values: Any) -> Array:
    """Observations of any nested space as rows of numbers, in the order in which gymnasium flattens that space."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return np.concatenate([flattened(part, values[key]) for key, part in space.spaces.items()], axis=1)
    if isinstance(space, spaces.Tuple):
        return np.concatenate([flattened(part, value) for part, value in zip(space, values, strict=True)], axis=1)
    if not isinstance(space, spaces.Box):
        raise MildlyError(f"observations of the kind {space} are not numbers; only Box spaces can be learned from.")
    return np.asarray(values, dtype=np.float32).reshape(len(values), -1)


def write(dataset: Dataset, name: str) -> None:
    """A Minari data set of this machine, actions in the environment's own units. It is there whole or not at all."""
    with _minari(name) as minari:
        from gymnasium.spaces import Box
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage.datasets_root_dir import get_dataset_path

        try:
            parse_dataset_id(name.removeprefix(PREFIX))
        except (ValueError, TypeError) as error:
            raise MildlyError(f"{name}: Minari's names look like hopper/my-logs-v0, with a version.") from error
        folder = get_dataset_path(name.removeprefix(PREFIX))
        if folder.exists():
            raise MildlyError(f"{name}: exists already. Give another name, or remove it with: minari delete")
        env_id = _available(dataset.meta.env_id)
        space = _own_units(dataset, env_id)
        box = Box(np.array(space.low, np.float32), np.array(space.high, np.float32), dtype=np.float32)
        try:
            _create(minari, dataset, name, _buffers(dataset, name, space), box, env_id)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise MildlyError(f"{name}: cannot be written ({error}).") from error
            raise


def _own_units(dataset: Dataset, env_id: str | None) -> ActionSpace:
    """What -1 and +1 mean: as the set says, or else its environment. Rounded to float32, as Minari keeps actions."""
    from mildly.environments import stored_action_space

    space = dataset.meta.action_space
    if space is None and env_id is not None:
        space = stored_action_space(env_id)
    space = space or ActionSpace.unit(dataset.action_size)
    return ActionSpace.of(np.array(space.low, np.float32), np.array(space.high, np.float32))


def _buffers(dataset: Dataset, name: str, space: ActionSpace) -> Iterator[Any]:
    """The episodes one by one, each with its last next observation behind its observations."""
    from minari.data_collector import EpisodeBuffer

    for i, rows in enumerate(dataset.episodes()):
        joined = dataset.next_observations[rows][:-1], dataset.observations[rows][1:]
        if not np.array_equal(*joined):
            raise MildlyError(
                f"{name}: Minari keeps one observation between two steps, but in episode {i} the next observation "
                "of a row is not the observation of the following one."
            )
        actions = space.from_unit(dataset.actions[rows].astype(np.float64))
        yield EpisodeBuffer(
            id=i,
            observations=np.concatenate([dataset.observations[rows], dataset.next_observations[rows][-1:]]),
            actions=actions.astype(np.float32),
            rewards=dataset.rewards[rows],
            terminations=dataset.terminated[rows],
            truncations=dataset.truncated[rows],
        )


def _create(
    minari: ModuleType, dataset: Dataset, name: str, buffers: Iterator[Any], actions: Any, env_id: str | None
) -> None:
    from gymnasium.spaces import Box

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for an author and the like
        made = minari.create_dataset_from_buffers(
            dataset_id=name.removeprefix(PREFIX),
            buffer=list(islice(buffers, _AT_ONCE)),
            env=env_id,
            observation_space=Box(-np.inf, np.inf, (dataset.observation_size,), np.float32),
            action_space=actions,
            description=dataset.meta.source or None,
        )
        while more := list(islice(buffers, _AT_ONCE)):
            made.update_dataset_from_buffer(more)
        if dataset.meta.reference_min is not None and dataset.meta.reference_max is not None:
            scores = {"ref_min_score": dataset.meta.reference_min, "ref_max_score": dataset.meta.reference_max}
            made.storage.update_metadata(scores)


def _available(env_id: str | None) -> str | None:
    """An environment that can be made here, or none: Minari keeps no other."""
    from mildly.environments import make_env

    if env_id is None:
        return None
    try:
        make_env(env_id).close()
    except MildlyError:
        return None
    return env_id
