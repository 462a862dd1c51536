"""The whole configuration of a run from the command line, saved beside its results as YAML."""

from __future__ import annotations

import ast
import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from asyncrl.agent import AgentConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.async_config import AsyncConfig
from asyncrl.config import load_object
from asyncrl.envs.gym import EnvConfig
from asyncrl.errors import ConfigError
from asyncrl.replay_buffers.prioritized import PrioritizedReplayConfig
from asyncrl.replay_buffers.uniform import UniformReplayConfig
from asyncrl.stop_conditions import (
    AnyOf,
    MaxEnvSteps,
    MaxOptSteps,
    MaxSeconds,
    ReachesUpperBound,
    StopCondition,
)

__all__ = [
    "REPLAYS",
    "ReplayKind",
    "RunConfig",
    "preset",
    "preset_like",
    "preset_lines",
    "with_replay",
]

ReplayKind = Literal["uniform", "prioritized"]

REPLAYS: Mapping[str, type[UniformReplayConfig | PrioritizedReplayConfig]] = {
    "uniform": UniformReplayConfig,
    "prioritized": PrioritizedReplayConfig,
}
"""What `--replay-kind` chooses from."""

_PRESETS = "asyncrl.cli.presets"


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
    """Return the settings of a preset, see `preset_lines`, or of the agent config at a path."""
    if name in preset_lines():
        module = importlib.import_module(f"{_PRESETS}.{name.replace('-', '_')}")
        settings: RunConfig = module.preset()
        return settings
    if ":" not in name:
        raise ConfigError(
            f"unknown agent {name!r}; use {', '.join(preset_lines())}, or module:Class of an agent "
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


def preset_like(config: RunConfig) -> str:
    """Return the preset whose agent differs least from a config's, or else the agent's path."""
    agent: Any = config.agent
    cls = type(agent)
    agents: dict[str, Any] = {name: preset(name).agent for name in preset_lines()}
    alike = {name: one for name, one in agents.items() if type(one) is cls}

    def distance(name: str) -> tuple[int, int]:
        differs = [getattr(alike[name], f.name) != getattr(agent, f.name) for f in fields(cls)]
        return sum(differs), len(name)

    return min(alike, key=distance, default=f"{cls.__module__}:{cls.__qualname__}")


def preset_lines() -> dict[str, str]:
    """Return the name of each preset and a line about it, without loading any.

    A preset is a file in `presets/`: its name, with dashes, and the first line of its docstring.
    """
    lines = {}
    for path in sorted((Path(__file__).parent / "presets").glob("[!_]*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines[path.stem.replace("_", "-")] = docstring.partition("\n")[0]
    return lines


def with_replay(config: RunConfig, kind: str) -> RunConfig:
    """Return the same config with replay of this kind; settings that both kinds have stay."""
    cls, now = REPLAYS[kind], config.replay
    if type(now) is cls:
        return config
    if type(now) not in REPLAYS.values():
        raise ConfigError(
            f"--replay-kind {kind} would replace {type(now).__name__}, whose batches "
            f"{type(config.agent).__name__} is made for; leave the flag out"
        )
    shared = {f.name: getattr(now, f.name) for f in fields(cls) if hasattr(now, f.name)}
    return replace(config, replay=cls(**shared))
