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
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import EnvDescription, spec_of
from asyncrl.core.errors import AsyncRLError, ConfigError, TransportClosed, TransportError
from asyncrl.core.interrupter import Interrupter, start_thread
from asyncrl.core.messages import SOFTWARE
from asyncrl.core.segment import DISCOUNTED_RETURN, ColumnSpec
from asyncrl.core.settings import from_plain
from asyncrl.extensions.connect.user_loop import UserLoop
from asyncrl.fleet.host import HostTimeouts, Outcome
from asyncrl.fleet.threads import ThreadLauncher
from asyncrl.run.actor_plan import ActorPlan
from asyncrl.run.join import HostPlan, facts_of
from asyncrl.run.join_key import JoinKey
from asyncrl.run.plan import RunPlan
from asyncrl.run.run_config import RunConfig

_log = logging.getLogger(__name__)

_AGAIN_S, _AGAIN_TIMEOUT_S = 1.0, 5.0
"""Seconds between two attempts to join, and their timeout: meanwhile a restarted learner may have
written another key."""

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
    if (agent is None) != (config is None):
        missing, other = ("agent", "config") if agent is None else ("config", "agent")
        raise ConfigError(
            f"connect got {other}=..., but no {missing}: pass {missing}=..., that of the run, as "
            "well, or neither of them to act by what the key holds"
        )
    given = None if agent is None or config is None else replace(config, agent=agent)
    connection = Connection(Path(key_file), given, timeout_s)
    try:
        connection.wait_until_joined()
    except BaseException:
        connection.close()
        raise
    return connection


class Connection(UserLoop, AbstractContextManager["Connection"]):
    """An actor whose environment is the caller's loop; use it in a `with` block, or close it.

    Call `act`, then `observe`, from one thread. While the learner is out of reach, `act` waits.
    When it is back, a new episode begins; the experience since its last message is lost then.
    """

    def __init__(self, key_file: Path, given: RunConfig | None, timeout_s: float) -> None:
        """Start to join; `connect` waits for it."""
        super().__init__(spec_of(JoinKey.load(key_file).spaces), timeout_s)
        self._key_file = key_file
        self._given = given
        self._session = self._newest()
        self._interrupter = Interrupter()
        self._joined = Future[None]()
        self._thread = threading.Thread(
            target=self._run_host, name="asyncrl-connection", daemon=True
        )
        start_thread(self._thread)

    def override(self, action: object) -> None:
        """Replace the last action by what was done instead, as by a person who takes over.

        Call it between `act` and `observe`. The replaced action is stored and learned from. Not for
        agents that store more about an action than itself, as on-policy ones do.
        """
        extras = self._session.extras
        if fixed := [c.name for c in extras if not c.start and c.name != DISCOUNTED_RETURN]:
            raise ConfigError(
                f"{self._session.agent} stores {', '.join(fixed)} of each action "
                "that it chooses, which other actions lack; override works with agents such as "
                "DQN, SAC and TD3"
            )
        super().override(action)

    def wait_until_joined(self) -> None:
        """Wait for the learner's answer, or raise the reason for the silence."""
        self._joined.result(self._timeout_s + _CLOSE_S)  # the reason comes after `timeout_s`

    def close(self) -> None:
        """Send what is left, and leave the run; may be called again."""
        self._interrupter.stop("the program has closed the connection")
        self.end(TransportClosed("the connection is closed"))
        limit_s = self._session.host.timeouts.stop_s + _CLOSE_S
        self._thread.join(limit_s)
        if self._thread.is_alive():
            raise TransportError(f"the connection did not end within {limit_s:g} s")

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_host(self) -> None:
        """Join, and join again after each loss, until the run ends."""
        while not self._interrupter.is_set:
            try:
                if self._be_host() != "lost":
                    break
                why = "the learner had given up this actor"
            except Exception as error:
                if not self._joined.done():
                    self._joined.set_exception(error)
                    break
                if not isinstance(error, AsyncRLError | OSError):  # a defect: for the caller
                    self.end(error)
                    break
                why = str(error)
            if why != self.why_waiting:
                _log.warning("%s; it joins again", why)
            self.why_waiting = why
            self._interrupter.wait(_AGAIN_S)
        self.end(TransportClosed("the run has ended"))

    def _be_host(self) -> Outcome:
        """Be a host, with the newest key, until that ends; return how."""
        if again := self._joined.done():  # a learner that was restarted has written another key
            self._session = self._newest()
        of_run = self._session.host
        first_answer_s = _AGAIN_TIMEOUT_S if again else self._timeout_s
        host = replace(
            of_run,
            timeouts=replace(of_run.timeouts, first_answer_s=first_answer_s),
            build=lambda *order: self.here(of_run.build(*order)),
        )
        with ThreadLauncher() as launcher:
            return host.serve(
                launcher, self._interrupter, room=1, on_welcome=self._on_welcome, program=True
            )

    def _on_welcome(self) -> None:
        if not self._joined.done():
            self._joined.set_result(None)

    def _newest(self) -> _Session:
        """Read the key."""
        key = JoinKey.load(self._key_file)
        if spec_of(key.spaces) != self.spec:
            raise ConfigError(f"{self._key_file} is now of a run with other spaces")
        if key.plan is not None and self._given is None:
            return _planned(key, from_plain(ActorPlan, key.plan), self)
        return _built(self._key_file, key, self._given, self)


@dataclass(frozen=True, slots=True)
class _Session:
    """What a key says about its run."""

    agent: str
    """Name of its class, for errors."""

    extras: Sequence[ColumnSpec]
    """Columns that the agent adds to rows."""

    host: HostPlan


def _planned(key: JoinKey, plan: ActorPlan, loop: UserLoop) -> _Session:
    """Act by the learner's plan, without torch."""
    host = HostPlan(
        key=key,
        facts={**json.loads(plan.facts), "software": SOFTWARE},
        schema=plan.schema(loop.spec),
        transport=plan.transport,
        timeouts=HostTimeouts(learner_s=plan.learner_timeout_s, stop_s=plan.stop_timeout_s),
        build=lambda _, *order: plan.actor(loop.spec, loop.make_env, *order),
    )
    return _Session(plan.agent, plan.extras, host)


def _built(key_file: Path, key: JoinKey, given: RunConfig | None, loop: UserLoop) -> _Session:
    """Build the agent's policy here, from settings."""
    if find_spec("torch") is None:
        raise ConfigError(
            f"{key_file} has no plan for programs without torch, see the learner's log, and torch "
            "is not installed here: pip install torch"
        )
    actor_agents = make_processor = None
    if given is not None:
        config = given
    elif key.settings is not None:
        config = from_plain(RunConfig, key.settings)
        actor_agents = config.parts.agents_of_actors(config.agent, config.actors)
        make_processor = config.parts.make_processor
    else:
        raise ConfigError(
            f"{key_file} has no settings, because its run was started from Python, and no plan for "
            "actors without torch: pass its agent and config to connect"
        )
    seen = EnvDescription(loop.spec, n_envs=1)
    plan = RunPlan(config, loop.make_env, make_processor, actor_agents, seen=seen)
    facts = facts_of(config, actor_agents, plan.schema.hash())
    host = HostPlan.of_run(key, plan, facts)
    agent = config.agent
    return _Session(type(agent).__name__, agent.extra_columns(loop.spec), host)
