"""What an actor process runs: builds its parts and runs its loop.

Specs travel to the child: plain factories, configs and an address. Does not know how the child is
started or how its failure is reported; the launcher does. A learner, which makes the specs, does
not load what acts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from asyncrl.actor.step_processor import StepProcessor
from asyncrl.core.agent import (
    Act,
    AgentConfig,
    BuildPolicy,
    Policy,
    PolicyContext,
    PolicyWrapper,
    counter_of,
)
from asyncrl.core.env import BatchEnv, EnvSource, EnvSpec
from asyncrl.core.env_checks import checked
from asyncrl.core.errors import EnvironmentFault, describe_error
from asyncrl.core.evaluator import EVALUATION_CPU, Evaluator, MakeEvaluator, evaluated
from asyncrl.core.inference import (
    HasInference,
    InferenceAddress,
    InferenceClient,
    compute_fast,
)
from asyncrl.core.launcher import Killed, Progress, Spec
from asyncrl.core.messages import EnvChange, EvaluationReport, Hello, Peer
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.core.segment import SegmentConfig, SegmentSchema
from asyncrl.core.transport import ActorLink, Transport
from asyncrl.core.types import Array, ModelVersion
from asyncrl.fleet.config import RestartPolicyConfig
from asyncrl.fleet.restart_policy import EnvRestartPolicy, GiveUp
from asyncrl.metrics.system import cpu_s

if TYPE_CHECKING:
    from asyncrl.actor.acting_model import ActingModel, ServedModel
    from asyncrl.actor.actor import Actor, NewEnv

logger = logging.getLogger(__name__)

_WAIT_S = 0.1
_NICENESS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSpec(Spec):
    """Everything that an actor is built from."""

    make_env: EnvSource
    build_policy: BuildPolicy
    make_processor: Callable[[], StepProcessor]
    schema: SegmentSchema
    segment: SegmentConfig
    transport: Transport
    n_actors: int
    seed: int
    """Seed of the run, or of one of its several learners. Each incarnation of each actor derives
    its own random streams from it."""

    first_actor: int = 0
    """Number of the first actor of this learner among those of all, for exploration."""

    restart: RestartPolicyConfig = field(default_factory=RestartPolicyConfig)
    """Its `on_exception` says whether failed environments are rebuilt."""

    inference: InferenceAddress | None = None
    """The server that computes the policy's network; None computes it in this process."""

    changes_env: bool = True
    """False if the environments are not made here, so that no change reaches them."""

    env_change: EnvChange = field(default_factory=EnvChange)
    """The change of environments that is in force when this actor starts."""

    owns_process: bool = True
    """Whether its process runs nothing else, limited to one thread: it may set up logging and the
    global random generators."""

    runs: Callable[[Actor, Hello, int], None] | None = None
    """Runs the actor, given what it says first and its environments' seed. None: it acts in a
    loop."""

    def run(self, peer: Peer, progress: Progress) -> None:
        """Run the actor, from its first model to its final report."""
        from asyncrl.actor.actor import Actor  # noqa: PLC0415  # not for a learner
        from asyncrl.actor.outbox import Outbox  # noqa: PLC0415  # the same

        incarnation = (peer.actor_id, peer.incarnation)
        if self.owns_process:
            set_up_process(f"actor {peer.actor_id}", self.seed, peer)
        had_torch = "torch" in sys.modules
        with _Opened() as opened:
            home = _Environments(self, peer)
            opened.callback(home.close)
            env = home.env
            context = PolicyContext(
                seed=derive_seed(self.seed, Role.POLICY, *incarnation),
                actor_id=self.first_actor + peer.actor_id,
                n_actors=self.n_actors,
                n_envs=env.n_envs,
            )
            policy = self.build_policy(env.spec, context)
            if self.owns_process and not had_torch:
                _seed_torch(_globals_seed(self.seed, peer))
            outbox = Outbox(peer, self.schema, self.segment, env.n_envs)
            link = self.transport.connect(peer)
            opened.callback(link.close)
            model: ActingModel | None = None
            if self.inference is None:
                compute_fast(policy, one_thread=self.owns_process)
            else:
                client = self.inference.connect()
                opened.callback(client.close)
                model = _served_model(policy, client, peer, link, progress)
            actor = Actor(
                peer,
                env,
                policy,
                self.make_processor(),
                outbox,
                link,
                progress=progress,
                model=model,
                rebuilder=home if self.restart.on_exception == "restart_env" else None,
                changes=home if self.changes_env else None,
            )
            hello = Hello(peer=peer, schema_hash=self.schema.hash())
            (self.runs or Actor.run)(
                actor, hello, derive_seed(self.seed, Role.ENVIRONMENT, *incarnation)
            )

    def instructions(self) -> dict[str, Any]:
        """Return the change of environments, which a host does not know."""
        return {"change": [self.env_change.number, dict(self.env_change.kwargs)]}


