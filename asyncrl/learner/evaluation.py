"""Where evaluations take place: in the learner's own turn, or in a process beside it.

What an evaluation is, `evaluator.py` says; when one is due, and what follows from its score, is
the business of `run_services.py`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from asyncrl.core.agent import Policy
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import Evaluator
from asyncrl.core.messages import ModelInfo
from asyncrl.core.recorder import Record
from asyncrl.core.transport import LearnerLink
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy


class Scored(NamedTuple):
    """A model, and what it scored."""

    model: ModelInfo
    score: float
    record: Record


class EvaluationSite(Protocol):
    """Takes one model at a time to evaluate, and gives its score back when it has it."""

    @property
    def busy(self) -> bool:
        """Whether the last request has not been answered yet."""
        ...

    def request(self, model: ModelInfo) -> None:
        """Evaluate this model."""
        ...

    def take(self) -> list[Scored]:
        """Return the answers that have come since the last call."""
        ...


class InlineEvaluation:
    """Evaluates at once, with the learner's own agent; the learner stands still meanwhile.

    Whoever made the evaluator closes it, after the run.
    """

    busy = False

    def __init__(self, evaluator: Evaluator, policy: Policy) -> None:
        if getattr(evaluator, "stochastic", False):
            raise ConfigError(
                "evaluate.play.stochastic=True lets a policy act as in training, which the one in "
                "training cannot do in between; evaluate in the background, or after training: "
                "asyncrl eval --stochastic"
            )
        self._evaluator = evaluator
        self._policy = policy
        self._scored: list[Scored] = []

    def request(self, model: ModelInfo) -> None:
        """Evaluate the agent as it is now; `model` is its snapshot."""
        score, record = self._evaluator.evaluate(self._policy)
        self._scored.append(Scored(model, score, record))

    def take(self) -> list[Scored]:
        """Return the answers that have come since the last call."""
        scored, self._scored = self._scored, []
        return scored


class BackgroundEvaluation:
    """Publishes the model to an evaluating process and goes on learning."""

    def __init__(self, link: LearnerLink, proxy: ReplayBufferProxy) -> None:
        self._link = link
        self._proxy = proxy
        self._requested: ModelInfo | None = None

    @property
    def busy(self) -> bool:
        """Whether the last request has not been answered yet."""
        return self._requested is not None

    def request(self, model: ModelInfo) -> None:
        """Publish this model for evaluation, and keep it: the best one is saved from here."""
        self._requested = model
        self._link.publish(model, "evaluate")

    def take(self) -> list[Scored]:
        """Return the answers that have come since the last call."""
        scored = []
        for report in self._proxy.take_evaluations():
            model = self._requested
            if model is not None and model.version == report.model_version:
                scored.append(Scored(model, report.score, report.record))
                self._requested = None
        return scored
