"""Wires the parts of an asynchronous run together: the one place that knows them all.

`train_async` is the one-call form. `build_async_trainer` does the same and leaves the call of
`train` to the caller, who may look at the parts or replace some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypedDict, Unpack

from asyncrl.actor_manager import ActorManager, MakeBody
from asyncrl.actor_process import (
    ActorSpec,
    EvaluatorSpec,
    MakeEvaluator,
    run_actor,
    run_evaluator,
)
from asyncrl.agent import Agent, AgentConfig, PolicyContext
from asyncrl.async_config import AsyncConfig, EvaluationConfig
from asyncrl.async_trainer import AsyncTrainer, Strategy
from asyncrl.env import BatchEnv, EnvSpec, MakeBatchEnv
from asyncrl.errors import ConfigError
from asyncrl.evaluation import BackgroundEvaluation, EvaluationSite, InlineEvaluation
from asyncrl.evaluator import EpisodeEvaluator, EpisodeEvaluatorConfig
from asyncrl.facts import Setup
from asyncrl.interrupter import Interrupter
from asyncrl.launcher import ActorBody, ActorExit, Launcher
from asyncrl.launchers.local import LocalLauncher
from asyncrl.messages import Peer
from asyncrl.outbox import segments_per_message
from asyncrl.rate_limiter import RateLimiter
from asyncrl.recorder import Recorder
from asyncrl.recorders.background import BackgroundRecorder
from asyncrl.replay_buffer import ReplayBuffer
from asyncrl.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.resume import first_incarnation, open_checkpoints
from asyncrl.seeding import Role, derive_seed
from asyncrl.segment import SegmentSchema, make_schema
from asyncrl.step_processor import StepProcessor, make_one_step
from asyncrl.stop_conditions import StopCondition
from asyncrl.train_result import TrainResult
from asyncrl.transport import LearnerLink, Transport
from asyncrl.transports.zeromq import ZmqTransport
from asyncrl.types import ActorId

__all__ = ["RunParts", "build_async_trainer", "train_async"]

_PRELOAD = (
    "asyncrl.actor_process",
    "asyncrl.agents.torch_agent",
    "asyncrl.envs.gym",
    "asyncrl.transports.zeromq",
)
"""What actors load in any case, or almost."""


class RunParts(TypedDict, total=False):
    """The optional arguments of `build_async_trainer`, for `train_async` to pass on."""

    stop: StopCondition | None
    actor_agents: Sequence[AgentConfig] | None
    make_eval_env: MakeBatchEnv | None
    make_evaluator: MakeEvaluator | None
    make_processor: Callable[[], StepProcessor] | None
    recorder: Recorder | None
    checkpoint_dir: Path | None
    resume: bool
    strategy: Strategy | None
    interrupter: Interrupter | None
    run_config: Mapping[str, object] | None


def train_async(
    agent: AgentConfig,
    make_env: MakeBatchEnv,
    config: AsyncConfig | None = None,
    **parts: Unpack[RunParts],
) -> TrainResult:
    """Train an agent with actor processes, and return how it went.

    Takes what `build_async_trainer` takes.
    """
    return build_async_trainer(agent, make_env, config, **parts).train()


def build_async_trainer(
    agent: AgentConfig,
    make_env: MakeBatchEnv,
    config: AsyncConfig | None = None,
    *,
    stop: StopCondition | None = None,
    actor_agents: Sequence[AgentConfig] | None = None,
    make_eval_env: MakeBatchEnv | None = None,
    make_evaluator: MakeEvaluator | None = None,
    make_processor: Callable[[], StepProcessor] | None = None,
    recorder: Recorder | None = None,
    checkpoint_dir: Path | None = None,
    resume: bool = False,
    strategy: Strategy | None = None,
    interrupter: Interrupter | None = None,
    run_config: Mapping[str, object] | None = None,
) -> AsyncTrainer:
    """Wire a run together; everything that can be checked is checked before a process starts.

    Args:
        agent: The learner's agent, and every actor's unless `actor_agents` says otherwise.
        make_env: Builds the environments of one actor, in its process; see `envs/`.
        config: Everything else, all of it with defaults that run.
        stop: When to stop; without it, only `interrupter` or an error ends the run.
        actor_agents: One config per actor, for instance to explore differently.
        make_eval_env: Builds the environments to evaluate on; the actors' kind by default.
        make_evaluator: Builds an evaluator of your own in place of `EpisodeEvaluator`.
        make_processor: Builds what turns steps into rows, in place of `OneStep`.
        recorder: Who keeps the numbers; in a thread of its own, so it may be slow.
        checkpoint_dir: Where checkpoints go; without it none are saved.
        resume: Go on from the newest whole checkpoint in that directory.
        strategy: A training loop of your own.
        interrupter: Stops the run from outside, with a reason.
        run_config: Plain values for the recorder to keep beside its numbers.
    """
    config = config or AsyncConfig()
    plan = _Plan(agent, make_env, make_processor, config, actor_agents)
    evaluate = plan.make_evaluator(make_evaluator, make_eval_env or make_env)
    buffer = plan.build_buffer()  # refused here if there is no room for it
    checkpointer, checkpoint = open_checkpoints(checkpoint_dir, resume=resume, config=run_config)
    with ExitStack() as undo:
        if checkpointer:
            undo.callback(checkpointer.unlock)
        # First of all: it loads modules for the actors while the learner's side is being built.
        launcher = LocalLauncher(preload=_PRELOAD)
        undo.callback(launcher.close)
        learner = plan.build_learner()
        transport = ZmqTransport.ipc(
            launcher.directory, schema=plan.schema, config=config.transport
        )
        link = transport.listen()
        undo.callback(link.close)
        interrupter = interrupter or Interrupter()
        proxy = ReplayBufferProxy(link, buffer, plan.limiter, interrupter, config.proxy)
        bodies = plan.bodies(link.address, evaluate)
        trainer = AsyncTrainer(
            learner,
            link,
            proxy,
            plan.trainer,
            manager=_manager(
                launcher, bodies, config, interrupter, proxy, first_incarnation(checkpoint)
            ),
            interrupter=interrupter,
            evaluation=_evaluation_site(config.evaluation, evaluate, learner, link, proxy),
            recorder=_in_background(recorder),
            checkpointer=checkpointer,
            stop=stop,
            strategy=strategy,
            setup=plan.setup,
            run_config=run_config,
        )
        if checkpoint:
            trainer.restore(checkpoint)
        undo.pop_all()
    return trainer


def _in_background(recorder: Recorder | None) -> Recorder | None:
    """Keep a slow or failing recorder from the learner's turn."""
    if recorder is None or isinstance(recorder, BackgroundRecorder):
        return recorder
    return BackgroundRecorder([recorder])


