"""All settings of a run: what `config.yaml` holds, what flags set, what `train_async` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.core.agent import AgentConfig, PolicyContext, require_agent_config
from asyncrl.core.declared import COMMON, Count, CountOrOff, Finite, Natural, PositiveOrOff
from asyncrl.core.errors import ConfigError
from asyncrl.core.inference import ServingConfig
from asyncrl.core.ranks import RanksConfig
from asyncrl.core.replay_buffer import (
    ReplayBufferConfig,
    transitions_per_sample,
    usual_samples_per_insert,
)
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.types import MOST_ACTORS
from asyncrl.fleet.config import ActorManagerConfig, HostsConfig, RayConfig
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig, ReplayBufferProxyConfig
from asyncrl.learner.run_services import (
    EvaluationTimingConfig,
    RecordConfig,
    RunServicesConfig,
    SaveConfig,
)
from asyncrl.learner.stop_conditions import (
    AnyOf,
    MaxEnvSteps,
    MaxOptSteps,
    MaxSeconds,
    ReachesUpperBound,
    StopCondition,
    StopFunction,
    check_can_hold,
)
from asyncrl.run.named_parts import NamedParts
from asyncrl.transport.zeromq_socket import ZmqTransportConfig

if TYPE_CHECKING:
    from asyncrl.envs.gym import EnvConfig  # loads Gymnasium


Mode = Literal["async", "sync", "offline"]
"""How a run gets its batches."""

BY_STEPS = RecordConfig(interval_s=0.0, interval_opt_steps=500)
"""Records that do not depend on the clock, so that two runs record the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig(EvaluationTimingConfig):
    """When, where and how the agent is evaluated."""

    where: Literal["background", "inline", "off"] = "background"
    """Evaluate in a separate process of low priority, in the learner's process between its steps,
    or never. Without actors there is no separate process; evaluation then runs in the learner's."""

    play: EpisodeEvaluatorConfig = field(default_factory=EpisodeEvaluatorConfig)
    """How evaluation episodes are played."""

    seed: Natural = 13
    """Seed of the evaluation episodes. Independent of the run's seed: runs with different seeds are
    scored on the same episodes, and none gets harder ones by chance."""


def _dqn() -> AgentConfig:
    from asyncrl.agents.dqn import DQNConfig  # noqa: PLC0415  # loads torch

    return DQNConfig()


