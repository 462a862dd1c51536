"""Minari's data sets become buffers: what it has written is what is sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from asyncrl.datasets.minari import load_minari, minari_episodes, minari_spec
from asyncrl.env import DiscreteSpec, PackedSpec
from asyncrl.errors import ConfigError
from asyncrl.replay_buffers.uniform import UniformReplayConfig
from asyncrl.types import Array

minari = pytest.importorskip("minari")
EpisodeBuffer = pytest.importorskip("minari.data_collector").EpisodeBuffer

pytestmark = pytest.mark.filterwarnings("ignore")  # Minari warns of metadata that nobody needs


class Corridor(gymnasium.Env[dict[str, Any], int]):
    """Counts its steps from a number drawn at reset; ends by itself, or is cut, after 5."""

    observation_space = Dict({"at": Box(-100, 100, (1,), np.float64), "side": Discrete(2)})
    action_space: Any = Discrete(3, start=2)

    def __init__(self, *, terminates: bool) -> None:
        self._terminates = terminates
        self._at, self._first = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._first += 10
        self._at = self._first
        return self._obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, Any]:
        assert self.action_space.contains(action)
        self._at += 1
        over = self._at == self._first + 5
        return self._obs(), float(action), over and self._terminates, over, {}

    def _obs(self) -> Any:
        return {"at": np.array([self._at], np.float64), "side": self._at % 2}


@pytest.fixture
def collect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    def collect(env: gymnasium.Env[Any, Any], name: str, steps: int = 20) -> Any:
        return minari.create_dataset_from_buffers(
            name,
            episodes_of(env, steps),
            observation_space=env.observation_space,
            action_space=env.action_space,
        )

    return collect


def episodes_of(env: gymnasium.Env[Any, Any], steps: int) -> list[Any]:
    """Play at random, and return what Minari writes; its collector does so too, but needs jax."""
    episodes: list[Any] = []
    env.action_space.seed(0)
    goes_on = False
    for _ in range(steps):
        if not goes_on:
            obs, _ = env.reset(seed=0)
            episodes.append(EpisodeBuffer(id=len(episodes), observations=[obs], actions=[]))
        action = env.action_space.sample()
        obs, reward, terminated, truncated, _ = env.step(action)
        now = episodes[-1]
        now.observations.append(obs)
        now.actions.append(action)
        now.rewards.append(reward)
        now.terminations.append(terminated)
        now.truncations.append(truncated)
        goes_on = not (terminated or truncated)
    if isinstance(env.observation_space, Dict):
        names = list(env.observation_space)
        for k, each in enumerate(episodes):
            fields = {name: [obs[name] for obs in each.observations] for name in names}
            episodes[k] = replace(each, observations=fields)
    return episodes


def at(spec: Any, packed: Array) -> Array:
    assert isinstance(spec.observation, PackedSpec)
    found: Array = spec.observation.unpack(packed)["at"][:, 0]
    return found


@pytest.mark.parametrize("terminates", [True, False])
def test_fields_ends_and_choices_are_as_they_were(
    collect: Callable[..., Any], terminates: bool
) -> None:
    collect(Corridor(terminates=terminates), "test/corridor-v0")
    buffer, spec = load_minari("test/corridor-v0", UniformReplayConfig(capacity=3000), seed=0)
    assert spec.action == DiscreteSpec(3)
    assert len(buffer) == 20
    batch = buffer.sample(400)
    obs, next_obs = at(spec, batch["obs"]), at(spec, batch["next_obs"])
    assert set(obs.tolist()) == {first + k for first in (10, 20, 30, 40) for k in range(5)}
    np.testing.assert_array_equal(next_obs, obs + 1)
    np.testing.assert_array_equal(batch["reward"], batch["action"] + 2)  # choices count from 0
    ends = obs % 10 == 4
    expected = np.where(ends & terminates, 0.0, 0.99)
    np.testing.assert_allclose(batch["discount"], expected.astype(np.float32))


def test_recording_that_stops_within_an_episode_is_cut_there(collect: Callable[..., Any]) -> None:
    collect(Corridor(terminates=True), "test/cut-v0", steps=8)
    buffer, spec = load_minari("test/cut-v0", UniformReplayConfig(capacity=3000), seed=0)
    batch = buffer.sample(200)
    last = at(spec, batch["obs"]) == 22
    assert last.any()
    assert (batch["discount"][last] > 0).all()


def test_continuous_actions_and_a_filtered_data_set(collect: Callable[..., Any]) -> None:
    dataset = collect(gymnasium.make("Pendulum-v1", max_episode_steps=10), "test/pendulum-v0", 50)
    some = dataset.filter_episodes(lambda episode: episode.id % 2 == 0)
    buffer, spec = load_minari(some, UniformReplayConfig(capacity=3000), seed=0)
    assert len(buffer) == 30
    assert spec == minari_spec(dataset)
    episodes = list(minari_episodes(some))
    assert len(episodes) == 3
    assert not any(each.terminated for each in episodes)
    seen = {row.tobytes() for row in buffer.sample(600)["action"]}
    assert seen == {row.tobytes() for each in episodes for row in each.actions}


@pytest.mark.usefixtures("collect")
def test_missing_data_set_is_said_to_be_missing() -> None:
    with pytest.raises(ConfigError, match="minari download test/none-v0"):
        load_minari("test/none-v0", UniformReplayConfig(), seed=0)
