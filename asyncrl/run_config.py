"""The whole configuration of a run, with an environment that has a name: what `config.yaml` holds.

The command line saves it beside a run's results, and reads it where it finds it there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from asyncrl.agents.dqn import DQNConfig
from asyncrl.async_config import AsyncConfig
from asyncrl.core.agent import AgentConfig
from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.stop_conditions import (
    AnyOf,
    MaxEnvSteps,
    MaxOptSteps,
    MaxSeconds,
    ReachesUpperBound,
    StopCondition,
    check_can_hold,
)


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

    eval_env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for making it for evaluations, where they are others than those."""

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

    grace_s: float = 30.0
    """After SIGTERM or SIGHUP the run is over within so many seconds, as schedulers kill it then:
    shortly before, whatever is still waited for is given up. 0 is off."""

    def __post_init__(self) -> None:
        AsyncConfig.__post_init__(self)
        if self.envs_per_actor < 1:
            raise ConfigError(f"envs_per_actor must be at least 1, got {self.envs_per_actor}")
        for name in ("max_env_steps", "max_opt_steps", "max_seconds", "grace_s"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"{name} must be a number, 0 (off) or more, got {value}")

    def env_config(self) -> EnvConfig:
        """Return the environments of one actor."""
        return EnvConfig(
            id=self.env,
            kwargs=dict(self.env_kwargs),
            n_envs=self.envs_per_actor,
            vectorization=self.vectorization,
        )

    def eval_env_config(self) -> EnvConfig:
        """Return the environments of evaluations."""
        config = self.env_config()
        return replace(config, kwargs={**config.kwargs, **self.eval_env_kwargs})

    def stop_condition(self) -> StopCondition | None:
        """Return whichever comes first of the limits that are set; refuse one nobody can reach."""
        conditions: list[StopCondition] = []
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
        return AnyOf(*conditions) if conditions else None
