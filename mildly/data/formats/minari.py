"""Minari's data sets, through the `minari` package: `minari:NAME` for those it has here, or the folder of one.

An episode has one observation more than it has steps, so no row is lost. Observations that are dictionaries (goals,
say) are flattened as gymnasium does it, and so is the environment when a policy is evaluated.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mildly.action_space import ActionSpace
from mildly.data.assemble import Log, Steps
from mildly.data.dataset import Array, Dataset, Meta
from mildly.data.formats.arrays import DAMAGE
from mildly.data.formats.discrete import watched
from mildly.data.formats.table_file import is_parquet, unpacked_bytes
from mildly.data.memory import Limit, memory_limit
from mildly.data.options import ImportOptions
from mildly.data.scratch import Scratch
from mildly.data.tasks import task_of_env
from mildly.errors import MildlyError
from mildly.files import read_object

PREFIX = "minari:"
_ROOT = "MINARI_DATASETS_PATH"
_MOST_NAME = 300  # letters
_AT_ONCE = 100  # episodes handed over together, so that a large set is never held whole


def is_folder(path: Path) -> bool:
    """Whether a folder is one of Minari's data sets."""
    return (path / "data" / "metadata.json").is_file() or (path / "data" / "main_data.hdf5").is_file()


def is_installed() -> bool:
    """Whether the `minari` package is there."""
    return find_spec("minari") is not None


def read(source: str | Path, options: ImportOptions) -> Log:
    """A data set that Minari has on this machine, by its name (with the prefix) or by its folder."""
    with _minari(source) as minari:
        folder = source / "data" if isinstance(source, Path) else _folder_of(source)
        size = _checked_bytes(folder, memory_limit(options.max_memory), str(source))
        data = minari.MinariDataset(folder)
        notes: list[str] = []
        meta = _meta(data, options, notes, source)
        log = Log(meta, iter(()), where=str(source), size=size, notes=notes)
        stated = None if hasattr(data.action_space, "low") else f"the set's action space is {data.action_space}"
        log.steps = watched(_rows(data, source), "actions", options, notes, stated=stated)
    return log


def _folder_of(source: str) -> Path:
    from minari.storage.datasets_root_dir import get_dataset_path

    name = source.removeprefix(PREFIX)
    folder = Path(get_dataset_path(name)) / "data"
    if not folder.is_dir():
        raise MildlyError(f"{source}: not on this machine. Get it with: minari download {name}")
    return folder


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
    from gymnasium.spaces import Box, Discrete, MultiDiscrete

    space = data.action_space
    if not isinstance(space, Discrete | MultiDiscrete) and not (isinstance(space, Box) and len(space.shape) == 1):
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
        action_space=_action_space(space, source) if isinstance(space, Box) and options.action_low is None else None,
        reference_min=None if low is None else float(low),
        reference_max=None if high is None else float(high),
        source=f"Minari data set {data.spec.dataset_id}",
    )


def _checked_bytes(folder: Path, limit: Limit, where: str) -> int:
    """What the transitions will take by what the files claim, once it is known that Minari may be given the folder.

    Minari trusts its `metadata.json`: where that names no spaces, it makes the environment to ask for them, and so
    imports what the file says; it counts up to any number of episodes; and it takes hours over a very long name.
    """
    described = read_object(folder / "metadata.json")
    for name in ("observation_space", "action_space"):
        if not isinstance(described.get(name), str):
            raise ValueError(f"metadata.json does not say its {name}")
    if len(str(described.get("dataset_id"))) > _MOST_NAME:
        raise ValueError(f"its name has more than {_MOST_NAME} letters")
    kind = described.get("data_format")
    sizes = _hdf5_episodes(folder / "main_data.hdf5", limit) if kind == "hdf5" else _table_episodes(folder)
    episodes = described.get("total_episodes")
    if not isinstance(episodes, int) or not 0 <= episodes <= len(sizes):
        raise ValueError(f"metadata.json speaks of {episodes} episodes, but there are {len(sizes)}")
    for name, (once, _) in sizes.items():
        limit.check_piece(where, f"'{name}'", once)  # an episode is read at once
    return sum(whole for _, whole in sizes.values())


def _hdf5_episodes(path: Path, limit: Limit) -> dict[str, tuple[int, int]]:
    """By episode: its bytes by the shapes that the file claims, without and with next observations."""
    import h5py

    from mildly.data.formats.hdf5_chunks import check_chunks

    found: dict[str, tuple[int, int]] = {}
    with h5py.File(path, "r") as file:
        for name, episode in file.items():
            sizes = {"": 0}

            def add(inner: str, array: Any, sizes: dict[str, int] = sizes) -> None:
                if isinstance(array, h5py.Dataset):
                    chunk = math.prod(array.chunks or ()) * array.dtype.itemsize
                    sizes[inner] = max(int(array.nbytes), chunk)
                    check_chunks(array, limit)

            if isinstance(episode, h5py.Group):
                episode.visititems(add)
            once = sum(sizes.values())
            found[name] = once, once + sum(size for inner, size in sizes.items() if inner.startswith("observations"))
    return found


def _table_episodes(folder: Path) -> dict[str, tuple[int, int]]:
    """The same of a set in Parquet, or in Arrow's own format, of which only the files' sizes are known."""
    found: dict[str, tuple[int, int]] = {}
    for episode in (path for path in folder.iterdir() if path.is_dir()):
        size = sum(unpacked_bytes(path) if is_parquet(path) else path.stat().st_size for path in episode.iterdir())
        found[episode.name] = size, size
    return found


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
                np.asarray(episode.actions).reshape(steps, -1),
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
            with _made_elsewhere(folder, get_dataset_path()):
                _create(minari, dataset, name, _buffers(dataset, name, space), box, env_id)
        except OSError as error:
            raise MildlyError(f"{name}: cannot be written ({error}).") from error


@contextmanager
def _made_elsewhere(folder: Path, root: Path) -> Iterator[None]:
    """Minari writes into a hidden folder of its root; what is new there then gets its name at once."""
    scratch, before = Scratch(root, "minari"), os.environ.get(_ROOT)
    os.environ[_ROOT] = str(scratch.path)
    try:
        yield
        made, place = scratch.path / folder.relative_to(root), folder
        while not place.parent.exists():  # a new namespace comes with its description
            made, place = made.parent, place.parent
        made.rename(place)
    finally:
        scratch.remove()
        del os.environ[_ROOT]
        if before is not None:
            os.environ[_ROOT] = before


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

    for i, rows in enumerate(dataset.segments()):  # Minari knows no gaps
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
