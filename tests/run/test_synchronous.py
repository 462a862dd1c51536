"""One call trains synchronously: what it wires together, and that it is the same each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.actor.step_processor import OneStep, StepProcessor
from asyncrl.actor.trajectory_processor import Trajectories
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.iql import IQLConfig
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.agents.sac import SACConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.agent import PolicyContext
from asyncrl.core.callback import Callback, Training
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.segment import DISCOUNTED_RETURN
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner import run_services, trainer
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig, SaveConfig
from asyncrl.learner.stop_conditions import MaxEnvSteps, MaxOptSteps
from asyncrl.learner.train_result import TrainResult
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.sequences import SequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig, Rounds, RunConfig, inline_segment
from asyncrl.run.train import build_trainer, train_sync
from tests.run.test_inline_source import ScriptedEvaluator
from tests.support.fakes import AskingConfig, ConstantAgent, CountingBatch
from tests.support.helpers import WaitsForSaves
from tests.support.resumed_runs import same

AGENT = DQNConfig(hidden=(8,), device="cpu")
MAKE_ENV = EnvConfig(id="CartPole-v1", n_envs=2).build
CONFIG = RunConfig(
    mode="sync",
    seed=4,
    trainer=AsyncTrainerConfig(batch_size=8),
    limiter=RateLimiterConfig(samples_per_insert=2.0, min_size=40),
    record=RecordConfig(interval_s=0.0, interval_opt_steps=5),
    evaluate=EvaluationConfig(interval_opt_steps=10, play=EpisodeEvaluatorConfig(episodes=2)),
)
UNSCORED = replace(CONFIG, evaluate=EvaluationConfig(where="off"))


def test_terminal_shows_the_progress_unless_there_is_a_recorder_or_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    for silent in (None, MemoryRecorder()):
        train_sync(AGENT, MAKE_ENV, UNSCORED, stop=MaxEnvSteps(30), recorder=silent)
    assert capsys.readouterr().out == ""
    train_sync(AGENT, MAKE_ENV, UNSCORED, stop=MaxEnvSteps(30))
    assert "30 of 30 env steps" in capsys.readouterr().out


def test_loop_can_wait_for_what_it_has_recorded() -> None:
    recorder = MemoryRecorder()
    trainer = build_trainer(
        UNSCORED, agent=AGENT, env=MAKE_ENV, stop=MaxEnvSteps(120), recorder=recorder
    )
    with trainer:
        for batch in trainer.batches():
            trainer.learn(batch)
            assert f"{trainer.opt_steps} opt steps so far" in repr(trainer)
            assert trainer.flush()
            assert len(recorder.records) == (trainer.opt_steps - 1) // 5
    assert recorder.failed is False


def test_saved_replay_can_be_left_out(tmp_path: Path) -> None:
    limiter = replace(UNSCORED.limiter, samples_per_insert=6.0)  # 3 batches for 4 steps
    first = replace(UNSCORED, limiter=limiter, replay=UniformReplayConfig(capacity=500))
    other = replace(first, replay=UniformReplayConfig(capacity=50))

    def train(config: RunConfig, opt_steps: int, **parts: Any) -> TrainResult:
        stop = MaxOptSteps(opt_steps)
        return train_sync(AGENT, MAKE_ENV, config, stop=stop, checkpoint_dir=tmp_path, **parts)

    with pytest.raises(
        ConfigError, match='resume must be True, False, "without replay" or the path'
    ):
        train(first, 31, resume="yes")
    assert train(first, 31).env_steps == 82  # of 84, as a round is not over
    with pytest.raises(CheckpointError, match=r"replay.*without replay.*--no-load-replay"):
        train(other, 34, resume=True)
    after = train(other, 34, resume="without replay")
    assert after.env_steps == 84 + 40, "the next round comes after a warm-up"


def test_resets_count_as_no_steps_of_the_schedules_either() -> None:
    make_env = EnvConfig(id="CartPole-v1", n_envs=2, vectorization="native").build
    trainer = build_trainer(UNSCORED, agent=AGENT, env=make_env, stop=MaxEnvSteps(300))
    trainer.train()
    agent: Any = trainer.agent
    assert trainer.source._actor.table.episodes > 5, "the next step after an episode only resets"
    assert agent.env_steps == trainer.source._actor.env_steps


@pytest.mark.parametrize(
    ("changed", "opt_steps"),
    [({"samples_per_insert": 4.0}, 40), ({"samples_per_insert": 1.0}, 25), ({"min_size": 80}, 30)],
)
def test_change_of_how_often_a_run_learns_applies_from_its_resume_on(
    tmp_path: Path, changed: dict[str, Any], opt_steps: int
) -> None:
    other = replace(UNSCORED, limiter=replace(UNSCORED.limiter, **changed))
    first = train_sync(AGENT, MAKE_ENV, UNSCORED, stop=MaxEnvSteps(120), checkpoint_dir=tmp_path)
    assert first.opt_steps == 20
    stop = MaxEnvSteps(160) | MaxOptSteps(100)
    then = train_sync(AGENT, MAKE_ENV, other, stop=stop, checkpoint_dir=tmp_path, resume=True)
    assert (then.env_steps, then.opt_steps) == (160, opt_steps)


@pytest.mark.parametrize(
    ("agent", "replay", "every"),
    [
        (AGENT, UniformReplayConfig(), 16),
        (SACConfig(), UniformReplayConfig(), 1),
        (IQLConfig(), UniformReplayConfig(), 1),
        (R2D2Config(), SequenceReplayConfig(), 16 * 16),
    ],
)
def test_both_modes_learn_equally_often_by_default(agent: Any, replay: Any, every: int) -> None:
    """As often as the agent's class says, unless the settings do."""
    config = RunConfig(agent=agent, replay=replay)
    assert Rounds.of(config).opt_interval_env_steps == every
    per_insert = config.with_usual_ratio().limiter.samples_per_insert
    assert per_insert == config.trainer.batch_size * getattr(replay, "stride", 1) / every
    own = replace(config, limiter=RateLimiterConfig(samples_per_insert=3.0))
    assert own.with_usual_ratio() == own


