"""Whole runs that a program with a custom loop joins as an actor."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.callback import Callback, Training
from asyncrl.core.errors import ConfigError, Refused, TransportClosed, TransportError
from asyncrl.core.segment import ColumnSpec
from asyncrl.envs.gym import EnvConfig
from asyncrl.extensions.connect.connect import Connection, connect
from asyncrl.fleet.threads import ThreadLauncher
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.train_result import TrainResult
from asyncrl.run.join_key import JoinKey
from tests.integration.test_hosts import (
    CONFIG,
    built,
    check,
    detour,
    once,
    restarts,
    wait_for_restarts,
)
from tests.support import warm
from tests.support.fakes import ConstantConfig
from tests.support.helpers import wait_until

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0

SOON = replace(CONFIG, hosts=replace(CONFIG.hosts, learner_timeout_s=2.0))
"""A program soon looks for the next learner."""


@contextmanager
def training(
    key: Path, trainer: AsyncTrainer | None = None, **parts: Any
) -> Iterator[list[TrainResult]]:
    """Train in a thread; the result is there after the block."""
    trainer = trainer or built(key, **parts)
    results: list[TrainResult] = []
    thread = threading.Thread(target=lambda: results.append(trainer.train()))
    thread.start()
    try:
        yield results
    finally:
        trainer.interrupter.stop("the test ends")
        thread.join(DEADLINE_S)


def play(actor: Connection, steps: int = 1_000_000) -> int:
    """Step a small world until the run ends; return the number of complete steps."""
    obs = np.zeros(actor.spec.observation.shape, actor.spec.observation.dtype)
    done = 0
    try:
        while done < steps:
            actor.act(obs)
            if done % 7 == 3:
                actor.override(np.zeros(actor.spec.action.shape, actor.spec.action.dtype))
            actor.observe(1.0, terminated=done % 10 == 9)
            done += 1
    except TransportClosed:
        assert actor.ended
    return done


class OtherLevels(Callback):
    """Changes the environments before the run, and in it."""

    def begin(self, trainer: Training) -> None:
        trainer.set_env_kwargs({"level": 1})

    def step(self, trainer: Training) -> None:
        if trainer.opt_steps == 20:
            trainer.set_env_kwargs({"level": 2})


def test_a_custom_loop_trains_a_learner_whatever_becomes_of_other_environments(
    tmp_path: Path,
) -> None:
    key = tmp_path / "join.key"
    parts: Any = {"agent": ConstantConfig(), "config": CONFIG}
    with training(key, callbacks=[OtherLevels()]) as results, connect(key, **parts) as actor:
        done = play(actor)
    (result,) = results
    check(result)
    assert restarts(result) == result.ledger["lost"] == 0
    assert 0 < result.env_steps <= done
    with pytest.raises(TransportClosed):
        actor.act(np.zeros(actor.spec.observation.shape, actor.spec.observation.dtype))


def test_two_programs_act_in_one_run(tmp_path: Path) -> None:
    key = tmp_path / "join.key"
    with training(key) as results, connect(key) as one, connect(key) as other:
        assert [play(actor, steps=20) for actor in (one, other)] == [20, 20]
    (result,) = results
    assert result.env_steps == 40
    assert [host["started"] for host in result.hosts.values()] == [1, 1]
    assert result.ledger["lost"] == result.ledger["in_flight"] == 0


def test_a_loop_that_waits_too_long_learns_why(tmp_path: Path) -> None:
    key, learns = tmp_path / "join.key", threading.Event()
    with training(key, before=lambda _: learns.wait(DEADLINE_S)), connect(key) as actor:
        play(actor, steps=1)  # until it has a place
        actor._timeout_s = 2.0
        try:
            with pytest.raises(TransportError, match=r"no action .* wants no more experience now"):
                play(actor)
        finally:
            learns.set()


@pytest.mark.fault("F28")
def test_a_loop_acts_on_in_its_next_incarnation_when_its_connection_broke(tmp_path: Path) -> None:
    key, done = tmp_path / "join.key", list[Any]()

    def before(trainer: AsyncTrainer) -> None:
        if once(trainer, 100, done):
            proxy.cut()
            wait_for_restarts(trainer, 1)

    with (
        detour(key, before) as (trainer, proxy),
        training(key, trainer) as results,
        connect(key) as actor,
    ):
        steps = play(actor)
    (result,) = results
    check(result)
    assert restarts(result) == 1
    assert 0 < result.env_steps <= steps
    assert result.ledger["lost"] <= steps - result.ledger["stored"]


def test_a_defect_of_the_connection_reaches_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "join.key"

    def fails(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    forgets_soon = replace(CONFIG, hosts=replace(CONFIG.hosts, host_timeout_s=1.0))
    with training(key, cfg=forgets_soon), connect(key) as actor:
        play(actor, steps=5)
        monkeypatch.setattr(ThreadLauncher, "exits", fails)
        with pytest.raises(ZeroDivisionError, match="a defect"):
            play(actor)


LEARNS = """
import sys
from pathlib import Path
from tests.integration.test_connect import SOON, built
built(Path(sys.argv[1]), SOON, opt_steps=1_000_000).train()
"""


def test_a_loop_rides_out_a_learner_that_is_killed_and_restarted(tmp_path: Path) -> None:
    key = tmp_path / "join.key"
    with warm.started("code", [LEARNS, str(key)], cwd=tmp_path) as learner:
        wait_until(key.exists, DEADLINE_S, "the first key")
        with connect(key) as actor:
            assert play(actor, steps=20) == 20
            learner.kill()
            learner.wait(DEADLINE_S)
            with training(key, cfg=SOON) as results:
                done = play(actor)
    (result,) = results
    check(result)
    assert 0 < result.env_steps <= done


def test_a_loop_that_cannot_join_gets_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "join.key"
    with pytest.raises(ConfigError, match="there is no join key"):
        connect(key)
    with pytest.raises(ConfigError, match="timeout_s must be above 0"):
        connect(key, timeout_s=0.0)
    for given, missing in ({"agent": ConstantConfig()}, "config"), ({"config": CONFIG}, "agent"):
        with pytest.raises(ConfigError, match=f"but no {missing}: pass {missing}=..., that of the"):
            connect(key, **given)  # type: ignore[arg-type]
    with training(key):
        with pytest.raises(Refused, match="seed is 7 at the host and 0 at the learner"):
            connect(key, agent=ConstantConfig(), config=replace(CONFIG, seed=7))
        without = tmp_path / "another.key"
        replace(JoinKey.load(key), plan=None).save(without)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "torch", None)
            with pytest.raises(ConfigError, match=r"no plan for .* torch is not installed here"):
                connect(without)
        replace(JoinKey.load(key), plan=None, settings=None).save(without)
        with pytest.raises(ConfigError, match="pass its agent and config"):
            connect(without)


CONNECTS = """
import sys
from importlib import metadata
import numpy as np

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