def _uniform() -> ReplayBufferConfig:
    from asyncrl.replay.uniform import UniformReplayConfig  # noqa: PLC0415  # one of several

    return UniformReplayConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(RunServicesConfig):
    """All settings of a run. In Python, agent and environments are arguments beside them."""

    seed: Annotated[Natural, COMMON] = 0
    """Seed of the run. Every random stream derives from it."""

    evaluate: EvaluationConfig = field(default_factory=EvaluationConfig)
    """When, where and how the agent is evaluated."""

    actors: Annotated[Count, COMMON] = 2
    """Number of actor processes. `auto` chooses it by short trial runs, together with environments
    per actor and segment length; values given by a flag are kept."""

    launcher: Literal["process", "thread", "hosts", "ray"] = "process"
    """What actors are. `process`: processes of this machine. `thread`: threads of the learner's
    process for debuggers, notebooks and free-threaded Python; a crash in native code then ends the
    run, and a hang there leaves a thread behind. `hosts`: processes of any machine that joins with
    the run's key, by `asyncrl join`; needs `transport.bind`. `ray`: processes of the nodes of a Ray
    cluster; needs `pip install 'asyncrl[ray]'`."""

    inference: Annotated[Literal["actor", "learner", "server"], COMMON] = "actor"
    """Where the networks of actors are computed: in each actor; or in batches of all actors, by a
    thread of the learner or by a separate process. Batches pay off for large networks and many
    actors with few environments each."""

    serving: ServingConfig = field(default_factory=ServingConfig)
    """Batches of inference in the learner or a server."""

    supervision: ActorManagerConfig = field(default_factory=ActorManagerConfig)
    """Timeouts and restarts of actors."""

    hosts: HostsConfig = field(default_factory=HostsConfig)
    """Actors on other machines."""

    ray: RayConfig = field(default_factory=RayConfig)
    """Hosts on a Ray cluster."""

    segment: SegmentConfig = field(default_factory=SegmentConfig)
    """How experience is cut into segments and messages."""

    transport: ZmqTransportConfig = field(default_factory=ZmqTransportConfig)
    """How experience and models are sent."""

    replay: ReplayBufferConfig = field(default_factory=_uniform)
    """How experience is stored."""

    proxy: ReplayBufferProxyConfig = field(default_factory=ReplayBufferProxyConfig)
    """How experience is received into the replay."""

    limiter: RateLimiterConfig = field(default_factory=RateLimiterConfig)
    """How often experience is sampled."""

    trainer: AsyncTrainerConfig = field(default_factory=AsyncTrainerConfig)
    """The learner's loop."""

    ranks: RanksConfig = field(default_factory=RanksConfig)
    """Several learners. All other settings mean the whole run, whatever their number."""

    mode: Annotated[Mode, COMMON] = "async"
    """`async`: actors step environments while the learner learns. `sync`: both take turns in one
    process, bit for bit reproducible, with `actors * envs_per_actor` environments and the same
    samples per insert. `offline`: learns from `data`."""

    data: Annotated[Path | None, COMMON] = None
    """Data for `offline`: the directory of a run, of its checkpoints, or of a saved replay."""

    agent: AgentConfig = field(default_factory=_dqn)
    """The algorithm and its settings."""

    env: Annotated[str, COMMON] = "CartPole-v1"
    """A Gymnasium id, `package:ID` if another package registers it, `envpool:ID`, or
    `module:factory` of a function that returns an environment. Atari games, `ALE/...`, get the
    usual preprocessing."""

    env_kwargs: Annotated[Mapping[str, Any], COMMON] = field(default_factory=dict)
    """Keyword arguments of the environment."""

    eval_env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment in evaluations, if they differ."""

    env_schedule: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Curriculum, in a YAML file only: a number of environment steps -> the keyword arguments of
    the training environments from then on. They override `env_kwargs`. Evaluations keep theirs."""

    env_info: tuple[str, ...] = ()
    """Numbers of the environment's info to record for each episode, by key: its last value, as
    `distance`, or a `sum:`, `mean:`, `min:` or `max:` over the episode, as `sum:energy`. Success
    is recorded without being listed."""

    env_wrappers: tuple[str, ...] = ()
    """Wrappers to apply to each environment, the first one innermost, by import path:
    `module:Wrapper`, or with settings `module:Wrapper(name=value)`. With `vectorization=native`
    they wrap the whole vector environment."""

    envs_per_actor: Annotated[Count, COMMON] = 8
    """Environments that each actor steps together."""

    vectorization: Literal["batch", "native"] = "batch"
    """`batch` steps single environments one after another; `native` uses the environment's own
    vector form."""

    parts: NamedParts = field(default_factory=NamedParts)
    """Custom parts of the run, by import path."""

    max_env_steps: Annotated[CountOrOff, COMMON] = 0
    """Stop after this number of environment steps of all actors. 0 disables."""

    max_opt_steps: Annotated[CountOrOff, COMMON] = 0
    """Stop after this number of optimisation steps. 0 disables."""

    max_seconds: Annotated[PositiveOrOff, COMMON] = 0.0
    """Stop this number of seconds after the first environment step; the start of actors does not
    count. The evaluation of the last model comes after it, for `evaluate.final_timeout_s` at most.
    0 disables."""

    stop_at_return: Annotated[Finite | None, COMMON] = None
    """Stop when an evaluation reaches this mean return. None disables."""

    video_interval_opt_steps: CountOrOff = 0
    """Optimisation steps between two films. The next evaluation plays one more episode, and writes
    it as `videos/OPT_STEPS.mp4` into the run directory; its score arrives that much later. Needs
    the extra `video`. 0 disables."""

    grace_s: PositiveOrOff = 30.0
    """Seconds until a scheduler sends SIGKILL after SIGTERM or SIGHUP. The run ends within this
    time: one second before, it aborts whatever still runs. 0 disables."""

    def __post_init__(self) -> None:
        RunServicesConfig.__post_init__(self)
        if self.launcher == "thread" and self.supervision.memory_limit_bytes:
            raise ConfigError(
                "supervision.memory_limit_bytes has no effect with launcher=thread, because "
                "threads share their memory; set it to 0, or launcher to process"
            )
        if self.actors > MOST_ACTORS:
            raise ConfigError(
                f"actors must be at most {MOST_ACTORS}, got {self.actors}; give each more "
                "environments by `envs_per_actor`"
            )
        if self.elsewhere:
            self._check_hosts()
        elif self.hosts.min_actors is not None:
            raise ConfigError(
                f"hosts.min_actors is {self.hosts.min_actors}, but launcher={self.launcher} starts "
                "all actors itself; leave it out, or let hosts join: --listen tcp://ADDRESS"
            )
        if (fewest := self.supervision.restart.min_actors) > self.actors:
            raise ConfigError(
                f"supervision.restart.min_actors is {fewest}, but there are only {self.actors} "
                "actors; lower it, or raise `actors`"
            )

    @property
    def elsewhere(self) -> bool:
        """Whether hosts start the actors, which may be other machines."""
        return self.launcher in {"hosts", "ray"}

    def most_actors(self, actor_agents: object) -> int:
        """Return to how many actors the run may grow.

        Hosts are asked for as many as declared, and each declared agent has one actor.
        """
        return self.actors if actor_agents or self.elsewhere else MOST_ACTORS

    def with_usual_ratio(self) -> Self:
        """Return these settings, with the agent's usual samples per insert if none are set."""
        if self.limiter.samples_per_insert is not None:
            return self
        ratio = usual_samples_per_insert(self.agent, self.replay, self.trainer.batch_size)
        return replace(self, limiter=replace(self.limiter, samples_per_insert=ratio))

    def _check_hosts(self) -> None:
        """Raise if actors on other machines cannot work with the other settings."""
        least, transport = self.hosts.min_actors, self.transport
        if least is not None and least > self.actors:
            raise ConfigError(
                f"hosts.min_actors is {least}, but there are only {self.actors} actors; lower it, "
                "or raise `actors`"
            )
        if transport.bind == "ipc" and self.launcher == "hosts":
            raise ConfigError(
                "launcher=hosts needs an address that hosts can reach; set transport.bind to "
                "tcp://ADDRESS, on the command line --listen tcp://ADDRESS"
            )
        if transport.bind_every_interface and not transport.advertise:
            raise ConfigError(
                f"transport.bind is {transport.bind!r}, which is no address that hosts can connect "
                "to; set transport.advertise to the name of this machine in their network"
            )
        if self.inference != "actor":
            raise ConfigError(
                f"inference is {self.inference!r}, but with launcher={self.launcher} each actor "
                "computes its network itself; leave it at actor"
            )

    @property
    def evaluations_off(self) -> Mapping[str, bool]:
        """Whether each setting that can disable evaluations does so."""
        never = not self.evaluate.interval_opt_steps
        return {
            "evaluate.where": self.evaluate.where == "off",
            "evaluate.interval_opt_steps": never,
        }

    def context(self, n_envs: int) -> PolicyContext:
        """Return the seed and the number of environments of the learner's agent."""
        return PolicyContext(seed=derive_seed(self.seed, Role.LEARNER), n_envs=n_envs)

    def env_config(self) -> EnvConfig:
        """Return the environments of one actor."""
        from asyncrl.envs.gym import EnvConfig  # noqa: PLC0415  # loads Gymnasium

        return EnvConfig(
            id=self.env,
            kwargs=dict(self.env_kwargs),
            n_envs=self.envs_per_actor,
            vectorization=self.vectorization,
            info=self.env_info,
            wrappers=self.env_wrappers,
        )

    def eval_env_config(self) -> EnvConfig:
        """Return the environments of evaluations."""
        config = self.env_config()
        return replace(config, kwargs={**config.kwargs, **self.eval_env_kwargs})

    def envs_of_training(self) -> EnvConfig:
        """Return the environments of one actor, or of all together in a run without actors."""
        config = self.env_config()
        if self.mode == "async":
            return config
        return replace(config, n_envs=self.actors * self.envs_per_actor)

    def data_or_raise(self) -> Path:
        """Return the data of an offline run."""
        if self.data is None:
            raise ConfigError("mode=offline learns from data, but data is not set; set it")
        return self.data

    def stop_condition(self) -> StopCondition | None:
        """Return the limits that are set, combined; reject one that can never be reached."""
        conditions: list[StopCondition | StopFunction] = []
        if self.max_env_steps:
            conditions.append(MaxEnvSteps(self.max_env_steps))
        if self.max_opt_steps:
            conditions.append(MaxOptSteps(self.max_opt_steps))
        if self.max_seconds:
            conditions.append(MaxSeconds(self.max_seconds))
        if self.stop_at_return is not None:
            bound = ReachesUpperBound("eval_reward", self.stop_at_return)
            check_can_hold(bound, self.evaluations_off, "stop_at_return")
            conditions.append(bound)
        if (own := self.parts.make_stop()) is not None:
            check_can_hold(own, self.evaluations_off, "parts.stop")
            conditions.append(own)
        return AnyOf(*conditions) if conditions else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How many environment steps and how many optimisation steps take turns.

    Derived from the settings of a run, so that each transition is sampled as often as with actors.
    """

    batch_size: int
    """Transitions per batch."""

    opt_interval_env_steps: int = 1
    """Environment steps between two rounds of optimisation."""

    opt_steps_per_interval: int = 1
    """Optimisation steps per round."""

    warmup_env_steps: int = 0
    """Environment steps before the first round. Until then nothing is optimised or evaluated."""

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Return the rounds of a run; one of each batch where transitions are sampled once."""
        batch_size, replay = config.trainer.batch_size, config.replay
        if replay.once:
            return cls(batch_size=batch_size, opt_interval_env_steps=batch_size)
        samples = config.with_usual_ratio().limiter.ratio
        if not samples:
            raise ConfigError(
                "limiter.samples_per_insert is off, which does not define how often mode=sync "
                "learns; set it"
            )
        stride = transitions_per_sample(replay)
        per_env_step = Fraction(samples / batch_size).limit_denominator(100_000) / stride
        return cls(
            batch_size=batch_size,
            opt_interval_env_steps=per_env_step.denominator,
            opt_steps_per_interval=per_env_step.numerator,
            warmup_env_steps=config.limiter.min_size * stride,
        )


