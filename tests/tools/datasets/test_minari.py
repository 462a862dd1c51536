"""Minari's data sets become buffers: what it has written is what is sampled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from asyncrl.core.env import DiscreteSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import END, TERMINATED, TRUNCATED, SegmentConfig
from asyncrl.core.types import Array
from asyncrl.replay.uniform import UniformReplay, UniformReplayConfig
from asyncrl.tools.datasets.minari import find_minari, load_minari, minari_episodes

pytestmark = pytest.mark.filterwarnings("ignore")  # Minari warns of unused metadata


@pytest.fixture(scope="module", autouse=True)
def _minari() -> None:
    """Load it only in the process that runs these tests, with what its collector needs."""
    for name in ("jax", "minari"):
        pytest.importorskip(name)


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


class Walk(gymnasium.Env[Any, Any]):
    """No two steps of it are alike; each episode ends as the next one of its plan says."""

    observation_space: Any = Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, *plan: tuple[int, bool, bool]) -> None:
        """Take the length of each episode, and whether it is terminated, and truncated, there."""
        self._plan = list(plan)
        self._at = 0.0
        self._left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._left, *self._end = self._plan.pop(0)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self._left -= 1
        terminated, truncated = self._end if not self._left else (False, False)
        return self._obs(), self._at / 7 + float(action[0]), terminated, truncated, {}

    def _obs(self) -> Any:
        self._at += 1.0
        return np.array([self._at, self._at / 3], np.float32)


class Stepped(NamedTuple):
    """One step, in values that can be compared."""

    obs: tuple[float, ...]
    action: tuple[float, ...]
    reward: float
    terminated: bool
    truncated: bool
    next_obs: tuple[float, ...]


@pytest.fixture
def collect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    def collect(env: gymnasium.Env[Any, Any], name: str, steps: int = 20) -> Any:
        """Play at random with Minari's own collector around the environment."""
        collector = pytest.importorskip("minari").DataCollector(env)
        env.action_space.seed(0)
        goes_on = False
        for _ in range(steps):
            if not goes_on:
                collector.reset(seed=0)
            *_, terminated, truncated, _ = collector.step(env.action_space.sample())
            goes_on = not (terminated or truncated)
        dataset = collector.create_dataset(name)
        collector.close()
        return dataset

    return collect


class Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Notes what happens, below the collector."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.seen: list[Stepped] = []
        self._obs: Any = None

    def reset(self, **arguments: Any) -> tuple[Any, Any]:
        self._obs, info = super().reset(**arguments)
        return self._obs, info

    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        obs, reward, terminated, truncated, _ = outcome
        self.seen.append(stepped(self._obs, action, reward, terminated, truncated, obs))
        self._obs = obs
        return outcome


def stepped(
    obs: Any, action: Any, reward: Any, terminated: Any, truncated: Any, next_obs: Any
) -> Stepped:
    return Stepped(
        tuple(obs.tolist()),
        tuple(action.tolist()),
        float(np.float32(reward)),
        bool(terminated),
        bool(truncated),
        tuple(next_obs.tolist()),
    )


def stored(buffer: Any) -> list[Stepped]:
    """Return every transition of a replay, in the order in which they were lived."""
    assert isinstance(buffer, UniformReplay)
    state, sampled = buffer.state(), buffer.schema.sampled
    obs, action, reward, flags = (
        state[f"column/{name}"] for name in ("obs", "action", "reward", "flags")
    )
    return sorted(
        stepped(
            obs[k, row],
            action[k, row],
            reward[k, row],
            flags[k, row] & TERMINATED,
            flags[k, row] & TRUNCATED,
            obs[k, row + 1],
        )
        for k in range(len(flags))
        for row in range(sampled.start, sampled.stop)
        if flags[k, row] < END
    )


def at(spec: Any, packed: Array) -> Array:
    assert isinstance(spec.observation, PackedSpec)
    found: Array = spec.observation.unpack(packed)["at"][:, 0]
    return found


