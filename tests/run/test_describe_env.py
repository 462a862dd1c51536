"""A child process describes environments as building them in this process would."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from asyncrl.core.env import MakeBatchEnv, source_of
from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig, make_batch
from asyncrl.run.describe_env import describe_in_child
from tests.support.fake_envs import ActedEnv, TellingEnv, make_vector_env
from tests.support.fakes import CountingBatch

pytestmark = pytest.mark.processes


class SeesAll(ActedEnv):
    """Has a space of each kind in its observation."""

    def __init__(self, action_space: gym.Space[Any]) -> None:
        super().__init__(action_space)
        self.observation_space = Dict(
            box=Box(np.array([-np.inf, 0]), np.array([1.0, np.inf]), dtype=np.float64),
            pixels=Box(0, 255, (2, 3), np.uint8),
            choices=Tuple((Discrete(3, start=-1), MultiDiscrete([2, 5]), MultiBinary(4))),
        )


class Frames(CountingBatch):
    n_frames = 3


MAKES: list[MakeBatchEnv] = [
    EnvConfig(id="CartPole-v1", n_envs=3, vectorization="native").build,
    EnvConfig(id="tests.support.fake_envs:make_vector_env", n_envs=1).build,
    make_batch(partial(SeesAll, Box(-2, 2, (), np.float32)), n_envs=2),
    make_batch(partial(SeesAll, MultiDiscrete([3, 4])), n_envs=2),
    make_batch(partial(SeesAll, Discrete(3, start=-1)), n_envs=2),
    Frames,
]


@pytest.mark.parametrize("make_env", MAKES)
def test_same_is_seen_as_in_this_process(make_env: MakeBatchEnv) -> None:
    here, there = source_of(make_env).describe(), describe_in_child(make_env, timeout_s=60.0)
    assert there == here
    assert there.spec.action.dtype == here.spec.action.dtype


def noted(directory: str) -> TellingEnv:
    """Make an environment, and a file for it."""
    (Path(directory) / str(time.monotonic_ns())).touch()
    return TellingEnv()


@pytest.mark.parametrize("by", ["config", "factory"])
def test_one_plain_environment_is_made_in_place_of_all(by: str, tmp_path: Path) -> None:
    config = EnvConfig(id=f"{__name__}:noted", kwargs={"directory": str(tmp_path)}, n_envs=16)
    factory = make_batch(partial(noted, str(tmp_path)), n_envs=16)
    make_env = config.build if by == "config" else factory
    assert describe_in_child(make_env, timeout_s=60.0).n_envs == 16
    assert len(list(tmp_path.iterdir())) == 1


def test_wrong_number_is_refused_as_in_an_actor() -> None:
    with pytest.raises(ConfigError, match="holds 3 environments, but n_envs is 4"):
        describe_in_child(make_batch(make_vector_env, n_envs=4), timeout_s=60.0)
    with pytest.raises(ConfigError, match=r"make_env must return a batch of environments, got"):
        describe_in_child(lambda: None, timeout_s=60.0)  # type: ignore[arg-type,return-value]
