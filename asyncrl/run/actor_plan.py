"""What an actor needs that builds nothing of its run: neither agent nor environments, no torch.

The learner makes the plan, which is plain data in the join key; `connect.py` acts by it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from asyncrl.actor.process import ActorSpec
from asyncrl.actor.step_processor import StepProcessor, made_for, make_one_step, schema_of
from asyncrl.core.env import EnvSpec, MakeBatchEnv, source_of
from asyncrl.core.messages import EnvChange
from asyncrl.core.segment import ColumnSpec, SegmentConfig, SegmentSchema
from asyncrl.core.settings import to_plain
from asyncrl.core.transport import Transport
from asyncrl.export.acting import Acting
from asyncrl.fleet.config import RestartPolicyConfig
from asyncrl.run.run_config import RunConfig
from asyncrl.transport.zeromq import ZmqTransportConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorPlan:
    """How to be an actor of a run with one environment."""

    agent: str
    """Name of the agent's class, for errors."""

    facts: str
    """What hosts must agree on with the learner, as JSON."""

    extras: tuple[ColumnSpec, ...]
    """Columns that the agent adds to rows."""

    lookahead: int
    segment: SegmentConfig
    transport: ZmqTransportConfig
    restart: RestartPolicyConfig
    actors: int
    seed: int
    learner_timeout_s: float
    stop_timeout_s: float
    acting: Acting

    def schema(self, spec: EnvSpec) -> SegmentSchema:
        """Return the layout of segments."""
        processor = self._make_processor(spec)
        return schema_of(processor, spec, self.extras, self.segment, lookahead=self.lookahead)

    def actor(
        self, spec: EnvSpec, make_env: MakeBatchEnv, transport: Transport, change: EnvChange
    ) -> ActorSpec:
        """Return what an actor is built from."""
        return ActorSpec(
            make_env=source_of(make_env),
            build_policy=self.acting.build_policy,
            make_processor=partial(self._make_processor, spec),
            schema=self.schema(spec),
            segment=self.segment,
            transport=transport,
            n_actors=self.actors,
            seed=self.seed,
            restart=self.restart,
            env_change=change,
        )

    def _make_processor(self, spec: EnvSpec) -> StepProcessor:
        make = partial(make_one_step, self.segment, self.extras)
        return made_for(make, spec, self.extras)


def plan_actor(config: RunConfig, spec: EnvSpec, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a plan as plain values; None, and log why, if its actors must be built from settings.

    All actors have the learner's agent, and rows that are made as usual.
    """
    from asyncrl.export.tracing import plan_acting  # noqa: PLC0415  # imports torch

    agent = config.agent
    try:
        plan = ActorPlan(
            agent=type(agent).__name__,
            facts=json.dumps(facts),
            extras=tuple(agent.extra_columns(spec)),
            lookahead=config.replay.lookahead,
            segment=config.segment,
            transport=config.transport,
            restart=config.supervision.restart,
            actors=config.actors,
            seed=config.seed,
            learner_timeout_s=config.hosts.learner_timeout_s,
            stop_timeout_s=config.supervision.stop_timeout_s,
            acting=plan_acting(agent, spec),
        )
        return to_plain(plan)
    except Exception as error:  # of a custom network, whatever it is: the run does not need a plan
        _log.info("programs that connect need torch, since the agent cannot be traced: %r", error)
        return None
