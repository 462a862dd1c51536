"""One call learns from what a run has left behind, or from a buffer."""

from __future__ import annotations

import shutil
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
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.checkpoint.resume import Resume
from asyncrl.core.agent import Policy
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.recorder import Record
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.types import Array, Params
from asyncrl.envs.batch import PlainBatch
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.run_services import RecordConfig, SaveConfig
from asyncrl.learner.stop_conditions import MaxEnvSteps, MaxOptSteps
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.files import load_replay
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.sequences import SequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.config import AsyncConfig
from asyncrl.training.offline import OfflineConfig, build_offline_trainer, train_from_data
from asyncrl.training.synchronous import SyncConfig, TrainerConfig, train_sync
from tests.support.helpers import WaitsForSaves

MAKE_ENV = EnvConfig(id="CartPole-v1", n_envs=2).build
REPLAY = UniformReplayConfig(capacity=500)
CONFIG = OfflineConfig(
    seed=3,
    replay=REPLAY,
    batch_size=16,
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
        SyncConfig(replay=REPLAY, trainer=TrainerConfig(warmup_env_steps=190), evaluate=NEVER),
        checkpoint_dir=directory,
        stop=MaxEnvSteps(200),
    )
    return directory


def test_run_that_evaluates_nothing_needs_no_environment(run: Path) -> None:
    with closing(MAKE_ENV()) as env:
        spec = env.spec
    config = replace(CONFIG, evaluate=NEVER)
    result = train_from_data(AGENT, run, spec, config, stop=MaxOptSteps(20))
    assert (result.opt_steps, result.last_score) == (20, None)
    with pytest.raises(ConfigError, match="nothing can be evaluated in an EnvSpec"):
        train_from_data(AGENT, run, spec, CONFIG)


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
    scored = train_from_data(
        AGENT, run, _no_simulator, CONFIG, stop=MaxOptSteps(10), make_evaluator=ConstantEvaluator
    )
    assert scored.best_score == 4.5


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