def inline_segment(config: RunConfig, n_envs: int) -> SegmentConfig:
    """Return the segments in which environments of this process store their steps.

    Those of one row store each step as soon as its successor is known, but a segment repeats all
    rows that it looks ahead to. Where each transition is sampled once, all segments are cut before
    each round, which so learns from all that the newest model collected.
    """
    segment, replay = config.segment, config.replay
    if replay.once:
        # A quarter more rows than transitions, for the ends of episodes.
        return replace(segment, length=-(-config.trainer.batch_size * 5 // (4 * n_envs)) + 1)
    return replace(segment, length=1) if replay.lookahead == segment.frame_stack == 1 else segment


def config_or_default(
    agent: AgentConfig | None, config: RunConfig | None, mode: Mode | None = None
) -> RunConfig:
    """Return the given settings or the defaults, with this agent and mode unless they are None."""
    changes: dict[str, Any] = {}
    if agent is not None:
        require_agent_config(agent)
        changes["agent"] = agent
    if mode is not None:
        changes["mode"] = mode
    if config is None:
        return RunConfig(**changes)
    if not isinstance(config, RunConfig):
        raise ConfigError(f"config must be RunConfig(...), got {config!r:.80}")
    return replace(config, **changes)


def offline_defaults(agent: AgentConfig) -> RunConfig:
    """Return settings to learn from data: fewer evaluations, and no copies of the data."""
    require_agent_config(agent)
    return RunConfig(
        mode="offline",
        agent=agent,
        trainer=AsyncTrainerConfig(batch_size=256),
        evaluate=EvaluationConfig(interval_opt_steps=2000),
        save=SaveConfig(replay=False),
    )


def recorded_by_steps(config: RunConfig) -> RunConfig:
    """Return the settings with records that do not depend on the clock, unless they say when."""
    if config.record != RecordConfig():
        return config
    usual = BY_STEPS.interval_opt_steps
    every = min(usual, config.evaluate.interval_opt_steps or usual)
    return replace(config, record=replace(BY_STEPS, interval_opt_steps=every))
