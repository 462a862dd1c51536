"""A run that is resumed: the same bits where that can be, and counters that go on where not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asyncrl.agent import AgentConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.exploration import EpsilonGreedy
from asyncrl.agents.sac import SACConfig
from asyncrl.agents.schedules import Schedule
from asyncrl.async_config import AsyncConfig, EvaluationConfig
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.checkpoint import Checkpoint, Checkpointer
from asyncrl.env import MakeBatchEnv
from asyncrl.envs.gym import EnvConfig
from asyncrl.errors import CheckpointError, ConfigError
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.replay_buffer import ReplayBufferConfig
from asyncrl.replay_buffers.prioritized import PrioritizedReplayConfig
from asyncrl.replay_buffers.uniform import UniformReplayConfig
from asyncrl.segment import SegmentConfig
from asyncrl.stop_conditions import MaxOptSteps
from asyncrl.train import build_async_trainer, train_async
from asyncrl.train_sync import SyncConfig, train_sync
from asyncrl.trainer import TrainerConfig

EVERY = 40  # optimisation steps between two checkpoints: in the middle of a round
LAST = 200

DQN = DQNConfig(
    hidden=(16,),
    device="cpu",
    exploration=EpsilonGreedy(epsilon=Schedule.linear(1.0, 0.05, 400)),
    threads=1,
)
SAC = SACConfig(hidden=(16,), device="cpu", random_env_steps=150, normalize_reward=True, threads=1)

CASES: dict[str, tuple[AgentConfig, str, ReplayBufferConfig]] = {
    "dqn": (DQN, "CartPole-v1", UniformReplayConfig(capacity=300, n_step=3)),
    "dqn-prioritized": (DQN, "CartPole-v1", PrioritizedReplayConfig(capacity=300, n_step=2)),
    "sac": (SAC, "Pendulum-v1", UniformReplayConfig(capacity=1000)),
}


def same(a: Checkpoint, b: Checkpoint) -> bool:
    """Tell whether two checkpoints hold the same, but for the time that it took."""
    numbers = [{k: v for k, v in c.meta.items() if k not in {"wall_s", "config"}} for c in (a, b)]
    return (
        numbers[0] == numbers[1]
        and a.groups.keys() == b.groups.keys()
        and all(
            a.groups[group].keys() == b.groups[group].keys()
            and all(np.array_equal(v, b.groups[group][k]) for k, v in a.groups[group].items())
            for group in a.groups
        )
    )


def sync_run(case: str, directory: Path, *, resume: bool = False) -> Checkpoint:
    """Train synchronously up to the last step; return the checkpoint of then."""
    agent, env, replay = CASES[case]
    books = BookkeepingConfig(
        eval_interval_opt_steps=90,
        save_interval_opt_steps=EVERY,
        keep_checkpoints=0,
        record_interval_s=0.0,
    )
    config = SyncConfig(
        seed=3,
        replay=replay,
        trainer=TrainerConfig(
            batch_size=16,
            warmup_env_steps=60,
            opt_interval_env_steps=6,
            opt_steps_per_interval=3,
            books=books,
        ),
    )
    train_sync(
        agent,
        EnvConfig(id=env, n_envs=2).build,
        config,
        stop=MaxOptSteps(LAST),
        checkpoint_dir=directory,
        resume=resume,
    )
    return Checkpointer(directory).load(str(LAST))


@pytest.mark.fault("F21")
@pytest.mark.parametrize("case", CASES)
def test_synchronous_run_goes_on_with_the_same_bits(case: str, tmp_path: Path) -> None:
    unbroken = sync_run(case, tmp_path / "unbroken")
    found = Checkpointer(tmp_path / "unbroken").names()
    saved = [name for name in found if name.isdigit() and name != str(LAST)]
    assert saved, "checkpoints from which to go on, as if the run had been killed after them"
    for name in saved:
        cut = tmp_path / name
        cut.mkdir()
        shutil.copytree((tmp_path / "unbroken" / name).resolve(), cut / name)
        assert same(sync_run(case, cut, resume=True), unbroken), f"from {name} on"


def async_config(**books: float) -> AsyncConfig:
    return AsyncConfig(
        actors=2,
        segment=SegmentConfig(length=8),
        replay=UniformReplayConfig(capacity=4000),
        limiter=RateLimiterConfig(samples_per_insert=2.0, min_size=200),
        trainer=AsyncTrainerConfig(
            batch_size=32,
            books=BookkeepingConfig(record_interval_s=0.2, **books),  # type: ignore[arg-type]
        ),
        evaluation=EvaluationConfig(where="off"),
    )


def cartpole() -> MakeBatchEnv:
    return EnvConfig(id="CartPole-v1", n_envs=2).build


@pytest.mark.fault("F21")
@pytest.mark.processes
def test_asynchronous_run_goes_on_counting(tmp_path: Path) -> None:
    first = train_async(
        DQN, cartpole(), async_config(), stop=MaxOptSteps(300), checkpoint_dir=tmp_path
    )
    saved = Checkpointer(tmp_path).load_latest()
    trainer = build_async_trainer(
        DQN,
        cartpole(),
        async_config(),
        stop=MaxOptSteps(500),
        checkpoint_dir=tmp_path,
        resume=True,
    )
    assert trainer.books.counts.opt_steps == 300
    assert (
        len(trainer.proxy.buffer)
        == saved.groups["replay"]["numbers"][2] - (saved.groups["replay"]["numbers"][1])
    )
    assert trainer.agent.record()["exploration_rate"] < 1.0, "epsilon has not begun anew"
    second = trainer.train()
    assert second.opt_steps == 500
    assert second.env_steps > first.env_steps
    assert second.wall_s > first.wall_s
    ledger = second.ledger
    assert ledger["in_flight"] == 0
    assert ledger["produced"] == ledger["stored"] + ledger["dropped"] + ledger["lost"]
    assert ledger["stored"] > first.ledger["stored"]
    assert ledger["lost"] == 0, "the first run ended well, with all its tails stored"
    per_insert = 32 * (500 - 300) / (ledger["stored"] - first.ledger["stored"])
    assert per_insert < 8.0, "the limiter holds the ratio over both parts"
    assert Checkpointer(tmp_path).load_latest().meta["run"]["incarnation"] == 2


@pytest.mark.fault("F21")
@pytest.mark.processes
def test_replay_may_be_left_out_and_is_then_filled_anew(tmp_path: Path) -> None:
    config = async_config(save_replay=False)
    train_async(DQN, cartpole(), config, stop=MaxOptSteps(100), checkpoint_dir=tmp_path)
    assert set(Checkpointer(tmp_path).load_latest().groups) == {"agent", "model"}
    resumed = train_async(
        DQN, cartpole(), config, stop=MaxOptSteps(150), checkpoint_dir=tmp_path, resume=True
    )
    assert resumed.opt_steps == 150


@pytest.mark.fault("F21")
def test_run_does_not_go_on_with_another_agent_or_replay(tmp_path: Path) -> None:
    sync_run("dqn", tmp_path)
    agent, env, replay = CASES["dqn"]
    make_env = EnvConfig(id=env, n_envs=2).build
    wider = replace(DQN, hidden=(32,))
    with pytest.raises(CheckpointError, match="does not fit"):
        train_sync(wider, make_env, checkpoint_dir=tmp_path, resume=True)
    trainer = TrainerConfig(segment=SegmentConfig(length=2), warmup_env_steps=60)
    longer = SyncConfig(trainer=trainer, replay=replay)
    with pytest.raises(CheckpointError, match="does not fit"):
        train_sync(agent, make_env, longer, checkpoint_dir=tmp_path, resume=True)


def test_newest_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    agent, env, replay = CASES["dqn"]
    books = BookkeepingConfig(
        eval_interval_opt_steps=50, save_interval_opt_steps=10, keep_checkpoints=2
    )
    trainer = TrainerConfig(batch_size=16, warmup_env_steps=60, books=books)
    train_sync(
        agent,
        EnvConfig(id=env, n_envs=2).build,
        SyncConfig(trainer=trainer, replay=replay),
        stop=MaxOptSteps(95),
        checkpoint_dir=tmp_path,
    )
    names = Checkpointer(tmp_path).names()
    assert names[-2:] == ["95", "best"]
    assert len(names) == 3, "those between may have been overtaken while another was written"


@pytest.mark.fault("F36")
@pytest.mark.processes
def test_two_runs_do_not_write_to_one_directory(tmp_path: Path) -> None:
    trainer = build_async_trainer(
        DQN, cartpole(), async_config(), stop=MaxOptSteps(20), checkpoint_dir=tmp_path / "x"
    )
    with pytest.raises(ConfigError, match="in use by another run"):
        train_async(DQN, cartpole(), async_config(), checkpoint_dir=tmp_path / "x")
    with pytest.raises(ConfigError, match="in use by another run"):
        sync_run("dqn", tmp_path / "x")
    trainer.train()
    resumed = {"stop": MaxOptSteps(40), "checkpoint_dir": tmp_path / "x", "resume": True}
    assert train_async(DQN, cartpole(), async_config(), **resumed).opt_steps == 40  # type: ignore[arg-type]


@pytest.mark.fault("F35")
@pytest.mark.processes
def test_trainer_that_never_trains_leaves_nothing(tmp_path: Path) -> None:
    build_async_trainer(DQN, cartpole(), async_config(), checkpoint_dir=tmp_path / "x").close()
    assert list(tmp_path.iterdir()) == []
