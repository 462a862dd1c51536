"""The settings that all ways to train have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.declared import Natural
from asyncrl.core.env import BatchEnv, MakeBatchEnv, make_batch_env
from asyncrl.learner.run_services import EvaluationTimingConfig, RecordConfig

BY_STEPS = RecordConfig(interval_s=0.0, interval_opt_steps=500)
"""Records that do not depend on the clock, so that two runs record the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig(EvaluationTimingConfig):
    """When, where and how the agent is evaluated."""

    where: Literal["background", "inline", "off"] = "background"
    """Evaluate in a separate process of low priority, in the learner's process between its steps,
    or never. Without actors there is no separate process; evaluation then runs in the learner's."""

    play: EpisodeEvaluatorConfig = field(default_factory=EpisodeEvaluatorConfig)
    """How evaluation episodes are played."""

    seed: Natural = 13
    """Seed of the evaluation episodes. Independent of the run's seed: runs with different seeds are
    scored on the same episodes, and none gets harder ones by chance."""


@contextmanager
def building(checkpointer: Checkpointer | None) -> Iterator[ExitStack]:
    """Yield what a trainer closes once it is built; if that fails, close it and unlock here."""
    with ExitStack() as undo:
        if checkpointer:
            undo.callback(checkpointer.unlock)
        yield undo.enter_context(ExitStack())
        undo.pop_all()


def open_env(make_env: MakeBatchEnv, closing: ExitStack) -> BatchEnv:
    """Build the environments of a run in this process, for `closing` to close."""
    env = make_batch_env(make_env)
    closing.callback(env.close)
    return env
