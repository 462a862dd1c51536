"""`asyncrl eval`: scores the best model of a run on its own environment, in a child process."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from asyncrl.actor.evaluator import EpisodeEvaluator
from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.cli.output import show
from asyncrl.cli.parser import POSITIONAL, parsed
from asyncrl.cli.run_directory import check_run_dir
from asyncrl.core.declared import Count, Natural
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.fleet.in_child import run_in_child
from asyncrl.run.saved_model import SavedModel, policy_of

_log = logging.getLogger(__name__)


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


parse = partial(parsed, EvalArguments, "asyncrl eval")


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
    play = partial(evaluated, arguments, **how)
    scored: list[dict[str, Any]] = run_in_child(play, what="the evaluation")
    return scored


def evaluated(
    arguments: EpisodeArguments,
    *,
    video: Path | None = None,
    grid: int = 1,
    window: bool = False,
) -> list[dict[str, Any]]:
    """Evaluate a run's model, or each of them, in this process; return plain values.

    A `video` is made of the same episodes, `grid` of them at a time; a `window` shows them one
    after another.
    """
    from asyncrl.envs.film import filmed, in_window  # imports gymnasium

    model = SavedModel.at(arguments.run_dir, arguments.checkpoint)
    check_run_dir(model.run_dir)
    config, episodes = model.config(), arguments.episodes
    kwargs = {**config.eval_env_kwargs, **arguments.env_kwargs}
    config = replace(config, eval_env_kwargs=kwargs)
    models = _numbered(model) if arguments.all_checkpoints else [model]
    first = models[0].load()  # raises before environments are built
    play = replace(
        config.evaluate.play,
        episodes=episodes,
        stochastic=arguments.stochastic or config.evaluate.play.stochastic,
    )
    seed = config.evaluate.seed if arguments.seed is None else arguments.seed
    environments = config.eval_env_config()
    count = min(grid, episodes)
    with ExitStack() as opened:
        if video is not None:
            env = opened.enter_context(filmed(environments, video, count))
        else:
            made = in_window(environments) if window else environments.build_for(episodes)()
            env = opened.enter_context(closing(made))
        source = f"in {model.config_path}"
        evaluator = EpisodeEvaluator(env, play, derive_seed(seed, Role.EVALUATION))
        how: Any = {"seed": config.seed, "source": source, "n_envs": env.n_envs}
        found = []
        for saved in chain([first], _still_there(models[1:])):
            policy = policy_of(saved, config.agent, env.spec, **how)
            score, record = evaluator.evaluate(policy)
            values = {"score": score, "episodes": episodes, "opt_steps": saved.count("opt_steps")}
            found.append({**values, **record})
    return found


def _still_there(models: Sequence[SavedModel]) -> Iterator[Checkpoint]:
    """Load each model when it is due; an active run deletes its oldest ones meanwhile."""
    for model in models:
        try:
            saved = model.load()
        except CheckpointError:
            if model.name in Checkpointer(model.checkpoints).names():
                raise
            _log.warning("checkpoint %s is not evaluated: the run has deleted it", model.name)
            continue
        yield saved


def _numbered(model: SavedModel) -> list[SavedModel]:
    """Return all models of its run that are named by their optimisation steps, oldest first."""
    names = filter(str.isdigit, Checkpointer(model.checkpoints).names())
    return [replace(model, asked=name) for name in sorted(names, key=int)] or [model]
