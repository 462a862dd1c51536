"""Small runs that are resumed, and killed at a step of one's choice.

What tests compare: the final checkpoint of an unbroken synchronous run, and
what an asynchronous run was restored to.

    python -m tests.support.resumed_runs asynchronous|CASE DIRECTORY KILL_AFTER_OPT_STEPS
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.agents.dqn import DQNAgent, DQNConfig
from asyncrl.agents.parts.exploration import EpsilonGreedy
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.agents.sac import SACConfig
from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import MakeBatchEnv
from asyncrl.core.recorder import Record
from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.segment import SegmentConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.async_trainer import AsyncTrainer, AsyncTrainerConfig
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig, SaveConfig
from asyncrl.learner.stop_conditions import MaxOptSteps, StopCondition
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.training.asynchronous import build_async_trainer
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.config import AsyncConfig
from asyncrl.training.synchronous import SyncConfig, TrainerConfig, train_sync
from tests.support import warm

EVERY = 40
"""Optimisation steps between two checkpoints: in the middle of a round."""

LAST = 200

Numbers = Mapping[str, Any]

_DEADLINE_S = 100.0

DQN_SMALL = DQNConfig(
    hidden=(16,),
    device="cpu",
    exploration=EpsilonGreedy(epsilon=Schedule.linear(1.0, 0.05, 400)),
    threads=1,
)
_SAC = SACConfig(
    hidden=(16,),
    device="cpu",
    random_env_steps=150,
    noise_correlation_env_steps=5.0,
    normalize_reward=True,
    threads=1,
)

CASES: Mapping[str, tuple[AgentConfig, str, ReplayBufferConfig]] = {
    "dqn": (DQN_SMALL, "CartPole-v1", UniformReplayConfig(capacity=300, n_step=3)),
    "dqn-prioritized": (DQN_SMALL, "CartPole-v1", PrioritizedReplayConfig(capacity=300, n_step=2)),
    "sac": (_SAC, "Pendulum-v1", UniformReplayConfig(capacity=1000)),
}
"""Of synchronous runs: agent, environment and replay."""

_EPSILON = Schedule.linear(1.0, 0.05, 50_000)
_LEARNING_RATE = Schedule.linear(2e-3, 1e-4, 50_000)
_SCHEDULED = DQNConfig(
    hidden=(16,),
    device="cpu",
    exploration=EpsilonGreedy(epsilon=_EPSILON),
    learning_rate=_LEARNING_RATE,
    threads=1,
)
"""Schedules so slow that a run is always on their way."""


class DiesAt(StopCondition):
    """Stops a run at its last step, or kills it with SIGKILL at one before."""

    def __init__(self, dies_at: float) -> None:
        self._dies_at, self._ends = dies_at, MaxOptSteps(LAST)

    def update(self, record: Record) -> str | None:
        if float(record.get("opt_steps", 0)) >= self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._ends.update(record)

    def reset(self) -> None:
        self._ends.reset()

    def limits(self) -> Mapping[str, float]:
        return self._ends.limits()


def same(a: Checkpoint, b: Checkpoint) -> bool:
    """Whether two checkpoints hold the same, except for durations."""
    numbers = [
        {k: v for k, v in c.meta.items() if k not in {"wall_s", "train_s", "config"}}
        for c in (a, b)
    ]
    return (
        numbers[0] == numbers[1]
        and a.groups.keys() == b.groups.keys()
        and all(
            a.groups[group].keys() == b.groups[group].keys()
            and all(np.array_equal(v, b.groups[group][k]) for k, v in a.groups[group].items())
            for group in a.groups
        )
    )


def sync_run(
    case: str, directory: Path, *, resume: bool = False, dies_at: float = math.inf
) -> Checkpoint:
    """Train synchronously up to the last step, or die; return the checkpoint of the last step."""
    agent, env, replay = CASES[case]
    config = SyncConfig(
        seed=3,
        replay=replay,
        trainer=TrainerConfig(
            batch_size=16,
            warmup_env_steps=60,
            opt_interval_env_steps=6,
            opt_steps_per_interval=3,
        ),
        evaluate=EvaluationConfig(interval_opt_steps=90),
        save=SaveConfig(interval_opt_steps=EVERY, keep=0),
        record=RecordConfig(interval_s=0.0),
    )
    train_sync(
        agent,
        EnvConfig(id=env, n_envs=2).build,
        config,
        stop=DiesAt(dies_at),
        checkpoint_dir=directory,
        resume=resume,
        recorder=None,
    )
    return Checkpointer(directory).load(str(LAST))


def async_config(**save: Any) -> AsyncConfig:
    """Return settings of a small asynchronous run; `save` are those of its checkpoints."""
    return AsyncConfig(
        actors=2,
        segment=SegmentConfig(length=8),
        replay=UniformReplayConfig(capacity=4000),
        limiter=RateLimiterConfig(samples_per_insert=2.0, min_size=200),
        trainer=AsyncTrainerConfig(batch_size=32),
        evaluate=EvaluationConfig(where="off"),
        record=RecordConfig(interval_s=0.2),
        save=SaveConfig(**save),
    )


def cartpole() -> MakeBatchEnv:
    """Return what makes the environment of asynchronous runs."""
    return EnvConfig(id="CartPole-v1", n_envs=2).build


class _DyingRun:
    """A training loop that records its start, and dies after a number of steps.

    It lives on until it has saved: checkpoints are written in the background, on a disk that may be
    slower than any number of steps.
    """

    def __init__(self, steps: int, checkpoints: Checkpointer, *, dies: bool) -> None:
        self._steps, self._dies = steps, dies
        self._checkpoints, self._resumed_from = checkpoints, checkpoints.latest()

    def run(self, trainer: AsyncTrainer) -> None:
        agent = trainer.agent
        assert isinstance(agent, DQNAgent)
        begin = trainer.services.counts.opt_steps
        while trainer.services.counts.opt_steps == begin and not trainer.should_stop:
            trainer.run_step()
        _tell("first_step", **_schedules(agent))
        dies_at = begin + self._steps
        counts = trainer.services.counts
        while not (trainer.should_stop or self._may_die(counts.opt_steps, dies_at)):
            trainer.run_step()
        if self._dies and not trainer.should_stop:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.interrupter.stop("enough")

    def _may_die(self, opt_steps: int, dies_at: int) -> bool:
        return opt_steps >= dies_at and self._checkpoints.latest() != self._resumed_from


def _schedules(agent: DQNAgent) -> dict[str, float]:
    """Return what schedules say now, and what they should."""
    return {
        "agent_env_steps": agent.env_steps,
        "epsilon": float(agent.record()["exploration_rate"]),
        "expected_epsilon": _EPSILON.at(agent.env_steps),
        "learning_rate": float(agent.optimizer.metrics("learning_rate")["learning_rate"]),
        "expected_learning_rate": _LEARNING_RATE.at(agent.env_steps),
    }


def _tell(what: str, **numbers: object) -> None:
    sys.stdout.write(json.dumps({"what": what, **numbers}) + "\n")
    sys.stdout.flush()


def saved_in(directory: Path) -> Numbers:
    """Return what the newest whole checkpoint says."""
    checkpoint = Checkpointer(directory).load_latest()
    agent_env_steps = int(checkpoint.groups["agent"]["env_steps"])
    return {**checkpoint.meta, "agent_env_steps": agent_env_steps}


def dies(case: str, directory: Path, step: int) -> int:
    """Train synchronously in a process that is killed at a step; return its exit code."""
    arguments = ["tests.support.resumed_runs", case, str(directory), str(step)]
    return warm.run("module", arguments, cwd=directory.parent, timeout_s=_DEADLINE_S).returncode


def async_run_once(directory: Path, kill_after: int) -> dict[str, Numbers]:
    """Run until killed, or, with 0, to the end; return the numbers that the run reported."""
    arguments = ["tests.support.resumed_runs", "asynchronous", str(directory), str(kill_after)]
    done = warm.run("module", arguments, cwd=directory, timeout_s=_DEADLINE_S)
    if done.returncode != (-signal.SIGKILL if kill_after else 0):
        raise RuntimeError(f"a run ended with {done.returncode}: {done.stderr[-1000:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line.pop("what"): line for line in lines}


def what_broke(saved: Numbers | None, reported: Mapping[str, Numbers]) -> list[str]:
    """Return what did not continue from what was saved.

    Args:
        saved: What the newest whole checkpoint says; None before there is one.
        reported: Numbers at the run's start, after a step and, if it was not killed, at its
            end.
    """
    begins = reported["begins"]
    wrong = [
        f"{name} was saved as {value} and began as {begins[name]}"
        for name, value in _expected(saved).items()
        if begins[name] != value
    ]
    wrong += [
        f"{name} is {now[name]}, and should be {now[f'expected_{name}']}"
        for now in (begins, reported["first_step"])
        for name in ("epsilon", "learning_rate")
        if name in now and not math.isclose(now[name], now[f"expected_{name}"], rel_tol=1e-6)
    ]
    if reported["first_step"]["agent_env_steps"] < begins["agent_env_steps"]:
        wrong.append("environment steps fell with the first step")
    return wrong + (_wrong_at_the_end(begins, reported["ends"]) if "ends" in reported else [])


def _wrong_at_the_end(begins: Numbers, ends: Numbers) -> list[str]:
    ledger, wrong = ends["ledger"], []
    if ledger["in_flight"] or (
        ledger["produced"] != ledger["stored"] + ledger["dropped"] + ledger["lost"]
    ):
        wrong.append(f"the ledger does not add up: {ledger}")
    if ledger["stored"] < begins["ledger"]["stored"] or ends["opt_steps"] <= begins["opt_steps"]:
        wrong.append(f"the end counts less than the beginning: {ends}")
    return wrong


def _expected(saved: Numbers | None) -> dict[str, object]:
    """Return what a resumed run should begin with; what was in flight is lost."""
    if saved is None:
        return {"opt_steps": 0, "env_steps": 0, "agent_env_steps": 0}
    before = saved["run"]["ledger"]
    lost = before["produced"] - before["stored"] - before["dropped"]
    return {
        "opt_steps": saved["opt_steps"],
        "env_steps": saved["env_steps"],
        "agent_env_steps": saved["agent_env_steps"],
        "ledger": {**before, "lost": lost},
    }


def _live(directory: Path, kill_after: int) -> None:
    """Run asynchronously once; print what the run resumes from, and how it ends."""
    checkpoints = Checkpointer(directory)
    trainer = build_async_trainer(
        _SCHEDULED,
        cartpole(),
        async_config(interval_opt_steps=EVERY),
        strategy=_DyingRun(kill_after or EVERY, checkpoints, dies=kill_after > 0),
        checkpoint_dir=directory,
        resume=checkpoints.latest() is not None,
        recorder=None,
    )
    agent = trainer.agent
    assert isinstance(agent, DQNAgent)
    counts, balance = trainer.services.counts, trainer.proxy.ledger.balance()
    epsilon = float(agent.record()["exploration_rate"])
    _tell(
        "begins",
        opt_steps=counts.opt_steps,
        env_steps=counts.env_steps,
        agent_env_steps=agent.env_steps,
        epsilon=epsilon,
        expected_epsilon=_EPSILON.at(agent.env_steps),
        ledger=asdict(balance),
    )
    result = trainer.train()
    _tell("ends", opt_steps=result.opt_steps, env_steps=result.env_steps, ledger=result.ledger)


if __name__ == "__main__":
    if sys.argv[1] == "asynchronous":
        _live(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sync_run(sys.argv[1], Path(sys.argv[2]), dies_at=int(sys.argv[3]))
