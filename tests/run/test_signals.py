"""Signals that a user's script lets a run answer."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.callback import Callback, Training
from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import SaveConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import train_sync
from tests.support.helpers import WaitsForSaves, wait_until

AGENT = DQNConfig(hidden=(8,), device="cpu")
MAKE_ENV = EnvConfig(id="CartPole-v1", n_envs=2).build
CONFIG = RunConfig(
    trainer=AsyncTrainerConfig(batch_size=8),
    limiter=RateLimiterConfig(min_size=20),
    evaluate=EvaluationConfig(where="off"),
    save=SaveConfig(interval_opt_steps=0, keep=0),
)


class Sends(Callback):
    """Sends a signal to this process after some step each; waits until a thread knows the end."""

    def __init__(self, signals: dict[int, signal.Signals]) -> None:
        self.signals = signals

    def step(self, trainer: Training) -> None:
        if number := self.signals.pop(trainer.opt_steps, None):
            os.kill(os.getpid(), number)
            if number == signal.SIGTERM:
                wait_until(lambda: trainer.interrupter.is_set, 30, "the signal ends the run")


@pytest.mark.behaviour(number=42)
def test_sigusr1_saves_and_sigterm_ends_the_run(tmp_path: Path) -> None:
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in handled]
    result = train_sync(
        AGENT,
        MAKE_ENV,
        CONFIG,
        signals=True,
        stop=MaxOptSteps(1000),
        callbacks=[Sends({5: signal.SIGUSR1, 9: signal.SIGTERM}), WaitsForSaves(tmp_path)],
        checkpoint_dir=tmp_path,
    )
    assert result.stop_reason == "interrupted by SIGTERM"
    assert result.opt_steps < 20
    saved = [name for name in Checkpointer(tmp_path).names() if name.isdigit()]
    assert saved == ["5", str(result.opt_steps)]
    assert [signal.getsignal(number) for number in handled] == before


def test_signals_are_for_the_main_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(train_sync, AGENT, MAKE_ENV, CONFIG, signals=True)
        with pytest.raises(ConfigError, match=r"signals=True .* in the main thread only"):
            done.result()
