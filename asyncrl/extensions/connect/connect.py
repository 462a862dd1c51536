"""Lets a robot, a game engine or a simulator act and gather experience in its loop.

    with asyncrl.connect("join.key") as actor:
        obs = robot.reset()
        while not actor.ended:
            action = actor.act(obs)
            obs, reward, fell = robot.move(action)
            actor.observe(reward, terminated=fell)

To the learner it is a host with room for one actor, see `join.py`. The actor runs in a thread of
this process, and its environment is the user's loop. Needs no environment, but the spaces that the
join key holds; and no torch, if the key holds a plan for its actor.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, Self

from asyncrl.actor.acting_model import NoAnswer
from asyncrl.actor.process import ActorSpec
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import EnvDescription, EnvSource, EnvSpec
from asyncrl.core.errors import AsyncRLError, ConfigError, TransportClosed, TransportError
from asyncrl.core.interrupter import Interrupter, start_thread
from asyncrl.core.launcher import Progress, Spec
from asyncrl.core.messages import SOFTWARE, Peer
from asyncrl.core.segment import DISCOUNTED_RETURN, ColumnSpec
from asyncrl.core.settings import from_plain
from asyncrl.core.transport import ActorLink, LearnerLink, Transport
from asyncrl.core.types import Array
from asyncrl.extensions.connect.user_loop import UserLoop
from asyncrl.fleet.host import Host, HostTimeouts
from asyncrl.fleet.threads import ThreadLauncher
from asyncrl.run.actor_plan import ActorPlan
from asyncrl.run.describe_env import spec_of
from asyncrl.run.hosted import Plain, facts_of
from asyncrl.run.join import ActorKeys, OrderedSpecs, ordered
from asyncrl.run.join_key import JoinKey
from asyncrl.run.plan import RunPlan
from asyncrl.run.run_config import RunConfig
from asyncrl.transport.zeromq import ZmqHostLine, ZmqTransportConfig

_log = logging.getLogger(__name__)

_AGAIN_S = 1.0
"""Seconds between two attempts to join."""

_AGAIN_TIMEOUT_S = 5.0
"""Timeout of such an attempt: meanwhile a restarted learner may have written another key."""

_NO_PLACE = "the learner has no place for this actor yet"
_HAS_PLACE = "the learner wants no more experience now, or is out of reach"

_CLOSE_S = 30.0
"""Seconds for the thread to end, in addition to the time for the actor to send what it has."""


def connect(
    key_file: str | PathLike[str],
    *,
    agent: AgentConfig | None = None,
    config: RunConfig | None = None,
    timeout_s: float = 60.0,
) -> Connection:
    """Join a run of `launcher=hosts` as one actor whose environment this program steps.

    Args:
        key_file: The `join.key` of the run, or a copy.
        agent: The agent's config; None acts by what the key holds, without torch if it can. The
            key of a run started from Python may hold too little.
        config: All other settings of the run, likewise.
        timeout_s: Seconds to wait for the learner, here and in `act`.
    """
    if timeout_s <= 0:
        raise ConfigError(f"timeout_s must be above 0, got {timeout_s}")
    connection = Connection(Path(key_file), agent, config, timeout_s)
    try:
        connection.wait_until_joined()
    except BaseException:
        connection.close()
        raise
    return connection


class Connection:
    """An actor whose environment is the caller's loop; use it in a `with` block, or close it.

    Call `act`, then `observe`, from one thread. While the learner is out of reach, `act` waits.
    When it is back, a new episode begins; the experience since its last message is lost then.
    """

    def __init__(
        self,
        key_file: Path,
        agent: AgentConfig | None,
        config: RunConfig | None,
        timeout_s: float,
    ) -> None:
        """Start to join; `connect` waits for it."""
        self._key_file = key_file
        self._given = agent, config
        self._timeout_s = timeout_s
        self._session = _Session.of(key_file, agent, config)
        self._loop = UserLoop(self._session.spec)
        self._loop.why_waiting = _NO_PLACE
        self._interrupter = Interrupter()
        self._joined = threading.Event()
        self._error: AsyncRLError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="asyncrl-connection", daemon=True)
        start_thread(self._thread)

    @property
    def ended(self) -> bool:
        """Whether the run has ended, or this connection was closed."""
        return self._ended.is_set()

    @property
    def spec(self) -> EnvSpec:
        """Observation and action spaces of the run."""
        return self._loop.spec

    def act(self, obs: object, *, timeout_s: float | None = None) -> Array:
        """Return the action for one observation, an array of the observation space.

        Waits while the learner does not want more experience, or is out of reach; after the timeout
        it raises `TransportError`, and may be called again. Raises `TransportClosed` when the run
        has ended.
        """
        return self._loop.act(obs, self._timeout_s if timeout_s is None else timeout_s)

    def override(self, action: object) -> None:
        """Replace the last action by what was done instead, as by a person who takes over.

        Call it between `act` and `observe`. The replaced action is stored and learned from. Not for
        agents that store more about an action than itself, as on-policy ones do.
        """
        if fixed := self._session.columns_of_actions:
            raise ConfigError(
                f"{self._session.agent} stores {', '.join(fixed)} of each action "
                "that it chooses, which other actions lack; override works with agents such as "
                "DQN, SAC and TD3"
            )
        self._loop.override(action)

    def observe(
        self,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        info: Mapping[str, Any] | None = None,
        *,
        obs: object = None,
    ) -> None:
        """Report what the last action has led to; does not wait.

        The next `act` has the observation that followed, or the first one of the next episode.
        `obs` is the last one of an episode; it is required if the episode was truncated.
        `info["is_success"]` is recorded as in any environment.
        """
        self._loop.observe(
            reward, terminated=terminated, truncated=truncated, info=info or {}, obs=obs
        )

    def wait_until_joined(self) -> None:
        """Wait for the learner's answer, or raise the reason for the silence."""
        deadline = time.monotonic() + self._timeout_s
        while not self._joined.wait(0.05):
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline:
                raise TransportError(
                    f"the learner at {self._session.key.address} has not answered within "
                    f"{self._timeout_s:g} s"
                )

    def close(self) -> None:
        """Send what is left, and leave the run; may be called again."""
        self._interrupter.stop("the program has closed the connection")
        self._end(TransportClosed("the connection is closed"))
        limit_s = self._session.stop_timeout_s + _CLOSE_S
        self._thread.join(limit_s)
        if self._thread.is_alive():
            raise TransportError(f"the connection did not end within {limit_s:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        """Join, and join again after each loss, until the run ends."""
        while not self._interrupter.is_set:
            try:
                if self._serve() == "ended":
                    self._end(TransportClosed("the run has ended"))
                    return
                why = "the learner had given up this actor"
            except (AsyncRLError, OSError) as error:
                why = str(error)
                if not self._joined.is_set():
                    self._error = error if isinstance(error, AsyncRLError) else ConfigError(why)
                    return
            if not self._interrupter.is_set:
                self._loop.why_waiting = why
                _log.warning("%s; it joins again", why)
                self._interrupter.wait(_AGAIN_S)
                self._read_key()

    def _read_key(self) -> None:
        """Take the newest key: a learner that was restarted has another one."""
        try:
            session = _Session.of(self._key_file, *self._given)
        except ConfigError as error:  # it is not there yet
            self._loop.why_waiting = str(error)
            return
        if session.spec == self._loop.spec:
            self._session = session
        else:
            self._loop.why_waiting = f"{self._key_file} is now of a run with other spaces"

    def _serve(self) -> str:
        """Be a host until the session ends; return how."""
        session = self._session
        keys = ActorKeys(session.key.curve.server)
        with ExitStack() as undo:
            launcher = undo.enter_context(ThreadLauncher())
            line = ZmqHostLine(session.key.address, session.key.curve, session.transport)
            undo.callback(line.close)
            host = Host(
                launcher,
                line,
                {
                    **session.facts,
                    "host": f"{socket.gethostname()}/{os.getpid()}",
                    "room": 1,
                    "program": True,
                },
                partial(session.in_loop, self._loop, keys),
                HostTimeouts(
                    first_answer_s=_AGAIN_TIMEOUT_S if self._joined.is_set() else self._timeout_s,
                    learner_s=session.learner_timeout_s,
                    stop_s=session.stop_timeout_s,
                ),
                offer_key=keys.offer,
                on_welcome=self._joined.set,
            )
            return host.run(self._interrupter)

    def _end(self, why: Exception) -> None:
        self._loop.end(why)
        self._ended.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """What a key says about its run."""

    key: JoinKey
    agent: str
    """Name of its class, for errors."""

    spec: EnvSpec
    """The spaces of the environment."""

    extras: Sequence[ColumnSpec]
    """Columns that the agent adds to rows."""

    facts: Plain
    transport: ZmqTransportConfig
    learner_timeout_s: float
    stop_timeout_s: float
    make: Callable[[UserLoop, ActorKeys, Peer, Plain, Plain], ActorSpec]
    """Returns an actor, of the learner's welcome and its order."""

    @classmethod
    def of(cls, key_file: Path, agent: AgentConfig | None, config: RunConfig | None) -> Self:
        """Read a key; raise `ConfigError` if it and the arguments do not say enough."""
        if (agent is None) != (config is None):
            missing, other = ("agent", "config") if agent is None else ("config", "agent")
            raise ConfigError(
                f"connect got {other}=..., but no {missing}: pass {missing}=..., that of the run, "
                "as well, or neither of them to act by what the key holds"
            )
        key = JoinKey.load(key_file)
        if key.plan is not None and agent is None and config is None:
            return cls._planned(key, from_plain(ActorPlan, key.plan))
        return cls._built(key_file, key, agent, config)

    @classmethod
    def _planned(cls, key: JoinKey, plan: ActorPlan) -> Self:
        """Act by the learner's plan, without torch."""
        spec = spec_of(key.spaces)
        schema = plan.schema(spec)

        def make(
            loop: UserLoop, keys: ActorKeys, _: Peer, welcome: Plain, order: Plain
        ) -> ActorSpec:
            transport, change = ordered(key, keys, schema, plan.transport, welcome, order)
            return plan.actor(spec, lambda: loop, transport, change)

        return cls(
            key=key,
            agent=plan.agent,
            spec=spec,
            extras=plan.extras,
            facts={**json.loads(plan.facts), "software": SOFTWARE},
            transport=plan.transport,
            learner_timeout_s=plan.learner_timeout_s,
            stop_timeout_s=plan.stop_timeout_s,
            make=make,
        )

    @classmethod
    def _built(
        cls, key_file: Path, key: JoinKey, agent: AgentConfig | None, config: RunConfig | None
    ) -> Self:
        """Build the agent's policy here, from settings."""
        if find_spec("torch") is None:
            raise ConfigError(
                f"{key_file} has no plan for programs without torch, see the learner's log, and "
                "torch is not installed here: pip install torch"
            )
        actor_agents = make_processor = None
        if key.settings is not None and agent is None and config is None:
            run = from_plain(RunConfig, key.settings)
            actor_agents = run.parts.agents_of_actors(run.agent, run.actors)
            agent, config, make_processor = run.agent, run, run.parts.make_processor
        if agent is None or config is None:
            raise ConfigError(
                f"{key_file} has no settings, because its run was started from Python, and no plan "
                "for actors without torch: pass its agent and config to connect"
            )
        spec = spec_of(key.spaces)
        plan = RunPlan(
            agent,
            partial(UserLoop, spec),
            make_processor,
            config,
            actor_agents,
            seen=EnvDescription(spec, n_envs=1),
        )

        def make(
            _: UserLoop, keys: ActorKeys, peer: Peer, welcome: Plain, order: Plain
        ) -> ActorSpec:
            return OrderedSpecs(key, config, plan, keys).make(peer, welcome, order)

        return cls(
            key=key,
            agent=type(agent).__name__,
            spec=spec,
            extras=agent.extra_columns(spec),
            facts=facts_of(agent, actor_agents, config, plan.schema.hash()),
            transport=config.transport,
            learner_timeout_s=config.hosts.learner_timeout_s,
            stop_timeout_s=config.supervision.stop_timeout_s,
            make=make,
        )

    @property
    def columns_of_actions(self) -> list[str]:
        """Columns that the agent stores about its own actions."""
        return [c.name for c in self.extras if not c.start and c.name != DISCOUNTED_RETURN]

    def in_loop(
        self, loop: UserLoop, keys: ActorKeys, peer: Peer, welcome: Plain, order: Plain
    ) -> Spec:
        """Return the spec of the actor, for a thread of this process."""
        return _InLoop(loop, self.make(loop, keys, peer, welcome, order))


@dataclass(frozen=True, slots=True)
class _InLoop(Spec):
    """An actor whose environment is the user's loop."""

    loop: UserLoop
    spec: ActorSpec

    def run(self, peer: Peer, progress: Progress) -> None:
        """Run it in that loop."""
        loop, transport = self.loop, _Noting(self.spec.transport)

        def must_finish() -> bool:
            progress.waiting(True)
            link = transport.link
            return progress.finishing() or (link is not None and link.stopping())

        loop.begin(must_finish)
        loop.why_waiting = _HAS_PLACE
        its = replace(
            self.spec,
            make_env=EnvSource(lambda: loop),
            changes_env=False,
            transport=transport,
            owns_process=False,
        )
        try:
            its.run(peer, progress)
        except NoAnswer:  # it had to finish before the first observation came
            return
        finally:
            if loop.leave(must_finish):
                loop.why_waiting = _NO_PLACE


class _Noting:
    """A transport that keeps the link that was opened."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.link: ActorLink | None = None

    def listen(self) -> LearnerLink:
        """Open the learner's end."""
        return self._transport.listen()

    def connect(self, peer: Peer) -> ActorLink:
        """Open an actor's end."""
        self.link = self._transport.connect(peer)
        return self.link
