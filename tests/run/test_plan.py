"""Settings that contradict each other are refused before anything is started."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from asyncrl.actor.step_processor import OneStep
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.impala import IMPALAConfig
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import BatchEnv, EnvSpec, source_of
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import EnvChange
from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.segment import ColumnSpec, SegmentConfig
from asyncrl.core.types import MOST_ACTORS, ActorId
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.replay.sequences import SequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.plan import RunPlan, check_run
from asyncrl.run.run_config import EvaluationConfig, Rounds, RunConfig
from asyncrl.run.train import build_trainer, train_async, train_sync
from tests.support.fakes import ConstantConfig, CountingBatch
from tests.support.sample_messages import make_peer

CONFIG = RunConfig(
    actors=3,
    segment=SegmentConfig(length=4),
    replay=UniformReplayConfig(capacity=100, n_step=2),
    limiter=RateLimiterConfig(samples_per_insert=2.0, min_size=10),
    trainer=AsyncTrainerConfig(batch_size=8),
)
ONCE = replace(
    CONFIG, replay=TrajectoryQueueConfig(), limiter=RateLimiterConfig(samples_per_insert=1.0)
)


def plan(config: RunConfig = CONFIG, **parts: Any) -> RunPlan:
    values: dict[str, Any] = {"make_env": CountingBatch} | parts
    agent, world = values.pop("agent", ConstantConfig(action=1)), values.pop("world", 1)
    values["config"] = replace(values.get("config", config), agent=agent)
    check_run(**values)
    return RunPlan(**values, world=world, seen=source_of(values["make_env"]).describe())


class StackingBatch(CountingBatch):
    """Declares that each observation holds two frames."""

    n_frames = 2


def test_stacks_of_frames_are_suggested_where_they_are_stored_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan()
    assert not caplog.messages
    plan(make_env=StackingBatch)
    config = RunConfig(evaluate=EvaluationConfig(where="off"))
    build_trainer(replace(config, mode="sync"), agent=ConstantConfig(), env=StackingBatch).close()
    plan(make_env=StackingBatch, make_processor=OneStep)
    assert ["segment.frame_stack=2" in text for text in caplog.messages] == [True, True]


def test_actor_that_starts_later_begins_with_the_newest_arguments() -> None:
    changes = [EnvChange(number=3, kwargs={"level": 1}), EnvChange()]
    specs = plan().specs(lambda *_, **__: None, lambda: None, None, changes.pop)  # type: ignore[arg-type,return-value]
    first: Any = specs[ActorId(0)](make_peer(0))
    second: Any = specs[ActorId(0)](make_peer(0))
    assert [spec.env_change.number for spec in (first, second)] == [0, 3]


def test_only_the_evaluator_is_let_in_to_evaluate() -> None:
    one = plan(replace(CONFIG, evaluate=EvaluationConfig(where="background")))
    evaluators = set()

    def admit(peer: Any, *, evaluates: bool = False) -> Any:
        if evaluates:
            evaluators.add(peer.actor_id)

    specs = one.specs(admit, lambda: None, None, EnvChange)
    for actor_id, make_spec in specs.items():
        make_spec(make_peer(actor_id))
    assert evaluators == {ActorId(MOST_ACTORS)}


@dataclass(frozen=True)
class RememberingConfig(ConstantConfig):
    """Asks for a column's value at the start of a trajectory."""

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        return (ColumnSpec("memory", "float32", (3,), start=True),)


@pytest.mark.parametrize("named", [(), ("memory",), ("model_version",)])
def test_start_columns_of_the_agent_are_kept_as_such(named: tuple[str, ...]) -> None:
    config = replace(ONCE, replay=TrajectoryQueueConfig(start_columns=named))
    one = plan(config, agent=RememberingConfig())
    buffer, schema = one.build_buffer(), one.schema
    columns = {c.name: np.zeros((2, schema.rows, *c.shape), c.dtype) for c in schema.columns}
    buffer.push(columns, np.full(2, schema.rows))
    batch = buffer.sample(8)
    assert batch["memory"].shape == (2, 3)
    assert batch["model_version"].shape == ((2,) if "model_version" in named else (2, 4))