def _served_model(
    policy: Policy, client: InferenceClient, peer: Peer, link: ActorLink, progress: Progress
) -> ServedModel:
    """Let a server compute the policy's network."""
    from asyncrl.actor.acting_model import ServedModel  # noqa: PLC0415  # not for a learner

    model = ServedModel(
        policy,
        client,
        peer,
        progress=progress,
        finishing=lambda: link.stopping() or progress.finishing(),
    )
    cast(HasInference, policy).inference = model  # `check_served` has seen that it uses it
    return model


class _Opened(contextlib.ExitStack):
    """Closes what was opened. Errors there do not hide that of the block."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            return super().__exit__(kind, error, trace)
        except Exception:
            if error is None:
                raise
            return False


class _Environments:
    """An actor's environments, and their replacements as often as the policy allows."""

    def __init__(self, spec: ActorSpec, peer: Peer) -> None:
        self._spec = spec
        self._peer = peer
        self._change = spec.env_change
        self._policy = EnvRestartPolicy(spec.restart, derive_seed(spec.seed, *self._seed_path(0)))
        self._made = 0
        self._open = contextlib.ExitStack()
        self.env = self._make()

    def allow(self, error: BaseException, *, env_steps: int) -> float:
        """Close the failed environments and return the backoff, or raise to end the actor."""
        if isinstance(error, Killed):
            raise error
        how = describe_error(error)
        decision = self._policy.on_failure(now=time.monotonic(), env_steps=env_steps)
        if isinstance(decision, GiveUp):
            raise EnvironmentFault(f"{how}; {decision.why}") from error
        logger.warning(
            "the environments failed: %s; all %d are rebuilt in %.1f s, and their episodes are "
            "cut before the failed step\n\n%s",
            how,
            self.env.n_envs,
            decision.after_s,
            "".join(traceback.format_exception(error)),
        )
        with contextlib.suppress(Exception):  # a failed environment may also fail to close
            self._open.close()
        return decision.after_s

    def make(self) -> NewEnv:
        """Build and reset new environments of the same kind, with a separate seed."""
        from asyncrl.actor.actor import NewEnv  # noqa: PLC0415  # not for a learner

        before = self.env.spec, self.env.n_envs
        self.env = self._make()
        if (self.env.spec, self.env.n_envs) != before:
            raise EnvironmentFault(
                f"the rebuilt environments differ: {self.env.n_envs} with {self.env.spec}, before "
                f"{before[1]} with {before[0]}. Let the factory return the same kind in each call"
            )
        self._made += 1
        obs = self.env.reset(derive_seed(self._spec.seed, *self._seed_path(self._made)))
        return NewEnv(self.env, obs, self._spec.make_processor())

    @property
    def change_number(self) -> int:
        """Number of the change that the environments have."""
        return self._change.number

    def change(self, change: EnvChange) -> NewEnv:
        """Close the environments and build those of a change."""
        self._open.close()
        self._change = change
        return self.make()

    def close(self) -> None:
        """Close the environments."""
        self._open.close()

    def _make(self) -> BatchEnv:
        make_env = self._spec.make_env
        if self._spec.changes_env:
            make_env = make_env.with_kwargs(self._change.kwargs)
        env = checked(make_env())
        self._open.callback(env.close)
        return env

    def _seed_path(self, made: int) -> tuple[Role, int, int, int]:
        return Role.ENVIRONMENT, self._peer.actor_id, self._peer.incarnation, made


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorSpec(Spec):
    """Everything that an evaluating process is built from."""

    env_spec: EnvSpec
    make_evaluator: MakeEvaluator
    agent: AgentConfig
    transport: Transport
    seed: int
    owns_process: bool = True
    """As in `ActorSpec`."""

    def run(self, peer: Peer, progress: Progress) -> None:
        """Score each model that is published for evaluation, always the newest one."""
        if self.owns_process:
            _lower_priority()
            set_up_process("evaluator", self.seed, peer)
        with _Opened() as opened:
            evaluator = self.make_evaluator()
            opened.callback(evaluator.close)
            context = PolicyContext(
                seed=derive_seed(self.seed, Role.EVALUATION, peer.incarnation),
                n_envs=getattr(evaluator, "n_envs", 1),
            )
            policy = self.agent.build_policy(self.env_spec, context)
            link = self.transport.connect(peer)
            opened.callback(link.close)
            _evaluate(
                evaluator,
                policy,
                link,
                peer,
                progress,
                cpu_s if self.owns_process else time.thread_time,
            )


