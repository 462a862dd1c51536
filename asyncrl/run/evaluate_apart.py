"""Evaluates a model otherwise than a run's own evaluations do, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from asyncrl.actor.evaluator import EpisodeEvaluator
from asyncrl.actor.process import MakeEvaluator
from asyncrl.core.agent import AgentConfig, CountsEnvSteps, PolicyContext
from asyncrl.core.env import MakeBatchEnv, make_batch_env, source_of
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.messages import ModelInfo
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.run.common_config import EvaluationConfig
from asyncrl.run.filming import custom_evaluator


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
            policy = self.agent.build_policy(env.spec, context)
            model = model.explored()
            policy.sync_model(model)
            if isinstance(policy, CountsEnvSteps):
                policy.env_steps = model.env_steps
            return EpisodeEvaluator(env, play, derive_seed(seed, Role.EVALUATION)).evaluate(policy)


def apart_unless(
    own: MakeEvaluator | None, agent: AgentConfig, make_env: MakeBatchEnv, config: EvaluationConfig
) -> EvaluateApart | None:
    """Return what evaluates apart; None beside a custom evaluator, which takes no arguments."""
    return None if custom_evaluator(own) else EvaluateApart(agent, make_env, config)
