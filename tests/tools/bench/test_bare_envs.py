"""The bare loops do what a batch does: the same steps, counted the same way, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.types import Array
from asyncrl.envs.batch import PlainBatch
from asyncrl.envs.spaces import random_actions
from asyncrl.envs.vector import VectorBatch
from asyncrl.tools.bench.stage_env import (
    play_native,
    play_plain,
    turn_batch,
    turn_native,
    turn_plain,
)
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


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_policy_plays(mode: AutoresetMode | None) -> None:
    envs, progress = [Recording(0), Recording(1)], Until(5)
    played: Any = envs
    if mode is not None:
        played = SyncVectorEnv([lambda: envs[0], lambda: envs[1]], autoreset_mode=mode)
    with pytest.raises(Enough):
        (play_native if mode else play_plain)(played, ConstantAgent(4), SPEC, progress)
    # The fourth step only resets where a reset takes a separate step.
    fourth = 6 if mode is AutoresetMode.NEXT_STEP else 8
    assert progress.produced == [2, 4, 6, fourth, fourth + 2]
    assert envs[1].done.count(4) == progress.produced[-1] // 2
