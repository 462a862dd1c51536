"""Every setting of an asynchronous run but the agent and its environment."""

from __future__ import annotations

from dataclasses import dataclass, field

from asyncrl.core.declared import Count
from asyncrl.core.errors import ConfigError
from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.segment import SegmentConfig
from asyncrl.learner.async_trainer import AsyncTrainerConfig
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxyConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.supervision.actor_manager import ActorManagerConfig
from asyncrl.training.common_config import CommonConfig
from asyncrl.transport.zeromq import ZmqTransportConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncConfig(CommonConfig):
    """Everything about an asynchronous run but the agent and its environment."""

    actors: Count = 2
    """Processes that step environments."""

    supervision: ActorManagerConfig = field(default_factory=ActorManagerConfig)
    """When actors are restarted, and how long they may take."""

    segment: SegmentConfig = field(default_factory=SegmentConfig)
    """How experience is cut."""

    transport: ZmqTransportConfig = field(default_factory=ZmqTransportConfig)
    """How it travels."""

    replay: ReplayBufferConfig = field(default_factory=UniformReplayConfig)
    """How it is kept."""

    proxy: ReplayBufferProxyConfig = field(default_factory=ReplayBufferProxyConfig)
    """How it is taken in."""

    limiter: RateLimiterConfig = field(default_factory=RateLimiterConfig)
    """How often it is sampled."""

    trainer: AsyncTrainerConfig = field(default_factory=AsyncTrainerConfig)
    """The learner's turn."""

    def __post_init__(self) -> None:
        CommonConfig.__post_init__(self)
        if (fewest := self.supervision.restart.min_actors) > self.actors:
            raise ConfigError(
                f"supervision.restart.min_actors is {fewest}, and there are {self.actors} actors "
                "at all; make it smaller, or `actors` larger"
            )
