"""A run that is resumed: the same bits where that can be, and counters that go on where not."""

from __future__ import annotations

import random
import shutil
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.errors import CheckpointError
from asyncrl.core.segment import SegmentConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import SaveConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer, train_sync
from tests.support import scale
from tests.support.helpers import WaitsForSaves
from tests.support.resumed_runs import (
    CASES,
    DQN_SMALL,
    EPSILON,
    LAST,
    SCHEDULED,
    async_config,
    cartpole,
    dies,
    same,
    sync_run,
)


@pytest.mark.behaviour(number=46)
@pytest.mark.fault("F21")
@pytest.mark.parametrize("case", CASES)
def test_synchronous_run_continues_with_the_same_bits(case: str, tmp_path: Path) -> None:
    unbroken = sync_run(case, tmp_path / "unbroken")
    found = Checkpointer(tmp_path / "unbroken").names()
    saved = [name for name in found if name.isdigit() and name != str(LAST)]
    assert saved, "checkpoints from which to go on, as if the run had been killed after them"
    for name in saved if scale.full else saved[1:2]:
        cut = tmp_path / name
        cut.mkdir()
        for kept in (name, "best"):
            shutil.copytree((tmp_path / "unbroken" / kept).resolve(), cut / kept)
        assert same(sync_run(case, cut, resume=True), unbroken), f"from {name} on"


@pytest.mark.fault("F18", "F21")
@pytest.mark.processes
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", CASES if scale.full else ["dqn-prioritized"])
def test_synchronous_run_that_is_killed_at_any_step_continues_with_the_same_bits(
    case: str, tmp_path: Path
) -> None:
    unbroken = sync_run(case, tmp_path / "unbroken")
    chance = random.SystemRandom() if scale.full else random.Random(case)
    for number in range(7 if scale.full else 1):
        step, killed = chance.randrange(1, LAST), tmp_path / str(number)
        assert dies(case, killed, step) == -signal.SIGKILL
        resume = Checkpointer(killed).latest() is not None
        assert same(sync_run(case, killed, resume=resume), unbroken), f"killed at step {step}"


@pytest.mark.fault("F18", "F21")
@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_asynchronous_run_that_is_killed_again_and_again_continues_counting(tmp_path: Path) -> None:
    chance = random.SystemRandom() if scale.full else random.Random(0)
    for _ in range(20 if scale.full else 1):
        assert dies("asynchronous", tmp_path, chance.randint(45, 120)) == -signal.SIGKILL
    saved = Checkpointer(tmp_path).load_latest()
    stop = MaxOptSteps(saved.count("opt_steps") + 40)
    threads = replace(async_config(), launcher="thread")
    trainer = build_trainer(
        threads, agent=SCHEDULED, env=cartpole(), stop=stop, checkpoint_dir=tmp_path, resume=True
    )
    agent: Any = trainer.agent
    counts, before = trainer.services.counts, saved.meta["run"]["ledger"]
    assert counts.opt_steps == saved.count("opt_steps") > 0
    assert counts.env_steps == saved.count("env_steps")
    assert agent.env_steps == saved.groups["agent"]["env_steps"] > 0
    assert agent.record()["exploration_rate"] == pytest.approx(EPSILON.at(agent.env_steps))
    lost = before["produced"] - before["stored"] - before["dropped"]
    assert asdict(trainer.proxy.ledger.balance()) == {**before, "lost": lost}, "what was in flight"
    ledger = trainer.train().ledger
    assert ledger["stored"] > before["stored"]
    assert ledger["produced"] == ledger["stored"] + ledger["dropped"] + ledger["lost"]


@pytest.mark.fault("F21")
def test_run_does_not_continue_with_another_agent_or_replay(tmp_path: Path) -> None:
    sync_run("dqn", tmp_path)
    agent, env, replay = CASES["dqn"]
    make_env = EnvConfig(id=env, n_envs=2).build
    wider = replace(DQN_SMALL, hidden=(32,))
    with pytest.raises(CheckpointError, match="does not fit"):
        train_sync(wider, make_env, checkpoint_dir=tmp_path, resume=True)
    longer = RunConfig(
        segment=SegmentConfig(length=2), limiter=RateLimiterConfig(min_size=60), replay=replay
    )
    with pytest.raises(CheckpointError, match="does not fit"):
        train_sync(agent, make_env, longer, checkpoint_dir=tmp_path, resume=True)


@pytest.mark.behaviour(number=16)
@pytest.mark.behaviour(number=47)
def test_newest_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    agent, env, replay = CASES["dqn"]
    config = RunConfig(
        trainer=AsyncTrainerConfig(batch_size=16),
        limiter=RateLimiterConfig(min_size=60),
        replay=replay,
        evaluate=EvaluationConfig(interval_opt_steps=50),
        save=SaveConfig(interval_opt_steps=10, keep=2),
    )
    make_env, waits = EnvConfig(id=env, n_envs=2).build, WaitsForSaves(tmp_path)
    parts: Any = {"checkpoint_dir": tmp_path, "callbacks": [waits]}
    train_sync(agent, make_env, config, stop=MaxOptSteps(95), **parts)
    assert Checkpointer(tmp_path).names() == ["90", "95", "best"]
