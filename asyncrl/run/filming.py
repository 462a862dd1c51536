"""Films episodes of a run's evaluations, where the evaluations are played.

A film is one more episode, played after the score is known, in a separate environment: neither
scores nor seeds depend on it. Does not know how pictures become a file, see `envs/film.py`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.actor.evaluator import EpisodeEvaluator, EpisodeEvaluatorConfig
from asyncrl.core.agent import Policy
from asyncrl.core.errors import ConfigError, describe_error
from asyncrl.core.evaluator import Evaluation, Evaluator, MakeEvaluator, evaluated, film_path
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.learner.progress import Every
from asyncrl.run.evaluators import MakesAround
from asyncrl.run.run_config import EvaluationConfig

if TYPE_CHECKING:
    from asyncrl.envs.gym import EnvConfig  # imports gymnasium

logger = logging.getLogger(__name__)

_MOST_STEPS = 3000
"""Steps after which a film ends: 100 s at 30 pictures per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeFilming(MakesAround):
    """Makes an evaluator that also films: called in the process that evaluates."""

    make_evaluator: MakeEvaluator
    own: MakeEvaluator | None

    env: EnvConfig
    config: EvaluationConfig
    directory: Path
    interval_opt_steps: int

    def check(self, timeout_s: float) -> None:
        """Raise `ConfigError` if nothing can be filmed. Makes an environment in a child process."""
        from asyncrl.envs.film import (  # noqa: PLC0415  # imports gymnasium
            check_video_package,
            try_picture,
        )
        from asyncrl.fleet.in_child import run_in_child  # noqa: PLC0415  # few runs film

        name = "video_interval_opt_steps"
        if self.config.where == "off" or not self.config.interval_opt_steps:
            raise ConfigError(
                f"{name} is {self.interval_opt_steps}, but films are made by evaluations, which "
                f"are off; set {name} to 0, or turn evaluations on: evaluate.where, "
                "evaluate.interval_opt_steps"
            )
        check_video_package(name)
        run_in_child(
            lambda: try_picture(self.env),
            what="trying a picture",
            timeout_s=timeout_s,
            timeout_setting="supervision.start_timeout_s",
        )

    def __call__(self) -> FilmingEvaluator:
        """Make the evaluator."""
        return FilmingEvaluator(self.make_evaluator(), self)


class FilmingEvaluator:
    """Scores policies as another evaluator does, and then films some of them.

    A film that fails is missing, with a warning. Films show the best actions, whatever the scores
    are made of: they must not use up random numbers of the policy.
    """

    def __init__(self, evaluator: Evaluator, films: MakeFilming) -> None:
        self._evaluator = evaluator
        self._films = films
        self.stochastic = bool(getattr(evaluator, "stochastic", False))
        self.n_envs = getattr(evaluator, "n_envs", 1)
        self._opt_steps = 0
        self._every: Every | None = None

    def begin_evaluation(self, opt_steps: int) -> None:
        """Take the number of optimisation steps of the model that is scored next."""
        self._opt_steps = opt_steps

    def evaluate(self, policy: Policy) -> Evaluation:
        """Score a policy, and film an episode of it if that is due."""
        scored = evaluated(self._evaluator, policy, self._opt_steps)
        if self._every is None:
            films = self._films
            made = max(_films_in(films.directory), default=0)
            self._every = Every(films.interval_opt_steps, start=made)
        if self._every.due(self._opt_steps):
            try:
                self._film(policy)
            except Exception as error:
                logger.warning(
                    "no film of the model after %d optimisation steps: %s; the run and its "
                    "evaluations continue",
                    self._opt_steps,
                    describe_error(error),
                )
        return scored

    def close(self) -> None:
        """Close the other evaluator."""
        self._evaluator.close()

    def _film(self, policy: Policy) -> None:
        from asyncrl.envs.film import filmed  # noqa: PLC0415  # imports gymnasium

        films = self._films
        films.directory.mkdir(exist_ok=True)
        steps = min(films.config.play.max_episode_steps, _MOST_STEPS)
        play = EpisodeEvaluatorConfig(episodes=1, max_episode_steps=steps)
        seed = derive_seed(films.config.seed, Role.EVALUATION)
        path = film_path(films.directory, self._opt_steps)
        try:
            with filmed(replace(films.env, n_envs=1), path) as env:
                EpisodeEvaluator(env, play, seed).evaluate(policy)
        except BaseException:
            with suppress(OSError):  # there are others
                films.directory.rmdir()
            raise


def discard_films(directory: Path, opt_steps: int) -> None:
    """Remove films of models that a resumed run does not have, and those that were not finished."""
    for made, path in _films_in(directory).items():
        if made > opt_steps:
            path.unlink(missing_ok=True)
    for path in directory.glob(".*.mp4"):
        path.unlink(missing_ok=True)


def _films_in(directory: Path) -> dict[int, Path]:
    """Return the films by the optimisation steps of their models."""
    return {int(path.stem): path for path in directory.glob("*.mp4") if path.stem.isdigit()}
