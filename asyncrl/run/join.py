"""Joins a run as a host: starts actors on this machine for a learner on another one.

The host builds its actors from its own settings and environments; the learner sends data only.
`hosted.py` is the learner's side.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal

from asyncrl.actor.process import ActorSpec
from asyncrl.actor.step_processor import StepProcessor
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import MakeBatchEnv
from asyncrl.core.errors import ConfigError, WireError
from asyncrl.core.goals import RelabelsGoals
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import EnvChange, Peer
from asyncrl.core.segment import SegmentSchema
from asyncrl.core.transport import Transport
from asyncrl.fleet.host import Host, HostTimeouts
from asyncrl.fleet.local import LocalLauncher
from asyncrl.run.describe_env import describe_in_child
from asyncrl.run.hosted import Plain, facts_of
from asyncrl.run.join_key import JoinKey
from asyncrl.run.launchers import start_launcher
from asyncrl.run.plan import RunPlan, check_run
from asyncrl.run.run_config import RunConfig, config_or_default
from asyncrl.transport.zeromq import Curve, ZmqHostLine, ZmqTransport, ZmqTransportConfig

_log = logging.getLogger(__name__)

_FIRST_ANSWER_S = 60.0


def join_run(
    key_file: str | PathLike[str],
    agent: AgentConfig,
    make_env: MakeBatchEnv,
    config: RunConfig | None = None,
    *,
    actors: int,
    actor_agents: Sequence[AgentConfig] | None = None,
    make_processor: Callable[[], StepProcessor] | None = None,
    interrupter: Interrupter | None = None,
) -> Literal["ended", "left", "not joined"]:
    """Run actors on this machine for the learner that has written a join key, until its run ends.

    Agent, environments and config must be those of the run: the learner refuses others, and says
    what differs. A host that was out of reach for too long joins again. Returns whether the run has
    ended, or the interrupter has ended this host, after it had joined or before.

    Args:
        key_file: The `join.key` of the run, or a copy.
        agent: The agent's config.
        make_env: Builds the environments of one actor, in its process.
        config: All other settings of the run.
        actors: Maximum number of actors to run here.
        actor_agents: As in the run.
        make_processor: As in the run.
        interrupter: Ends this host: its actors send what they have, and start again elsewhere.
    """
    if actors < 1:
        raise ConfigError(f"actors must be at least 1, got {actors}")
    return serve_run(
        JoinKey.load(Path(key_file)),
        agent,
        make_env,
        config_or_default(agent, config, "async"),
        actor_agents,
        actors,
        make_processor=make_processor,
        interrupter=interrupter,
    )


def serve_run(
    key: JoinKey,
    agent: AgentConfig,
    make_env: MakeBatchEnv,
    config: RunConfig,
    actor_agents: Sequence[AgentConfig] | None,
    actors: int,
    *,
    make_processor: Callable[[], StepProcessor] | None = None,
    interrupter: Interrupter | None = None,
) -> Literal["ended", "left", "not joined"]:
    """Be a host with a key that was read; the arguments are those of `join_run`."""
    check_run(agent, make_env, make_processor, config, actor_agents)
    interrupter = interrupter or Interrupter()
    while not interrupter.is_set:
        with ExitStack() as undo:
            launcher = start_launcher()
            undo.callback(launcher.close)
            plan = _plan(agent, make_env, make_processor, config, actor_agents, launcher)
            facts = facts_of(agent, actor_agents, config, plan.schema.hash())
            _log.info("connecting to %s", key.address)
            line = ZmqHostLine(key.address, key.curve, config.transport)
            undo.callback(line.close)
            specs = OrderedSpecs(key, config, plan, ActorKeys(key.curve.server))
            host = _host(specs, launcher, line, facts, actors)
            outcome = host.run(interrupter)
            if outcome != "lost":
                return outcome
        _log.warning("the learner had given up this host, whose actors were ended; it joins again")
    return "left"


def _plan(
    agent: AgentConfig,
    make_env: MakeBatchEnv,
    make_processor: Callable[[], StepProcessor] | None,
    config: RunConfig,
    actor_agents: Sequence[AgentConfig] | None,
    launcher: LocalLauncher,
) -> RunPlan:
    timeout_s = config.supervision.start_timeout_s
    goals = isinstance(config.replay, RelabelsGoals)
    seen = describe_in_child(make_env, timeout_s=timeout_s, launcher=launcher, goals=goals)
    return RunPlan(agent, make_env, make_processor, config, actor_agents, seen=seen)


def _host(
    specs: OrderedSpecs, launcher: LocalLauncher, line: ZmqHostLine, facts: Plain, actors: int
) -> Host:
    config, address = specs.config, specs.key.address
    return Host(
        launcher,
        line,
        {**facts, "host": f"{socket.gethostname()}/{os.getpid()}", "room": actors},
        specs.make,
        HostTimeouts(
            first_answer_s=_FIRST_ANSWER_S,
            learner_s=config.hosts.learner_timeout_s,
            stop_s=config.supervision.stop_timeout_s,
        ),
        offer_key=specs.keys.offer,
        on_welcome=lambda: _log.info("joined %s with room for %d actors", address, actors),
    )


class ActorKeys:
    """Key pairs for actors to come. Their secrets do not leave this machine."""

    def __init__(self, server: bytes) -> None:
        self._server = server
        self._curves: dict[str, Curve] = {}

    def offer(self) -> str:
        """Make a pair and return its public key, for the learner."""
        curve = Curve.make(self._server)
        public = curve.public.decode()
        self._curves[public] = curve
        return public

    def take(self, public: str) -> Curve:
        """Return a pair for the one actor that the learner has admitted with it."""
        curve = self._curves.pop(public, None)
        if curve is None:
            raise WireError(f"the learner names the key {public!r:.60}, which is not offered here")
        return curve


@dataclass(frozen=True, slots=True)
class OrderedSpecs:
    """Makes the specs of actors, of the plan made here and the learner's orders."""

    key: JoinKey
    config: RunConfig
    plan: RunPlan
    keys: ActorKeys

    def make(self, peer: Peer, welcome: Plain, order: Plain) -> ActorSpec:
        """Return the spec of an actor."""
        transport, change = ordered(
            self.key, self.keys, self.plan.schema, self.config.transport, welcome, order
        )
        return self.plan.actor_spec(_Admit(transport), None, change, peer)


def ordered(
    key: JoinKey,
    keys: ActorKeys,
    schema: SegmentSchema,
    config: ZmqTransportConfig,
    welcome: Plain,
    order: Plain,
) -> tuple[ZmqTransport, EnvChange]:
    """Return what the learner's order says: an actor's connection, and the change in force."""
    match welcome, order:
        case (
            {"run": str(run_id)},
            {"key": str(public), "change": [int(number), dict(kwargs)]},
        ):
            curve = keys.take(public)
        case _:
            raise WireError("the learner's order for an actor cannot be read")
    transport = ZmqTransport(key.address, schema=schema, run_id=run_id, config=config, curve=curve)
    return transport, EnvChange(number=number, kwargs=kwargs)


@dataclass(frozen=True, slots=True)
class _Admit:
    transport: ZmqTransport

    def __call__(self, peer: Peer, *, evaluates: bool = False) -> Transport:
        """Return the transport that the learner's order is for."""
        return self.transport