def version(package, version=metadata.version):
    if package == "torch":
        raise metadata.PackageNotFoundError(package)
    return version(package)

sys.meta_path.insert(0, NoTorch())
metadata.version = version

import asyncrl
with asyncrl.connect(sys.argv[1]) as actor:
    obs = np.zeros(actor.spec.observation.shape, actor.spec.observation.dtype)
    for step in range(40):
        action = actor.act(obs)
        assert actor.spec.action.n > action >= 0
        actor.observe(1.0, terminated=step % 10 == 9)
loaded = {"gymnasium", "rich", "yaml"} & sys.modules.keys()
assert not loaded, f"loaded {loaded}, which the guide does not install"
"""


def test_a_program_needs_no_torch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    key = tmp_path / "join.key"
    make_env = EnvConfig(id="CartPole-v1").build
    with training(key, agent=DQNConfig(), make_env=make_env) as results:
        program = subprocess.run(
            [sys.executable, "-c", CONNECTS, str(key)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert program.returncode == 0, program.stderr

        def left() -> list[str]:
            return [r.levelname for r in caplog.records if "has closed the connec" in r.message]

        wait_until(left, DEADLINE_S, "the learner to see its end")
        assert left() == ["INFO"], "a normal end is no warning"
    (result,) = results
    assert result.env_steps == 40
    assert result.ledger["lost"] == result.ledger["in_flight"] == 0


def test_an_agent_that_stores_more_of_its_actions_takes_no_others() -> None:
    actor = Connection.__new__(Connection)
    actor._session = Mock(extras=[ColumnSpec("log_prob", "float32")], agent="PPOConfig")
    with pytest.raises(ConfigError, match="PPOConfig stores log_prob of each action"):
        actor.override(0)
