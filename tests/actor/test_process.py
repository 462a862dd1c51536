"""What an evaluating process does with each model; `integration/` runs whole processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from asyncrl.actor.process import ActorSpec, EvaluatorSpec
from asyncrl.actor.step_processor import OneStep
from asyncrl.core.agent import Act, BuildPolicy, Policy
from asyncrl.core.env import EnvSource, EnvStep
from asyncrl.core.errors import EnvironmentFault
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.messages import ActorReport, EvaluationReport, ModelInfo, Peer
from asyncrl.core.segment import SegmentConfig, make_schema
from asyncrl.core.types import ActorId, Array
from asyncrl.fleet.config import OnException, RestartPolicyConfig
from tests.support.fakes import (
    COUNTING_SPEC,
    ConstantAgent,
    ConstantConfig,
    CountingBatch,
    NoProgress,
)
from tests.support.local_transport import LocalActorLink, LocalTransport
from tests.support.sample_messages import PEER, make_model

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
        self.undrained = 3

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

    def drain(self, _: float) -> bool:
        self.undrained -= 1
        return not self.undrained

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
    link = Link()
    evaluates(Scheduled(), link).run(PEER, NoProgress())
    assert [report.score for report in link.reports] == [30.0, 70.0]
    assert all(0.0 <= report.record["eval/cpu_s"] < 60.0 for report in link.reports)
    assert [model.env_steps for model in MODELS] == [30, 70]


def evaluates(policy: Scheduled, link: Link) -> EvaluatorSpec:
    class Config(ConstantConfig):
        def build_policy(self, *_: object) -> Any:
            return policy

    return EvaluatorSpec(
        env_spec=COUNTING_SPEC,
        make_evaluator=lambda: Acts(policy),
        agent=Config(),
        transport=link,  # type: ignore[arg-type]
        seed=0,
        owns_process=False,
    )


@pytest.mark.fault("F3")
def test_evaluator_that_is_replaced_ends_once_its_report_has_been_read() -> None:
    class FinishesOnce(NoProgress):
        def finishing(self) -> bool:
            return bool(link.reports)

    link = Link()
    evaluates(Scheduled(), link).run(PEER, FinishesOnce())
    assert len(link.reports) == 1
    assert link.undrained == 0


# --- environments that fail ----------------------------------------------------------------------


class Breaking(CountingBatch):
    """Raises at one step of an incarnation, and when it is closed after that."""

    def __init__(self, at_step: int, n_envs: int = 2) -> None:
        super().__init__(n_envs)
        self.left = at_step
        self.seeds: list[int] = []

    def reset(self, seed: int) -> Array:
        self.seeds.append(seed)
        return super().reset(seed)

    def step(self, action: Array) -> EnvStep:
        self.left -= 1
        if not self.left:
            raise ValueError("the wheel came off")
        return super().step(action)

    def close(self) -> None:
        super().close()
        if not self.left:
            raise OSError("no wheel to stop")


class ActorsLink(LocalActorLink):
    """Lets an actor make a number of turns; it has one model and unlimited credit."""

    def __init__(self, turns: int) -> None:
        self.turns, self.learner = turns, LocalTransport()
        self.learner.change(welcomed=True, acknowledged=10**9)
        self.learner.models["act"] = ConstantAgent().model_info()
        super().__init__(self.learner)

    def connect(self, _: object) -> ActorsLink:
        return self

    def stopping(self) -> bool:
        self.turns -= 1
        return self.turns < 0


def live(
    envs: list[Breaking],
    on_exception: OnException,
    build_policy: BuildPolicy | None = None,
    peer: Peer = PEER,
    **restart: Any,
) -> ActorsLink:
    made: Iterator[Breaking] = iter(envs)
    link = ActorsLink(turns=40)
    spec = ActorSpec(
        make_env=EnvSource(lambda: next(made)),
        build_policy=build_policy or ConstantConfig().build_policy,
        make_processor=OneStep,
        schema=make_schema(OneStep().columns(COUNTING_SPEC, ()), length=2, lookahead=1),
        segment=SegmentConfig(length=2),
        n_actors=1,
        transport=link,  # type: ignore[arg-type]
        seed=0,
        restart=RestartPolicyConfig(on_exception=on_exception, backoff_s=0.0, **restart),
    )
    spec.run(peer, NoProgress())
    return link


@pytest.mark.fault("F4")
def test_environments_are_rebuilt_each_with_a_separate_seed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    envs = [Breaking(5), Breaking(5), Breaking(10**6)]
    last = live(envs, "restart_env").learner.inbox[-1]
    assert isinstance(last, ActorReport)
    assert last.policy["env_restarts"] == 2
    assert [len(env.seeds) for env in envs] == [1, 1, 1]
    assert len({env.seeds[0] for env in envs}) == 3
    assert [env.closed for env in envs] == [True] * 3
    assert 'raise ValueError("the wheel came off")' in caplog.messages[1], "the traceback"


@pytest.mark.fault("F4", "F5", "F7")
def test_environments_that_fail_too_often_end_the_actor_with_the_number() -> None:
    envs = [Breaking(5), Breaking(5), Breaking(5), Breaking(5)]
    with pytest.raises(EnvironmentFault, match=r"ValueError: the wheel .* failure 3 of this actor"):
        live(envs, "restart_env", max_restarts=2)
    assert [env.closed for env in envs] == [True, True, True, False]
    with pytest.raises(EnvironmentFault, match="before their first step"):
        live([Breaking(1)], "restart_env")


@pytest.mark.fault("F4", "F25")
def test_environments_of_another_kind_do_not_take_the_place_of_those_that_failed() -> None:
    envs = [Breaking(5), Breaking(10**6, n_envs=3)]
    with pytest.raises(EnvironmentFault, match=r"environments differ: 3 with .* before 2 with"):
        live(envs, "restart_env", max_restarts=1)
    assert envs[1].closed


@pytest.mark.fault("F4")
@pytest.mark.parametrize("on_exception", ["raise", "restart", "drop_actor"])
def test_error_of_environments_that_are_not_rebuilt_is_the_actors(
    on_exception: OnException,
) -> None:
    env = Breaking(5)
    with pytest.raises(ValueError, match="the wheel came off"):
        live([env], on_exception)
    assert env.closed, "which failed as well, and would have hidden why"


# --- random numbers ------------------------------------------------------------------------------


class Draws(CountingBatch):
    """Draws from torch's global generator in each step."""

    def __init__(self, drawn: list[float]) -> None:
        super().__init__(n_envs=2)
        self.drawn = drawn

    def step(self, action: Array) -> EnvStep:
        self.drawn.append(torch.rand(()).item())
        return super().step(action)


@pytest.mark.parametrize("loaded", ["before the fork", "with the policy"])
def test_each_incarnation_draws_its_own_numbers_from_torch(
    monkeypatch: pytest.MonkeyPatch, loaded: str
) -> None:
    def build_policy(*_: object) -> Any:
        sys.modules["torch"] = torch
        return ConstantAgent()

    def draws(actor_id: int, incarnation: int = 0) -> tuple[float, ...]:
        torch.manual_seed(0)  # as forks of one process begin
        drawn: list[float] = []
        with monkeypatch.context() as patch:
            if loaded == "with the policy":
                patch.delitem(sys.modules, "torch")
            peer = Peer(actor_id=ActorId(actor_id), incarnation=incarnation)
            live([Draws(drawn)], "raise", build_policy, peer)
        assert drawn
        return tuple(drawn)

    assert len({draws(0), draws(1), draws(2), draws(0, 1)}) == 4
    assert draws(0) == draws(0)
