"""Runs whose actors are threads: nothing else in the process is touched, and nothing is left."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from asyncrl.core.callback import Callback, Training
from asyncrl.core.env import EnvStep
from asyncrl.core.errors import ConfigError
from asyncrl.core.launcher import Progress
from asyncrl.core.types import Array
from asyncrl.fleet.config import ActorManagerConfig, RestartPolicyConfig
from asyncrl.fleet.threads import ThreadLauncher
from asyncrl.learner.stop_conditions import MaxSeconds
from tests.fleet.bodies import Runs
from tests.integration.test_train_async import config, run
from tests.support.fakes import CountingBatch
from tests.support.helpers import wait_until
from tests.support.sample_messages import PEER


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    wait_until(lambda: set(threading.enumerate()) <= before, 10.0, "no thread left")


def threads(**changes: Any) -> Any:
    return replace(config(), launcher="thread", **changes)


@pytest.mark.behaviour(number=36)
def test_run_trains_evaluates_and_accounts_for_every_transition() -> None:
    formats = [handler.formatter for handler in logging.getLogger().handlers]
    random.seed(3)
    result, _ = run(threads())
    drawn = random.random()
    assert drawn == random.Random(3).random(), "the global generator is the caller's"
    assert [handler.formatter for handler in logging.getLogger().handlers] == formats
    assert result.opt_steps == 200
    assert result.best_score is not None
    ledger = result.ledger
    assert ledger["produced"] == ledger["stored"] == result.env_steps
    assert (ledger["lost"], ledger["dropped"], ledger["in_flight"]) == (0, 0, 0)


class Hanging(CountingBatch):
    """The first one that is made hangs, in Python, in its twentieth step."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Hanging.made += 1
        self.hangs_in = 20 if Hanging.made == 2 else -1  # the run has looked at one before

    def step(self, action: Array) -> EnvStep:
        self.hangs_in -= 1
        while self.hangs_in == 0:
            time.sleep(0.01)
        return super().step(action)


def test_actor_that_hangs_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """Also where it could go on in new environments."""

    class Replaced(Callback):
        def actor_restarted(self, trainer: Training, actor_id: int) -> None:
            trainer.interrupter.stop(f"actor {actor_id} is replaced")

    Hanging.made = 0
    restart = RestartPolicyConfig(on_exception="restart_env")
    supervision = ActorManagerConfig(step_timeout_s=0.2, restart=restart)
    cfg = threads(actors=1, supervision=supervision)
    result, _ = run(cfg, make_env=Hanging, stop=MaxSeconds(60), callbacks=[Replaced()])
    assert result.stop_reason == "actor 0 is replaced"
    assert "time.sleep(0.01)" in caplog.text, "the stack"
    assert "the environments failed" not in caplog.text


def test_actor_that_cannot_be_ended_is_abandoned_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.fleet.threads._CLOSE_S", 0.05)
    free = threading.Event()

    def body(progress: Progress) -> None:
        progress.turn(1)
        while not free.wait(0.01):
            pass

    def stubborn(progress: Progress) -> None:
        try:
            body(progress)
        except BaseException:
            free.wait()

    with ThreadLauncher() as launcher:
        launcher.launch(PEER, Runs(stubborn))
        wait_until(lambda: launcher.progress(PEER).turns == 1, 10.0, "a turn")
    assert "the thread of actor 0 does not end, and is abandoned" in caplog.text
    free.set()


def test_memory_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory_limit_bytes has no effect with launcher=thread"):
        threads(supervision=ActorManagerConfig(memory_limit_bytes=1 << 30))
