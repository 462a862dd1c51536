"""What evaluates the models of a run: as its settings say, or otherwise, when it is asked to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from asyncrl.actor.evaluator import EpisodeEvaluator, EpisodeEvaluatorConfig
from asyncrl.core.agent import Agent, AgentConfig, PolicyContext, counter_of
from asyncrl.core.env import MakeBatchEnv, make_batch_env, source_of
from asyncrl.core.evaluator import Evaluation, Evaluator, MakeEvaluator
from asyncrl.core.messages import ModelInfo
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.learner.evaluation import InlineEvaluation
from asyncrl.run.run_config import EvaluationConfig
from asyncrl.run.trained_policy import PolicyOf


def evaluator_maker(
    own: MakeEvaluator | None, make_env: MakeBatchEnv, config: EvaluationConfig
) -> MakeEvaluator:
    """Return the function that builds a custom evaluator, or else the usual one."""
    seed = derive_seed(config.seed, Role.EVALUATION)
    return own or partial(_episode_evaluator, make_env, config.play, seed)


def _episode_evaluator(
    make_env: MakeBatchEnv, play: EpisodeEvaluatorConfig, seed: int
) -> EpisodeEvaluator:
    return EpisodeEvaluator(make_batch_env(make_env, "make_eval_env"), play, seed)


def evaluation_here(
    config: EvaluationConfig, make_evaluator: MakeEvaluator, learner: Agent, closing: ExitStack
) -> InlineEvaluation | None:
    """Return what evaluates in this process and thread, unless evaluations are off."""
    if config.where == "off":
        return None
    evaluator = make_evaluator()
    closing.callback(evaluator.close)
    return InlineEvaluation(evaluator, learner)


class MakesAround(ABC):
    """Makes an evaluator around another one."""

    __slots__ = ()

    own: MakeEvaluator | None
    """The custom evaluator inside; None if it is the usual one."""

    @abstractmethod
    def __call__(self) -> Evaluator:
        """Make the evaluator."""


def custom_evaluator(maker: MakeEvaluator | None) -> MakeEvaluator | None:
    """Return what makes a custom evaluator, filmed or not; None for the usual one."""
    return maker.own if isinstance(maker, MakesAround) else maker


@dataclass(frozen=True, slots=True)
class EvaluateApart:
    """Builds environments and a policy for one evaluation, and closes them after it.

    The learner's policy is not used, since exploring would change its state.
    """

    agent: AgentConfig
    make_env: MakeBatchEnv
    config: EvaluationConfig

    def __call__(
        self, model: ModelInfo, env_kwargs: Mapping[str, Any], greedy: bool | None
    ) -> Evaluation:
        """Play the run's evaluation episodes as asked."""
        play, seed = self.config.play, self.config.seed
        if greedy is not None:
            play = replace(play, stochastic=not greedy)
        source = source_of(self.make_env).with_kwargs(env_kwargs or {})
        with closing(make_batch_env(source, "make_eval_env")) as env:
            context = PolicyContext(
                seed=derive_seed(seed, Role.EVALUATION, model.version), n_envs=env.n_envs
            )
            policy = PolicyOf(self.agent, env.spec).acting(model, context)
            if (counter := counter_of(policy)) is not None:
                counter.env_steps = model.explored().env_steps
            return EpisodeEvaluator(env, play, derive_seed(seed, Role.EVALUATION)).evaluate(policy)
