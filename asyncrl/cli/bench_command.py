"""`asyncrl bench`: throughput against the limit of this machine, measured in the same call."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import tyro

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.async_config import AsyncConfig, EvaluationConfig
from asyncrl.benchmarking import SampleBenchmark, SampleResult
from asyncrl.env import DiscreteSpec
from asyncrl.envs.gym import EnvConfig
from asyncrl.errors import ConfigError
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.segment import SegmentConfig

__all__ = ["SampleArguments", "parse", "render", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleArguments:
    """Measure how fast actors, with a 64x64 policy in the loop, fill the replay."""

    env: str = "CartPole-v1"
    """A Gymnasium id, or `module:factory`."""

    actors: int = 2
    """Actor processes, and processes of the bare loop."""

    envs_per_actor: int = 64
    """Environments stepped together."""

    segment_length: int = 32
    """Rows of a segment."""

    seconds: float = 5.0
    """Length of each single measurement, after a warm-up."""

    repeats: int = 3
    """Measurements of each kind, in turns; the median counts."""

    json: bool = False
    """Print one line of JSON."""


def parse(argv: list[str]) -> SampleArguments:
    """Read the command line."""
    if not argv or argv[0] != "sample":
        if {"-h", "--help"} & set(argv):
            tyro.cli(SampleArguments, prog="asyncrl bench sample", args=["--help"])
        raise ConfigError("name a stage to measure: asyncrl bench sample [OPTIONS]")
    arguments = tyro.cli(SampleArguments, prog="asyncrl bench sample", args=argv[1:])
    if arguments.seconds <= 0:
        raise ConfigError(f"--seconds must be positive, got {arguments.seconds:g}")
    for name in ("actors", "envs_per_actor", "segment_length", "repeats"):
        if getattr(arguments, name) < 1:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} must be at least 1, got {getattr(arguments, name)}")
    return arguments


def run(arguments: SampleArguments) -> int:
    """Measure, and return the exit code."""
    result = _sample(arguments)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(result)))
    else:
        print(render(result))
    return 0


def _sample(arguments: SampleArguments) -> SampleResult:
    batch = EnvConfig(id=arguments.env, n_envs=arguments.envs_per_actor)
    env = batch.build()
    discrete = isinstance(env.spec.action, DiscreteSpec)
    env.close()
    agent: Any = DQNConfig(hidden=(64, 64)) if discrete else SACConfig(hidden=(64, 64))
    return SampleBenchmark(
        env=arguments.env,
        make_plain=batch.make_plain,
        make_batch=batch.build,
        agent=agent,
        config=AsyncConfig(
            actors=arguments.actors,
            segment=SegmentConfig(length=arguments.segment_length),
            limiter=RateLimiterConfig(samples_per_insert=0.0),
            evaluation=EvaluationConfig(where="off"),
        ),
        envs_per_actor=arguments.envs_per_actor,
        seconds=arguments.seconds,
        repeats=arguments.repeats,
    ).run()


def render(result: SampleResult) -> str:
    """Return a result as lines for people."""
    return "\n".join(
        [
            f"{result.env}, {result.actors} actors of {result.envs_per_actor} environments, "
            f"median of {len(result.repeats)}",
            f"  into replay   {result.env_steps_per_s:12,.0f} env steps/s",
            f"  bare loop     {result.limit_env_steps_per_s:12,.0f} env steps/s",
            f"  ratio         {result.ratio:12.1%}",
        ]
    )
