"""The contract of what scores a policy. Does not know how it is scored."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from asyncrl.core.agent import Policy
from asyncrl.core.recorder import Record


class Evaluation(NamedTuple):
    """A score, higher is better, and further metrics."""

    score: float
    record: Record


class Evaluator(Protocol):
    """Scores policies; the same policy gets the same score each time.

    An evaluator that lets the policy act as in training declares it by a true attribute
    `stochastic`. It is refused for a policy that is in training.
    """

    def evaluate(self, policy: Policy) -> Evaluation:
        """Score a policy in evaluation mode, and restore its mode."""
        ...

    def close(self) -> None:
        """Release environments; may be called again."""
        ...
