"""Environments by name or from a factory of the user's: found, made, counted, and closed."""

from __future__ import annotations

import pickle
import re
import sys
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import AutoresetMode

from asyncrl.core.env import source_of
from asyncrl.core.errors import ConfigError
from asyncrl.envs.batch import PlainBatch
from asyncrl.envs.gym import EnvConfig, make_batch
from asyncrl.envs.vector import VectorBatch
from tests.support.fake_envs import TellingEnv, make_vector_env

PLAIN = "tests.support.fake_envs:make_env"
VECTOR = "tests.support.fake_envs:make_vector_env"
HOMES = "asyncrl.envs.atari", "asyncrl.envs.envpool"


@pytest.mark.parametrize(
    ("vectorization", "episodes", "built"), [("batch", 1000, 64), ("native", 100, 100)]
)
def test_many_episodes_are_played_by_a_bounded_number_of_single_environments(
    vectorization: Any, episodes: int, built: int
) -> None:
    config = EnvConfig(id="CartPole-v1", vectorization=vectorization)
    with closing(config.build_for(episodes)()) as env:
        assert env.n_envs == built, "first states of a vector environment may depend on its size"


@pytest.mark.parametrize(
    ("make", "built"),
    [
        (EnvConfig(id="CartPole-v1", n_envs=2).build, 64),
        (make_batch(TellingEnv, 2), 64),
        (make_batch(partial(make_vector_env, 3, mode=AutoresetMode.SAME_STEP), 3), 3),
        (EnvConfig(id="CartPole-v1", n_envs=2, vectorization="native").build, 2),
        (lambda: PlainBatch(TellingEnv, 2), 2),
    ],
)
def test_environments_for_episodes_are_more_of_the_same_single_ones(make: Any, built: int) -> None:
    with closing(source_of(make).for_episodes(100)()) as env:
        assert env.n_envs == built


def test_arguments_are_laid_over_those_of_any_factory() -> None:
    config = EnvConfig(id=PLAIN, kwargs={"who": 1, "plan": [(5, "T")]}, n_envs=2)
    many = make_batch(TellingEnv, 2)
    factories: list[Any] = [config.build, many, config.build_for(3)]
    factories.append(lambda who=0: PlainBatch(partial(TellingEnv, who), 2))
    for make in factories:
        for changed in (
            source_of(make).with_kwargs({"who": 7}),
            source_of(make).with_kwargs({}).with_kwargs({"who": 7}),
        ):
            env = pickle.loads(pickle.dumps(changed))() if make is not factories[-1] else changed()
            assert env.reset(0)[:, 0].tolist() == [7.0] * env.n_envs
            env.close()
    assert config.kwargs["who"] == 1


@pytest.mark.parametrize("vectorization", ["batch", "native"])
def test_factory_of_a_vector_environment_is_called_once(vectorization: Any) -> None:
    kwargs: dict[str, Any] = {"mode": AutoresetMode.SAME_STEP}
    if vectorization == "batch":
        kwargs["num_envs"] = 5
    env = EnvConfig(id=VECTOR, kwargs=kwargs, n_envs=5, vectorization=vectorization).build()
    assert isinstance(env, VectorBatch)
    assert env.n_envs == 5


def test_vector_factory_decides_how_many_unless_asked_for_more_than_one() -> None:
    assert EnvConfig(id=VECTOR, kwargs={"num_envs": 5}).build().n_envs == 5
    with pytest.raises(ConfigError, match=r"holds 5 environments, but n_envs is 4"):
        EnvConfig(id=VECTOR, kwargs={"num_envs": 5}, n_envs=4).build()
    with pytest.raises(ConfigError, match=r"SyncVectorEnv, not a gymnasium.Env"):
        EnvConfig(id=VECTOR).make_plain()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("NoSuchEnv-v0", r"cannot make environment 'NoSuchEnv-v0': .*NoSuchEnv"),
        ("CartPol-v1", r"cannot make environment 'CartPol-v1': .*CartPole"),
        ("GymV21Environment-v0", r"cannot make environment 'GymV21Environment-v0': .*shimmy"),
        ("tests.support.fake_envs:no_such_factory", r"no_such_factory"),
        (
            "tests.support.fake_envs:TERMINATING",
            r"'tests.support.fake_envs:TERMINATING' is builtins.list, not a f",
        ),
    ],
)
def test_what_cannot_be_made_is_named(env_id: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EnvConfig(id=env_id).build()


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("envpool:Pong-v5", "envpool", "envpool"),
    ],
)
def test_missing_package_is_reported_as_an_extra(
    monkeypatch: pytest.MonkeyPatch, env_id: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # importing it fails, installed or not
    for name in list(sys.modules):
        if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco", *HOMES)):
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=rf"'{env_id}'.*pip install 'asyncrl\[{extra}\]'"):
        EnvConfig(id=env_id).build()


def test_error_of_a_factory_names_it() -> None:
    with pytest.raises(TypeError, match="colour") as raised:
        EnvConfig(id=PLAIN, kwargs={"colour": 1}).build()
    assert raised.value.__notes__ == [f"asyncrl: while making environment '{PLAIN}'"]


def test_error_in_a_known_package_names_versions_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo may be newer than the environments of another package support."""
    packages = r"pip install 'shimmy\[dm-control\]' 'dm-control==[\d.]+' 'mujoco==[\d.]+'"

    def make(_: str, **__: object) -> None:
        raise AttributeError("'MjModel' object has no attribute 'flex_vertedge'")

    monkeypatch.setattr(gymnasium, "make", make)
    with pytest.raises(AttributeError) as raised:
        EnvConfig(id="shimmy:dm_control/cartpole-balance-v0").build()
    assert re.fullmatch(rf"asyncrl: these versions .*{packages}", raised.value.__notes__[1])
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "shimmy", None)
    with pytest.raises(ConfigError, match=rf"shimmy.*\({packages} installs these env"):
        EnvConfig(id="shimmy:dm_control/cartpole-balance-v0").build()


@pytest.mark.parametrize(
    ("env_id", "package"), [("ALE/Pong-v5", "ale_py"), ("envpool:CartPole-v1", "envpool")]
)
def test_what_has_a_vector_form_only_is_evaluated_in_as_many_as_asked_for(
    env_id: str, package: str
) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    config = EnvConfig(id=env_id, n_envs=2)
    assert config.vectorization == "native"
    with pytest.raises(ConfigError, match=r"use env.vectorization=native"):
        config.make_plain()
    env = config.build_for(3)()
    assert env.n_envs == 3
    env.close()
    vector = config.make_vector()
    assert vector.num_envs == 2
    vector.close()


@pytest.mark.parametrize("made", [None, TellingEnv])
def test_factory_that_makes_no_environment_is_refused(made: Any) -> None:
    with pytest.raises(ConfigError, match=r"returned .*return a gymnasium\.Env or"):
        make_batch(lambda: made, 1)()
    with pytest.raises(ConfigError, match=r"returned .*return a gymnasium\.Env or"):
        make_batch(lambda: made, 3)()


def test_make_batch_makes_nothing_before_it_is_called() -> None:
    made: list[TellingEnv] = []

    def factory() -> TellingEnv:
        made.append(TellingEnv(who=len(made)))
        return made[-1]

    make = make_batch(factory, 3)
    assert made == []
    assert make().reset(0)[:, 0].tolist() == [0, 1, 2]
    assert make().n_envs == 3
    assert len(made) == 6
