"""A run in this process that an entry disturbs.

What is done to it is a script, a generator: each `yield` lets the learner take a turn.

    def script(stage):
        yield from stage.begins()
        os.kill(stage.incarnations.living()[0].pid, signal.SIGKILL)
        yield from stage.until(lambda: len(stage.incarnations.living()) == 2, 60.0, "a restart")

    stage = Stage(directory)
    stage.play(script)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import MakeBatchEnv
from asyncrl.core.segment import SegmentConfig
from asyncrl.fleet.config import ActorManagerConfig, RestartPolicyConfig
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.train_result import TrainResult
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from benchmarks.chaos.audit import Audit, AuditedReplayConfig
from benchmarks.chaos.finding import Finding
from benchmarks.chaos.worlds import Incarnation, Incarnations, Numbered

DEADLINE_S = 60.0
"""For whatever is sure to come, on a machine that is busy elsewhere."""

AGENT = DQNConfig(hidden=(32,), device="cpu", threads=1, accelerate="off")

_CAPACITY = 50_000
_LOGGER = logging.getLogger("asyncrl")


def settings(audit: Audit, capacity: int) -> RunConfig:
    """Return those of a small run whose actors may die as often as they like."""
    return RunConfig(
        supervision=supervision(),
        limiter=RateLimiterConfig(samples_per_insert=4.0, min_size=500),
        replay=AuditedReplayConfig(audit=audit, capacity=capacity),
        trainer=AsyncTrainerConfig(batch_size=64),
        evaluate=EvaluationConfig(where="off"),
    )


def supervision(step_timeout_s: float = 300.0) -> ActorManagerConfig:
    """Return settings under which actors come back forever, each after the usual first wait."""
    wait_s = RestartPolicyConfig().backoff_s
    restart = RestartPolicyConfig(
        on_exception="restart", max_restarts=1_000_000, backoff_max_s=wait_s
    )
    return ActorManagerConfig(step_timeout_s=step_timeout_s, restart=restart)


class Notices(logging.Handler):
    """Records what the run logs, and when; prints nothing."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        self.messages.append((time.monotonic(), record.getMessage()))

    def since(self, moment: float, words: str) -> list[tuple[float, str]]:
        """Return messages since then that contain these words."""
        return [(at, text) for at, text in list(self.messages) if at >= moment and words in text]

    def __enter__(self) -> Self:
        self._propagates, _LOGGER.propagate = _LOGGER.propagate, False
        _LOGGER.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        _LOGGER.removeHandler(self)
        _LOGGER.propagate = self._propagates


class Stage:
    """A run, its actors' incarnations, what was stored of them, and what was reported."""

    def __init__(
        self,
        directory: Path,
        *,
        world: Numbered | None = None,
        configure: Callable[[RunConfig], RunConfig] = lambda config: config,
        capacity: int = _CAPACITY,
        place: Callable[[Numbered], MakeBatchEnv] = lambda world: world,
    ) -> None:
        """Prepare a run with the settings of `settings`, as `configure` changes them.

        `place` may have the environments made somewhere else.
        """
        self.incarnations = Incarnations(directory / "incarnations")
        self.world = replace(world or Numbered(), incarnations=self.incarnations.path)
        self._make_env = place(self.world)
        self.audit = Audit()
        self.notices = Notices()
        self.config = configure(settings(self.audit, capacity))
        self.opt_steps = 0
        self.learned_at: list[float] = []
        self.keeps_times = True
        """Whether the times of gradient steps are kept; over hours they would be what grows."""
        self.trainer: AsyncTrainer
        self.result: TrainResult

    def play(self, script: Script, agent: AgentConfig = AGENT, **parts: Any) -> None:  # noqa: ANN401
        """Run until the script ends; `parts` are those of `build_trainer`."""
        parts["strategy"] = _Scripted(self, script)
        with self.notices:
            parts = {"recorder": None, **parts}
            trainer = build_trainer(self.config, agent=agent, env=self._make_env, **parts)
            assert isinstance(trainer, AsyncTrainer)
            self.trainer = trainer
            self.result = trainer.train()

    def begins(self) -> Iterator[None]:
        """Wait until steps of all actors are stored and the learner learns."""

        def has_begun() -> bool:
            living = {one.number for one in self.incarnations.living()}
            stored = living <= self.audit.first_at.keys()
            return len(living) == self.config.actors and stored and self.opt_steps > 0

        yield from self.until(has_begun, DEADLINE_S, "the run to begin")

    def until(self, condition: Callable[[], object], timeout_s: float, what: str) -> Iterator[None]:
        """Learn on until something holds; raise with what was waited for if it never does."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"waited {timeout_s:g} s for {what}")
            yield

    def for_s(self, seconds: float) -> Iterator[None]:
        """Learn on for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            yield

    def gaps_s(self, begin: float = 0.0, end: float = float("inf")) -> list[float]:
        """Return the times between two gradient steps, of those that end in this while."""
        pairs = zip(self.learned_at, self.learned_at[1:], strict=False)
        return [after - before for before, after in pairs if begin <= after <= end]

    @property
    def message(self) -> int:
        """Transitions in a full message."""
        return self.world.n_envs * SegmentConfig().length

    def lost(self, incarnation: Incarnation) -> int:
        """Return the transitions that an incarnation made and that were never stored."""
        return incarnation.steps * self.world.n_envs - self.audit.stored(incarnation.number)

    def balance(self, target: int, what: str, *, loses_reports: bool = False) -> Finding:
        """Compare the ledger with what the actors did and what the replay was given.

        With `loses_reports`, actors may have made steps that the learner never heard of.
        """
        ledger = self.result.ledger
        found = self.incarnations.all()
        made = sum(one.steps for one in found) * self.world.n_envs
        # A killed incarnation may have made a step in each environment and not yet counted it.
        unnoted = made - ledger["produced"]
        differs = {
            "in flight at the end": ledger["in_flight"],
            "produced - (stored + dropped + lost)": ledger["produced"]
            - (ledger["stored"] + ledger["dropped"] + ledger["lost"]),
            "stored, ledger - replay": ledger["stored"] - self.audit.total(),
            "stored twice": self.audit.twice,
            "missing before one that is stored": self.audit.gaps,
        }
        most = made if loses_reports else len(found) * self.world.n_envs
        exact = not any(differs.values()) and 0 <= unnoted <= most
        wrong = "; ".join(f"{name}: {n}" for name, n in differs.items() if n)
        shown = f"{ledger['produced']:,} = {ledger['stored']:,} stored + {ledger['dropped']:,} "
        shown += f"dropped + {ledger['lost']:,} lost"
        return Finding(
            target=target,
            what=what,
            measured=shown if exact else f"{shown}; {wrong or f'made {made:,}'}",
            promised="exact: none twice, none missing before another, all "
            + ("reported" if loses_reports else "made")
            + " accounted for",
            passed=exact,
            numbers={**ledger, **differs, "made_by_environments": made, "incarnations": len(found)},
        )


Script = Callable[[Stage], Iterator[None]]


class _Scripted:
    def __init__(self, stage: Stage, script: Script) -> None:
        self._stage = stage
        self._script = script

    def run(self, trainer: AsyncTrainer) -> None:
        for _ in self._script(self._stage):
            learned = trainer.run_step()
            self._stage.opt_steps += learned
            if learned and self._stage.keeps_times:
                self._stage.learned_at.append(time.monotonic())
