"""`asyncrl eval`: scores the best model of a run on its own environment, in a child process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from asyncrl.cli.output import show
from asyncrl.cli.parser import POSITIONAL, parsed
from asyncrl.core.declared import Count, Natural
from asyncrl.core.errors import ConfigError
from asyncrl.supervision.in_child import run_in_child


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeArguments:
    """Which model plays which episodes."""

    run_dir: Annotated[Path, POSITIONAL]
    """Directory of the run, or of one of its checkpoints."""

    checkpoint: str | None = None
    """`best`, `newest`, or the number of optimisation steps of a checkpoint. Default: the best, or
    the newest if the run made no evaluation."""

    all_checkpoints: bool = False
    """Play with each numbered checkpoint of the run, oldest first, to see how the agent
    learned. `save.keep=0` in training keeps all."""

    episodes: Count = 10
    """Episodes to play, with each checkpoint."""

    seed: Natural | None = None
    """Seed of the episodes. Default: the same episodes as in training's evaluations."""

    stochastic: bool = False
    """Sample actions or explore, as in training, instead of taking the best action."""

    env_kwargs: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Keyword arguments of the environment, in place of those of the run's evaluations."""

    def __post_init__(self) -> None:
        if self.all_checkpoints and self.checkpoint is not None:
            raise ConfigError("--all-checkpoints excludes --checkpoint; omit one")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalArguments(EpisodeArguments):
    """Score a trained model."""

    video: Path | None = None
    """Write the episodes, one after another, as an .mp4 file, which is replaced if it exists. Needs
    the extra `video`, and an environment that renders."""

    grid: Count = 1
    """Episodes that a video shows at the same time, side by side. One that has ended keeps its last
    picture until all have."""

    json: bool = False
    """Print one line of JSON."""

    def __post_init__(self) -> None:
        EpisodeArguments.__post_init__(self)
        if self.grid > 1 and self.video is None:
            raise ConfigError("--grid has no effect without --video; add it")


def parse(argv: list[str]) -> EvalArguments:
    """Parse the command line."""
    return parsed(EvalArguments, prog="asyncrl eval", args=argv)


def run(arguments: EvalArguments) -> int:
    """Evaluate, and return the exit code."""
    if arguments.video is not None:
        from asyncrl.envs.film import check_video  # imports gymnasium

        check_video(arguments.video)
    video = None if arguments.video is None else arguments.video.absolute()
    for scored in played(arguments, video=video, grid=arguments.grid):
        show(json.dumps(scored) if arguments.json else line_of(scored))
    return 0


def line_of(scored: Mapping[str, Any]) -> str:
    """Return a sentence about the scores of one model."""
    rate = scored.get("eval/success_rate")
    return (
        f"{scored['score']:.4g} mean return over {scored['episodes']} episodes "
        f"(min {scored['eval/return_min']:.4g}, max {scored['eval/return_max']:.4g}, deviation "
        f"{scored['eval/return_std']:.3g}), "
        f"{'' if rate is None else f'success rate {rate:.2f}, '}"
        f"model after {scored['opt_steps']} optimisation steps"
    )


def played(arguments: EpisodeArguments, **how: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """Play the episodes in a child process, which loads torch there and not here.

    `how` are arguments of `evaluated`.
    """
    names = ("all_checkpoints", "episodes", "seed", "stochastic")
    how |= {name: getattr(arguments, name) for name in names}
    how["env_kwargs"] = dict(arguments.env_kwargs)
    run_dir, checkpoint = arguments.run_dir, arguments.checkpoint

    def play() -> list[dict[str, Any]]:
        from asyncrl.cli.run_directory import evaluated

        return evaluated(run_dir, checkpoint, **how)

    scored: list[dict[str, Any]] = run_in_child(play, what="the evaluation")
    return scored