def test_agent_that_remembers_needs_a_replay_with_beginnings() -> None:
    with pytest.raises(ConfigError, match=r"needs its column 'memory'.*UniformReplayConfig"):
        plan(agent=RememberingConfig())


MISMATCHES: list[tuple[AgentConfig, ReplayBufferConfig, str]] = [
    (PPOConfig(), UniformReplayConfig(), "PPOConfig learns from trajectories, each once, but Unif"),
    (PPOConfig(), UniformReplayConfig(), "use TrajectoryQueueConfig as replay"),
    (IMPALAConfig(), SequenceReplayConfig(), "SequenceReplayConfig returns sequences"),
    (R2D2Config(), TrajectoryQueueConfig(), "use SequenceReplayConfig or PrioritizedSeq"),
    (DQNConfig(), TrajectoryQueueConfig(), "DQNConfig learns from single transitions"),
]


@pytest.mark.parametrize(("agent", "replay", "words"), MISMATCHES)
def test_replay_that_the_agent_cannot_learn_from_is_refused_before_anything_starts(
    agent: AgentConfig, replay: ReplayBufferConfig, words: str
) -> None:
    def unused() -> BatchEnv:
        raise AssertionError("an environment was made")

    with pytest.raises(ConfigError, match=words):
        train_async(agent, CountingBatch, RunConfig(replay=replay))
    with pytest.raises(ConfigError, match=words):
        train_sync(agent, unused, RunConfig(replay=replay))


def test_sequences_are_learned_from_as_often_in_both_modes() -> None:
    config = RunConfig(
        segment=SegmentConfig(length=8),
        replay=SequenceReplayConfig(capacity=2000, sequence_length=4, stride=8),
        limiter=RateLimiterConfig(samples_per_insert=2.0, min_size=10),
        trainer=AsyncTrainerConfig(batch_size=16),
    )
    rounds, limiter = Rounds.of(config), plan(config).limiter
    assert (rounds.opt_interval_env_steps, rounds.opt_steps_per_interval) == (64, 1)
    while limiter.warm_up_left():
        limiter.on_insert(1)
    assert limiter.inserted == rounds.warmup_env_steps == 80
    opts: list[int] = []
    for env_step in range(64 * 30):
        limiter.on_insert(1)
        while limiter.may_sample(16):
            limiter.on_sample(16)
            opts.append(env_step)
    assert np.all(np.diff(opts[-20:]) == 64)
    assert limiter.stride == 8


@pytest.mark.parametrize(
    ("config", "parts", "words"),
    [
        (CONFIG, {"actor_agents": [ConstantConfig()] * 2}, "2 actor_agents were given for 3"),
        (replace(CONFIG, trainer=AsyncTrainerConfig(batch_size=101)), {}, "trainer.batch_size of"),
        (replace(CONFIG, limiter=RateLimiterConfig(min_size=101)), {}, "limiter.min_size of 101"),
        (
            replace(CONFIG, replay=SequenceReplayConfig(capacity=100)),
            {},
            r"limiter.min_size \* replay.stride of 160",
        ),
        (replace(CONFIG, segment=SegmentConfig(length=60)), {}, "one message .* of 120"),
        (
            replace(ONCE, limiter=RateLimiterConfig(samples_per_insert=8.0)),
            {},
            "samples_per_insert must be 1",
        ),
        (replace(ONCE, segment=SegmentConfig(length=9)), {}, "trainer.batch_size of 8 .*length=9"),
        (replace(ONCE, segment=SegmentConfig(length=9)), {"world": 2}, "8 for each of 2 learners"),
        (
            replace(CONFIG, limiter=RateLimiterConfig(min_size=10, band_transitions=1)),
            {},
            "would deadlock",
        ),
    ],
)
def test_contradictions_are_refused(config: RunConfig, parts: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(config, **parts)


def test_what_is_given_is_looked_at_before_anything_else() -> None:
    with pytest.raises(ConfigError, match=r"write ConstantConfig\(\)"):
        plan(agent=ConstantConfig)
    with pytest.raises(ConfigError, match="got 'dqn'"):
        plan(actor_agents=[ConstantConfig(action=1), "dqn", ConstantConfig()])
    with pytest.raises(ConfigError, match="make_env must be a function"):
        plan(make_env=CountingBatch())
