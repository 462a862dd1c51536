"""Checks the agent, the environment and the config of a run together, and derives its parts.

Starts nothing: settings that contradict each other are rejected before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from asyncrl.actor.process import ActorSpec, EvaluatorSpec
from asyncrl.actor.step_processor import Layout, StepProcessor, segments_per_message
from asyncrl.core.agent import (
    Agent,
    AgentConfig,
    PolicyContext,
    build_agent,
    require_agent_config,
)
from asyncrl.core.env import EnvDescription, MakeBatchEnv, source_of
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import MakeEvaluator
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.launcher import Launcher
from asyncrl.core.messages import EnvChange, Peer
from asyncrl.core.replay_buffer import ReplayBuffer, check_agent_and_replay, transitions_per_sample
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.core.segment import SegmentSchema
from asyncrl.core.transport import Transport
from asyncrl.core.types import ActorId
from asyncrl.fleet.actor_manager import MakeSpec
from asyncrl.fleet.local import pickled
from asyncrl.learner.actor_source import Hosts
from asyncrl.learner.rate_limiter import RateLimiter, build_limiter
from asyncrl.metrics.verdict import Setup
from asyncrl.run.launchers import EVALUATOR
from asyncrl.run.preset_rules import if_cheap
from asyncrl.run.run_config import RunConfig

if TYPE_CHECKING:
    from asyncrl.run.inference import ServedInference
    from asyncrl.transport.zeromq import ZmqLearnerLink


class Admit(Protocol):
    """Gives an incarnation of an actor, or of the evaluator, its transport."""

    def __call__(self, peer: Peer, *, evaluates: bool = False) -> Transport:
        """Return it, as a learner's link does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What starts the actors of a run, and what is known of where they run."""

    launcher: Launcher
    link: ZmqLearnerLink
    admit: Admit
    network_s: Callable[[Peer], float] = lambda _: 0.0
    """Returns the round trip of the network to an actor, without waits; 0 if unknown."""

    hosts: Callable[[], Hosts] = dict
    """As in `ActorSource`."""

    invite: Callable[[Interrupter], object] = lambda _: None
    """Lets those join who wait for it, now that the learner listens."""


def check_run(
    config: RunConfig,
    make_env: MakeBatchEnv,
    make_processor: Callable[[], StepProcessor] | None = None,
    actor_agents: Sequence[AgentConfig] | None = None,
    evaluate: MakeEvaluator | None = None,
) -> None:
    """Reject what can be rejected before an environment is built or a process started.

    Whatever processes are given is pickled here, to see whether that works.
    """
    check_agent_and_replay(config.agent, config.replay)
    for one in actor_agents or ():
        require_agent_config(one)
    if actor_agents is not None and len(actor_agents) != config.actors:
        raise ConfigError(
            f"{len(actor_agents)} actor_agents were given for {config.actors} actors; give one for "
            "each, or None to use the learner's for all"
        )
    source_of(make_env)
    if config.launcher != "thread":
        apart = evaluate if config.evaluate.where == "background" else None
        pickled([config.agent, actor_agents, make_env, make_processor, apart])