@pytest.mark.parametrize("terminates", [True, False])
def test_fields_ends_and_choices_are_unchanged(
    collect: Callable[..., Any], terminates: bool
) -> None:
    collect(Corridor(terminates=terminates), "test/corridor-v0")
    buffer, spec = load_minari("test/corridor-v0", UniformReplayConfig(capacity=3000), seed=0)
    assert spec.action == DiscreteSpec(3, start=2)
    assert len(buffer) == 20
    batch = buffer.sample(400)
    obs, next_obs = at(spec, batch["obs"]), at(spec, batch["next_obs"])
    assert set(obs.tolist()) == {first + k for first in (10, 20, 30, 40) for k in range(5)}
    np.testing.assert_array_equal(next_obs, obs + 1)
    np.testing.assert_array_equal(batch["reward"], batch["action"] + 2)  # choices count from 0
    ends = obs % 10 == 4
    expected = np.where(ends & terminates, 0.0, 0.99)
    np.testing.assert_allclose(batch["discount"], expected.astype(np.float32))


def test_what_the_collector_saw_is_what_is_stored(collect: Callable[..., Any]) -> None:
    """Terminated, truncated, both at once, and left in the middle, longer than a segment or not."""
    env = Watched(
        Walk(
            (5, True, False), (11, False, True), (1, True, False), (3, True, True), (9, True, False)
        )
    )
    collect(env, "test/walk-v0", steps=5 + 11 + 1 + 3 + 4)
    assert [(s.terminated, s.truncated) for s in env.seen if s.terminated or s.truncated] == [
        (True, False),
        (False, True),
        (True, False),
        (True, True),
    ]
    segment = SegmentConfig(length=4)
    replay = UniformReplayConfig(capacity=3000)
    buffer, _ = load_minari("test/walk-v0", replay, segment=segment, seed=0)
    expected = [
        # A terminated episode has no future, even if truncated as well; where recording stopped,
        # it is cut.
        step._replace(truncated=(step.truncated and not step.terminated) or step is env.seen[-1])
        for step in env.seen
    ]
    assert stored(buffer) == expected


@pytest.mark.usefixtures("collect")
def test_recording_that_continues_after_an_end_is_several_episodes() -> None:
    pytest.importorskip("minari").create_dataset_from_buffers(
        "test/whole-v0",
        [
            pytest.importorskip("minari.data_collector").EpisodeBuffer(
                id=0,
                observations={"at": np.arange(7.0)[:, None], "side": np.arange(7) % 2},
                actions=np.array([2, 3, 4, 2, 3, 4]),
                rewards=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
                terminations=[False, True, False, False, False, False],
                truncations=[False, False, False, True, False, False],
            )
        ],
        observation_space=Corridor.observation_space,
        action_space=Corridor.action_space,
    )
    first, second, third = minari_episodes(find_minari("test/whole-v0"))
    assert [each.terminated for each in (first, second, third)] == [True, False, False]
    assert [each.rewards.tolist() for each in (first, second, third)] == [[0, 1], [2, 3], [4, 5]]
    assert [each.actions.tolist() for each in (first, second, third)] == [[0, 1], [2, 0], [1, 2]]
    observations: Any = second.observations
    assert observations["at"][:, 0].tolist() == [2, 3, 4]
    buffer, spec = load_minari("test/whole-v0", UniformReplayConfig(capacity=3000), seed=0)
    batch = buffer.sample(200)
    obs = at(spec, batch["obs"])
    np.testing.assert_array_equal(at(spec, batch["next_obs"]), obs + 1)
    np.testing.assert_array_equal(batch["discount"] == 0, obs == 1)


@pytest.mark.usefixtures("collect")
def test_missing_data_set_is_reported() -> None:
    with pytest.raises(ConfigError, match="minari download test/none-v0"):
        load_minari("test/none-v0", UniformReplayConfig(), seed=0)
