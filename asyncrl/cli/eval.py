"""`asyncrl eval`: scores the best model of a run on its own environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from asyncrl.actor.evaluator import EpisodeEvaluator
from asyncrl.cli.output import on_results, show
from asyncrl.cli.run_directory import find_model, trained
from asyncrl.core.declared import Count, Natural, check_declared
from asyncrl.core.seeding import Role, derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalArguments:
    """Score a trained model."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """Directory of the run, or of one of its checkpoints."""

    checkpoint: str | None = None
    """`best`, `newest`, or the number of optimisation steps of a checkpoint. Default: the best, or
    the newest if the run made no evaluation."""

    episodes: Count = 10
    """Episodes to play."""

    seed: Natural | None = None
    """Seed of the episodes. Default: the same episodes as in training's evaluations."""

    stochastic: bool = False
    """Sample actions or explore, as in training, instead of taking the best action."""

    env_kwargs: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Keyword arguments of the environment, in place of those of the run's evaluations."""

    json: bool = False
    """Print one line of JSON."""

    def __post_init__(self) -> None:
        check_declared(self, flags=True)


def parse(argv: list[str]) -> EvalArguments:
    """Read the command line."""
    arguments = on_results(tyro.cli, EvalArguments, prog="asyncrl eval", args=argv)
    find_model(arguments.run_dir, arguments.checkpoint)
    return arguments


def run(arguments: EvalArguments) -> int:
    """Evaluate, and return the exit code."""
    model = find_model(arguments.run_dir, arguments.checkpoint)
    playing = trained(model, episodes=arguments.episodes, env_kwargs=arguments.env_kwargs)
    with playing as (config, policy, env, version):
        play = replace(
            config.evaluate.play,
            episodes=arguments.episodes,
            stochastic=arguments.stochastic or config.evaluate.play.stochastic,
        )
        seed = config.evaluate.seed if arguments.seed is None else arguments.seed
        evaluator = EpisodeEvaluator(env, play, derive_seed(seed, Role.EVALUATION))
        score, record = evaluator.evaluate(policy)
    if arguments.json:
        shown = {"score": score, "episodes": arguments.episodes, "opt_steps": version, **record}
        show(json.dumps(shown))
    else:
        rate = record.get("eval/success_rate")
        show(
            f"{score:.1f} mean return over {arguments.episodes} episodes "
            f"(min {record['eval/return_min']:.1f}, max {record['eval/return_max']:.1f}), "
            f"{'' if rate is None else f'success rate {rate:.2f}, '}"
            f"model after {version} optimisation steps"
        )
    return 0
