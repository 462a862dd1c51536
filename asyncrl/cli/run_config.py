"""The whole configuration of a run from the command line, saved beside its results as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from asyncrl.agent import AgentConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.exploration import EpsilonLadder
from asyncrl.agents.sac import SACConfig
from asyncrl.async_config import AsyncConfig
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.config import load_object
from asyncrl.envs.gym import EnvConfig
from asyncrl.errors import ConfigError
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.replay_buffers.prioritized import PrioritizedReplayConfig
from asyncrl.replay_buffers.uniform import UniformReplayConfig
from asyncrl.segment import SegmentConfig
from asyncrl.stop_conditions import (
    AnyOf,
    MaxEnvSteps,
    MaxOptSteps,
    MaxSeconds,
    ReachesUpperBound,
    StopCondition,
)

__all__ = ["REPLAYS", "ReplayKind", "RunConfig", "preset", "with_replay"]

ReplayKind = Literal["uniform", "prioritized"]

REPLAYS: Mapping[str, type[UniformReplayConfig | PrioritizedReplayConfig]] = {
    "uniform": UniformReplayConfig,
    "prioritized": PrioritizedReplayConfig,
}
"""What `--replay-kind` chooses from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(AsyncConfig):
    """An asynchronous run: what `AsyncConfig` holds, and the agent, the environment, the end."""

    actors: int = 2
    """Processes that step environments. `auto` chooses them, the environments of each, the length
    of segments and the learner's threads, as far as no flag gives them, by short runs."""

    agent: AgentConfig = field(default_factory=DQNConfig)
    """The algorithm."""

    env: str = "CartPole-v1"
    """A Gymnasium id, `envpool:ID`, or `module:factory` of a function that returns an environment.
    Games, `ALE/...`, are preprocessed as usual."""

    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for making it."""

    envs_per_actor: int = 8
    """Environments that each actor steps together."""

    vectorization: Literal["batch", "native"] = "batch"
    """`batch` steps plain environments one after another; `native` uses the environment's own
    vector form."""

    max_env_steps: int = 0
    """Stop after so many environment steps of all actors; 0 is off."""

    max_opt_steps: int = 0
    """Stop after so many optimisation steps; 0 is off."""

    max_seconds: float = 0.0
    """Stop after so many seconds of training; 0 is off."""

    stop_at_return: float | None = None
    """Stop when an evaluation reaches this mean return."""

    def __post_init__(self) -> None:
        AsyncConfig.__post_init__(self)
        for name in ("max_env_steps", "max_opt_steps", "max_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be 0 (off) or more, got {getattr(self, name)}")

    def env_config(self) -> EnvConfig:
        """Return the environments of one actor."""
        return EnvConfig(
            id=self.env,
            kwargs=dict(self.env_kwargs),
            n_envs=self.envs_per_actor,
            vectorization=self.vectorization,
        )

    def stop_condition(self) -> StopCondition | None:
        """Return whichever comes first of the limits that are set."""
        conditions: list[StopCondition] = []
        if self.max_env_steps:
            conditions.append(MaxEnvSteps(self.max_env_steps))
        if self.max_opt_steps:
            conditions.append(MaxOptSteps(self.max_opt_steps))
        if self.max_seconds:
            conditions.append(MaxSeconds(self.max_seconds))
        if self.stop_at_return is not None:
            conditions.append(ReachesUpperBound("eval_reward", self.stop_at_return))
        return AnyOf(*conditions) if conditions else None


def preset(name: str) -> RunConfig:
    """Return settings that train `dqn`, `dqn-atari`, `sac`, or the agent config at an import path.

    Those of `dqn` and `sac` are for small control problems, where a run takes seconds.
    """
    if name in _PRESETS:
        return _PRESETS[name]()
    if ":" not in name:
        raise ConfigError(
            f"unknown agent {name!r}; use {', '.join(_PRESETS)}, or module:Class of an agent "
            "config of your own"
        )
    make = load_object(name)
    if not callable(make):
        raise ConfigError(f"{name} is no class of agent configs, but {make!r:.80}")
    agent = make()
    if not all(hasattr(agent, method) for method in ("build", "build_policy", "extra_columns")):
        raise ConfigError(
            f"{name} makes {type(agent).__name__}, which is no agent config: that has the methods "
            "build, build_policy and extra_columns, see asyncrl/agent.py"
        )
    return RunConfig(agent=agent)


def _dqn() -> RunConfig:
    return RunConfig(
        agent=DQNConfig(),
        envs_per_actor=16,
        segment=SegmentConfig(length=16),
        replay=UniformReplayConfig(n_step=5),
        limiter=RateLimiterConfig(samples_per_insert=4.0),
        trainer=AsyncTrainerConfig(
            batch_size=256,
            sync_interval_opt_steps=20,
            books=BookkeepingConfig(eval_interval_opt_steps=250),
        ),
    )


def _dqn_atari() -> RunConfig:
    """Follow Mnih et al. (2015) in what is kept and how often it is sampled, Ape-X in the rest."""
    return RunConfig(
        agent=DQNConfig(
            hidden=(512,),
            learning_rate=1e-4,
            loss="huber",
            tau=0.0,
            target_interval_opt_steps=2000,
            exploration=EpsilonLadder(decay_env_steps=100_000),
        ),
        env="ALE/Pong-v5",
        segment=SegmentConfig(length=64, frame_stack=4),
        replay=UniformReplayConfig(capacity=200_000, n_step=3),
        limiter=RateLimiterConfig(samples_per_insert=8.0, min_size=10_000),
        trainer=AsyncTrainerConfig(
            batch_size=32, books=BookkeepingConfig(eval_interval_opt_steps=10_000)
        ),
    )


def _sac() -> RunConfig:
    return RunConfig(
        agent=SACConfig(
            hidden=(64, 64),
            actor_learning_rate=3e-3,
            critic_learning_rate=3e-3,
            alpha_learning_rate=3e-3,
            tau=0.02,
            random_env_steps=500,
        ),
        env="Pendulum-v1",
        segment=SegmentConfig(length=16),
        limiter=RateLimiterConfig(samples_per_insert=32.0, min_size=512),
        trainer=AsyncTrainerConfig(
            sync_interval_opt_steps=20, books=BookkeepingConfig(eval_interval_opt_steps=250)
        ),
    )


_PRESETS = {"dqn": _dqn, "dqn-atari": _dqn_atari, "sac": _sac}


def with_replay(config: RunConfig, kind: str) -> RunConfig:
    """Return the same config with replay of this kind; settings that both kinds have stay."""
    cls, now = REPLAYS[kind], config.replay
    if type(now) is cls:
        return config
    shared = {f.name: getattr(now, f.name) for f in fields(cls) if hasattr(now, f.name)}
    return replace(config, replay=cls(**shared))
