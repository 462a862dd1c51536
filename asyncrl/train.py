"""Wires the parts of an asynchronous run together: the one place that knows them all.

`train_async` is the one-call form. `build_async_trainer` does the same and leaves the call of
`train` to the caller, who may look at the parts or replace some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from asyncrl.actor_manager import ActorManager, ActorManagerConfig, MakeBody
from asyncrl.actor_process import (
    ActorSpec,
    EvaluatorSpec,
    MakeEvaluator,
    run_actor,
    run_evaluator,
)
from asyncrl.agent import Agent, AgentConfig, PolicyContext
from asyncrl.async_trainer import AsyncTrainer, AsyncTrainerConfig, Strategy
from asyncrl.bookkeeper import TrainResult
from asyncrl.checkpoint import Checkpointer
from asyncrl.env import BatchEnv, EnvSpec, MakeBatchEnv
from asyncrl.errors import ConfigError
from asyncrl.evaluation import BackgroundEvaluation, EvaluationSite, InlineEvaluation
from asyncrl.evaluator import EpisodeEvaluator, EpisodeEvaluatorConfig
from asyncrl.interrupter import Interrupter
from asyncrl.launcher import ActorBody, ActorExit, Launcher
from asyncrl.launchers.local import LocalLauncher
from asyncrl.messages import Peer
from asyncrl.outbox import segments_per_message
from asyncrl.rate_limiter import RateLimiter, RateLimiterConfig
from asyncrl.recorder import Recorder
from asyncrl.replay_buffer import ReplayBuffer, ReplayBufferConfig
from asyncrl.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.replay_buffers.uniform import UniformReplayConfig
from asyncrl.seeding import Role, derive_seed
from asyncrl.segment import SegmentConfig, SegmentSchema, make_schema
from asyncrl.step_processor import OneStep, StepProcessor
from asyncrl.stop_conditions import StopCondition
from asyncrl.transport import Transport
from asyncrl.transports.zeromq import ZmqTransport, ZmqTransportConfig
from asyncrl.types import ActorId

__all__ = ["AsyncConfig", "EvaluationConfig", "RunParts", "build_async_trainer", "train_async"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Where and how the agent is scored."""

    where: Literal["background", "inline", "off"] = "background"
    """In a process of its own, in the learner's turn, or not at all."""

    play: EpisodeEvaluatorConfig = field(default_factory=EpisodeEvaluatorConfig)
    """What is played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncConfig:
    """Everything about an asynchronous run but the agent and its environment."""

    seed: int = 0
    """Every random stream of the run is drawn from it."""

    actors: int = 2
    """Processes that step environments."""

    supervision: ActorManagerConfig = field(default_factory=ActorManagerConfig)
    """When actors are restarted, and how long they may take."""

    segment: SegmentConfig = field(default_factory=SegmentConfig)
    """How experience is cut."""

    transport: ZmqTransportConfig = field(default_factory=ZmqTransportConfig)
    """How it travels."""

    replay: ReplayBufferConfig = field(default_factory=UniformReplayConfig)
    """How it is kept."""

    limiter: RateLimiterConfig = field(default_factory=RateLimiterConfig)
    """How often it is sampled."""

    trainer: AsyncTrainerConfig = field(default_factory=AsyncTrainerConfig)
    """The learner's turn."""

    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """How the agent is scored."""

    def __post_init__(self) -> None:
        if self.actors < 1:
            raise ConfigError(f"actors must be at least 1, got {self.actors}")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, got {self.seed}")


