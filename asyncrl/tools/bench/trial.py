"""One short run, measured from the moment when actors and learner are busy until it is stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict, Unpack

from asyncrl.actor.step_processor import StepProcessor
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import MakeBatchEnv
from asyncrl.core.errors import AsyncRLError
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.run_services import RecordConfig, SaveConfig
from asyncrl.run.named_parts import NamedParts
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer

_START_DEADLINE_S = 120.0
_FEWEST_OPT_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The results of a short run."""

    env_steps_per_s: float
    opt_steps_per_s: float
    rate: float
    """What plans are compared by: environment steps per second, which optimisation steps follow.
    Without a rate limiter, the geometric mean of both."""

    took_s: float
    """Total duration, including start and end."""


class ActingParts(TypedDict, total=False):
    """Arguments of `build_trainer` that change what a step of an actor costs."""

    actor_agents: Sequence[AgentConfig] | None
    make_processor: Callable[[], StepProcessor] | None


def run_trial(
    agent: AgentConfig,
    make_env: MakeBatchEnv,
    config: RunConfig,
    *,
    seconds: float,
    **acting: Unpack[ActingParts],
) -> Trial:
    """Train for a short time and discard the model.

    Args:
        agent: Config of the agent that learns and acts.
        make_env: Builds the environments of one actor.
        config: The other settings. Evaluation, records and checkpoints are off.
        seconds: Duration of the measurement, after actors and learner have started.
        acting: Custom parts of the actors.
    """
    began_s = time.monotonic()
    loop = _Measuring(config.actors, seconds)
    trainer = build_trainer(
        _quick(config), agent=agent, env=make_env, strategy=loop, stop=None, recorder=None, **acting
    )
    trainer.train()
    before, after = loop.first, loop.last
    measured_s = after.clock_s - before.clock_s
    env_rate = (after.env_steps - before.env_steps) / measured_s
    opt_rate = (after.opt_steps - before.opt_steps) / measured_s
    return Trial(
        env_steps_per_s=env_rate,
        opt_steps_per_s=opt_rate,
        rate=env_rate if config.limiter.ratio else math.sqrt(env_rate * opt_rate),
        took_s=time.monotonic() - began_s,
    )


class _Reading(NamedTuple):
    clock_s: float
    env_steps: int
    opt_steps: int


class _Measuring:
    """A training loop that starts the measurement once every actor has reported."""

    def __init__(self, n_actors: int, seconds: float) -> None:
        self._n_actors = n_actors
        self._seconds = seconds

    def run(self, trainer: AsyncTrainer) -> None:
        """Warm up, measure, stop."""
        deadline_s = time.monotonic() + _START_DEADLINE_S
        while not self._running(trainer):
            trainer.run_step()
            if time.monotonic() > deadline_s:
                raise AsyncRLError(
                    f"after {_START_DEADLINE_S:.0f} s a trial of {self._n_actors} actors had not "
                    "started to learn; lower limiter.min_size, or use faster environments"
                )
        now = _read(trainer)
        self.first = first = _at_a_message(trainer, now.clock_s, now.opt_steps)
        self.last = _at_a_message(
            trainer, first.clock_s + self._seconds, first.opt_steps + _FEWEST_OPT_STEPS
        )
        trainer.interrupter.stop("measured")

    def _running(self, trainer: AsyncTrainer) -> bool:
        rows = trainer.proxy.actors.rows().values()
        reported = sum(row.steps_per_s > 0 for row in rows)
        return trainer.services.counts.opt_steps > 0 and reported >= self._n_actors


def _at_a_message(trainer: AsyncTrainer, clock_s: float, opt_steps: int) -> _Reading:
    """Train until then, and until steps arrive: slow environments send a few messages only."""
    before = _read(trainer)
    while True:
        trainer.run_step()
        now = _read(trainer)
        arrived = now.env_steps > before.env_steps
        if arrived and now.clock_s >= clock_s and now.opt_steps >= opt_steps:
            return now
        before = now


def _read(trainer: AsyncTrainer) -> _Reading:
    return _Reading(
        clock_s=time.monotonic(),
        env_steps=trainer.proxy.ledger.env_steps,
        opt_steps=trainer.services.counts.opt_steps,
    )


def _quick(config: RunConfig) -> RunConfig:
    smallest = max(config.trainer.batch_size, 1)
    limiter = replace(config.limiter, min_size=min(config.limiter.min_size, smallest))
    return replace(
        config,
        mode="async",
        parts=NamedParts(),
        env_schedule={},
        limiter=limiter,
        evaluate=EvaluationConfig(where="off"),
        record=RecordConfig(interval_s=0.0),
        save=SaveConfig(interval_opt_steps=0, interval_s=0.0),
    )
