"""Which model of a run has been the best one so far, by a metric of choice. Saves nothing."""

from __future__ import annotations

import difflib
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.recorder import Record
from asyncrl.metrics.metrics import METRICS, describe

logger = logging.getLogger(__name__)

_FEWEST_EPISODES = 20
"""Of which a mean must be, or the luckiest episode would tell which model is best."""

_SPELLING = re.compile(r"(?:(min|max):)?(.+)")
_OF_EVALUATIONS = "eval/"
_PREFIXES = {name.partition("/")[0] for name in METRICS if "/" in name}


@dataclass(frozen=True, slots=True)
class BestBy:
    """A recorded metric, and whether less of it is better."""

    metric: str
    less: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME`, of which more is better, or `min:NAME`; refuse a name nobody records."""
        fitting = _SPELLING.fullmatch(text)
        if fitting is None:
            raise ConfigError(
                "save.best_by must name a recorded metric, of which more is better, or less as "
                f"in min:agent/loss, got {text!r}"
            )
        way, metric = fitting.groups()
        # Evaluators of the user's own may say anything of an evaluation, callbacks anything else
        # under prefixes of their own.
        prefix, slash, _ = metric.partition("/")
        theirs = slash and (prefix == "eval" or prefix not in _PREFIXES)
        if describe(metric) is None and not theirs:
            raise ConfigError(
                f"save.best_by={text!r} names no metric that a run records; {_near(metric)}"
            )
        return cls(metric, way == "min")

    @property
    def of_evaluations(self) -> bool:
        """Whether evaluations tell it, and other records do not."""
        return self.metric == "eval_reward" or self.metric.startswith(_OF_EVALUATIONS)

    @property
    def of_episodes(self) -> bool:
        """Whether it is a mean over the training episodes since the record before."""
        return self.metric in {"episode/return_mean", "episode/length_mean"}

    def is_better(self, value: float, than: float) -> bool:
        """Tell whether a value beats another one; ties do not."""
        return value < than if self.less else value > than

    def __str__(self) -> str:
        return f"min:{self.metric}" if self.less else self.metric


class BestModel:
    """Remembers the best value of one metric, and after how many optimisation steps it came."""

    def __init__(self, by: BestBy) -> None:
        self.by = by
        self.score: float | None = None
        self.opt_steps: int | None = None
        self._warned = False
        self._episodes = _Episodes()

    def offer(self, record: Record, model: Callable[[], ModelInfo]) -> ModelInfo | None:
        """Return the model that a record is about, if that is the best one so far.

        `model` makes it, and is called only then. NaN and infinities are never best.
        """
        value = record.get(self.by.metric)
        if value is not None and self.by.of_episodes:
            value = self._episodes.mean(value, record["episodes"])
        if value is None:
            return None
        if not math.isfinite(value):
            if not self._warned:
                self._warned = True
                logger.warning(
                    "%s is %s; values that are not finite are never best", self.by.metric, value
                )
            return None
        if self.score is not None and not self.by.is_better(value, self.score):
            return None
        info = model()
        self.score, self.opt_steps = value, int(info.version)
        return info

    def pass_over(self, record: Record) -> None:
        """Take note of a record that is about no model that has learned."""
        self._episodes.pass_over(record.get("episodes", 0.0))

    def expect(self, evaluation: Record) -> None:
        """Raise if evaluations are to tell which model is best, and this one does not."""
        if self.by.of_evaluations and self.by.metric not in evaluation:
            told = ", ".join(sorted(evaluation))
            raise ConfigError(
                f"save.best_by={str(self.by)!r} names what no evaluation tells; they tell {told}"
            )

    def conclude(self) -> None:
        """Warn, at the end of a run, if nothing has told which model is best as was asked for."""
        if self.score is None and self.by != BestBy("eval_reward"):
            logger.warning(
                "nothing that this run recorded told a finite %s%s, so no model is kept as the "
                "best one; see save.best_by",
                self.by.metric,
                f" of {_FEWEST_EPISODES} episodes" if self.by.of_episodes else "",
            )

    def meta(self) -> dict[str, Any]:
        """Return what `restore` needs, as plain values."""
        told = {"best_score": self.score, "best_opt_steps": self.opt_steps}
        return {"best_by": str(self.by), **told}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from the value that a run had when it saved this checkpoint, if it had one."""
        if checkpoint.meta.get("best_score", ...) is None:
            return
        score, opt_steps = checkpoint.number("best_score"), checkpoint.count("best_opt_steps")
        if (before := checkpoint.meta.get("best_by")) != str(self.by):
            logger.warning(
                "the best model was judged by %s before, and is by %s from now on: the first one "
                "that is judged replaces it",
                before,
                self.by,
            )
            return
        self.score, self.opt_steps = score, opt_steps

    def keep(self, kept: Checkpoint) -> None:
        """Go on from the best model that is on disk, if that is a better one.

        A run that was killed may have saved it after the checkpoint from which it goes on.
        """
        if kept.meta.get("best_by") != str(self.by):
            return
        score = kept.number("score")
        if self.score is None or self.by.is_better(score, self.score):
            self.score, self.opt_steps = score, kept.count("opt_steps")


class _Episodes:
    """Means of records, put together until they are of enough episodes."""

    def __init__(self) -> None:
        self._count = 0.0
        self._sum = 0.0
        self._ended = 0.0

    def pass_over(self, ended: float) -> None:
        """Leave out what has ended so far, so many episodes of the run."""
        self._ended = ended

    def mean(self, value: float, ended: float) -> float | None:
        """Add the mean of a record, when so many episodes of the run have ended.

        Return that of all episodes since the last one that was returned, if they are enough.
        """
        new, self._ended = ended - self._ended, ended
        self._count += new
        self._sum += new * value
        if self._count < _FEWEST_EPISODES:
            return None
        mean = self._sum / self._count
        self._count = self._sum = 0.0
        return mean


def _near(metric: str) -> str:
    """Suggest what may be meant."""
    # Only the last part is told by some: `loss` for `agent/loss`.
    near = [name for name in METRICS if name.rpartition("/")[2] == metric]
    near += difflib.get_close_matches(metric, METRICS, n=3)
    if near := list(dict.fromkeys(near)):
        return f"did you mean {' or '.join(near)}?"
    return (
        "asyncrl.metrics.metrics.METRICS lists them; what an agent returns is called agent/<name>, "
        "as agent/loss"
    )
