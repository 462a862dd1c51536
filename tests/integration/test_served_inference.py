"""Whole runs whose actors' networks are computed elsewhere, and what the death of a server does."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.stop_conditions import MaxEnvSteps, MaxSeconds
from asyncrl.training.asynchronous import build_async_trainer
from asyncrl.training.common_config import EvaluationConfig
from tests.faults.runs import adds_up, with_restarts
from tests.integration.test_train_async import Loop, config, run
from tests.support.fakes import ConstantConfig, CountingBatch
from tests.support.leftovers import children

pytestmark = pytest.mark.processes

CARTPOLE = partial(EnvConfig(id="CartPole-v1", n_envs=2).build)
AGENT = DQNConfig(hidden=(8,), device="cpu")


class Killing:
    """Kills the server twice, and an actor in between, each once the run goes on."""

    def __init__(self, *victims: str) -> None:
        self.victims = list(victims)
        self.after = 200

    def __call__(self, trainer: AsyncTrainer) -> None:
        if trainer.env_steps < self.after:
            return
        if not self.victims:
            trainer.interrupter.stop("seen")
            return
        for process in (child for helper in children() for child in helper.children()):
            if process.name() in {self.victims[0], self.victims[0][:15]}:
                os.kill(process.pid, signal.SIGKILL)
                self.victims.pop(0)
                self.after = trainer.env_steps + 300
                return


def test_run_goes_on_when_the_server_or_an_actor_is_killed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    killing = Killing("asyncrl inference server", "asyncrl actor 0", "asyncrl inference server")
    result, trainer = run(
        with_restarts(2, inference="server"),
        agent=AGENT,
        make_env=CARTPOLE,
        strategy=Loop(killing),
        stop=MaxSeconds(60.0),
    )
    assert result.stop_reason == "seen"
    assert adds_up(trainer)
    assert caplog.text.count("the inference server was killed by SIGKILL") == 2
    assert sum(actor["restarts"] for actor in result.actors.values()) == 1
    assert result.lag_at_insert is not None
    batch = trainer.proxy.buffer.sample(500)
    assert batch["model_version"].max() > 0, "rows carry the version that the server computed with"


def test_a_thread_of_the_learner_computes_for_all_actors() -> None:
    result, trainer = run(
        config(inference="learner", evaluate=EvaluationConfig(where="off")),
        agent=AGENT,
        make_env=CARTPOLE,
        stop=MaxEnvSteps(600) | MaxSeconds(60.0),
    )
    assert "600" in result.stop_reason
    assert adds_up(trainer)


def test_agents_that_act_as_a_whole_are_refused_before_an_actor_starts() -> None:
    with pytest.raises(ConfigError, match=r"ConstantPolicy|ConstantAgent"):
        build_async_trainer(ConstantConfig(), CountingBatch, config(inference="server"))