def test_learns_from_a_runs_checkpoint(run: Path, tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    result = train_from_data(
        AGENT,
        run,
        MAKE_ENV,
        CONFIG,
        stop=MaxOptSteps(20),
        recorder=recorder,
        checkpoint_dir=tmp_path,
    )
    assert (result.env_steps, result.opt_steps) == (0, 20)
    assert result.best_score is not None
    assert recorder.last("eval_reward") == result.last_score
    assert Checkpointer(tmp_path).load("20").meta["opt_steps"] == 20


def test_memories_at_the_beginnings_of_sequences_need_not_be_named(tmp_path: Path) -> None:
    agent = R2D2Config(hidden=(8,), memory_units=4, device="cpu")
    replay = SequenceReplayConfig(capacity=400, sequence_length=4)
    train_sync(
        agent,
        MAKE_ENV,
        SyncConfig(
            replay=replay,
            trainer=TrainerConfig(
                batch_size=4, warmup_env_steps=190, segment=SegmentConfig(length=4)
            ),
            evaluate=NEVER,
        ),
        checkpoint_dir=tmp_path,
        stop=MaxEnvSteps(200),
    )
    config = replace(CONFIG, replay=replay, batch_size=4, evaluate=NEVER)
    assert train_from_data(agent, tmp_path, MAKE_ENV, config, stop=MaxOptSteps(3)).opt_steps == 3


def test_learns_from_a_buffer(run: Path) -> None:
    buffer = load_replay(run, PrioritizedReplayConfig(capacity=500), seed=0)
    result = train_from_data(
        AGENT, buffer, MAKE_ENV, replace(CONFIG, evaluate=NEVER), stop=MaxOptSteps(5)
    )
    assert (result.opt_steps, result.best_score) == (5, None)


def test_evaluated_episodes_are_those_of_other_runs(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []
    reset = PlainBatch.reset

    def watched(env: PlainBatch, seed: int) -> Array:
        seeds.append(seed)
        return reset(env, seed)

    monkeypatch.setattr(PlainBatch, "reset", watched)
    train_from_data(AGENT, run, MAKE_ENV, CONFIG, stop=MaxOptSteps(1))
    assert seeds == [derive_seed(AsyncConfig().evaluate.seed, Role.EVALUATION)]


def test_same_seed_gives_the_same_model(run: Path, tmp_path: Path) -> None:
    models = []
    for name, config in {"a": CONFIG, "b": CONFIG, "c": replace(CONFIG, seed=5)}.items():
        train_from_data(
            AGENT, run, MAKE_ENV, config, stop=MaxOptSteps(5), checkpoint_dir=tmp_path / name
        )
        models.append(Checkpointer(tmp_path / name).load("5").groups["model"])
    same, other = ([np.array_equal(m[k], models[0][k]) for k in m] for m in models[1:])
    assert all(same)
    assert not any(other)


def test_checkpoints_are_kept_as_wanted_and_their_directory_is_ones_own(
    run: Path, tmp_path: Path
) -> None:
    config = replace(CONFIG, save=SaveConfig(interval_opt_steps=2, keep=2), evaluate=NEVER)
    locked: list[str] = []

    class Intrudes(MaxOptSteps):
        """Tries to train into the same directory meanwhile."""

        def update(self, record: Record) -> str | None:
            if not locked:
                locked.append("tried")
                with pytest.raises(ConfigError, match="in use") as refused:
                    train_from_data(
                        AGENT, run, MAKE_ENV, config, stop=MaxOptSteps(1), checkpoint_dir=tmp_path
                    )
                locked.append(str(refused.value))
            return super().update(record)

    train_from_data(
        AGENT,
        run,
        MAKE_ENV,
        config,
        stop=Intrudes(9),
        checkpoint_dir=tmp_path,
        callbacks=[WaitsForSaves(tmp_path)],
    )
    assert len(locked) == 2
    assert Checkpointer(tmp_path).names() == ["8", "9"]


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


@pytest.mark.parametrize("resume", [False, True])
def test_importance_weights_go_on_where_the_run_was(
    run: Path, tmp_path: Path, resume: bool
) -> None:
    replay = PrioritizedReplayConfig(capacity=500, beta=0.4, beta_samples=400)
    config = replace(CONFIG, replay=replay, evaluate=NEVER, save=SaveConfig(replay=False))
    where: Any = {"stop": MaxOptSteps(5), "checkpoint_dir": tmp_path}
    if resume:
        train_from_data(AGENT, run, MAKE_ENV, config, **where)
    with closing(
        build_offline_trainer(AGENT, run, MAKE_ENV, config, **where, resume=resume)
    ) as trainer:
        buffer: Any = trainer.buffer
        assert buffer._priorities.beta == pytest.approx(0.4 + 0.6 * resume * 5 * 16 / 400)


def test_data_of_another_environment_is_refused(run: Path) -> None:
    other = EnvConfig(id="Acrobot-v1").build
    with pytest.raises(ConfigError, match=r"column obs is float32 of shape \(4,\).*\(6,\)"):
        train_from_data(AGENT, run, other, CONFIG, stop=MaxOptSteps(5))


def test_data_without_what_the_agent_asks_for_is_refused(run: Path) -> None:
    asks = replace(AGENT, normalize_reward=True)
    with pytest.raises(ConfigError, match="no column discounted_return"):
        train_from_data(asks, run, MAKE_ENV, CONFIG, stop=MaxOptSteps(5))


def test_agent_without_priorities_is_refused_prioritized_data(run: Path) -> None:
    config = replace(CONFIG, replay=PrioritizedReplayConfig(capacity=500))
    with pytest.raises(ConfigError, match="uniform replay"):
        train_from_data(BCConfig(device="cpu"), run, MAKE_ENV, config, stop=MaxOptSteps(5))


def test_run_may_be_named_in_place_of_its_checkpoints(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "checkpoints")
    stop = MaxOptSteps(1)
    assert train_from_data(AGENT, str(tmp_path), MAKE_ENV, CONFIG, stop=stop).opt_steps == 1


def test_data_with_less_lookahead_names_the_setting(run: Path) -> None:
    config = replace(CONFIG, replay=UniformReplayConfig(capacity=500, n_step=9))
    with pytest.raises(ConfigError, match=r"n_step=9.* reads 9 rows.*; set replay.n_step=\d, or"):
        train_from_data(AGENT, run, MAKE_ENV, config, stop=MaxOptSteps(5))


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        train_from_data(AGENT, tmp_path / "no", MAKE_ENV, CONFIG, stop=MaxOptSteps(5))


def test_replay_that_hands_out_once_is_refused() -> None:
    with pytest.raises(ConfigError, match="TrajectoryQueueConfig samples each transition once"):
        OfflineConfig(replay=TrajectoryQueueConfig())
