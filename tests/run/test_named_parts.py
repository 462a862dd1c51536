"""Parts that are named in a file or by flags: all are used, and mistakes get a sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.cli.train import parse
from asyncrl.core.agent import AgentConfig, Policy
from asyncrl.core.callback import Callback, Training
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.named import Named
from asyncrl.core.recorder import Record
from asyncrl.core.settings import from_plain
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.named_parts import NamedParts
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer, train_sync
from asyncrl.run.yaml_file import load_yaml, save_yaml

HERE = __name__
USED: list[str] = []
"""What the classes and functions of this file did, in order."""

CONDITION = MaxOptSteps(1)


class Stage(Callback):
    def __init__(self, name: str, scale: float = 1.0) -> None:
        self.name, self.scale = name, scale

    def begin(self, trainer: Training) -> None:
        USED.append(f"callback {self.name}")

    def record(self, trainer: Training) -> Record:
        return {f"mine/{self.name}": self.scale}


class Listening(MemoryRecorder):
    """A recorder that this file finds again."""

    made: ClassVar[list[MemoryRecorder]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)


class Scoring:
    def __init__(self, score: float) -> None:
        self.score = score

    def evaluate(self, policy: Policy) -> Evaluation:
        return Evaluation(self.score, {})

    def close(self) -> None:
        USED.append("evaluator closed")


class Loop:
    def run(self, trainer: AsyncTrainer) -> None:
        USED.append("strategy")
        trainer.interrupter.stop("the strategy is done")


def enough(record: Record, opt_steps: int) -> str | None:
    return "that is enough" if record["opt_steps"] >= opt_steps else None


def numbered(agent: AgentConfig, actors: int, first: float) -> list[AgentConfig]:
    USED.append(f"{actors} actors from {first}")
    return [agent] * actors


def named(of_this_file: str, /, **settings: Any) -> Named:
    return Named(f"{HERE}:{of_this_file}", settings)


CONFIG = RunConfig(
    agent=DQNConfig(hidden=(8,), device="cpu"),
    actors=1,
    envs_per_actor=2,
    replay=UniformReplayConfig(capacity=1000),
    evaluate=EvaluationConfig(interval_opt_steps=2),
)
CONFIG = replace(
    CONFIG,
    limiter=replace(CONFIG.limiter, min_size=64),
    trainer=replace(CONFIG.trainer, batch_size=8),
    record=replace(CONFIG.record, interval_s=0.0, interval_opt_steps=2),
)
PARTS = NamedParts(
    stop=named("enough", opt_steps=4),
    recorders=(named("Listening"),),
    callbacks=(named("Stage", name="a"), named("Stage", name="b", scale="1e-1")),
    evaluator=named("Scoring", score=7.5),
    processor=Named(
        "asyncrl.actor.trajectory_processor:Trajectories", {"config": {"max_length": 20}}
    ),
)
LOOP = NamedParts(strategy=named("Loop"), actor_agents=named("numbered", first=0.5))


@pytest.fixture(autouse=True)
def _nothing_used() -> None:
    USED.clear()
    Listening.made.clear()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    config = replace(CONFIG, mode="sync", max_env_steps=100)
    build_trainer(config, checkpoint_dir=path).train()
    return path


@pytest.mark.behaviour(number=12)
@pytest.mark.parametrize("mode", ["sync", "offline"])
def test_run_in_one_process_uses_all_that_it_can(mode: Any, data: Path) -> None:
    parts = replace(PARTS, processor=None) if mode == "offline" else PARTS
    trainer = build_trainer(
        replace(CONFIG, mode=mode, data=data if mode == "offline" else None, parts=parts)
    )
    result = trainer.train()
    assert result.stop_reason == "that is enough"
    assert result.best_score == 7.5
    (recorder,) = Listening.made
    assert (recorder.last("mine/a"), recorder.last("mine/b")) == (1.0, 0.1)
    assert (recorder.last("actor/0/trajectories_stored") is not None) == (mode == "sync")
    assert USED == ["callback a", "callback b", "evaluator closed"]


@pytest.mark.behaviour(number=3)
def test_asynchronous_run_uses_a_strategy_and_agents_of_actors() -> None:
    config = replace(CONFIG, launcher="thread", evaluate=EvaluationConfig(where="off"), parts=LOOP)
    assert build_trainer(config).train().stop_reason == "the strategy is done"
    assert USED == ["1 actors from 0.5", "strategy"]


def test_arguments_replace_what_the_config_names_and_callbacks_are_added() -> None:
    mine = MemoryRecorder()
    build_trainer(
        replace(CONFIG, mode="sync", parts=PARTS),
        recorder=mine,
        stop=MaxOptSteps(2),
        callbacks=[Stage("c", 3.0)],
    ).train()
    assert not Listening.made
    assert (mine.last("opt_steps"), mine.last("mine/a"), mine.last("mine/c")) == (2, 1.0, 3.0)


def test_limits_and_parts_of_the_settings_hold_beside_an_agent_and_environments() -> None:
    config = replace(CONFIG, max_opt_steps=3, parts=replace(PARTS, stop=None))
    result = train_sync(CONFIG.agent, CONFIG.env_config().build, config)
    assert (result.opt_steps, result.best_score) == (3, 7.5)
    assert USED == ["callback a", "callback b", "evaluator closed"]


def test_condition_may_be_a_class_a_function_or_an_object() -> None:
    paths = Named("asyncrl.learner.stop_conditions:MaxOptSteps", {"n": 3}), named("CONDITION")
    for path, at in zip((*paths, named("enough", opt_steps=2)), (3, 1, 2), strict=True):
        stop = RunConfig(parts=NamedParts(stop=path)).stop_condition()
        assert stop
        assert not stop.update({"opt_steps": at - 1})
        assert stop.update({"opt_steps": at})


@pytest.mark.behaviour(number=12)
def test_file_says_them_and_flags_do_not(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    config = RunConfig(parts=replace(PARTS, strategy=LOOP.strategy))
    save_yaml(config, file)
    assert load_yaml(RunConfig, file) == config
    assert parse(["dqn", "--config", str(file)]).config.parts == config.parts
    with pytest.raises(ConfigError, match=r"--parts\.stop is no flag"):
        parse(["dqn", "--parts.stop", "None"])


@pytest.mark.parametrize(
    ("mode", "parts", "sentence"),
    [
        ("async", {"stop": "enough"}, "parts.stop: 'enough' .* module:n"),
        ("async", {"stop": f"{HERE}:enough"}, "parts.stop: .*:enough: .*'opt_steps'"),
        ("async", {"stop": 3}, "parts.stop: 3 .* module"),
        ("async", {"callbacks": [{"type": f"{HERE}:Stage", "nam": 1}]}, "'nam'; did you"),
        ("async", {"strategy": f"{HERE}:Listening"}, "parts.strategy: .* Strategy"),
        ("async", {"callbacks": [f"{HERE}:Loop"]}, "parts.callbacks: .* Callback"),
        ("async", {"recorders": [f"{HERE}:Loop"]}, "parts.recorders: .* Recorder"),
        ("async", {"actor_agents": f"{HERE}:numbered"}, "numbered: missing .* 'first'"),
        ("offline", {"strategy": f"{HERE}:Loop"}, "parts.strategy .* mode=offl"),
        ("offline", {"processor": f"{HERE}:Loop"}, "parts.processor .* mode=offl"),
    ],
)
def test_mistakes_get_a_sentence_before_anything_starts(
    mode: Any, parts: Any, sentence: str
) -> None:
    data = {"data": "none"} if mode == "offline" else {}
    with pytest.raises(ConfigError, match=sentence):
        build_trainer(from_plain(RunConfig, {"mode": mode, "parts": parts, **data}))
