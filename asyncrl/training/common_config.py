"""The settings that all ways to train have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.declared import Natural
from asyncrl.core.env import BatchEnv, MakeBatchEnv, make_batch_env
from asyncrl.learner.run_services import EvaluationTimingConfig, RecordConfig

if TYPE_CHECKING:
    from asyncrl.training.run_config import RunConfig  # which has these

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


def with_env_kwargs(
    make_env: Callable[..., BatchEnv], kwargs: Mapping[str, Any]
) -> Callable[..., BatchEnv]:
    """Return a function that builds the same environments, with these keyword arguments, too.

    Loads Gymnasium only now: a learner with actors does not need it.
    """
    changed: Callable[..., BatchEnv] = import_module("asyncrl.envs.gym").with_kwargs(
        make_env, kwargs
    )
    return changed


def eval_env_maker(
    own: MakeBatchEnv | None, make_env: MakeBatchEnv, config: RunConfig
) -> MakeBatchEnv:
    """Return what builds the environments of evaluations: by default one for each episode."""
    gym = sys.modules.get("asyncrl.envs.gym")  # if it is not loaded, it did not make `make_env`
    if own or gym is None:
        return own or make_env
    maker: MakeBatchEnv = gym.for_episodes(make_env, config.evaluate.play.episodes)
    return maker


def open_env(make_env: MakeBatchEnv, closing: ExitStack) -> BatchEnv:
    """Build the environments of a run in this process, for `closing` to close."""
    env = make_batch_env(make_env)
    closing.callback(env.close)
    return env
