"""Wrappers by name: parsed before anything is made, applied in order, refused with a sentence."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig
from tests.support.fake_envs import TellingEnv

PLAIN = "tests.support.fake_envs:make_env"
HERE = "tests.envs.test_wrap"
PLUS = f"{HERE}:Plus"


class Plus(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Adds a number, then doubles."""

    def __init__(self, env: Any, number: float = 1.0) -> None:
        super().__init__(env)
        self.number = number

    def observation(self, observation: Any) -> Any:
        return 2.0 * (observation + np.float32(self.number))


class Failing(gymnasium.Wrapper[Any, Any, Any, Any]):
    made: list[Any] = []  # noqa: RUF012  # a fresh list is set by the test

    def __init__(self, env: Any) -> None:
        Failing.made.append(env)
        raise RuntimeError("no such sensor")


def not_an_env(_: Any) -> str:
    return "nothing"


NUMBER = 3


def first_obs(*wrappers: str, **settings: Any) -> Any:
    env = EnvConfig(id=PLAIN, kwargs={"who": 7}, n_envs=2, wrappers=wrappers, **settings).build()
    obs = env.reset(0)
    env.close()
    return obs[:, 0].tolist()


def test_wrappers_are_applied_to_each_environment_the_first_one_innermost() -> None:
    assert first_obs(PLUS) == [16.0, 16.0]
    assert first_obs(f"{PLUS}(number=3)", PLUS) == [42.0, 42.0]
    assert first_obs(f"{PLUS}(number=-0.5)") == [13.0, 13.0]


def test_native_vector_environments_get_wrappers_of_vectors() -> None:
    env = EnvConfig(
        id="tests.support.fake_envs:make_vector_env",
        kwargs={"mode": AutoresetMode.SAME_STEP},
        n_envs=3,
        vectorization="native",
        wrappers=("gymnasium.wrappers.vector:ClipReward(max_reward=2.0)",),
    ).build()
    env.reset(0)
    assert env.step(np.ones(3, np.int64)).reward.tolist() == [2.0, 2.0, 2.0]
    env.close()


@pytest.mark.parametrize(
    "name", ["", f"{PLUS}(3)", f"{PLUS}(number=open('x'))", f"{PLUS}(number=1", f"{PLUS}(**{{}})"]
)
def test_other_texts_are_refused_before_anything_is_made(name: str) -> None:
    with pytest.raises(ConfigError, match=r"env\.wrappers: .*; expected module:name, or"):
        EnvConfig(id=PLAIN, wrappers=(name,))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{HERE}:Plsu", "has no 'Plsu'"),
        ("no_such_package.wrappers:Any", "there is no module 'no_such_package'"),
        (f"{HERE}:NUMBER", "must be a class or a function, got 3"),
        (f"{PLUS}(numbre=3)", "Plus: it has no setting 'numbre'; did you mean number"),
        (f"{HERE}:not_an_env", "returned 'nothing' instead of an environment"),
    ],
)
def test_what_is_no_wrapper_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EnvConfig(id=PLAIN, wrappers=(name,)).build()


def test_environment_of_a_failing_wrapper_is_closed_and_the_wrapper_named() -> None:
    Failing.made = []
    with pytest.raises(RuntimeError, match="no such sensor") as error:
        EnvConfig(id=PLAIN, wrappers=(f"{HERE}:Failing",)).build()
    assert any(f"applying the wrapper '{HERE}:Failing'" in n for n in error.value.__notes__)
    (env,) = Failing.made
    assert isinstance(env, TellingEnv)
    assert env.closed == 1


def test_preprocessed_environments_take_no_wrappers() -> None:
    with pytest.raises(ConfigError, match=r"env\.wrappers is .*is already preprocessed"):
        EnvConfig(id="ALE/Pong-v5", wrappers=(PLUS,))
