"""Minari data sets as the content of a replay buffer (extra: `asyncrl[minari]`).

    buffer, spec = load_minari("D4RL/door/human-v2", UniformReplayConfig(capacity=20_000), seed=0)

Reads local data sets and downloads nothing: use `minari download ID` for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from asyncrl.core.env import DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.replay_buffer import ReplayBuffer, ReplayBufferConfig
from asyncrl.core.segment import ColumnSpec, SegmentConfig
from asyncrl.envs.spaces import spec_from_spaces
from asyncrl.tools.datasets.episodes import Episode, Observations, fill_buffer

if TYPE_CHECKING:
    from minari import EpisodeData, MinariDataset


def load_minari(
    dataset: str | MinariDataset,
    replay: ReplayBufferConfig,
    *,
    segment: SegmentConfig | None = None,
    extras: Sequence[ColumnSpec] = (),
    seed: int,
) -> tuple[ReplayBuffer, EnvSpec]:
    """Return a buffer with all episodes of a data set, and the spec of its environment.

    `dataset` is an id or a data set from `minari.load_dataset`, possibly filtered by
    `filter_episodes`. The other arguments are those of `fill_buffer`. An agent that normalises
    rewards needs its `extra_columns(minari_spec(dataset))` as `extras`.
    """
    found = find_minari(dataset) if isinstance(dataset, str) else dataset
    spec = minari_spec(found)
    episodes = minari_episodes(found)
    return fill_buffer(episodes, spec, replay, segment=segment, extras=extras, seed=seed), spec


def find_minari(dataset_id: str) -> MinariDataset:
    """Return the local data set with this id."""
    try:
        import minari  # noqa: PLC0415  # an optional package is loaded when it is asked for
    except ImportError as error:
        raise ConfigError(
            "Minari data sets need the package minari: pip install 'asyncrl[minari]'"
        ) from error
    try:
        return minari.load_dataset(dataset_id)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(
            f"cannot load Minari data set {dataset_id!r}: {error}; `minari list local` lists the "
            f"local ones, and `minari download {dataset_id}` downloads it"
        ) from error


def minari_spec(dataset: MinariDataset) -> EnvSpec:
    """Return the spec of a data set's observations and actions."""
    return spec_from_spaces(dataset.observation_space, dataset.action_space)


def minari_episodes(dataset: MinariDataset) -> Iterator[Episode]:
    """Yield a data set's episodes, each read when it is needed.

    A recording may continue after a step that ended an episode: it is split there.
    """
    discrete = isinstance(minari_spec(dataset).action, DiscreteSpec)
    start = int(dataset.action_space.start) if discrete else 0
    for recording in dataset.iterate_episodes():
        for first, last in _bounds(recording):
            steps = slice(first, last + 1)
            actions = recording.actions[steps]
            yield Episode(
                observations=_cut(recording.observations, slice(first, last + 2)),
                actions=actions - start if start else actions,
                rewards=recording.rewards[steps],
                terminated=bool(recording.terminations[last]),
            )


def _bounds(recording: EpisodeData) -> Iterator[tuple[int, int]]:
    """Yield the first and the last step of each episode; some recordings end without a flag."""
    ends = np.logical_or(recording.terminations, recording.truncations)
    ends[-1:] = True
    first = 0
    for last in ends.nonzero()[0].tolist():
        yield first, last
        first = last + 1


def _cut(observations: Observations, rows: slice) -> Observations:
    if isinstance(observations, Mapping):
        return {name: _cut(part, rows) for name, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_cut(part, rows) for part in observations)
    return observations[rows]
