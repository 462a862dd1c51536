"""Each thing that may be wrong with an agent is found, in one that has nothing else wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from asyncrl.agents.dqn import DQNAgent, DQNConfig
from asyncrl.agents.parts.optimizers import FusedAdam
from asyncrl.core.agent import Act, BatchKind, PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import Array, BoolArray, Columns, Params
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.testing import check_agent
from asyncrl.tools.doctor.agent import examine_agent, examine_anywhere
from examples.own_agent import TableConfig
from tests.support.fakes import COUNTING_SPEC, ConstantAgent, CountingMemory, ThriftyAgent


@dataclass(frozen=True)
class OwnConfig:
    """Makes agents of a class."""

    made: type[ConstantAgent] = ConstantAgent

    def build(self, spec: EnvSpec, context: PolicyContext) -> ConstantAgent:
        return self.made()

    build_policy = build

    def extra_columns(self, spec: EnvSpec) -> tuple[()]:
        return ()


class LeavesTheSpace(ConstantAgent):
    def act(self, obs: Array) -> Act:
        return Act(np.full(len(obs), 99))


class ActsWithoutAct(ConstantAgent):
    def act(self, obs: Array) -> Any:
        return super().act(obs).action


class ChangesWhatItSees(ConstantAgent):
    def act(self, obs: Array) -> Act:
        obs += 1.0
        return super().act(obs)


class AlwaysExplores(ConstantAgent):
    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(0)

    def act(self, obs: Array) -> Act:
        return Act(self.random.integers(10, size=len(obs)))


class ExploresWithoutSeed(ConstantAgent):
    def act(self, obs: Array) -> Act:
        return Act(np.random.default_rng().integers(10, size=len(obs)) * self.training)


class KeepsExploring(ConstantAgent):
    def train(self, mode: bool = True) -> object:
        return self


class AddsAColumn(ConstantAgent):
    def act(self, obs: Array) -> Act:
        return Act(super().act(obs).action, {"v": np.zeros(len(obs), np.float32)})


class Raises(ConstantAgent):
    def opt(self, batch: Columns) -> Mapping[str, float]:
        return {"loss": float(batch["value"].mean())}


class Diverges(ConstantAgent):
    def opt(self, batch: Columns) -> Mapping[str, float]:
        metrics = super().opt(batch)
        self.params = {"action": np.array(np.nan)}
        return metrics


class SharesItsModel(ConstantAgent):
    def model_info(self) -> ModelInfo:
        return ModelInfo(params=self.params)

    def opt(self, batch: Columns) -> Mapping[str, float]:
        self.params["action"][...] = (self.params["action"] + 1) % 10
        return {}


class TakesNoModel(ConstantAgent):
    def sync_model(self, info: ModelInfo) -> None:
        pass


class TakesAnyModel(ConstantAgent):
    def sync_model(self, info: ModelInfo) -> None:
        if "action" in info.params:
            super().sync_model(ModelInfo(params={"action": info.params["action"]}))


class RefusesByKeyError(ConstantAgent):
    def sync_model(self, info: ModelInfo) -> None:
        if set(info.params) - {"action"}:
            super().sync_model(info)
        self.params = {"action": info.params["action"].copy()}


class SharesItsState(ConstantAgent):
    def opt(self, batch: Columns) -> Mapping[str, float]:
        self.params["action"][...] = (self.params["action"] + 1) % 10
        return {}

    def state(self) -> Params:
        return {**self.params, "opt_steps": np.array(0)}


class ForgetsItsPace(ConstantAgent):
    """Learns by steps that grow, and saves all but how long they are."""

    def __init__(self) -> None:
        super().__init__()
        self.pace = 0

    def opt(self, batch: Columns) -> Mapping[str, float]:
        self.pace += 1
        self.params = {"action": np.array((self.params["action"] + self.pace) % 10)}
        return {}


class LearnsAtRandom(ConstantAgent):
    def opt(self, batch: Columns) -> Mapping[str, float]:
        self.params = {"action": np.array(np.random.default_rng().integers(2**60))}
        return {}

    def act(self, obs: Array) -> Act:
        return Act(np.zeros(len(obs), np.int64))


class TellsOnePriority(ConstantAgent):
    def priorities(self) -> Array:
        return np.ones(1)


class OneMemory(CountingMemory):
    def act(self, obs: Array) -> Act:
        training, self.training = self.training, True
        act = super().act(obs)
        self.training = training
        return Act(act.action % 10)

    def forget(self, where: BoolArray) -> None:
        self.seen = {}


class KeepsTheSpare(ThriftyAgent):
    def state(self) -> Params:
        return ConstantAgent.state(self)


WRONG: list[tuple[type[ConstantAgent], str, str]] = [
    (LeavesTheSpace, "act", r"\[99, .*outside the bounds 0 to 9.*count from 0"),
    (ActsWithoutAct, "act", r"must return Act\(action\), got \[0, "),
    (ChangesWhatItSees, "act", "`act` changed the observations. Copy `obs`"),
    (KeepsExploring, "act", r"after `train\(False\)`, `training` is True"),
    (AlwaysExplores, "evaluation", r"got different actions in the second call\. Explore only if"),
    (
        AddsAColumn,
        "columns",
        r"held the columns \{'v': \(6,\)\}, but `extra_columns` declares none",
    ),
    (Raises, "opt", r"KeyError: 'value'; at .*test_agent\.py:\d+ in opt"),
    (Diverges, "opt", "after three batches, action of the model contains NaN"),
    (SharesItsModel, "opt", "changed the arrays of a snapshot .* Return copies"),
    (
        TakesNoModel,
        "model",
        "after `sync_model`, the policy's own `model_info` returned a different model",
    ),
    (TakesAnyModel, "wrong model", "accepted a model with an unknown array.* raise `ConfigError`"),
    (RefusesByKeyError, "wrong model", "a model with 'action' missing raised KeyError: 'action'"),
    (SharesItsState, "state", "`opt` changed a state returned before"),
    (ForgetsItsPace, "resume", "learned differently .* optimizer moments, target networks"),
    (TellsOnePriority, "priorities", r"shape \(1,\), expected \(32,\) numbers"),
    (OneMemory, "memory", "an evaluation in the middle of training episodes changed"),
    (KeepsTheSpare, "spare", "Clear `spare` first"),
]


@pytest.mark.parametrize(("made", "check", "words"), WRONG, ids=[one[0].__name__ for one in WRONG])
def test_error_says_what_is_wrong(made: type[ConstantAgent], check: str, words: str) -> None:
    with pytest.raises(AssertionError, match=rf"(?m)^{check}: .*{words}"):
        check_agent(OwnConfig(made), COUNTING_SPEC)


@pytest.mark.parametrize("made", [ExploresWithoutSeed, LearnsAtRandom])
def test_what_is_random_without_a_seed_is_warned_of(made: type[ConstantAgent]) -> None:
    findings = [*examine_agent(OwnConfig(made), COUNTING_SPEC)]
    (warning,) = [one for one in findings if one.level != "ok"]
    assert warning.level == "warn"
    assert "context.seed" in warning.advice


def test_missing_method_is_named_in_the_error() -> None:
    class Mute(ConstantAgent):
        load_state = property()  # type: ignore[assignment]

    with pytest.raises(AssertionError, match="`build` returns Mute, which lacks load_state"):
        check_agent(OwnConfig(Mute), COUNTING_SPEC)


def test_own_agents_that_keep_the_contract_pass() -> None:
    for made in (ConstantAgent, ThriftyAgent):
        check_agent(OwnConfig(made), COUNTING_SPEC)


class ReplacesTheOptimizer(DQNAgent):
    """Its updates go on with the optimizer of its base."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.optimizer = FusedAdam(self.net.parameters(), 0.1)


