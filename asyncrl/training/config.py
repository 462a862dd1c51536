"""Every setting of an asynchronous run but the agent and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.core.declared import check_declared
from asyncrl.core.errors import ConfigError
from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.segment import SegmentConfig
from asyncrl.learner.async_trainer import AsyncTrainerConfig
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxyConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.supervision.actor_manager import ActorManagerConfig
from asyncrl.transport.zeromq import ZmqTransportConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Where and how the agent is scored."""

    where: Literal["background", "inline", "off"] = "background"
    """In a process of its own, in the learner's turn, or not at all."""

    play: EpisodeEvaluatorConfig = field(default_factory=EpisodeEvaluatorConfig)
    """What is played."""

    seed: int = 13
    """Of the episodes. Not the run's: scores of runs with different seeds are then scores of the
    same episodes, and no run has the bad luck of harder ones."""

    def __post_init__(self) -> None:
        check_declared(self, "evaluation")
        if self.seed < 0:
            raise ConfigError(f"evaluation.seed must be 0 or more, got {self.seed}")


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

    proxy: ReplayBufferProxyConfig = field(default_factory=ReplayBufferProxyConfig)
    """How it is taken in."""

    limiter: RateLimiterConfig = field(default_factory=RateLimiterConfig)
    """How often it is sampled."""

    trainer: AsyncTrainerConfig = field(default_factory=AsyncTrainerConfig)
    """The learner's turn."""

    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """How the agent is scored."""

    @property
    def evaluations_off(self) -> Mapping[str, bool]:
        """Whether a setting switches evaluations off, for each that can."""
        return {
            "evaluation.where": self.evaluation.where == "off",
            "trainer.books.eval_interval_opt_steps": not self.trainer.books.eval_interval_opt_steps,
        }

    def __post_init__(self) -> None:
        check_declared(self)
        if self.actors < 1:
            raise ConfigError(f"actors must be at least 1, got {self.actors}")
        if (fewest := self.supervision.restart.min_actors) > self.actors:
            raise ConfigError(
                f"supervision.restart.min_actors is {fewest}, and there are {self.actors} actors "
                "at all; make it smaller, or `actors` larger"
            )
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, got {self.seed}")
