"""The plan in a join key, by which programs act without torch."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from asyncrl.actor.step_processor import Layout
from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.env import EnvDescription
from asyncrl.core.messages import EnvChange
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.settings import from_plain
from asyncrl.fleet.config import ActorManagerConfig, HostsConfig, RestartPolicyConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.actor_plan import ActorPlan, plan_actor
from asyncrl.run.join import facts_of
from asyncrl.run.run_config import RunConfig
from asyncrl.transport.zeromq import ZmqTransportConfig
from tests.export.test_acting import CHOICES
from tests.support.fakes import ConstantConfig

CONFIG = RunConfig(
    seed=3,
    actors=5,
    replay=UniformReplayConfig(n_step=3),
    segment=SegmentConfig(length=9),
    transport=ZmqTransportConfig(window=3),
    hosts=HostsConfig(host_timeout_s=7.0, learner_timeout_s=11.0),
    supervision=ActorManagerConfig(
        stop_timeout_s=13.0, restart=RestartPolicyConfig(max_restarts=17)
    ),
)


def planned(agent: Any) -> dict[str, Any] | None:
    config = replace(CONFIG, agent=agent)
    return plan_actor(config, CHOICES, facts_of(config, None, "abc"))


def test_a_plan_says_all_that_an_actor_is_built_from() -> None:
    agent = DQNConfig(actor_priorities=True)
    plan = from_plain(ActorPlan, json.loads(json.dumps(planned(agent))))
    layout = Layout(agent, EnvDescription(CHOICES, 1), CONFIG.replay, CONFIG.segment)
    assert plan.schema(CHOICES) == layout.schema
    change = EnvChange(number=2, kwargs={"gravity": 1.0})
    spec = plan.actor(CHOICES, object, object(), change)  # type: ignore[arg-type]
    assert (spec.seed, spec.n_actors, spec.env_change) == (3, 5, change)
    assert (spec.schema, spec.segment) == (layout.schema, CONFIG.segment)
    assert spec.restart == CONFIG.supervision.restart
    assert plan.transport == CONFIG.transport
    assert (plan.learner_timeout_s, plan.stop_timeout_s) == (11.0, 13.0)
    assert json.loads(plan.facts) == facts_of(replace(CONFIG, agent=agent), None, "abc")


def test_an_agent_that_cannot_be_traced_has_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert planned(ConstantConfig()) is None
    assert "programs that connect need torch, since the agent cannot be traced" in caplog.text
