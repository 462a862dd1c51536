"""Rounds of collecting and training in asynchronous runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from asyncrl.actor.trajectory_processor import ReturnToGo, Trajectories, TrajectoryConfig
from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.types import Columns
from asyncrl.learner.async_trainer import AsyncTrainer, CollectThenTrain
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig
from asyncrl.learner.stop_conditions import MaxOptSteps, MaxSeconds
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from tests.support.fakes import ConstantConfig, CountingBatch

SETTINGS = RunConfig(
    actors=2,
    launcher="thread",
    segment=SegmentConfig(length=4),
    replay=UniformReplayConfig(capacity=4000),
    limiter=RateLimiterConfig(samples_per_insert=0.0, min_size=20),
    trainer=AsyncTrainerConfig(batch_size=16, sync_interval_opt_steps=1000),
    record=RecordConfig(interval_s=0.05),
    evaluate=EvaluationConfig(where="off", interval_opt_steps=0),
)


class Watched:
    """`CollectThenTrain`, and where a run was when its phases began and ended."""

    def __init__(self, inner: CollectThenTrain) -> None:
        self.inner = inner
        self.seen: list[tuple[int, int, int]] = []

    def note(self, trainer: AsyncTrainer) -> None:
        proxy, counts = trainer.proxy, trainer.services.counts
        self.seen.append((proxy.ledger.env_steps, counts.opt_steps, proxy.limiter.sampled))

    def run(self, trainer: AsyncTrainer) -> None:
        while not trainer.should_stop:
            self.note(trainer)
            self.inner.collect(trainer)
            self.note(trainer)
            self.inner.train(trainer)
        self.note(trainer)


class Counted(Watched):
    def note(self, trainer: Any) -> None:
        self.seen.append((trainer.env_steps, trainer.opt_steps, 0))


def built(strategy: object, stop: int, settings: RunConfig = SETTINGS, **parts: Any) -> Any:
    ends = MaxOptSteps(stop) | MaxSeconds(60)
    parts |= {"agent": ConstantConfig(), "env": CountingBatch, "strategy": strategy, "stop": ends}
    return build_trainer(settings, **parts)


@pytest.mark.behaviour(number=5)
@pytest.mark.processes
def test_rounds_alternate_and_models_are_handed_out_after_each() -> None:
    watched = Watched(CollectThenTrain(env_steps=300, opt_steps=7))
    trainer = built(watched, 21)
    published: list[int] = []
    publish = trainer.source.publish

    def watched_publish() -> None:
        published.append(trainer.services.counts.opt_steps)
        publish()

    trainer.source.publish = watched_publish
    result = trainer.train()
    assert result.opt_steps == 21
    env_steps, opt_steps, sampled = zip(*watched.seen, strict=True)
    assert opt_steps == (0, 0, 7, 7, 14, 14, 21)
    assert sampled == tuple(16 * n for n in opt_steps), "batches are drawn in their own rounds"
    assert published == [0, 7, 14, 21]
    assert all(env_steps[k + 1] - env_steps[k] >= 300 for k in (0, 2, 4))
    assert result.env_steps >= 900


@pytest.mark.behaviour(number=9)
@pytest.mark.processes
def test_returns_of_whole_trajectories_are_in_the_batches() -> None:
    seen: list[Columns] = []
    strategy = CollectThenTrain(env_steps=100, opt_steps=5)
    trainer = built(strategy, 10, make_processor=make_trajectories)
    opt = trainer.agent.opt

    def watched_opt(batch: Columns) -> object:
        seen.append(batch)
        return opt(batch)

    trainer.agent.opt = watched_opt
    result = trainer.train()
    assert result.opt_steps == 10
    terminal = [batch["return_to_go"][batch["discount"] == 0] for batch in seen]
    own = [batch["reward"][batch["discount"] == 0] for batch in seen]
    assert sum(map(len, own)) > 0
    for returns, rewards in zip(terminal, own, strict=True):
        assert returns.tolist() == rewards.tolist()
    assert any((batch["return_to_go"] > batch["reward"]).any() for batch in seen)


def make_trajectories() -> Trajectories:
    return Trajectories(TrajectoryConfig(max_length=50), post_process=ReturnToGo(gamma=1.0))


@pytest.mark.processes
def test_a_limiter_that_stops_actors_ends_collecting_and_nothing_hangs() -> None:
    limiter = RateLimiterConfig(samples_per_insert=2.0, min_size=40)
    strategy = CollectThenTrain(env_steps=10**9, opt_steps=10)
    trainer = built(strategy, 50, replace(SETTINGS, actors=1, limiter=limiter))
    assert trainer.train().opt_steps == 50


@pytest.mark.parametrize("replay", [UniformReplayConfig(capacity=4000), TrajectoryQueueConfig()])
def test_rounds_in_one_process_are_exact(replay: ReplayBufferConfig) -> None:
    watched = Counted(CollectThenTrain(env_steps=30, opt_steps=2))
    limiter = RateLimiterConfig(samples_per_insert=1.0, min_size=20)
    settings = replace(SETTINGS, mode="sync", replay=replay, limiter=limiter)
    result = built(watched, 6, settings).train()
    assert watched.seen[1::2] == [(30, 0, 0), (60, 2, 0), (90, 4, 0)]
    assert (result.env_steps, result.opt_steps) == (90, 6)
