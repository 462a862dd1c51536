"""Which model of a run has been the best one so far. Saves nothing."""

from __future__ import annotations

import logging
import math
from typing import Any

from asyncrl.checkpoint import Checkpoint

__all__ = ["BestModel"]

logger = logging.getLogger(__name__)


class BestModel:
    """Remembers the best score so far, and after how many optimisation steps it was reached."""

    def __init__(self) -> None:
        self.score: float | None = None
        self.opt_steps: int | None = None
        self._warned = False

    def is_better(self, score: float, *, opt_steps: int) -> bool:
        """Tell whether `score` beats all before it, and keep it if so; ties and NaN do not."""
        if not math.isfinite(score):
            if not self._warned:
                self._warned = True
                logger.warning("a score is %s; scores that are not finite are never best", score)
            return False
        if self.score is not None and score <= self.score:
            return False
        self.score, self.opt_steps = score, opt_steps
        return True

    def meta(self) -> dict[str, Any]:
        """Return what `restore` needs, as plain values."""
        return {"best_score": self.score, "best_opt_steps": self.opt_steps}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from the score that a run had when it saved this checkpoint, if it had one."""
        if checkpoint.meta.get("best_score", ...) is not None:
            self.score = checkpoint.number("best_score")
            self.opt_steps = checkpoint.count("best_opt_steps")
