"""What scores a policy: the contract, and the score with its numbers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from asyncrl.core.agent import Policy
from asyncrl.core.recorder import Record


class Evaluation(NamedTuple):
    """A score, higher is better, and what else is worth recording."""

    score: float
    record: Record


class Evaluator(Protocol):
    """Policy in, score out; the same policy gets the same score each time.

    One that lets the policy act as in training says so by an attribute `stochastic` that is true,
    and is refused where the policy is the one in training.
    """

    def evaluate(self, policy: Policy) -> Evaluation:
        """Score a policy in evaluation mode and leave its mode as it was."""
        ...

    def close(self) -> None:
        """Release environments; may be called again."""
        ...