class ReplacingConfig(DQNConfig):
    def build(self, spec: EnvSpec, context: PolicyContext) -> DQNAgent:
        return ReplacesTheOptimizer(self, spec, context, torch.device("cpu"))


def test_what_takes_the_place_of_a_bases_part_is_named() -> None:
    with pytest.raises(
        AssertionError,
        match=r"parts: `self\.optimizer` and `self\.parts\['optimizer'\]` are different",
    ):
        check_agent(ReplacingConfig(hidden=(8,), device="cpu"), COUNTING_SPEC)


@dataclass(frozen=True)
class LearnsFromTrajectories(OwnConfig):
    learns_from: ClassVar[BatchKind] = "trajectories"


def test_batches_are_of_the_kind_that_the_agent_learns_from() -> None:
    seen: list[set[str]] = []

    class Looks(ConstantAgent):
        def opt(self, batch: Columns) -> Mapping[str, float]:
            seen.append(set(batch))
            return super().opt(batch)

    check_agent(LearnsFromTrajectories(Looks), COUNTING_SPEC)
    assert all("mask" in columns for columns in seen)
    with pytest.raises(AssertionError, match="learns from trajectories, each once"):
        check_agent(LearnsFromTrajectories(Looks), COUNTING_SPEC, replay=UniformReplayConfig())


def test_spaces_are_found_that_an_agent_is_for() -> None:
    findings = [*examine_anywhere(TableConfig)]
    assert [f.seen for f in findings if f.check == "spaces"] == ["actions: one of 4 choices"]


class ChoosesOneOfFour(ConstantAgent):
    """Acts where there are choices, and knows of no other spaces."""

    def act(self, obs: Array) -> Act:
        return Act(np.full(len(obs), self.params["action"] % 4))


def test_agent_for_one_kind_of_actions_must_refuse_the_others() -> None:
    findings = [*examine_anywhere(OwnConfig(ChoosesOneOfFour))]
    last = findings[-1]
    assert (last.level, last.check) == ("warn", "spaces")
    assert (
        last.seen == "passes where actions are one of 4 choices, fails where they are 2 quantities"
    )
    assert "raise ConfigError for other spaces, as `n_actions(" in last.advice


def test_settings_that_cannot_be_made_are_reported() -> None:
    @dataclass(frozen=True)
    class Wanting(OwnConfig):
        rate: float = 0.0

        def __post_init__(self) -> None:
            raise TypeError("a rate is needed")

    (finding,) = examine_anywhere(Wanting)
    assert (finding.level, finding.check) == ("fail", "settings")
    assert "TypeError: a rate is needed" in finding.seen
