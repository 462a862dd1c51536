"""Joins a run as a host: starts actors on this machine for a learner on another one.

The host builds its actors from its own settings and environments; the learner sends data only.
`hosted.py` is the learner's side.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, cast

from asyncrl.actor.process import ActorSpec
from asyncrl.actor.step_processor import StepProcessor
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import MakeBatchEnv
from asyncrl.core.errors import ConfigError, WireError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.launcher import Launcher
from asyncrl.core.messages import SOFTWARE, EnvChange, Peer
from asyncrl.core.segment import SegmentSchema
from asyncrl.core.settings import to_parameters
from asyncrl.core.transport import Transport
from asyncrl.fleet.host import Host, HostTimeouts, Outcome
from asyncrl.run.describe_env import describe_for
from asyncrl.run.join_key import JoinKey
from asyncrl.run.launchers import start_launcher
from asyncrl.run.plan import RunPlan, check_run
from asyncrl.run.run_config import RunConfig, config_or_default
from asyncrl.transport.zeromq import Curve, ZmqTransport, ZmqTransportConfig
from asyncrl.transport.zeromq_hosts import ZmqHostLine

_log = logging.getLogger(__name__)

Plain = Mapping[str, Any]

_WHERE = ("bind", "advertise", "bind_every_interface")
"""Settings of the transport that may differ between the two sides."""

_JOINED = "joined %s with room for %d actors"


def join_run(
    key_file: str | PathLike[str] | JoinKey,
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
        key_file: The `join.key` of the run, a copy, or what is in it.
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
    key = key_file if isinstance(key_file, JoinKey) else JoinKey.load(Path(key_file))
    config = config_or_default(agent, config, "async")
    check_run(config, make_env, make_processor, actor_agents)
    interrupter = interrupter or Interrupter()
    while not interrupter.is_set:
        with closing(start_launcher()) as launcher:
            seen = describe_for(config, make_env, launcher)
            plan = RunPlan(config, make_env, make_processor, actor_agents, seen=seen)
            facts = facts_of(config, actor_agents, plan.schema.hash())
            _log.info("connecting to %s", key.address)
            outcome = HostPlan.of_run(key, plan, facts).serve(
                launcher,
                interrupter,
                room=actors,
                on_welcome=partial(_log.info, _JOINED, key.address, actors),
            )
            if outcome != "lost":
                return outcome
        _log.warning("the learner had given up this host, whose actors were ended; it joins again")
    return "left"


def facts_of(
    config: RunConfig, actor_agents: Sequence[AgentConfig] | None, schema_hash: str
) -> Plain:
    """Return what must be equal on both sides, as JSON."""
    transport = to_parameters(config.transport)
    settings = {
        "agent": to_parameters(config.agent),
        "actor_agents": [to_parameters(one) for one in actor_agents or ()],
        "actors": config.actors,
        "seed": config.seed,
        "segment": to_parameters(config.segment),
        "supervision.restart": to_parameters(config.supervision.restart),
        "transport": {name: v for name, v in transport.items() if name not in _WHERE},
    }
    facts = {"software": SOFTWARE, "schema": schema_hash, "settings": settings}
    return cast(Plain, json.loads(json.dumps(facts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """How to be a host of a run: what it says, and how it builds the actors that are ordered."""

    key: JoinKey
    facts: Plain
    """What the learner compares with its own."""

    schema: SegmentSchema
    transport: ZmqTransportConfig
    timeouts: HostTimeouts
    build: Callable[[Peer, Transport, EnvChange], ActorSpec]
    """Returns an actor, of its connection and the change of environments in force."""

    @classmethod
    def of_run(cls, key: JoinKey, plan: RunPlan, facts: Plain) -> Self:
        """Return how to be a host that has the settings of the run."""
        config = plan.config
        learner_s, stop_s = config.hosts.learner_timeout_s, config.supervision.stop_timeout_s
        return cls(
            key=key,
            facts=facts,
            schema=plan.schema,
            transport=config.transport,
            timeouts=HostTimeouts(learner_s=learner_s, stop_s=stop_s),
            build=lambda peer, transport, change: plan.actor_spec(
                lambda *_, **__: transport, None, change, peer
            ),
        )

    def serve(
        self,
        launcher: Launcher,
        interrupter: Interrupter,
        *,
        room: int,
        on_welcome: Callable[[], object],
        program: bool = False,
    ) -> Outcome:
        """Be a host until it ends; what still runs is the caller's to end. See `Host.run`.

        `program` says that it acts in its own loop, and may leave at any time.
        """
        keys = ActorKeys(self.key.curve.server)
        name = f"{socket.gethostname()}/{os.getpid()}"
        with closing(ZmqHostLine(self.key.address, self.key.curve, self.transport)) as line:
            host = Host(
                launcher,
                line,
                {**self.facts, "host": name, "room": room, "program": program},
                partial(self._ordered, keys),
                self.timeouts,
                offer_key=keys.offer,
                on_welcome=on_welcome,
            )
            return host.run(interrupter)

    def _ordered(self, keys: ActorKeys, peer: Peer, welcome: Plain, order: Plain) -> ActorSpec:
        """Return the actor that the learner orders, which adds what only the learner knows."""
        match welcome, order:
            case (
                {"run": str(run_id)},
                {"key": str(public), "change": [int(number), dict(kwargs)]},
            ):
                curve = keys.take(public)
            case _:
                raise WireError("the learner's order for an actor cannot be read")
        transport = ZmqTransport(
            self.key.address, schema=self.schema, run_id=run_id, config=self.transport, curve=curve
        )
        return self.build(peer, transport, EnvChange(number=number, kwargs=kwargs))


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
