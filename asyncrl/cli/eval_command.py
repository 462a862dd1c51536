"""`asyncrl eval`: scores the best model of a run on its own environment."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from asyncrl.agent import PolicyContext
from asyncrl.checkpoint import Checkpointer
from asyncrl.cli.run_config import RunConfig
from asyncrl.config import load_yaml
from asyncrl.errors import ConfigError
from asyncrl.evaluator import EpisodeEvaluator
from asyncrl.messages import ModelInfo
from asyncrl.seeding import Role, derive_seed
from asyncrl.types import ModelVersion

__all__ = ["EvalArguments", "parse", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalArguments:
    """Score a trained model."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""

    checkpoint: str = "best"
    """`best`, or the number of optimisation steps of a checkpoint."""

    episodes: int = 10
    """Episodes to play."""

    seed: int | None = None
    """Other episodes than those of training; by default the very same."""

    json: bool = False
    """Print one line of JSON."""


def parse(argv: list[str]) -> EvalArguments:
    """Read the command line."""
    arguments = tyro.cli(EvalArguments, prog="asyncrl eval", args=argv)
    if arguments.episodes < 1:
        raise ConfigError(f"--episodes must be at least 1, got {arguments.episodes}")
    if not (arguments.run_dir / "config.yaml").is_file():
        raise ConfigError(f"{arguments.run_dir} is not a run directory: it has no config.yaml")
    return arguments


def run(arguments: EvalArguments) -> int:
    """Evaluate, and return the exit code."""
    config = load_yaml(RunConfig, arguments.run_dir / "config.yaml")
    checkpoint = Checkpointer(arguments.run_dir / "checkpoints").load(arguments.checkpoint)
    version = ModelVersion(int(checkpoint.meta["opt_steps"]))
    env = config.env_config().build_for(arguments.episodes)
    try:
        policy = config.agent.build_policy(env.spec, PolicyContext(seed=0))
        policy.sync_model(ModelInfo(version=version, params=checkpoint.groups["model"]))
        play = replace(config.evaluation.play, episodes=arguments.episodes)
        seed = config.evaluation.seed if arguments.seed is None else arguments.seed
        evaluator = EpisodeEvaluator(env, play, derive_seed(seed, Role.EVALUATION))
        score, record = evaluator.evaluate(policy)
    finally:
        env.close()
    if arguments.json:
        shown = {"score": score, "episodes": arguments.episodes, "opt_steps": version, **record}
        print(json.dumps(shown))
    else:
        print(
            f"{score:.1f} mean return over {arguments.episodes} episodes "
            f"(min {record['eval/return_min']:.1f}, max {record['eval/return_max']:.1f}), "
            f"model after {version} optimisation steps"
        )
    return 0