class RunParts(TypedDict, total=False):
    """The optional arguments of `build_async_trainer`, for `train_async` to pass on."""

    stop: StopCondition | None
    actor_agents: Sequence[AgentConfig] | None
    make_eval_env: MakeBatchEnv | None
    make_evaluator: MakeEvaluator | None
    make_processor: Callable[[], StepProcessor]
    recorder: Recorder | None
    checkpoint_dir: Path | None
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
    make_processor: Callable[[], StepProcessor] = OneStep,
    recorder: Recorder | None = None,
    checkpoint_dir: Path | None = None,
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
        make_processor: Builds what turns steps into rows.
        recorder: Who keeps the numbers.
        checkpoint_dir: Where checkpoints go; without it none are saved.
        strategy: A training loop of your own.
        interrupter: Stops the run from outside, with a reason.
        run_config: Plain values for the recorder to keep beside its numbers.
    """
    config = config or AsyncConfig()
    interrupter = interrupter or Interrupter()
    plan = _Plan(agent, make_env, make_processor, config, actor_agents)
    with ExitStack() as undo:
        # First of all: it imports torch for the actors while the learner's side is being built.
        launcher = LocalLauncher()
        undo.callback(launcher.close)
        learner = plan.build_learner()
        transport = ZmqTransport.ipc(
            launcher.directory, schema=plan.schema, config=config.transport
        )
        link = transport.listen()
        undo.callback(link.close)
        proxy = ReplayBufferProxy(link, plan.build_buffer(), plan.limiter, interrupter)
        bodies = plan.actor_bodies(link.address)
        evaluate = plan.make_evaluator(make_evaluator, make_eval_env or make_env)
        if config.evaluation.where == "background":
            bodies |= plan.evaluator_body(link.address, evaluate)
        site: EvaluationSite | None = None
        if config.evaluation.where == "background":
            site = BackgroundEvaluation(link, proxy)
        elif config.evaluation.where == "inline":
            site = InlineEvaluation(evaluate(), learner)
        trainer = AsyncTrainer(
            learner,
            link,
            proxy,
            config.trainer,
            manager=_manager(launcher, bodies, config, interrupter, proxy),
            interrupter=interrupter,
            evaluation=site,
            recorder=recorder,
            checkpointer=Checkpointer(checkpoint_dir) if checkpoint_dir else None,
            stop=stop,
            strategy=strategy,
            run_config=run_config,
        )
        undo.pop_all()
    return trainer


def _manager(
    launcher: Launcher,
    bodies: Mapping[ActorId, MakeBody],
    config: AsyncConfig,
    interrupter: Interrupter,
    proxy: ReplayBufferProxy,
) -> ActorManager:
    def on_exit(ended: ActorExit) -> None:
        if ended.peer.actor_id < config.actors:
            proxy.ledger.on_ended(ended.peer, produced=ended.last.produced)

    return ActorManager(
        launcher,
        bodies,
        config.supervision,
        interrupter,
        on_exit=on_exit,
        on_restart=proxy.actors.on_restart,
    )


class _Plan:
    """What follows from the agent, the environment and the config, checked against each other."""

    def __init__(
        self,
        agent: AgentConfig,
        make_env: MakeBatchEnv,
        make_processor: Callable[[], StepProcessor],
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
        self._make_processor = make_processor
        self._config = config
        self._spec, self._n_envs = _look_at(make_env)
        columns = make_processor().columns(self._spec, agent.extra_columns(self._spec))
        self.schema: SegmentSchema = make_schema(
            columns, length=config.segment.length, lookahead=config.replay.lookahead
        )
        self.limiter = self._build_limiter()

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

    def actor_bodies(self, address: Transport) -> dict[ActorId, MakeBody]:
        """Return what each actor's process runs."""
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

    def make_evaluator(self, own: MakeEvaluator | None, make_env: MakeBatchEnv) -> MakeEvaluator:
        """Return what builds the evaluator, in whichever process will run it."""
        seed = derive_seed(self._config.seed, Role.EVALUATION)
        return own or partial(_episode_evaluator, make_env, self._config.evaluation.play, seed)

    def evaluator_body(self, address: Transport, make: MakeEvaluator) -> dict[ActorId, MakeBody]:
        """Return what the evaluating process runs; its slot comes after the actors'."""
        spec = EvaluatorSpec(
            env_spec=self._spec,
            make_evaluator=make,
            agent=self._agent,
            transport=address,
            seed=self._config.seed,
        )
        return {ActorId(self._config.actors): partial(_evaluator_body, spec)}

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
        return config.limiter.build(max_insert=message, batch_size=batch_size)


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
