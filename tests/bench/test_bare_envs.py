"""The bare loops do what a batch does: the same steps, counted the same way, and nothing else."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from asyncrl.bench.stage_env import play_native, play_plain, turn_batch, turn_native, turn_plain
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array
from asyncrl.envs.batch import PlainBatch
from asyncrl.envs.gym import EnvConfig, frame_skip
from asyncrl.envs.spaces import random_actions
from asyncrl.envs.vector import VectorBatch
from tests.support.fake_envs import TRUNCATING, TellingEnv
from tests.support.fakes import ConstantAgent

OBS = BoxSpec((4,), "float32", np.full(4, -np.inf), np.full(4, np.inf))
SPEC = EnvSpec(OBS, DiscreteSpec(5))
TURNS = 40


def actions_for(turns: int) -> Array:
    return random_actions(SPEC.action, (turns, 2), np.random.default_rng(0))


class Recording(TellingEnv):
    """Keeps what was done to it."""

    def __init__(self, who: int = 0, **how: Any) -> None:
        super().__init__(who, **how)
        self.done: list[Any] = []

    def reset(self, **how: Any) -> Any:
        self.done.append("reset")
        return super().reset(**how)

    def step(self, action: Any) -> Any:
        self.done.append(action)
        return super().step(action)


class Enough(Exception):
    """Ends an endless loop."""


class Until:
    """Notes progress for a number of turns."""

    def __init__(self, turns: int) -> None:
        self.produced: list[int] = []
        self._turns = turns

    def turn(self, produced: int) -> None:
        self.produced.append(produced)
        if len(self.produced) == self._turns:
            raise Enough

    def waiting(self, waiting: bool) -> None: ...

    def finishing(self) -> bool:
        return False


def test_bare_loop_and_batch_do_the_same_to_plain_environments() -> None:
    actions = actions_for(7)
    bare, ours = ([Recording(0), Recording(1)] for _ in range(2))
    turn = turn_plain(bare, actions)
    batch = PlainBatch([lambda: ours[0], lambda: ours[1]], 2)
    step = turn_batch(batch, actions)
    assert [turn() for _ in range(TURNS)] == [step() for _ in range(TURNS)] == [2] * TURNS
    assert [env.done for env in bare] == [env.done for env in ours]
    assert "reset" in bare[0].done[1:], "episodes end within this test"


def test_actions_start_where_the_environment_counts_from() -> None:
    env = Recording()
    env.action_space = gymnasium.spaces.Discrete(5, start=10)
    turn_plain([env], np.array([[3]]))()
    assert env.done[-1] == 13


@pytest.mark.parametrize("start", [None, [3, 5]])
def test_several_choices_at_once_are_taken_as_policies_give_them(start: Any) -> None:
    chosen: list[Any] = []

    class Choosing(TellingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gymnasium.spaces.MultiDiscrete([2, 3], start=start)

        def step(self, action: Any) -> Any:
            chosen.append(action.tolist())
            return super().step(0)

    actions = np.array([[[4, 6]]])
    turn_plain([Choosing()], actions)()
    turn_native(SyncVectorEnv([Choosing], autoreset_mode=AutoresetMode.SAME_STEP), actions)()
    assert chosen == [[4, 6], [4, 6]]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_bare_loop_and_batch_count_the_same_steps_of_a_vector_environment(
    mode: AutoresetMode,
) -> None:
    def vector() -> SyncVectorEnv:
        make = [lambda: TellingEnv(plan=[(3, "T"), (2, "C")]), lambda: TellingEnv(1, TRUNCATING)]
        return SyncVectorEnv(make, autoreset_mode=mode)

    actions = actions_for(5)
    bare, ours = turn_native(vector(), actions), turn_batch(VectorBatch(vector()), actions)
    counted = [bare() for _ in range(TURNS)]
    assert counted == [ours() for _ in range(TURNS)]
    assert (sum(counted) < 2 * TURNS) == (mode is AutoresetMode.NEXT_STEP)


def test_policy_plays_plain_environments() -> None:
    envs = [Recording(0), Recording(1)]
    progress = Until(5)
    with pytest.raises(Enough):
        play_plain(envs, ConstantAgent(4), SPEC, progress)
    assert progress.produced == [2, 4, 6, 8, 10]
    assert envs[1].done == ["reset", 4, 4, 4, "reset", 4, 4]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_policy_plays_a_vector_environment(mode: AutoresetMode) -> None:
    envs = [Recording(0), Recording(1)]
    vector = SyncVectorEnv([lambda: envs[0], lambda: envs[1]], autoreset_mode=mode)
    progress = Until(5)
    with pytest.raises(Enough):
        play_native(vector, ConstantAgent(4), SPEC, progress)
    # The fourth step only resets where a reset takes a separate step.
    fourth = 6 if mode is AutoresetMode.NEXT_STEP else 8
    assert progress.produced == [2, 4, 6, fourth, fourth + 2]
    assert envs[1].done.count(4) == progress.produced[-1] // 2


class Skipping(TellingEnv):
    def __init__(self, skip: object = 5) -> None:
        super().__init__()
        self.frame_skip = skip


class SkippingToo(gymnasium.Wrapper[Any, Any, Any, Any]):
    frame_skip = 1

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.frame_skip = 4


def make_skipping() -> Skipping:
    return Skipping()


def make_skipping_twice() -> gymnasium.Env[Any, Any]:
    return SkippingToo(Skipping(2))


def make_skipping_at_random() -> Skipping:
    return Skipping((2, 5))


@pytest.mark.parametrize(
    ("env_id", "skip"),
    [
        ("CartPole-v1", 1),
        (f"{__name__}:make_skipping", 5),
        (f"{__name__}:make_skipping_twice", 8),
        (f"{__name__}:make_skipping_at_random", 1),
    ],
)
def test_frames_of_an_agent_step_are_those_of_all_layers(env_id: str, skip: int) -> None:
    assert frame_skip(EnvConfig(id=env_id)) == skip


def test_vector_environment_of_no_layers_skips_no_frames() -> None:
    assert frame_skip(EnvConfig(id="CartPole-v1", n_envs=2, vectorization="native")) == 1


def test_robots_and_games_skip_frames() -> None:
    pytest.importorskip("ale_py")
    assert frame_skip(EnvConfig(id="ALE/Pong-v5", n_envs=1)) == 4
    assert frame_skip(EnvConfig(id="ALE/Pong-v5", n_envs=1, kwargs={"frame_skip": 2})) == 2


def test_frames_of_envpools_environments_are_counted() -> None:
    pytest.importorskip("envpool")
    assert frame_skip(EnvConfig(id="envpool:HalfCheetah-v4", n_envs=1)) == 5
    assert frame_skip(EnvConfig(id="envpool:Pong-v5", n_envs=1, kwargs={"frame_skip": 3})) == 3
    assert frame_skip(EnvConfig(id="envpool:CartPole-v1", n_envs=1)) == 1


@pytest.mark.parametrize("play", [play_plain, play_native])
def test_observations_of_several_fields_are_refused(play: Any) -> None:
    spec = EnvSpec(PackedSpec((("camera", OBS), ("pose", OBS))), DiscreteSpec(5))
    native = play is play_native
    env: Any = SyncVectorEnv([TellingEnv]) if native else [TellingEnv()]
    with pytest.raises(ConfigError, match="fields camera, pose; measure"):
        play(env, ConstantAgent(), spec, Until(1))
