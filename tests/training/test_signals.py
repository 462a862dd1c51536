"""Signals that a user's script lets a run answer."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.checkpoint.saver import Saver
from asyncrl.core.callback import Callback, Training
from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.async_trainer import AsyncTrainerConfig
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.learner.run_services import SaveConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.run import train_sync
from asyncrl.training.run_config import RunConfig
from tests.support.helpers import WaitsForSaves

AGENT = DQNConfig(hidden=(8,), device="cpu")
MAKE_ENV = EnvConfig(id="CartPole-v1", n_envs=2).build
CONFIG = RunConfig(
    trainer=AsyncTrainerConfig(batch_size=8),
    limiter=RateLimiterConfig(min_size=20),
    evaluate=EvaluationConfig(where="off"),
    save=SaveConfig(interval_opt_steps=0, keep=0),
)


class Sends(Callback):
    """Sends a signal to this process after some step each."""

    def __init__(self, signals: dict[int, signal.Signals]) -> None:
        self.signals = signals

    def step(self, trainer: Training) -> None:
        if number := self.signals.pop(trainer.opt_steps, None):
            os.kill(os.getpid(), number)


@pytest.mark.behaviour(number=42)
def test_sigusr1_saves_and_sigterm_ends_the_run(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
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
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1)] == before


class SlowCheckpointer(Checkpointer):
    """Writes when the run waits for it, and not before."""

    waited_for = threading.Event()

    def save(self, *job: Any) -> Any:
        assert self.waited_for.wait(60.0)
        return super().save(*job)


class Waits(Saver):
    """Shows that it is waited for."""

    def close(self, timeout_s: float) -> None:
        SlowCheckpointer.waited_for.set()
        super().close(timeout_s)


class SendsAtTheEnd(Callback):
    """Sends SIGTERM when the run ends by itself; twice, as by a scheduler and its helper."""

    def end(self, trainer: Training) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_while_the_run_ends_by_itself_waits_for_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.checkpoint.resume.Checkpointer", SlowCheckpointer)
    monkeypatch.setattr("asyncrl.learner.run_services.Saver", Waits)
    result = train_sync(
        AGENT,
        MAKE_ENV,
        CONFIG,
        signals=True,
        stop=MaxOptSteps(5),
        callbacks=[SendsAtTheEnd()],
        checkpoint_dir=tmp_path,
    )
    assert Checkpointer(tmp_path).latest() == str(result.opt_steps)


def test_signals_are_for_the_main_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(train_sync, AGENT, MAKE_ENV, CONFIG, signals=True)
        with pytest.raises(ConfigError, match=r"signals=True .* in the main thread only"):
            done.result()
