"""Masks of environments become a field of observations, and no run takes a forbidden action."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.errors import ConfigError, EnvironmentFault
from asyncrl.envs.gym import make_batch
from asyncrl.envs.masks import ActionMasks
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.stop_conditions import MaxEnvSteps
from asyncrl.run.run_config import RunConfig
from asyncrl.run.train import train_sync
from tests.support.fake_envs import TellingEnv, make_vector_env


class Strict(gymnasium.Env[Any, Any]):
    """Forbids one action of three in each step, and raises if it is taken; four steps an episode.

    `source` is where the mask is: "info", or "method".
    """

    def __init__(self, source: str = "info", start: int = 0, space: Any = None) -> None:
        self.observation_space = space or Box(0, 5, (1,), np.float32)
        self.action_space = Discrete(3, start=start)
        self._start = start
        self._at = 0
        self._source = source
        if source == "method":
            self.action_masks = self._mask

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = 0
        return self._observe()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._mask()[action - self._start]:
            raise ValueError(f"action {action} is forbidden at {self._at}")
        self._at += 1
        obs, info = self._observe()
        return obs, 1.0, self._at == 4, False, info

    def _mask(self) -> list[bool]:
        return [i != self._at % 3 for i in range(3)]

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        obs: Any = np.array([self._at], np.float32)
        if isinstance(self.observation_space, Dict):
            obs = {"at": obs}
        return obs, {"action_mask": np.array(self._mask(), np.int8)} if (
            self._source == "info"
        ) else {}


def mask_of(env: Any, obs: Any) -> list[list[int]]:
    masks: list[list[int]] = env.spec.observation.unpack(obs)["action_mask"].tolist()
    return masks


@pytest.mark.parametrize("source", ["info", "method"])
def test_mask_follows_the_observation_also_where_episodes_end(source: str) -> None:
    env = make_batch(lambda: ActionMasks(Strict(source)), 2)()
    assert [name for name, _ in env.spec.observation.fields] == ["action_mask", "observation"]  # type: ignore[union-attr]
    assert mask_of(env, env.reset(0)) == [[0, 1, 1]] * 2
    steps = [env.step(np.array([a, a])) for a in (1, 2, 0, 1)]
    assert [mask_of(env, out.obs)[0] for out in steps] == [
        [1, 0, 1],
        [1, 1, 0],
        [0, 1, 1],
        [0, 1, 1],
    ]
    assert steps[3].terminated.all()
    assert mask_of(env, steps[3].final_obs)[0] == [1, 0, 1]
    env.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_masks_of_vector_environments_are_inside_their_observations(mode: AutoresetMode) -> None:
    def make() -> Any:
        return SyncVectorEnv([lambda: ActionMasks(Strict())] * 2, autoreset_mode=mode)

    env = make_batch(make, 2)()
    obs = env.reset(0)
    for _ in range(20):
        action = np.argmax(mask_of(env, obs), axis=1)
        out = env.step(action)
        obs = out.obs
    env.close()


def test_run_in_a_strict_environment_takes_no_forbidden_action() -> None:
    result = train_sync(
        DQNConfig(hidden=(8,), device="cpu"),
        make_batch(lambda: ActionMasks(Strict()), 4),
        RunConfig(trainer=AsyncTrainerConfig(batch_size=8), limiter=RateLimiterConfig(min_size=50)),
        stop=MaxEnvSteps(600),
    )
    assert result.opt_steps > 0
    assert result.last_score == 4.0


class Silent(Strict):
    """Has no mask after the first step."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:4], {})


def test_missing_masks_are_reported() -> None:
    env = make_batch(lambda: ActionMasks(TellingEnv()), 1)()
    with pytest.raises(EnvironmentFault, match=r"info\['action_mask'\] of .* got None"):
        env.reset(0)
    env = make_batch(lambda: ActionMasks(Silent()), 1)()
    env.reset(0)
    with pytest.raises(EnvironmentFault, match=r"one number for each of its 3 actions"):
        env.step(np.array([1]))


def test_what_cannot_be_masked_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a vector environment; wrap each"):
        ActionMasks(make_vector_env())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ActionMasks needs one discrete action"):
        ActionMasks(gymnasium.make("Pendulum-v1"))
    with pytest.raises(ConfigError, match="already have the field 'action_mask'"):
        ActionMasks(ActionMasks(Strict()))
