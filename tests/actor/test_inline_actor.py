"""An actor in the learner's thread: incarnations are counted, and a restored actor is the same."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from asyncrl.actor.inline_actor import InlineActor
from asyncrl.actor.step_processor import OneStep
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, EnvStep
from asyncrl.core.errors import EnvironmentFault
from asyncrl.core.messages import EnvChange
from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.segment import SegmentConfig, make_schema
from asyncrl.core.types import Array, Columns, ModelVersion
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from tests.support.fakes import COUNTING_SPEC, ConstantAgent, CountingBatch

LENGTH = 4
SCHEMA = make_schema(OneStep().columns(COUNTING_SPEC, ()), length=LENGTH, lookahead=1)


class SeededBatch(CountingBatch):
    """Keeps the seeds it was reset with."""

    def __init__(self) -> None:
        super().__init__(n_envs=2, length=3)
        self.seeds: list[int] = []

    def reset(self, seed: int) -> Array:
        self.seeds.append(seed)
        return super().reset(seed)


class Stage:
    def __init__(self, seed: int = 5) -> None:
        self.env = SeededBatch()
        self.buffer = TrajectoryQueueConfig().build(SCHEMA, 0)
        self.actor = InlineActor(
            ConstantAgent(1),
            self.env,
            self.buffer,
            schema=SCHEMA,
            segment=SegmentConfig(length=LENGTH),
            processor=OneStep(),
            seed=seed,
        )

    def live(self, steps: int) -> None:
        self.actor.begin_incarnation()
        for _ in range(steps):
            self.actor.run_step()


def test_all_steps_reach_the_buffer_at_a_cut_with_the_version_that_acted() -> None:
    stage = Stage()
    stage.actor.model_version = ModelVersion(7)
    stage.live(5)
    stage.actor.cut()
    assert stage.actor.env_steps == len(stage.buffer) == 10
    batch = stage.buffer.sample(100)
    assert set(batch["model_version"][batch["mask"]]) == {7}
    assert stage.actor.record()["samples_total"] == 10


N_FRAMES = 4


class Frames:
    """An environment whose observation is its newest frames, numbered through all episodes."""

    n_envs = 1
    spec = EnvSpec(BoxSpec((N_FRAMES, 1), "float32", *np.zeros((2, N_FRAMES, 1))), DiscreteSpec(10))

    def __init__(self, length: int) -> None:
        self._length = length
        self._newest = 0
        self.seen: dict[float, list[float]] = {}
        """Every stack so far, by its newest frame."""

    def reset(self, seed: int) -> Array:
        self._steps = 0
        self._newest += 1
        self._frames = deque([self._newest] * N_FRAMES, maxlen=N_FRAMES)
        return self._look()

    def step(self, action: Array) -> EnvStep:
        self._steps += 1
        self._newest += 1
        self._frames.append(self._newest)
        final = self._look()
        ended = np.array([self._steps >= self._length])
        obs = self.reset(0) if ended.any() else final
        return EnvStep(obs, np.zeros(1, np.float32), ended, np.zeros(1, bool), final)

    def close(self) -> None: ...

    def _look(self) -> Array:
        self.seen[self._newest] = [float(frame) for frame in self._frames]
        return np.array([self._frames], np.float32)[..., None]


def stacks_of(batch: Columns) -> list[list[float]]:
    """Return the stacks of a batch's transitions and of what followed them."""
    mask, obs = batch.get("mask"), batch["obs"][..., 0]
    if mask is None:
        return [*obs.tolist(), *batch["next_obs"][..., 0].tolist()]
    return [*obs[:, :-1][mask].tolist(), *obs[:, 1:][mask].tolist()]


@pytest.mark.parametrize("replay", [TrajectoryQueueConfig(), UniformReplayConfig(capacity=500)])
@pytest.mark.parametrize("interval", [1, 5])
def test_stacks_reach_back_across_a_cut_as_those_that_were_acted_on(
    replay: ReplayBufferConfig, interval: int
) -> None:
    env, processor = Frames(length=9), OneStep(frame_stack=N_FRAMES)
    schema = make_schema(
        processor.columns(env.spec, ()), length=LENGTH, lookahead=1, frame_stack=N_FRAMES
    )
    buffer = replay.build(schema, 0)
    actor = InlineActor(
        ConstantAgent(1),
        env,
        buffer,
        schema=schema,
        segment=SegmentConfig(length=LENGTH),
        processor=processor,
        seed=5,
    )
    actor.begin_incarnation()
    for _ in range(70 // interval):
        for _ in range(interval):
            actor.run_step()
        actor.cut()
    assert len(buffer) == 70
    stacks = stacks_of(buffer.sample(2000))
    assert stacks == [env.seen[stack[-1]] for stack in stacks]
    assert len({stack[-1] for stack in stacks}) == len(env.seen)


def test_restored_actor_continues_with_the_next_incarnation() -> None:
    first, second = Stage(), Stage()
    first.live(5)
    state = first.actor.end_incarnation()
    second.actor.restore(state)
    for stage in (first, second):
        stage.actor.begin_incarnation()
        stage.actor.run_step()
    assert first.env.seeds[-1] == second.env.seeds[-1]
    assert first.actor.env_steps == second.actor.env_steps == 12
    records = [stage.actor.record() for stage in (first, second)]
    for name in ("samples_total", "episodes"):
        assert records[0][name] == records[1][name] > 0


def test_environments_are_checked_after_a_change_too() -> None:
    class Spoiling(CountingBatch):
        def step(self, action: Array) -> EnvStep:
            return super().step(action)._replace(reward=np.full(2, np.nan, np.float32))

    actor = InlineActor(
        ConstantAgent(1),
        SeededBatch(),
        TrajectoryQueueConfig().build(SCHEMA, 0),
        schema=SCHEMA,
        segment=SegmentConfig(length=LENGTH),
        processor=OneStep(),
        seed=5,
        change_env=lambda _: Spoiling,
    )
    actor.begin_incarnation()
    actor.envs.want(EnvChange(number=1))
    for _ in range(3):
        actor.run_step()
    with pytest.raises(EnvironmentFault, match="NaN"):
        actor.run_step()
