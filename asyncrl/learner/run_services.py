"""What every trainer does beside training: evaluate, record, save, and check stop conditions.

Called after every training step. Almost always nothing is due, which costs a microsecond. Does not
train.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import Annotated, SupportsFloat

import numpy as np

from asyncrl.checkpoint.checkpoint import PASSING, Checkpoint, Checkpointer
from asyncrl.checkpoint.resume import plain_config
from asyncrl.checkpoint.saver import RunState, Saver
from asyncrl.core.agent import Agent, as_number
from asyncrl.core.declared import COMMON, CountOrOff, PositiveOrOff, check_declared
from asyncrl.core.errors import ConfigError, NonFiniteModel
from asyncrl.core.evaluator import EVALUATION_CPU, Evaluation
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import ModelInfo
from asyncrl.core.recorder import Record, Recorder, ResumableRecorder
from asyncrl.core.types import ModelVersion
from asyncrl.learner.best_model import BestBy, BestModel
from asyncrl.learner.evaluation import EvaluationSite, Scored
from asyncrl.learner.progress import Counts, Every, EverySeconds, Pace
from asyncrl.learner.stop_conditions import AnyOf, StopCondition, StopFunction
from asyncrl.learner.train_result import PolicyMaker, TrainResult
from asyncrl.metrics.stopwatch import Stopwatch
from asyncrl.metrics.system import SystemMeter
from asyncrl.metrics.verdict import Setup

logger = logging.getLogger(__name__)

POLICY = "policy"
"""Name of what is needed to load the policy in the manifest of a checkpoint: agent and spaces."""

_POLL_S = 0.005
_EVALUATION_SHARE = 0.05
"""Maximum share of the machine that evaluations take."""

_FIRST_SHARE, _FIRST_EVALUATIONS_S = 0.2, 1.0
"""The share of the first ones, until they have taken that long on the whole machine."""

_WRITE_SHARE = 0.02
"""Maximum share of the time in which checkpoints by time are written."""

_FIRST = 1 / 6
"""When the first one is due, as a share of the interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTimingConfig:
    """When a run evaluates."""

    interval_opt_steps: Annotated[CountOrOff, COMMON] = 500
    """Optimisation steps between two evaluations; 0 disables them. In a run with actors it is the
    minimum: evaluations take at most 5 % of the machine, the first ones 20 %, until they have taken
    all cores for a second. After a later one that took 1 s of CPU time on 8 cores, the next one
    starts 2.5 s after its start at the earliest, with the newest model. A run without actors keeps
    to the interval, so that the clock decides nothing."""

    final_timeout_s: PositiveOrOff = 60.0
    """Timeout for the evaluation of the last model at the end of a run, in seconds. 0 skips it."""

    def __post_init__(self) -> None:
        check_declared(self, "evaluate")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordConfig:
    """When a run records its numbers."""

    interval_s: PositiveOrOff = 1.0
    """Seconds between two records. 0 disables."""

    interval_opt_steps: CountOrOff = 0
    """Optimisation steps between two records, for records that must not depend on the clock. 0
    disables."""

    def __post_init__(self) -> None:
        check_declared(self, "record")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveConfig:
    """When a run saves checkpoints, and which it keeps."""

    interval_opt_steps: CountOrOff = 10_000
    """Optimisation steps between two checkpoints. 0 disables. One more is saved at the end."""

    interval_s: PositiveOrOff = 60.0
    """Seconds between two checkpoints from which a run that is killed can be resumed; the first one
    after a sixth of that. The next checkpoint replaces it. The interval is longer if a checkpoint
    takes more than a fiftieth of it to write. 0 disables."""

    keep: CountOrOff = 3
    """Number of newest checkpoints to keep. 0 keeps all. The best model is always kept."""

    best_by: str = "eval_reward"
    """Recorded metric that selects the best model: its maximum, or its minimum as in
    `min:agent/loss`. A metric of an evaluation refers to the evaluated model, any other to the
    learner's model when it is recorded. Means over training episodes, such as
    `episode/return_mean`, are averaged over at least 20 episodes: one record may contain a single
    episode."""

    replay: bool = True
    """Save the replay with each checkpoint, so that a resumed run need not fill a new one."""

    timeout_s: PositiveOrOff = 60.0
    """Timeout for writing the last checkpoint at the end of a run, in seconds. After it the run
    ends with an error. 0 waits without limit."""

    def __post_init__(self) -> None:
        check_declared(self, "save")
        BestBy.parse(self.best_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServicesConfig:
    """When to evaluate, record and save. An interval of 0 is off."""

    evaluate: EvaluationTimingConfig = field(default_factory=EvaluationTimingConfig)
    """When the agent is evaluated."""

    record: RecordConfig = field(default_factory=RecordConfig)
    """When numbers are recorded."""

    save: SaveConfig = field(default_factory=SaveConfig)
    """When checkpoints are saved, and which are kept."""

    def __post_init__(self) -> None:
        check_declared(self)
        by_evaluations = BestBy.parse(self.save.best_by).of_evaluations
        if not (by_evaluations or self.record.interval_s or self.record.interval_opt_steps):
            raise ConfigError(
                f"save.best_by={self.save.best_by!r} needs records, but they are off: set "
                "record.interval_s or record.interval_opt_steps"
            )


class RunServices:
    """Evaluates, records and saves at intervals, and stops the run when a condition holds."""

    _saved_at = math.inf
    _evaluated_opt_steps = -1
    _eval_due = _eval_asked = False
    _eval_free_at = -math.inf
    """When the evaluations so far will be no more than their share of the time."""

    _eval_spent_s = 0.0
    """Seconds that they would have taken on the whole machine."""

    _eval_share = 0.0
    _samples_per_insert = 0.0

    def __init__(
        self,
        agent: Agent,
        config: RunServicesConfig,
        interrupter: Interrupter,
        *,
        evaluation: EvaluationSite | None = None,
        recorder: Recorder | None = None,
        checkpointer: Checkpointer | None = None,
        stop: StopCondition | StopFunction | None = None,
        setup: Setup | None = None,
        make_policy: PolicyMaker | None = None,
        state: Callable[..., RunState] | None = None,
        note: Callable[..., None] = lambda *_: None,
        warm_up_left: Callable[[], int] = lambda: 0,
        repeats: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`note` gets the names of events and their values. With `repeats`, no clock decides.

        `state` returns what a checkpoint holds beside the agent, as that of a `Source`.
        """
        self._agent = agent
        self._config = config
        self._interrupter = interrupter
        self._evaluation = evaluation
        self._recorder = recorder
        self._saver = Saver(checkpointer, interrupter, agent) if checkpointer else None
        self._state = state or (lambda **_: RunState({}, {}))
        self._stop = None if stop is None else AnyOf(stop)  # gives reasons in words
        self._setup = setup or Setup()
        self._make_policy = make_policy
        self._policy_meta = {POLICY: make_policy.description} if make_policy else {}
        self._clock = clock
        self._note, self._warm_up_left, self._repeats = note, warm_up_left, repeats
        self.watch = Stopwatch()
        self.counts = Counts()
        self._pace = Pace(self.counts, self.watch, clock)
        self._run_config: Mapping[str, object] = {}
        self._set_intervals(start=0)
        self._best = BestModel(BestBy.parse(config.save.best_by))
        self._last: Evaluation | None = None
        self._evaluations: list[Mapping[str, float]] = []
        self.last_record: Record = {}
        self._stop_bar: Record = {}
        """The evaluation that has reached the bar of the stop condition."""
        self._sources: Sequence[Callable[[], Record]] = ()
        self._system = SystemMeter()

    def start(self, config: Mapping[str, object], sources: Sequence[Callable[[], Record]]) -> None:
        """Start the clock and the recorder. `sources` are read now and for each record."""
        self._sources = sources
        self._run_config = plain_config(config)
        self._record_every_s = EverySeconds(self._config.record.interval_s, self._clock())
        metrics = self._metrics()
        self._pace.start(metrics.get("samples_total", 0.0))
        self._best.pass_over(metrics)
        if self._recorder:
            if self.counts != Counts() and isinstance(self._recorder, ResumableRecorder):
                self._recorder.resume_at(**asdict(self.counts))
            self._recorder.start(config)
        self._system.start()
        self.watch.start()

    def turn(self, agent_record: Callable[[], Mapping[str, SupportsFloat]]) -> None:
        """Do what is due; `agent_record` returns the agent's newest metrics."""
        opt_steps = self.counts.opt_steps
        now = self._clock()
        if self._pace.turn() and self._saver:
            self._saved_at = now - (1 - _FIRST) * self._config.save.interval_s
            self._saver.make_room()
            self.watch.lap("other")
        if self._evaluation:
            self._evaluate(self._evaluation)
        by_steps = self._record_every.due(opt_steps)
        if self._record_every_s.due(now) or by_steps:
            record = self._record(agent_record())
            self.watch.lap("record")
            self._judge(record)
        self._save_if_due(now)
        self._check_stop(self._pace.axes())

    def _save_if_due(self, now: float) -> None:
        asked, self._interrupter.save_requested = self._interrupter.save_requested, False
        if self._save_every.due(self.counts.opt_steps) or asked:
            self.save()
        elif self._saver:
            passed_s, interval_s = now - self._saved_at, self._config.save.interval_s
            if 0 < interval_s <= passed_s and self._saver.took_s <= _WRITE_SHARE * passed_s:
                self.save(passing=True)

    def finish(self) -> None:
        """Evaluate the last model, unless that was done, or the run failed or is interrupted.

        Learning is over: the time shares end here.
        """
        self._pace.end()
        self._eval_share = self._evaluation_share()
        site, timeout_s = self._evaluation, self._config.evaluate.final_timeout_s
        wanted = timeout_s and self._config.evaluate.interval_opt_steps
        if not site or not wanted or self._interrupter.urgent:
            return
        deadline = self._clock() + timeout_s
        is_due = self._evaluated_opt_steps != self.counts.opt_steps and self.counts.opt_steps
        if is_due or site.busy:
            logger.info("waiting for the evaluation of the last model, at most %g s", timeout_s)
        if is_due:
            self._wait_until_free(site, deadline)
            if not site.busy:
                self._request(site)
        self._wait_until_free(site, deadline)
        self._take_scores(site)
        if site.busy and not self._interrupter.urgent:
            logger.warning(
                "the evaluation of the last model took longer than evaluate.final_timeout_s=%g "
                "and was abandoned",
                timeout_s,
            )
        self.watch.lap("eval")

    def evaluate(self, timeout_s: float) -> Evaluation | None:
        """Evaluate the newest model; return the evaluation, or None after the timeout."""
        site, deadline = self._evaluation, self._clock() + timeout_s
        if site is None:
            raise ConfigError(
                "this run has no evaluation: evaluate.where is off, or no evaluator was passed"
            )
        self._eval_due = self._eval_asked = True
        self._evaluate(site)
        while self._eval_due or site.busy:
            if self._clock() >= deadline or self._interrupter.urgent:
                return None
            time.sleep(_POLL_S)
            self._evaluate(site)
        return self._last

    def save(self, *, passing: bool = False) -> bool:
        """Save a checkpoint to resume from; return False if the run saves no checkpoints.

        One that is `passing` is by time, and the next one replaces it. It must not change what the
        run computes.
        """
        if not self._saver:
            return False
        counts = self.counts
        state = self._state(save_replay=self._config.save.replay, passing=passing)
        meta = {
            **asdict(counts),
            "wall_s": self._pace.wall_s,
            "train_s": self._pace.train_s,
            **self._best.meta(),
            **self._policy_meta,
            **({PASSING: True} if passing else {}),
            "stop_bar": self._stop_bar,
            "config": self._run_config,
            "run": dict(state.numbers),
        }
        groups = {"model": self.snapshot().params, "agent": self._agent.state()}
        self._saver.save(str(counts.opt_steps), {**groups, **state.groups}, meta)
        self._saved_at = self._clock()
        self._note("saved", counts.opt_steps)
        self.watch.lap("save")
        return True

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore agent and counters from a checkpoint; the trainer restores its own state."""
        self.counts.env_steps = checkpoint.count("env_steps")
        self.counts.opt_steps = checkpoint.count("opt_steps")
        self._pace.resume_at(checkpoint.number("wall_s"), checkpoint.number("train_s"))
        self._best.restore(checkpoint)
        self._stop_bar = checkpoint.meta.get("stop_bar", {})
        if self._saver:
            self._best.keep(self._saver.best())
        self._agent.load_state(checkpoint.group("agent"))
        self._set_intervals(start=self.counts.opt_steps)

    def has_ended(self, metrics: Record) -> bool:
        """Return, before `start`, whether a resumed run is already at its end; log the reason.

        `metrics` are those of the sources.
        """
        now = {**self._stop_bar, **metrics, **self._pace.axes()}
        if not self.counts.opt_steps or not self._check_stop(now):
            self._stop_bar = {}
            return False
        logger.warning(
            "nothing is left to train: %s; raise that limit to continue", self._interrupter.reason
        )
        return True

    def close(self, agent_record: Callable[[], Mapping[str, SupportsFloat]]) -> None:
        """Write the last record, which may show that the last model is the best one.

        The recorder is closed. The saver is not, as it may have that model to write.
        """
        failed = self._interrupter.error is not None
        try:
            record = self._record({} if failed else agent_record())
            if not failed:
                self._judge(record)
                self._best.conclude()
            if not self.counts.opt_steps and not self._interrupter.urgent:
                steps, left = self.counts.env_steps, max(0, self._warm_up_left())
                left_s = left * self._pace.train_s / max(1, steps)
                logger.warning(
                    "the run has learned nothing: %s, and %d environment steps were too few for "
                    "an optimisation step%s. Raise that limit, or start learning earlier: lower "
                    "limiter.min_size",
                    self._interrupter.reason or "the loop ended",
                    steps,
                    f": the warm-up needs {left} more, about {left_s:.0f} s" if left else "",
                )
        finally:
            if self._recorder:
                errors = self._interrupter.errors
                self._recorder.close(
                    failed=not all(isinstance(error, KeyboardInterrupt) for error in errors)
                )

    def close_saver(self) -> None:
        """Wait until the last checkpoint is on disk; raise if it could not be written."""
        if self._saver:
            self._saver.close(self._config.save.timeout_s)

    def result(self) -> TrainResult:
        """Return a summary of the run, as far as the learner knows it."""
        counts, make, model = self.counts, self._make_policy, self._best.model
        if make is not None and model is None:
            model = replace(
                self._agent.model_info(),
                version=ModelVersion(counts.opt_steps),
                env_steps=counts.env_steps,
            )
        return TrainResult(
            stop_reason=self._interrupter.reason or "the loop ended",
            **asdict(counts),
            best_by=str(self._best.by),
            best_score=self._best.score,
            best_opt_steps=self._best.opt_steps,
            last_score=None if self._last is None else self._last.score,
            evaluations=tuple(self._evaluations),
            seconds_to_stop_bar=self._stop_bar.get("wall_s"),
            samples_per_insert=self._samples_per_insert,
            evaluation_share=self._eval_share,
            **self._system.usage()._asdict(),
            **self._pace.run_times()._asdict(),
            setup=self._setup,
            make_policy=cache(partial(make, model)) if make and model else None,
        )

    def _evaluate(self, site: EvaluationSite) -> None:
        self._eval_due |= self._eval_every.due(self.counts.opt_steps)
        self._take_scores(site)
        if not self._eval_due or site.busy:
            return
        if self._eval_asked or self._clock() >= self._eval_free_at:
            self._eval_due = self._eval_asked = False
            if self._evaluated_opt_steps != self.counts.opt_steps:
                self._request(site)
                self._take_scores(site)

    def _request(self, site: EvaluationSite) -> None:
        self._evaluated_opt_steps = self.counts.opt_steps
        model = self.snapshot()
        began_at = self._clock()
        self._eval_free_at = max(self._eval_free_at, began_at)
        site.request(model)
        self._charge_evaluation(self._clock() - began_at)  # it stops the run, and so the machine
        self.watch.lap("eval")

    def _charge_evaluation(self, seconds: float) -> None:
        """Postpone the next evaluation by what this one took of the machine."""
        self._eval_spent_s += seconds
        if not self._repeats:
            is_first = self._eval_spent_s < _FIRST_EVALUATIONS_S
            self._eval_free_at += seconds / (_FIRST_SHARE if is_first else _EVALUATION_SHARE)

    def _evaluation_share(self) -> float:
        return self._eval_spent_s / max(self._pace.part_s, 1e-9)

    def snapshot(self) -> ModelInfo:
        """Return the agent's model with the run's counts; refuse one that is not finite."""
        params, opt_steps = self._agent.model_info().params, self.counts.opt_steps
        for name, value in params.items():
            if not np.isfinite(value).all():
                raise NonFiniteModel(
                    f"parameter {name!r} is not finite after {opt_steps} optimisation steps; the "
                    "model was not published, evaluated or saved. Try a lower learning rate or "
                    "gradient clipping; the last checkpoint is from before"
                )
        env_steps = self.counts.env_steps
        return ModelInfo(version=ModelVersion(opt_steps), params=params, env_steps=env_steps)

    def _take_scores(self, site: EvaluationSite) -> None:
        for scored in site.take():
            self._take_score(scored)

    def _take_score(self, scored: Scored) -> None:
        self._evaluations.append(
            {
                **self._pace.axes(),
                "env_steps": float(scored.model.env_steps),
                "opt_steps": float(scored.model.version),
                "eval_reward": scored.score,
            }
        )
        metrics = dict(scored.record) | {"eval_reward": scored.score}
        self._charge_evaluation(metrics.get(EVALUATION_CPU, 0.0) / self._setup.share)
        metrics["eval/model_version"] = float(scored.model.version)
        self._last = Evaluation(scored.score, metrics)
        self._best.expect(metrics)
        self._keep_if_best(metrics, lambda: scored.model)
        self._note("evaluated", self._last)
        record = self._pace.axes() | metrics
        if self._best.score is not None and self._best.by == BestBy("eval_reward"):
            record["eval/best"] = self._best.score
        self._write(record)
        self._check_stop(self._pace.axes())  # a limit reached meanwhile is not the bar
        if self._check_stop(record):
            self._stop_bar = {n: float(v) for n, v in record.items() if np.isfinite(v)}

    def _judge(self, record: Record) -> None:
        """Keep the learner's model if this training record shows that it is the best."""
        if not self.counts.opt_steps:
            self._best.pass_over(record)
        elif not self._best.by.of_evaluations:
            self._keep_if_best(record, self.snapshot)

    def _keep_if_best(self, record: Record, model: Callable[[], ModelInfo]) -> None:
        best = self._best.offer(record, model)
        if best is not None and self._saver:
            axes = {"opt_steps": int(best.version), "env_steps": best.env_steps}
            metrics = {"best_by": str(self._best.by), "score": self._best.score}
            self._saver.save("best", {"model": best.params}, axes | metrics | self._policy_meta)
            self.watch.lap("save")

    def _check_stop(self, record: Record) -> bool:
        if self._stop and not self._interrupter.is_set and (reason := self._stop.update(record)):
            self._interrupter.stop(reason)
            return True
        return False

    def _set_intervals(self, start: int) -> None:
        self._eval_every = Every(self._config.evaluate.interval_opt_steps, start=start)
        self._record_every = Every(self._config.record.interval_opt_steps, start=start)
        self._save_every = Every(self._config.save.interval_opt_steps, start=start)

    def _wait_until_free(self, site: EvaluationSite, deadline: float) -> None:
        while site.busy and self._clock() < deadline and not self._interrupter.urgent:
            self._take_scores(site)
            time.sleep(_POLL_S)

    def _record(self, agent_record: Mapping[str, SupportsFloat]) -> Record:
        record = self._pace.axes() | self._metrics()
        self._samples_per_insert = record.get("samples_per_insert", 0.0)
        if self._saver:
            record |= self._saver.record()
        record |= self._system.record(among=record)
        if self._evaluation:
            record["share/evaluation"] = self._evaluation_share()
        record |= self._pace.record(record.get("samples_total", 0.0))
        record |= {name: as_number(name, value) for name, value in agent_record.items()}
        self.last_record = record
        self._write(record)
        self._check_stop(record)
        return record

    def _metrics(self) -> dict[str, float]:
        return {name: value for source in self._sources for name, value in source().items()}

    def _write(self, record: Record) -> None:
        if self._recorder:
            self._recorder.write(record)
