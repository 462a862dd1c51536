"""The contract of what scores a policy. Does not know how it is scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from asyncrl.core.agent import Policy, as_number
from asyncrl.core.env_checks import shown
from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import Record

EVALUATION_CPU = "eval/cpu_s"
"""Name of the CPU seconds that an evaluation took in its own process."""

VIDEOS = "videos"
"""Directory of films in a run's directory."""


class Evaluation(NamedTuple):
    """A score, higher is better, and further metrics."""

    score: float
    record: Record


class Evaluator(Protocol):
    """Scores policies; the same policy gets the same score each time.

    An evaluator that lets the policy act as in training declares it by a true attribute
    `stochastic`. It is refused for a policy that is in training. An attribute `n_envs`, if it has
    one, is the number of rows that it acts with: exploration may differ between them.
    """

    def evaluate(self, policy: Policy) -> Evaluation:
        """Score a policy in evaluation mode, and restore its mode."""
        ...

    def close(self) -> None:
        """Release environments; may be called again."""
        ...


MakeEvaluator = Callable[[], Evaluator]
"""Builds an evaluator in the process that will run it."""


@runtime_checkable
class CountsOptSteps(Protocol):
    """An evaluator that needs the age of each model."""

    def begin_evaluation(self, opt_steps: int) -> None:
        """Called before `evaluate` with the optimisation steps of the model."""
        ...


def evaluated(evaluator: Evaluator, policy: Policy, opt_steps: int) -> Evaluation:
    """Score a policy whose model has taken this number of optimisation steps.

    Numbers of numpy and torch become floats, which checkpoints and summaries can hold.
    """
    if isinstance(evaluator, CountsOptSteps):
        evaluator.begin_evaluation(opt_steps)
    answer: Any = evaluator.evaluate(policy)
    match answer:
        case (score, Mapping() as record):
            numbers = {name: as_number(name, value) for name, value in record.items()}
            return Evaluation(as_number("eval_reward", score), numbers)
    raise ConfigError(
        f"`evaluate` of {type(evaluator).__name__} must return a score and numbers by name, got "
        f"{shown(answer)}; return for instance Evaluation(475.0, {{}})"
    )


def film_path(directory: Path, opt_steps: int) -> Path:
    """Return where the film of a model is, if there is one. It is there before the score is."""
    return directory / f"{opt_steps}.mp4"
