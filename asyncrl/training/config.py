"""All settings of an asynchronous run except those of the agent and its environment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

from asyncrl.actor.batcher import ServingConfig
from asyncrl.core.declared import COMMON, Count
from asyncrl.core.errors import ConfigError
from asyncrl.core.replay_buffer import ReplayBufferConfig, usual_samples_per_insert
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.types import MOST_ACTORS
from asyncrl.learner.async_trainer import AsyncTrainerConfig
from asyncrl.learner.lockstep import RanksConfig
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxyConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.supervision.actor_manager import ActorManagerConfig
from asyncrl.supervision.host_launcher import HostsConfig
from asyncrl.supervision.ray import RayConfig
from asyncrl.training.common_config import CommonConfig
from asyncrl.transport.zeromq import ZmqTransportConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncConfig(CommonConfig):
    """Settings of an asynchronous run, except agent and environment."""

    actors: Count = 2
    """Number of actor processes."""

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

    replay: ReplayBufferConfig = field(default_factory=UniformReplayConfig)
    """How experience is stored."""

    proxy: ReplayBufferProxyConfig = field(default_factory=ReplayBufferProxyConfig)
    """How experience is received into the replay."""

    limiter: RateLimiterConfig = field(default_factory=RateLimiterConfig)
    """How often experience is sampled."""

    trainer: AsyncTrainerConfig = field(default_factory=AsyncTrainerConfig)
    """The learner's loop."""

    ranks: RanksConfig = field(default_factory=RanksConfig)
    """Several learners. All other settings mean the whole run, whatever their number."""

    def __post_init__(self) -> None:
        CommonConfig.__post_init__(self)
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

    def for_agent(self, agent: object) -> Self:
        """Return these settings, with the agent's usual samples per insert if none are set."""
        if self.limiter.samples_per_insert is not None:
            return self
        ratio = usual_samples_per_insert(agent, self.replay, self.trainer.batch_size)
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
