"""Where evaluations run: in the learner's thread, or in a separate process.

`evaluator.py` defines an evaluation. `run_services.py` decides when one is due, and uses its score.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from asyncrl.core.agent import Policy
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import Evaluator, evaluated
from asyncrl.core.messages import ModelInfo
from asyncrl.core.recorder import Record
from asyncrl.core.transport import LearnerLink

if TYPE_CHECKING:  # it loads all that receives
    from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy


class Scored(NamedTuple):
    """A model and its score."""

    model: ModelInfo
    score: float
    record: Record


class EvaluationSite(Protocol):
    """Evaluates one model at a time, and returns its score when it is known."""

    @property
    def busy(self) -> bool:
        """Whether the last request is not finished yet."""
        ...

    def request(self, model: ModelInfo) -> None:
        """Evaluate this model."""
        ...

    def take(self) -> list[Scored]:
        """Return the evaluations that have finished since the last call."""
        ...


class InlineEvaluation:
    """Evaluates at once with the learner's own agent; learning pauses meanwhile.

    The caller that built the evaluator closes it after the run.
    """

    busy = False

    def __init__(self, evaluator: Evaluator, policy: Policy) -> None:
        if getattr(evaluator, "stochastic", False):
            raise ConfigError(
                "evaluate.play.stochastic=True makes a policy act as in training, which would "
                "change the state of the policy in training; evaluate in the background, or after "
                "training: asyncrl eval --stochastic"
            )
        self._evaluator = evaluator
        self._policy = policy
        self._scored: list[Scored] = []

    def request(self, model: ModelInfo) -> None:
        """Evaluate the agent's current model; `model` is its snapshot."""
        score, record = evaluated(self._evaluator, self._policy, model.version)
        self._scored.append(Scored(model, score, record))

    def take(self) -> list[Scored]:
        """Return the evaluations that have finished since the last call."""
        scored, self._scored = self._scored, []
        return scored


class BackgroundEvaluation:
    """Publishes the model to an evaluating process, and learning continues."""

    def __init__(self, link: LearnerLink, proxy: ReplayBufferProxy) -> None:
        self._link = link
        self._proxy = proxy
        self._requested: ModelInfo | None = None

    @property
    def busy(self) -> bool:
        """Whether the last request is not finished yet."""
        return self._requested is not None

    def request(self, model: ModelInfo) -> None:
        """Publish this model for evaluation, and keep it: the best model is saved from here."""
        self._requested = model
        self._link.publish(model, "evaluate")

    def take(self) -> list[Scored]:
        """Return the evaluations that have finished since the last call."""
        scored = []
        for report in self._proxy.take_evaluations():
            model = self._requested
            if model is not None and model.version == report.model_version:
                scored.append(Scored(model, report.score, report.record))
                self._requested = None
        return scored
