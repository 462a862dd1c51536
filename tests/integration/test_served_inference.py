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
from asyncrl.run.run_config import EvaluationConfig
from asyncrl.run.train import build_trainer
from asyncrl.transport.zeromq import ZmqTransportConfig
from tests.faults.runs import adds_up, with_restarts
from tests.integration.test_train_async import Loop, config, run
from tests.support.fakes import ConstantConfig, CountingBatch
from tests.support.leftovers import children

pytestmark = pytest.mark.processes

CARTPOLE = partial(EnvConfig(id="CartPole-v1", n_envs=2).build)
AGENT = DQNConfig(hidden=(8,), device="cpu")


SERVER, STEP_TIMEOUT_S = "asyncrl-inference", 2.0


class Faults:
    """Sends signals to processes, each time once the run has gone on since the last ones."""

    def __init__(self, *rounds: dict[str, signal.Signals]) -> None:
        self.rounds = list(rounds)
        self.after = 200

    def __call__(self, trainer: AsyncTrainer) -> None:
        if trainer.env_steps < self.after:
            return
        if not self.rounds:
            trainer.interrupter.stop("seen")
            return
        running = {
            process.name(): process.pid for helper in children() for process in helper.children()
        }
        pids = [running.get(name, running.get(name[:15])) for name in self.rounds[0]]
        if None in pids:  # one is being restarted
            return
        for pid, number in zip(pids, self.rounds.pop(0).values(), strict=True):
            os.kill(pid or 0, number)
        self.after = trainer.env_steps + 300


@pytest.mark.fault("F1", "F6")
def test_run_goes_on_when_the_server_or_actors_are_killed_or_hang(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = Faults(
        {SERVER: signal.SIGKILL},
        {"asyncrl-actor-0": signal.SIGKILL},
        {SERVER: signal.SIGSTOP, "asyncrl-actor-1": signal.SIGSTOP},
    )
    result, trainer = run(
        with_restarts(2, inference="server", step_timeout_s=STEP_TIMEOUT_S),
        agent=AGENT,
        make_env=CARTPOLE,
        strategy=Loop(faults),
        stop=MaxSeconds(60.0),
    )
    assert result.stop_reason == "seen"
    assert adds_up(trainer)
    assert caplog.text.count("the inference server was killed by SIGKILL") == 1
    assert caplog.text.count("the inference server made no step for 2 s") == 1
    assert sum(actor["restarts"] for actor in result.actors.values()) == 2
    assert result.lag_at_insert is not None
    batch = trainer.proxy.buffer.sample(500)
    assert batch["model_version"].max() > 0, "rows carry the version that the server computed with"


def test_a_thread_of_the_learner_computes_for_all_actors_also_if_it_listens_on_tcp() -> None:
    transport = ZmqTransportConfig(bind="tcp://127.0.0.1")
    off = EvaluationConfig(where="off")
    result, trainer = run(
        config(inference="learner", evaluate=off, transport=transport),
        agent=AGENT,
        make_env=CARTPOLE,
        stop=MaxEnvSteps(600) | MaxSeconds(60.0),
    )
    assert "600" in result.stop_reason
    assert adds_up(trainer)


def test_agents_that_act_as_a_whole_are_refused_before_an_actor_starts() -> None:
    with pytest.raises(ConfigError, match=r"ConstantPolicy|ConstantAgent"):
        build_trainer(config(inference="server"), agent=ConstantConfig(), env=CountingBatch)
