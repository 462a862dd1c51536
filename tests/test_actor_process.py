"""What an evaluating process does with each model; `integration/` runs whole processes."""

from __future__ import annotations

from typing import Any

from asyncrl.actor_process import EvaluatorSpec, run_evaluator
from asyncrl.agent import Act, Policy
from asyncrl.evaluator import Evaluation
from asyncrl.messages import EvaluationReport, ModelInfo
from asyncrl.types import Array
from tests.fakes import COUNTING_SPEC, ConstantAgent, ConstantConfig, NoProgress
from tests.sample_messages import PEER, make_model

MODELS = (make_model(3), make_model(7))


class Scheduled(ConstantAgent):
    """Counts its steps in training, as a policy whose exploration follows a schedule does."""

    env_steps = 0

    def act(self, obs: Array) -> Act:
        self.env_steps += 1000
        return super().act(obs)

    def sync_model(self, info: ModelInfo) -> None:
        self.env_steps = max(self.env_steps, info.env_steps)


class Link:
    """Hands two models out, and takes reports."""

    def __init__(self) -> None:
        self.models = list(MODELS)
        self.reports: list[EvaluationReport] = []
        self.hellos = 0

    def connect(self, _: object) -> Link:
        return self

    def hello(self, message: object, timeout_s: float) -> bool:
        assert timeout_s > 0
        self.hellos += 1
        return self.hellos > 2

    def stopping(self) -> bool:
        return len(self.reports) == len(MODELS)

    def latest_model(self, *_: object) -> ModelInfo:
        return self.models.pop(0)

    def send(self, message: EvaluationReport, timeout_s: float) -> bool:
        self.reports.append(message)
        return timeout_s > 0

    def close(self) -> None: ...


class Acts:
    """Scores how far the run has come, as far as the policy knows."""

    def __init__(self, policy: Scheduled) -> None:
        self.policy = policy

    def evaluate(self, policy: Policy) -> Evaluation:
        score = float(self.policy.env_steps)
        policy.act(COUNTING_SPEC.observation.low[None])  # type: ignore[union-attr]
        return Evaluation(score, {})

    def close(self) -> None: ...


def test_steps_of_evaluations_do_not_count_for_schedules() -> None:
    policy, link = Scheduled(), Link()

    class Config(ConstantConfig):
        def build_policy(self, *_: object) -> Any:
            return policy

    spec = EvaluatorSpec(
        env_spec=COUNTING_SPEC,
        make_evaluator=lambda: Acts(policy),
        agent=Config(),
        transport=link,  # type: ignore[arg-type]
        seed=0,
    )
    run_evaluator(spec, PEER, NoProgress())
    assert [report.score for report in link.reports] == [30.0, 70.0]
    assert [model.env_steps for model in MODELS] == [30, 70]
