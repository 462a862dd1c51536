"""Which model of a run is the best one so far, by a chosen metric. Saves nothing."""

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
from asyncrl.core.types import ModelVersion
from asyncrl.metrics.metrics import METRICS, describe

logger = logging.getLogger(__name__)

_FEWEST_EPISODES = 20
"""Minimum episodes behind a mean; with fewer, one lucky episode could select the best model."""

_SPELLING = re.compile(r"(?:(min|max):)?(.+)")
_OF_EVALUATIONS = "eval/"
_MEANS = {"episode/return_mean", "episode/length_mean", "episode/success_rate"}
_PREFIXES = {name.partition("/")[0] for name in METRICS if "/" in name}


def model_in(checkpoint: Checkpoint) -> ModelInfo:
    """Return the model of a checkpoint."""
    return ModelInfo(
        version=ModelVersion(checkpoint.count("opt_steps")),
        params=checkpoint.group("model"),
        env_steps=checkpoint.count("env_steps"),
    )


@dataclass(frozen=True, slots=True)
class BestBy:
    """A recorded metric, and whether lower values are better."""

    metric: str
    less: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `NAME`, where higher is better, or `min:NAME`; refuse an unknown name."""
        fitting = _SPELLING.fullmatch(text)
        if fitting is None:
            raise ConfigError(
                "save.best_by must be the name of a recorded metric, or min:NAME if lower is "
                f"better, as in min:agent/loss; got {text!r}"
            )
        way, metric = fitting.groups()
        # Custom evaluators may record any name for an evaluation, callbacks any other name with a
        # separate prefix.
        prefix, slash, _ = metric.partition("/")
        theirs = slash and (prefix == "eval" or prefix not in _PREFIXES)
        if describe(metric) is None and not theirs:
            raise ConfigError(
                f"save.best_by={text!r} is not the name of a recorded metric; {_near(metric)}"
            )
        return cls(metric, way == "min")

    @property
    def of_evaluations(self) -> bool:
        """Whether only evaluations contain this metric."""
        return self.metric == "eval_reward" or self.metric.startswith(_OF_EVALUATIONS)

    @property
    def of_episodes(self) -> bool:
        """Whether it is a mean over the training episodes since the last record."""
        return self.metric in _MEANS or self.metric.startswith("info/")

    def is_better(self, value: float, than: float) -> bool:
        """Return whether a value is better than another one; equal values are not."""
        return value < than if self.less else value > than

    def __str__(self) -> str:
        return f"min:{self.metric}" if self.less else self.metric


class BestModel:
    """Keeps the best value of one metric, and the optimisation step that it belongs to."""

    def __init__(self, by: BestBy) -> None:
        self.by = by
        self.score: float | None = None
        self.opt_steps: int | None = None
        self.model: ModelInfo | None = None
        """The model itself; None if it is not known any more."""
        self._warned = False
        self._episodes = _Episodes()

    def offer(self, record: Record, model: Callable[[], ModelInfo]) -> ModelInfo | None:
        """Return the record's model if it is the best one so far.

        `model` makes it, and is called only then. NaN and infinities are never best.
        """
        value = record.get(self.by.metric)
        if self.by.of_episodes and "episodes" in record:
            if value is not None:
                value = self._episodes.mean(value, record["episodes"])
            elif self.by.metric.startswith("info/"):
                self._episodes.pass_over(record["episodes"])  # they had no such number
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
        self.model = info = model()
        self.score, self.opt_steps = value, int(info.version)
        return info

    def pass_over(self, record: Record) -> None:
        """Skip a record from before the first optimisation step."""
        self._episodes.pass_over(record.get("episodes", 0.0))

    def expect(self, evaluation: Record) -> None:
        """Raise if evaluations select the best model, and none so far contained the metric.

        Later ones may lack it, as a number that infos contain only where a goal was reached.
        """
        if self.by.of_evaluations and self.score is None and self.by.metric not in evaluation:
            recorded = ", ".join(sorted(evaluation))
            raise ConfigError(
                f"save.best_by={str(self.by)!r} names a metric that evaluations do not record; "
                f"they record {recorded}"
            )

    def conclude(self) -> None:
        """Warn, at the end of a run, if a custom metric was never recorded."""
        if self.score is None and self.by != BestBy("eval_reward"):
            logger.warning(
                "this run never recorded a finite %s%s, so no best model was kept; see "
                "save.best_by",
                self.by.metric,
                f" of {_FEWEST_EPISODES} episodes" if self.by.of_episodes else "",
            )

    def meta(self) -> dict[str, Any]:
        """Return plain values for `restore`."""
        reported = {"best_score": self.score, "best_opt_steps": self.opt_steps}
        return {"best_by": str(self.by), **reported}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the best value that the checkpoint contains, if any."""
        if checkpoint.meta.get("best_score", ...) is None:
            return
        score, opt_steps = checkpoint.number("best_score"), checkpoint.count("best_opt_steps")
        if (before := checkpoint.meta.get("best_by")) != str(self.by):
            logger.warning(
                "the best model was chosen by %s before, and is chosen by %s from now on: the "
                "first model with the new metric replaces it",
                before,
                self.by,
            )
            return
        self.score, self.opt_steps = score, opt_steps

    def keep(self, kept: Checkpoint | None) -> None:
        """Continue from the best model on disk, if that is a better one; without it, from none.

        A run that was killed may have saved it after the checkpoint from which it resumes. A run
        that branches off into another directory has none there.
        """
        if kept is None:
            self.score = self.opt_steps = None
            return
        if kept.meta.get("best_by") != str(self.by):
            return
        score = kept.number("score")
        if self.score is None or self.by.is_better(score, self.score):
            self.score, self.opt_steps = score, kept.count("opt_steps")
        if self.opt_steps == kept.count("opt_steps"):
            self.model = model_in(kept)


class _Episodes:
    """Pools means of records until they cover enough episodes."""

    def __init__(self) -> None:
        self._count = 0.0
        self._sum = 0.0
        self._ended = 0.0

    def pass_over(self, ended: float) -> None:
        """Skip the episodes that have ended so far; `ended` counts those of the whole run."""
        self._ended = ended

    def mean(self, value: float, ended: float) -> float | None:
        """Add the mean of a record; `ended` counts the run's episodes so far.

        Return the mean over all episodes since the last returned one, or None while there are too
        few.
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
    """Suggest similar names."""
    # Some users omit the prefix: `loss` for `agent/loss`.
    near = [name for name in METRICS if name.rpartition("/")[2] == metric]
    near += [f"{metric}_mean"] * (f"{metric}_mean" in METRICS)
    near += difflib.get_close_matches(metric, METRICS, n=3)
    if near := list(dict.fromkeys(near)):
        return f"did you mean {' or '.join(near)}?"
    return (
        "asyncrl.metrics.metrics.METRICS lists them; a metric that an agent returns is named "
        "agent/<name>, as agent/loss"
    )