def _evaluation_site(
    config: EvaluationConfig,
    evaluate: MakeEvaluator,
    learner: Agent,
    link: LearnerLink,
    proxy: ReplayBufferProxy,
) -> EvaluationSite | None:
    match config.where:
        case "background":
            return BackgroundEvaluation(link, proxy)
        case "inline":
            return InlineEvaluation(evaluate(), learner)
        case "off":
            return None


def _manager(
    launcher: Launcher,
    bodies: Mapping[ActorId, MakeBody],
    config: AsyncConfig,
    interrupter: Interrupter,
    proxy: ReplayBufferProxy,
    first_incarnation: int,
) -> ActorManager:
    def on_exit(ended: ActorExit) -> None:
        if ended.peer.actor_id < config.actors:
            proxy.ledger.on_ended(ended.peer, produced=ended.last.produced)

    def on_restart(actor_id: ActorId) -> None:
        if actor_id < config.actors:
            proxy.actors.on_restart(actor_id)

    return ActorManager(
        launcher,
        bodies,
        config.supervision,
        interrupter,
        names={ActorId(config.actors): "the evaluator"},
        first_incarnation=first_incarnation,
        on_exit=on_exit,
        on_restart=on_restart,
    )


class _Plan:
    """What follows from the agent, the environment and the config, checked against each other."""

    def __init__(
        self,
        agent: AgentConfig,
        make_env: MakeBatchEnv,
        make_processor: Callable[[], StepProcessor] | None,
        config: AsyncConfig,
        actor_agents: Sequence[AgentConfig] | None,
    ) -> None:
        n_actors = config.actors
        if actor_agents is not None and len(actor_agents) != n_actors:
            raise ConfigError(
                f"{len(actor_agents)} actor_agents were given for {n_actors} actors; give one "
                "for each, or none to have all act with the learner's"
            )
        self._agent = agent
        self._actor_agents = list(actor_agents or [agent] * n_actors)
        self._make_env = make_env
        self._config = config
        self._spec, self._n_envs = _look_at(make_env)
        extras = agent.extra_columns(self._spec)
        self._make_processor = make_processor or partial(make_one_step, config.segment, extras)
        self.schema: SegmentSchema = make_schema(
            self._make_processor().columns(self._spec, extras),
            length=config.segment.length,
            lookahead=config.replay.lookahead,
            frame_stack=config.segment.frame_stack,
        )
        self.limiter = self._build_limiter()
        # Batches of trajectories differ in size, so several cannot be cut out of one.
        self.trainer = (
            replace(config.trainer, batches_per_draw=1) if config.replay.once else config.trainer
        )
        self.setup = Setup(
            actors=n_actors,
            envs_per_actor=self._n_envs,
            samples_per_insert=config.limiter.samples_per_insert,
        )

    def build_learner(self) -> Agent:
        """Make the learner's agent."""
        context = PolicyContext(
            seed=derive_seed(self._config.seed, Role.LEARNER),
            n_actors=self._config.actors,
            n_envs=self._n_envs,
        )
        return self._agent.build(self._spec, context)

    def build_buffer(self) -> ReplayBuffer:
        """Allocate the replay buffer."""
        return self._config.replay.build(self.schema, derive_seed(self._config.seed, Role.REPLAY))

    def bodies(self, address: Transport, evaluate: MakeEvaluator) -> dict[ActorId, MakeBody]:
        """Return what each process runs; an evaluating one's slot comes after the actors'."""
        bodies = self._actor_bodies(address)
        if self._config.evaluation.where == "background":
            spec = EvaluatorSpec(
                env_spec=self._spec,
                make_evaluator=evaluate,
                agent=self._agent,
                transport=address,
                seed=self._config.seed,
            )
            bodies[ActorId(self._config.actors)] = partial(_evaluator_body, spec)
        return bodies

    def make_evaluator(self, own: MakeEvaluator | None, make_env: MakeBatchEnv) -> MakeEvaluator:
        """Return what builds the evaluator, in whichever process will run it."""
        seed = derive_seed(self._config.evaluation.seed, Role.EVALUATION)
        return own or partial(_episode_evaluator, make_env, self._config.evaluation.play, seed)

    def _actor_bodies(self, address: Transport) -> dict[ActorId, MakeBody]:
        bodies: dict[ActorId, MakeBody] = {}
        for i, agent in enumerate(self._actor_agents):
            spec = ActorSpec(
                make_env=self._make_env,
                agent=agent,
                make_processor=self._make_processor,
                schema=self.schema,
                segment=self._config.segment,
                transport=address,
                n_actors=self._config.actors,
                seed=self._config.seed,
            )
            bodies[ActorId(i)] = partial(_actor_body, spec)
        return bodies

    def _build_limiter(self) -> RateLimiter:
        """Build the limiter, where messages, batches and the buffer's size meet."""
        config, batch_size = self._config, self._config.trainer.batch_size
        message = config.segment.length * segments_per_message(
            config.segment, self.schema, self._n_envs
        )
        for name, size in (
            ("trainer.batch_size", batch_size),
            ("limiter.min_size", config.limiter.min_size),
            ("one message (segment.length times environments per actor)", message),
        ):
            if size > config.replay.capacity:
                raise ConfigError(
                    f"{name} of {size} is more than replay.capacity={config.replay.capacity} "
                    "transitions; make the replay larger"
                )
        once = config.replay.once
        return config.limiter.build(max_insert=message, batch_size=batch_size, once=once)


def _look_at(make_env: MakeBatchEnv) -> tuple[EnvSpec, int]:
    """Build the environments once, here, where an error is easiest to read."""
    env: BatchEnv = make_env()
    try:
        return env.spec, env.n_envs
    finally:
        env.close()


def _actor_body(spec: ActorSpec, peer: Peer) -> ActorBody:
    return partial(run_actor, spec, peer)


def _evaluator_body(spec: EvaluatorSpec, peer: Peer) -> ActorBody:
    return partial(run_evaluator, spec, peer)


def _episode_evaluator(
    make_env: MakeBatchEnv, play: EpisodeEvaluatorConfig, seed: int
) -> EpisodeEvaluator:
    return EpisodeEvaluator(make_env(), play, seed)