def _lower_priority() -> None:
    """Let training go first where it needs all cores; where that is forbidden, change nothing.

    At this priority it still gets a quarter of a core that one other process wants for itself, so
    that scores arrive soon. Nice 10 would leave it a tenth, 19 a hundredth. Processes and threads
    that are started from here on inherit it.
    """
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)


def _evaluate(
    evaluator: Evaluator,
    policy: Policy,
    link: ActorLink,
    peer: Peer,
    progress: Progress,
    clock: Callable[[], float],
) -> None:
    """Score models until the run, or this process, ends; `clock` reads the CPU time so far."""
    hello = Hello(peer=peer, schema_hash="")
    while not link.hello(hello, _WAIT_S):  # without a heartbeat, as when an actor starts
        pass
    version = ModelVersion(-1)
    while not (link.stopping() or progress.finishing()):
        progress.waiting(True)
        info = link.latest_model("evaluate", version, _WAIT_S)
        if info is None:
            continue
        progress.waiting(False)
        version = info.version
        policy.sync_model(info)
        if (counter := counter_of(policy)) is not None:
            counter.env_steps = info.env_steps  # evaluations are not counted
        began_s = clock()
        score, record = evaluated(evaluator, _WithHeartbeat(policy, progress), version)
        cost = {EVALUATION_CPU: max(clock() - began_s, 0.0)}
        report = EvaluationReport(
            peer=peer, model_version=version, score=score, record={**record, **cost}
        )
        link.send(report, _WAIT_S)
    while not (link.stopping() or link.drain(_WAIT_S)):
        progress.waiting(True)


class _WithHeartbeat(PolicyWrapper):
    """A policy under evaluation that sends a heartbeat at each step, against the timeout."""

    def __init__(self, policy: Policy, progress: Progress) -> None:
        super().__init__(policy)
        self._progress = progress

    def act(self, obs: Array) -> Act:
        self._progress.turn(0)
        return super().act(obs)


def _globals_seed(seed: int, peer: Peer) -> int:
    return derive_seed(seed, Role.GLOBALS, peer.actor_id, peer.incarnation)


def set_up_process(name: str, seed: int, peer: Peer) -> None:
    """Set up logging and the global random generators, for environments and policies.

    Otherwise all processes that were forked from the same one would draw the same numbers. `seed`
    is that of the run.
    """
    _set_up_logging(name)
    seed = _globals_seed(seed, peer)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # for those who still use it
    _seed_torch(seed)


def _seed_torch(seed: int) -> None:
    """Seed torch, if it is loaded: it begins with the same seed in every process.

    Its devices get the seed when they are first used.
    """
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def _set_up_logging(name: str) -> None:
    """Prefix log records with the process's name; without a handler they go to stderr."""
    form = f"{name}: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form)
    for handler in logging.getLogger().handlers:
        if handler.formatter is None:
            handler.setFormatter(logging.Formatter(form))
