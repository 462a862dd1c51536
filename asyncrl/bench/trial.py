"""One short run, measured from the moment when actors and learner are busy until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict, Unpack

from asyncrl.actor.step_processor import StepProcessor
from asyncrl.bench.cost_model import ActorCost, LearnerCost
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import MakeBatchEnv
from asyncrl.core.errors import AsyncRLError
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig, SaveConfig
from asyncrl.metrics.verdict import Verdict
from asyncrl.training.asynchronous import build_async_trainer
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.config import AsyncConfig

_START_DEADLINE_S = 120.0
_FEWEST_OPT_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The results of a short run."""

    env_steps_per_s: float
    opt_steps_per_s: float
    actor: ActorCost
    learner: LearnerCost
    verdict: Verdict
    limited: bool
    """Whether the rate limiter was active."""

    took_s: float
    """Total duration, including start and end."""


class ActingParts(TypedDict, total=False):
    """Arguments of `build_async_trainer` that change what a step of an actor costs."""

    actor_agents: Sequence[AgentConfig] | None
    make_processor: Callable[[], StepProcessor] | None


def run_trial(
    agent: AgentConfig,
    make_env: MakeBatchEnv,
    config: AsyncConfig,
    *,
    seconds: float,
    limited: bool,
    **acting: Unpack[ActingParts],
) -> Trial:
    """Train for a short time and discard the model.

    Args:
        agent: Config of the agent that learns and acts.
        make_env: Builds the environments of one actor.
        config: The other settings. Evaluation, records and checkpoints are off.
        seconds: Duration of the measurement, after actors and learner have started.
        limited: Whether the rate limiter is active. Without it neither side waits, which shows
            the cost of each. A replay that samples each transition once always needs it.
        acting: Custom parts of the actors.
    """
    began_s = time.monotonic()
    limited = limited or config.replay.once
    loop = _Measuring(config.actors, seconds)
    trainer = build_async_trainer(
        agent, make_env, _quick(config, limited), strategy=loop, recorder=None, **acting
    )
    result = trainer.train()
    before, after = loop.first, _with_last_reports(loop.last, trainer)
    return Trial(
        env_steps_per_s=(after.env_steps - before.env_steps) / (after.clock_s - before.clock_s),
        opt_steps_per_s=(after.opt_steps - before.opt_steps) / (after.clock_s - before.clock_s),
        actor=_actor_cost(before, after),
        learner=_learner_cost(before, after),
        verdict=result.verdict,
        limited=limited,
        took_s=time.monotonic() - began_s,
    )


class _Reading(NamedTuple):
    clock_s: float
    cpu_s: float
    env_steps: int
    opt_steps: int
    learner_s: Mapping[str, float]
    actor_s: Mapping[str, float]
    actor_env_steps: int
    """Steps that `actor_s` was spent on."""


def _with_last_reports(reading: _Reading, trainer: AsyncTrainer) -> _Reading:
    """Return a reading with what actors reported up to their end."""
    seconds, env_steps = trainer.proxy.actors.reported()
    return reading._replace(actor_s=seconds, actor_env_steps=env_steps)


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
        self.first = _read(trainer)
        until_s = self.first.clock_s + self._seconds
        while time.monotonic() < until_s or self._opt_steps(trainer) < _FEWEST_OPT_STEPS:
            trainer.run_step()
        self.last = _read(trainer)
        trainer.interrupter.stop("measured")

    def _running(self, trainer: AsyncTrainer) -> bool:
        rows = trainer.proxy.actors.rows().values()
        reported = sum(row.steps_per_s > 0 for row in rows)
        return trainer.services.counts.opt_steps > 0 and reported >= self._n_actors

    def _opt_steps(self, trainer: AsyncTrainer) -> int:
        return trainer.services.counts.opt_steps - self.first.opt_steps


def _read(trainer: AsyncTrainer) -> _Reading:
    seconds, env_steps = trainer.proxy.actors.reported()
    return _Reading(
        clock_s=time.monotonic(),
        cpu_s=time.process_time(),
        env_steps=trainer.proxy.ledger.env_steps,
        opt_steps=trainer.services.counts.opt_steps,
        learner_s=trainer.services.watch.totals(),
        actor_s=seconds,
        actor_env_steps=env_steps,
    )


def _actor_cost(before: _Reading, after: _Reading) -> ActorCost:
    steps = max(after.actor_env_steps - before.actor_env_steps, 1)
    policy_s, env_s, send_s, sleep_s = (
        max(after.actor_s.get(phase, 0.0) - before.actor_s.get(phase, 0.0), 1e-9) / steps
        for phase in ("policy", "env", "send", "sleep")
    )
    return ActorCost(policy_s=policy_s, env_s=env_s + sleep_s, send_s=send_s)


def _learner_cost(before: _Reading, after: _Reading) -> LearnerCost:
    steps = max(after.opt_steps - before.opt_steps, 1)
    waited_s = after.learner_s.get("wait", 0.0) - before.learner_s.get("wait", 0.0)
    return LearnerCost(
        wall_s=max(after.clock_s - before.clock_s - waited_s, 1e-9) / steps,
        cpu_s=max(after.cpu_s - before.cpu_s, 1e-9) / steps,
    )


def _quick(config: AsyncConfig, limited: bool) -> AsyncConfig:
    smallest = max(config.trainer.batch_size, 1)
    limiter = RateLimiterConfig(
        samples_per_insert=config.limiter.samples_per_insert if limited else 0.0,
        min_size=min(config.limiter.min_size, smallest),
        band_transitions=config.limiter.band_transitions,
    )
    return replace(
        config,
        limiter=limiter,
        evaluate=EvaluationConfig(where="off"),
        record=RecordConfig(interval_s=0.0),
        save=SaveConfig(interval_opt_steps=0, interval_s=0.0),
    )
