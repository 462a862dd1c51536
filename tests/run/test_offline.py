"""One call learns from what a run has left behind, or from a buffer."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl import load_policy
from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.agents.bc import BCConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.iql import IQLConfig
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.checkpoint.resume import Resume
from asyncrl.core.agent import Policy
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.types import Params
from asyncrl.envs.batch import PlainBatch
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig, SaveConfig
from asyncrl.learner.stop_conditions import MaxEnvSteps, MaxOptSteps
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.files import load_replay
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer, train_from_data, train_sync

MAKE_ENV = EnvConfig(id="CartPole-v1", n_envs=2).build
REPLAY = UniformReplayConfig(capacity=500)
CONFIG = RunConfig(
    mode="offline",
    seed=3,
    replay=REPLAY,
    trainer=AsyncTrainerConfig(batch_size=16),
    record=RecordConfig(interval_s=0.0, interval_opt_steps=5),
    evaluate=EvaluationConfig(interval_opt_steps=10, play=EpisodeEvaluatorConfig(episodes=2)),
    save=SaveConfig(),
)
NEVER = EvaluationConfig(where="off")
AGENT = IQLConfig(hidden=(8,), device="cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    train_sync(
        DQNConfig(hidden=(8,), device="cpu"),
        MAKE_ENV,
        RunConfig(replay=REPLAY, limiter=RateLimiterConfig(min_size=190), evaluate=NEVER),
        checkpoint_dir=directory,
        stop=MaxEnvSteps(200),
    )
    return directory


@pytest.mark.behaviour(number=4)
def test_data_of_a_run_needs_no_environment_unless_it_evaluates(run: Path, tmp_path: Path) -> None:
    never, once = replace(CONFIG, evaluate=NEVER), MaxOptSteps(3)
    train_from_data(AGENT, run, _no_simulator, never, stop=once, checkpoint_dir=tmp_path)
    again = train_from_data(AGENT, run, MAKE_ENV, never, stop=once, checkpoint_dir=tmp_path / "2")
    assert again.opt_steps == again.policy.info.version == 3
    assert load_policy(tmp_path).info.version == 3  # nor does what it has saved
    first, second = (Checkpointer(p).load("3").groups["model"] for p in (tmp_path, tmp_path / "2"))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    with pytest.raises(RuntimeError, match="no simulator"):
        train_from_data(AGENT, run, _no_simulator, CONFIG, stop=once)
    with closing(MAKE_ENV()) as env:
        spec = env.spec
    assert train_from_data(AGENT, run, spec, never, stop=once).last_score is None
    with pytest.raises(ConfigError, match="nothing can be evaluated in an EnvSpec"):
        train_from_data(AGENT, run, spec, CONFIG)
    scored = train_from_data(
        AGENT, run, _no_simulator, CONFIG, stop=MaxOptSteps(10), make_evaluator=ConstantEvaluator
    )
    assert scored.best_score == 4.5
    buffer = load_replay(run, PrioritizedReplayConfig(capacity=500), seed=0)
    assert train_from_data(AGENT, buffer, MAKE_ENV, never, stop=once).opt_steps == 3


def test_schedules_count_optimisation_steps(run: Path) -> None:
    agent = replace(AGENT, learning_rate=Schedule.linear(1e-3, 0.0, env_steps=20))
    recorder = MemoryRecorder()
    each = RecordConfig(interval_s=0.0, interval_opt_steps=1)
    config = replace(CONFIG, evaluate=NEVER, record=each)
    train_from_data(agent, run, MAKE_ENV, config, stop=MaxOptSteps(11), recorder=recorder)
    assert recorder.last("agent/learning_rate") == pytest.approx(0.5e-3)


def _no_simulator() -> PlainBatch:
    raise RuntimeError("there is no simulator here")


class ConstantEvaluator:
    """Needs no environment either."""

    def evaluate(self, policy: Policy) -> Evaluation:
        return Evaluation(4.5, {})

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("save_replay", "resume"), [(True, True), (True, "without replay"), (False, True)]
)
def test_resumed_run_continues(
    run: Path, tmp_path: Path, save_replay: bool, resume: Resume
) -> None:
    config = replace(CONFIG, save=SaveConfig(replay=save_replay), evaluate=NEVER)

    def train(name: str, opt_steps: int, *, resume: Resume = False) -> Params:
        result = train_from_data(
            AGENT,
            run,
            MAKE_ENV,
            config,
            stop=MaxOptSteps(opt_steps),
            checkpoint_dir=tmp_path / name,
            resume=resume,
        )
        assert result.opt_steps == opt_steps
        return Checkpointer(tmp_path / name).load(str(opt_steps)).groups["model"]

    whole = train("whole", 12)
    train("parts", 5)
    parts = train("parts", 12, resume=resume)
    is_same = all(np.array_equal(parts[name], whole[name]) for name in whole)
    assert is_same is (save_replay and resume is True)


def test_importance_weights_go_on_where_the_run_was(run: Path, tmp_path: Path) -> None:
    replay = PrioritizedReplayConfig(capacity=500, beta=0.4, beta_samples=400)
    config = replace(CONFIG, replay=replay, evaluate=NEVER, save=SaveConfig(replay=False))
    where: Any = {"stop": MaxOptSteps(5), "checkpoint_dir": tmp_path}
    train_from_data(AGENT, run, MAKE_ENV, config, **where)
    trainer = build_trainer(config, agent=AGENT, env=MAKE_ENV, data=run, **where, resume=True)
    with closing(trainer):
        buffer: Any = trainer.source.buffer
        assert buffer._priorities.beta == pytest.approx(0.4 + 0.6 * 5 * 16 / 400)


@pytest.mark.parametrize(
    ("agent", "replay", "env", "names"),
    [
        (AGENT, REPLAY, "Acrobot-v1", r"obs is float32 of shape \(4,\).*\(6,\)"),
        (replace(AGENT, normalize_reward=True), REPLAY, "CartPole-v1", "discounted_return"),
        (BCConfig(device="cpu"), PrioritizedReplayConfig(), "CartPole-v1", "uniform replay"),
        (AGENT, UniformReplayConfig(n_step=9), "CartPole-v1", r"n_step=9.* set replay.n_step=\d"),
    ],
)
def test_data_that_does_not_fit_names_what(
    run: Path, agent: Any, replay: Any, env: str, names: str
) -> None:
    config = replace(CONFIG, replay=replace(replay, capacity=500))
    with pytest.raises(ConfigError, match=names):
        train_from_data(agent, run, EnvConfig(id=env).build, config, stop=MaxOptSteps(5))


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        train_from_data(AGENT, tmp_path / "no", MAKE_ENV, CONFIG, stop=MaxOptSteps(5))


def test_replay_that_hands_out_once_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TrajectoryQueueConfig samples each transition once"):
        build_trainer(
            RunConfig(mode="offline", replay=TrajectoryQueueConfig()),
            agent=AGENT,
            env=MAKE_ENV,
            data=tmp_path,
        )