def test_rounds_of_an_on_policy_agent_follow_from_the_batch() -> None:
    replay, trainer = TrajectoryQueueConfig(), AsyncTrainerConfig(batch_size=256)
    config = RunConfig(agent=PPOConfig(), replay=replay, trainer=trainer)
    rounds = Rounds.of(config)
    assert (rounds.opt_interval_env_steps, rounds.warmup_env_steps) == (256, 0)
    assert inline_segment(config, n_envs=4).length > 256 / 4, "a segment for each environment"
    assert config.with_usual_ratio().limiter.samples_per_insert == 1


def test_looking_for_threads_that_compute_the_same_bits_changes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for most in (1, 2):
        monkeypatch.setattr(trainer, "most_threads", lambda _, most=most: most)
        train_sync(
            AGENT, MAKE_ENV, CONFIG, stop=MaxEnvSteps(120), checkpoint_dir=tmp_path / str(most)
        )
        states.append(Checkpointer(tmp_path / str(most)).load("20").group("agent"))
    assert {name: array.tobytes() for name, array in states[0].items()} == {
        name: array.tobytes() for name, array in states[1].items()
    }


class Watched(AskingConfig):
    """Builds an agent that can be looked at."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> ConstantAgent:
        built.append(super().build(spec, context))
        return built[-1]


built: list[ConstantAgent] = []


@pytest.mark.parametrize("make_processor", [Trajectories, OneStep, None])
def test_returns_so_far_are_in_the_batches_of_an_agent_that_asks(
    make_processor: Callable[[], StepProcessor] | None,
) -> None:
    # A reward of 10 in each of the second environment's steps, plus the action.
    train_sync(
        Watched(), CountingBatch, CONFIG, stop=MaxEnvSteps(80), make_processor=make_processor
    )
    batches = built.pop().batches
    rows = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    begins = rows["obs"][:, 1] == 0
    assert (rows["reward"][begins] > 0).any()
    assert rows[DISCOUNTED_RETURN][begins].tolist() == rows["reward"][begins].tolist()
    assert (rows[DISCOUNTED_RETURN][~begins] >= rows["reward"][~begins]).all()


def test_checkpoints_stay_where_they_began_if_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    config = replace(UNSCORED, save=SaveConfig(interval_opt_steps=10))
    trainer = build_trainer(
        config, agent=AGENT, env=MAKE_ENV, stop=MaxOptSteps(20), checkpoint_dir=Path("run")
    )
    monkeypatch.chdir(elsewhere)
    trainer.train()
    assert "20" in Checkpointer(tmp_path / "run").names()
    assert not list(elsewhere.iterdir())
    assert not caplog.records


def test_checkpoints_by_time_change_nothing_of_what_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_services, "_WRITE_SHARE", np.inf)  # at each step, whatever a save takes

    class Counts(Callback):
        saves = 0

        def saved(self, trainer: Training, opt_steps: int) -> None:
            self.saves += 1

    counts = Counts()
    for interval_s in (0.0, 1e-9):
        train_sync(
            AGENT,
            MAKE_ENV,
            replace(UNSCORED, save=SaveConfig(interval_opt_steps=20, interval_s=interval_s)),
            stop=MaxOptSteps(50),
            checkpoint_dir=tmp_path / f"{interval_s}",
            callbacks=[counts],
        )
    assert counts.saves > 6, "three in each run, and some by time"
    unsaved, saved = (Checkpointer(tmp_path / run) for run in ("0.0", "1e-09"))
    assert saved.names()[-1] == "50", "a newer one replaces those that wait to be written"
    assert same(unsaved.load("50"), saved.load("50"))


@pytest.mark.behaviour(number=46)
def test_run_branches_off_from_a_chosen_checkpoint_with_a_best_model_of_its_own(
    tmp_path: Path,
) -> None:
    config = replace(CONFIG, save=SaveConfig(interval_opt_steps=10))
    first, branch = tmp_path / "first", tmp_path / "branch"

    def train(*scores: float, **parts: Any) -> TrainResult:
        maker = partial(ScriptedEvaluator, [*scores])
        return train_sync(AGENT, MAKE_ENV, config, make_evaluator=maker, **parts)

    waits = [WaitsForSaves(first)]
    train(9.0, 8.0, 7.0, stop=MaxOptSteps(30), checkpoint_dir=first, callbacks=waits)
    stop, resume = MaxOptSteps(20), first / "10"
    result = train(5.0, stop=stop, checkpoint_dir=branch, resume=resume)
    assert (result.opt_steps, result.best_score, result.best_opt_steps) == (20, 5.0, 20)
    assert Checkpointer(branch).names() == ["20", "best"]
    again, through = (Checkpointer(d).load("20").group("agent") for d in (branch, first))
    assert all(np.array_equal(again[name], through[name]) for name in through)
    with pytest.raises(ConfigError, match="contains checkpoints of an earlier run"):
        train(stop=stop, checkpoint_dir=first, resume=resume)
