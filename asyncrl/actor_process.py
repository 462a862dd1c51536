"""What an actor's process runs: builds the parts that belong to it, and lives its life.

Specs are what travels to the child: plain factories and configs, and an address. How the child
is started, and how its failure is told, is the launcher's business.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from asyncrl.actor import Actor
from asyncrl.agent import (
    Act,
    AgentConfig,
    CountsEnvSteps,
    Policy,
    PolicyContext,
    PolicyWrapper,
)
from asyncrl.env import EnvSpec, MakeBatchEnv
from asyncrl.evaluator import Evaluator
from asyncrl.launcher import Progress
from asyncrl.messages import EvaluationReport, Hello, Peer
from asyncrl.outbox import Outbox
from asyncrl.seeding import Role, derive_seed
from asyncrl.segment import SegmentConfig, SegmentSchema
from asyncrl.step_processor import StepProcessor
from asyncrl.transport import Transport
from asyncrl.types import Array, ModelVersion

__all__ = ["ActorSpec", "EvaluatorSpec", "MakeEvaluator", "run_actor", "run_evaluator"]

_WAIT_S = 0.1
_SEND_S = 1.0

MakeEvaluator = Callable[[], Evaluator]
"""Builds an evaluator in the process that will run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSpec:
    """Everything that one actor is made of."""

    make_env: MakeBatchEnv
    agent: AgentConfig
    make_processor: Callable[[], StepProcessor]
    schema: SegmentSchema
    segment: SegmentConfig
    transport: Transport
    n_actors: int
    seed: int
    """Of the whole run; each life of each actor draws streams of its own from it."""


def run_actor(spec: ActorSpec, peer: Peer, progress: Progress) -> None:
    """Be one actor, from its first model to its last words."""
    _set_up_logging(f"actor {peer.actor_id}")
    life = (peer.actor_id, peer.incarnation)
    _seed_globals(derive_seed(spec.seed, Role.GLOBALS, *life))
    env = spec.make_env()
    try:
        context = PolicyContext(
            seed=derive_seed(spec.seed, Role.POLICY, *life),
            actor_id=peer.actor_id,
            n_actors=spec.n_actors,
            n_envs=env.n_envs,
        )
        policy = spec.agent.build_policy(env.spec, context)
        outbox = Outbox(peer, spec.schema, spec.segment, env.n_envs)
        link = spec.transport.connect(peer)
        try:
            actor = Actor(peer, env, policy, spec.make_processor(), outbox, link, progress=progress)
            hello = Hello(peer=peer, schema_hash=spec.schema.hash())
            actor.run(hello, derive_seed(spec.seed, Role.ENVIRONMENT, *life))
        finally:
            link.close()
    finally:
        env.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorSpec:
    """Everything that an evaluating process is made of."""

    env_spec: EnvSpec
    make_evaluator: MakeEvaluator
    agent: AgentConfig
    transport: Transport
    seed: int


def run_evaluator(spec: EvaluatorSpec, peer: Peer, progress: Progress) -> None:
    """Score each model that is published for evaluation, the newest first."""
    _set_up_logging("evaluator")
    _seed_globals(derive_seed(spec.seed, Role.GLOBALS, peer.actor_id, peer.incarnation))
    context = PolicyContext(seed=derive_seed(spec.seed, Role.EVALUATION, peer.incarnation))
    policy = spec.agent.build_policy(spec.env_spec, context)
    evaluator = spec.make_evaluator()
    link = spec.transport.connect(peer)
    try:
        link.hello(Hello(peer=peer, schema_hash=""))
        version = ModelVersion(-1)
        while not link.stopping():
            progress.waiting(True)
            info = link.latest_model("evaluate", version, _WAIT_S)
            if info is None:
                continue
            progress.waiting(False)
            version = info.version
            policy.sync_model(info)
            if isinstance(policy, CountsEnvSteps):
                policy.env_steps = info.env_steps  # without those of evaluations
            score, record = evaluator.evaluate(_Watched(policy, progress))
            report = EvaluationReport(
                peer=peer, model_version=version, score=score, record=dict(record)
            )
            while not link.send(report, _SEND_S) and not link.stopping():
                progress.waiting(True)
    finally:
        link.close()
        evaluator.close()


class _Watched(PolicyWrapper):
    """A policy under evaluation that leaves word of each step: a long evaluation is no hang."""

    def __init__(self, policy: Policy, progress: Progress) -> None:
        super().__init__(policy)
        self._progress = progress

    def act(self, obs: Array) -> Act:
        self._progress.turn(0)
        return super().act(obs)


def _seed_globals(seed: int) -> None:
    """Seed what environments draw from that know nothing better than global generators.

    Processes that were forked from one would otherwise all draw the same numbers.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # for those who still use it


def _set_up_logging(name: str) -> None:
    """Say who speaks: the child's log lines go to the stderr it shares with the learner."""
    logging.basicConfig(
        level=logging.WARNING, format=f"%(asctime)s {name} %(levelname)s %(name)s: %(message)s"
    )