class RunPlan:
    """The parts of a run, derived from its settings and its environments and checked together."""

    def __init__(
        self,
        config: RunConfig,
        make_env: MakeBatchEnv,
        make_processor: Callable[[], StepProcessor] | None = None,
        actor_agents: Sequence[AgentConfig] | None = None,
        *,
        seen: EnvDescription,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        """Derive the plan after `check_run`; raise `ConfigError` if parts do not fit together.

        `seen` holds the facts about the environments. `config` is the share of one of `world`
        learners.
        """
        self.config, self.agent, self.seed = config, config.agent, config.seed
        self.actor_agents = list(actor_agents or [self.agent] * config.actors)
        self.make_env, self.make_processor = make_env, make_processor
        self.given_agents = actor_agents
        self._rank, self._world = rank, world
        self.seen = seen
        self.spec, self._n_envs = seen.spec, seen.n_envs
        self._layout = Layout(self.agent, seen, config.replay, config.segment, make_processor)
        self.schema: SegmentSchema = self._layout.schema
        self.limiter = self._build_limiter()
        self.setup = Setup(
            actors=config.actors,
            envs_per_actor=self._n_envs,
            samples_per_insert=config.limiter.ratio,
            elsewhere=config.elsewhere,
            most_actors=config.most_actors(actor_agents),
            learners=world,
            served=config.inference != "actor",
            if_cheap=if_cheap(seen),
        )

    def build_learner(self) -> Agent:
        """Build the learner's agent."""
        context = PolicyContext(
            seed=derive_seed(self.config.seed, Role.LEARNER),
            n_actors=self.config.actors * self._world,
            n_envs=self._n_envs,
        )
        return build_agent(self.agent, self.spec, context)

    def build_buffer(self) -> ReplayBuffer:
        """Allocate the replay buffer."""
        which = [self._rank] if self._rank else []
        seed = derive_seed(self.config.seed, Role.REPLAY, *which)
        return self._layout.replay.build(self.schema, seed)

    def specs(
        self,
        admit: Admit,
        evaluate: MakeEvaluator,
        served: ServedInference | None,
        change: Callable[[], EnvChange],
    ) -> dict[ActorId, MakeSpec]:
        """Return what makes the spec of each process, by slot: actors first, see `HELPERS`.

        `admit` gives each incarnation of a process its transport, as a learner's link does;
        `served` computes the networks of actors, if they do not. `change` returns the change of
        environments that is in force.
        """

        def actor(peer: Peer) -> ActorSpec:
            return self.actor_spec(admit, served, change(), peer)

        specs: dict[ActorId, MakeSpec] = {ActorId(i): actor for i in range(self.config.actors)}
        if self.config.evaluate.where == "background":
            specs[EVALUATOR] = partial(self._evaluator_spec, admit, evaluate)
        return specs | (served.specs() if served else {})

    def _evaluator_spec(self, admit: Admit, evaluate: MakeEvaluator, peer: Peer) -> EvaluatorSpec:
        return EvaluatorSpec(
            env_spec=self.spec,
            make_evaluator=evaluate,
            agent=self.agent,
            transport=admit(peer, evaluates=True),
            seed=self.config.seed,
            owns_process=self.config.launcher != "thread",
        )

    def actor_spec(
        self, admit: Admit, served: ServedInference | None, change: EnvChange, peer: Peer
    ) -> ActorSpec:
        """Return the spec of one incarnation of an actor; see `specs`.

        Actors beyond those of the config act like the first one.
        """
        known = peer.actor_id if peer.actor_id < len(self.actor_agents) else 0
        agent = self.actor_agents[known]
        return ActorSpec(
            make_env=source_of(self.make_env),
            build_policy=served.build_policy[known] if served else agent.build_policy,
            make_processor=self._layout.make_processor,
            schema=self.schema,
            segment=self.config.segment,
            transport=admit(peer),
            n_actors=self.config.actors * self._world,
            first_actor=self.config.actors * self._rank,
            seed=self._seed_of_actors,
            restart=self.config.supervision.restart,
            env_change=change,
            inference=served.address if served else None,
            owns_process=self.config.launcher != "thread",
        )

    @property
    def _seed_of_actors(self) -> int:
        """Seed from which the actors of this learner derive theirs; no other learner has it."""
        seed = self.config.seed
        return derive_seed(seed, Role.LEARNER, self._rank) if self._rank else seed

    def _build_limiter(self) -> RateLimiter:
        """Build the limiter, checking messages and batches against the buffer's size."""
        config, batch_size = self.config, self.config.trainer.batch_size
        stride = transitions_per_sample(config.replay)
        min_size = config.limiter.min_size * stride
        message = config.segment.length * segments_per_message(
            config.segment, self.schema, self._n_envs
        )
        for name, size in (
            ("trainer.batch_size", batch_size),
            ("limiter.min_size" + " * replay.stride" * (stride > 1), min_size),
            ("one message (segment.length times environments per actor)", message),
        ):
            if size > config.replay.capacity:
                raise ConfigError(
                    f"{name} of {size} is more than replay.capacity={config.replay.capacity} "
                    "transitions; raise replay.capacity"
                )
        once = config.replay.once
        if once and batch_size < config.segment.length:
            learner = f" for each of {self._world} learners" if self._world > 1 else ""
            raise ConfigError(
                f"trainer.batch_size of {batch_size}{learner} counts transitions, and is less than "
                f"segment.length={config.segment.length}, but {type(config.replay).__name__} "
                "returns whole segments, so that actors and learner would wait for each other; "
                "raise trainer.batch_size, or lower segment.length"
            )
        return build_limiter(
            config.limiter, max_insert=message, batch_size=batch_size, once=once, stride=stride
        )
