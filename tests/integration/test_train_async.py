"""Whole runs with real processes and sockets: normal ends, deaths, errors, stops."""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pytest

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.errors import ActorFailed, ConfigError
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.types import Array
from asyncrl.fleet.config import RestartPolicyConfig
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig, SaveConfig
from asyncrl.learner.stop_conditions import MaxOptSteps, MaxSeconds
from asyncrl.learner.train_result import TrainResult
from asyncrl.metrics.metrics import describe
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from tests.support.fakes import ConstantConfig, CountingBatch
from tests.support.helpers import in_actor, wait_until

pytestmark = pytest.mark.processes


def config(**changes: Any) -> RunConfig:
    base = RunConfig(
        actors=2,
        segment=SegmentConfig(length=4),
        replay=UniformReplayConfig(capacity=2000, n_step=2),
        limiter=RateLimiterConfig(samples_per_insert=4.0, min_size=50),
        trainer=AsyncTrainerConfig(batch_size=16, sync_interval_opt_steps=5),
        record=RecordConfig(interval_s=0.2),
        save=SaveConfig(interval_opt_steps=100),
        evaluate=EvaluationConfig(play=EpisodeEvaluatorConfig(episodes=3), interval_opt_steps=50),
    )
    return dataclasses.replace(base, **changes)


def run(cfg: RunConfig | None = None, **parts: Any) -> tuple[TrainResult, AsyncTrainer]:
    parts = {"stop": MaxOptSteps(200) | MaxSeconds(60), "recorder": None} | parts
    make_env = parts.pop("make_env", CountingBatch)
    agent = parts.pop("agent", ConstantConfig())
    trainer = build_trainer(cfg or config(), agent=agent, env=make_env, **parts)
    return trainer.train(), trainer


class Loop:
    """A training loop of a test's own: what it is given, before each of our turns."""

    def __init__(self, before: Callable[[AsyncTrainer], None]) -> None:
        self.before = before

    def run(self, trainer: AsyncTrainer) -> None:
        while not trainer.should_stop:
            self.before(trainer)
            trainer.run_step()


class Finished(NamedTuple):
    """A run that has ended, and what it has left."""

    result: TrainResult
    trainer: AsyncTrainer
    recorder: MemoryRecorder
    directory: Path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    recorder, directory = MemoryRecorder(), tmp_path_factory.mktemp("finished")
    return Finished(*run(recorder=recorder, checkpoint_dir=directory), recorder, directory)


@pytest.mark.behaviour(number=2)
def test_run_ends_on_its_stop_condition_and_every_transition_is_accounted_for(
    finished: Finished,
) -> None:
    result, trainer, *_ = finished
    assert result.opt_steps == 200
    assert result.policy.info.version == result.best_opt_steps
    assert result.policy.act(np.zeros((5, 2), np.float32)).action.shape == (5,)
    assert "200" in result.stop_reason
    ledger = result.ledger
    assert ledger["in_flight"] == 0
    assert ledger["produced"] == ledger["stored"] + ledger["dropped"] + ledger["lost"]
    assert ledger["lost"] == ledger["dropped"] == 0
    assert result.env_steps == ledger["produced"] >= 50
    assert sum(actor["env_steps"] for actor in result.actors.values()) == result.env_steps
    assert trainer.agent.opt_steps == 200
    ratio = 4.0 * (ledger["stored"] - 50) / (200 * 16)
    assert 0.7 < ratio < 1.5, "samples per insert stays near what was asked for"
    assert sum(result.learner_shares.values()) == pytest.approx(1.0)
    assert sum(result.actor_shares.values()) == pytest.approx(1.0)


@pytest.mark.behaviour(number=54)
def test_run_records_what_the_list_of_metrics_says_and_nothing_else(finished: Finished) -> None:
    recorder = finished.recorder
    names = {name for record in recorder.records for name in record}
    assert [name for name in sorted(names) if describe(name) is None] == []
    expected = """env_steps opt_steps wall_s fps opt_steps_per_sec samples_total samples_per_sec
        samples_per_opt_steps samples_per_insert episodes episode/return_mean episode/length_mean
        eval_reward eval/best eval/model_version lag/versions_mean lag/versions_max
        lag/seconds_mean lag/seconds_max ledger/produced ledger/stored ledger/dropped ledger/lost
        ledger/in_flight replay/size share/learner_wait share/learner_sample share/learner_opt
        share/learner_publish share/evaluation eval/cpu_s share/actor_env share/actor_policy
        share/actor_send ms/recv ms/push ms/sample ms/opt ms/publish actor/0/env_steps
        actor/1/env_steps_per_s actor/0/episodes actor/1/restarts actor/0/exploration_rate
        agent/loss""".split()
    assert sorted(set(expected) - names) == []
    for record in recorder.records:
        shares = [v for k, v in record.items() if k.startswith("share/learner_")]
        assert not shares or sum(shares) == pytest.approx(1.0)
        lags = [v for k, v in record.items() if k.startswith("lag/")]
        assert all(np.isfinite(lag) and lag >= 0 for lag in lags)


@pytest.mark.behaviour(number=18)
def test_evaluation_in_the_background_scores_models_and_keeps_the_best(finished: Finished) -> None:
    result, _, recorder, directory = finished
    # The model's one parameter is the action: environment e pays 10 e + action for 3 steps.
    scores = {
        r["eval/model_version"]: r["eval_reward"] for r in recorder.records if "eval_reward" in r
    }
    assert scores
    for version, score in scores.items():
        returns = [3 * (10 * e + int(version) % 10) for e in (0, 1, 0)]
        assert score == pytest.approx(np.mean(returns))
    assert result.best_score == max(scores.values())
    best = Checkpointer(directory).load("best")
    assert int(best.groups["model"]["action"]) == int(result.best_opt_steps or 0) % 10
    # That of step 100 is there as well unless the last one overtook it on its way to the disk.
    assert {path.name for path in directory.iterdir()} >= {"best", "200"}
    assert max(scores) == 200, "the last model is evaluated too"


def test_global_generators_differ_from_actor_to_actor_and_repeat(tmp_path: Path) -> None:
    drawn = []
    for notes in (tmp_path / "first", tmp_path / "again"):
        notes.mkdir()
        all_noted = partial(lambda at, _record: len(list(at.iterdir())) == 3, notes)
        run(make_env=partial(NotingBatch, notes), stop=MaxSeconds(60) | all_noted)
        drawn.append(sorted(path.read_text() for path in notes.iterdir()))
    assert len(set(drawn[0])) == len(drawn[0]) == 3, "two actors and the evaluator"
    assert drawn[0] == drawn[1]
    usual, low = os.nice(0), min(os.nice(0) + 5, 19)
    assert sorted(int(words.split()[0]) for words in drawn[0]) == [usual, usual, low]


@pytest.mark.fault("F5")
def test_environment_that_cannot_be_built_fails_before_an_actor_starts(tmp_path: Path) -> None:
    def make() -> CountingBatch:
        (tmp_path / str(os.getpid())).touch()
        raise RuntimeError("no such track")

    with pytest.raises(ActorFailed, match="building the environment failed: RuntimeError: no such"):
        run(make_env=make)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.behaviour(number=66)
@pytest.mark.fault("F5")
def test_what_cannot_be_sent_to_an_actor_is_refused_before_a_process_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(**_: object) -> NoReturn:
        raise AssertionError("a process would start")

    monkeypatch.setattr("asyncrl.run.launchers.LocalLauncher", start)
    lock = threading.Lock()

    def make() -> CountingBatch:
        with lock:
            return CountingBatch()

    for name in ("make_env", "make_eval_env"):
        with pytest.raises(ConfigError, match=r"cannot be sent to its process: .*lock.* Pass"):
            run(**{name: make})
    with pytest.raises(AssertionError, match="a process would start"):  # none of evaluations
        run(config(evaluate=EvaluationConfig(where="inline")), make_eval_env=make)


@pytest.mark.fault("F5", "F7")
def test_actors_that_never_get_going_are_not_restarted_for_ever() -> None:
    restart = RestartPolicyConfig(on_exception="restart", max_restarts=3)
    supervision = dataclasses.replace(config().supervision, restart=restart)
    with pytest.raises(ActorFailed, match=r"no actor had made a single step .* would not help"):
        run(config(supervision=supervision), make_env=built_in_no_actor)


@pytest.mark.behaviour(number=43)
def test_interrupter_stops_a_run_from_another_thread_with_its_reason() -> None:
    interrupter = Interrupter()
    recorder = MemoryRecorder()
    stopper = threading.Thread(
        target=lambda: (
            wait_until(lambda: bool(recorder.records), 30, "a first record"),
            interrupter.stop("seen enough"),
        )
    )
    stopper.start()
    cfg = config(launcher="thread")
    result, _ = run(cfg, interrupter=interrupter, recorder=recorder, stop=None)
    stopper.join()
    assert result.stop_reason == "seen enough"
    assert result.ledger["in_flight"] == 0


def test_learner_continues_while_an_evaluation_runs(tmp_path: Path) -> None:
    started_at: list[int] = []

    def watch(trainer: AsyncTrainer) -> None:
        opt_steps = trainer.services.counts.opt_steps
        if not started_at and (tmp_path / "started").exists():
            started_at.append(opt_steps)
        if started_at and opt_steps >= started_at[0] + 100:
            (tmp_path / "release").touch()
            trainer.interrupter.stop("seen to go on")

    result, _ = run(
        config(launcher="thread"),
        strategy=Loop(watch),
        make_evaluator=partial(SlowEvaluator, tmp_path),
        stop=MaxSeconds(60),
    )
    assert result.stop_reason == "seen to go on"
    assert result.opt_steps >= started_at[0] + 100
    assert result.last_score == 1.0


@pytest.mark.filterwarnings(  # raised for files that are never closed
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.fault("F35")
def test_trainer_that_is_never_trained_lets_go_of_everything(tmp_path: Path) -> None:
    dropped = build_trainer(config(), agent=ConstantConfig(), env=CountingBatch)
    context = dropped.source._link._context  # type: ignore[attr-defined]
    del dropped
    gc.collect()
    assert context.closed, "a context that waits for its own sockets hangs in the collection"
    directory = tmp_path / "checkpoints"
    closed = build_trainer(
        config(), agent=ConstantConfig(), env=CountingBatch, checkpoint_dir=directory
    )
    closed.close()
    closed.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="has been used"):
        closed.train()


def built_in_no_actor() -> CountingBatch:
    """Can be built before a run, and in no actor."""
    if in_actor():
        raise RuntimeError("not here")
    return CountingBatch()


class NotingBatch(CountingBatch):
    """Writes down the priority of its process, and what the global generators give."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes

    def reset(self, seed: int) -> Array:
        draws = f"{os.nice(0)} {random.random()} {np.random.random()}"  # noqa: NPY002
        path = self.notes / str(os.getpid())
        if not path.exists():
            path.write_text(draws)
        return super().reset(seed)


class SlowEvaluator:
    """Its first evaluation lasts until the learner has been seen to go on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def evaluate(self, policy: Any) -> Evaluation:
        (self._directory / "started").touch()
        wait_until((self._directory / "release").exists, 50, "the learner to go on")
        return Evaluation(1.0, {})

    def close(self) -> None: ...


def test_number_of_actors_changes_during_a_run() -> None:
    wanted = iter([3, 1])

    class UntilTwoHaveLeft:
        def run(self, trainer: AsyncTrainer) -> None:
            states: list[str] = []
            while not trainer.should_stop and states[1:] != ["left", "left"]:
                states = [status.state for status in trainer.fleet()]
                acting = sum(state in {"running", "waiting"} for state in states)
                if acting == trainer.actors and (actors := next(wanted, None)):
                    trainer.set_actors(actors)
                trainer.run_step()

    cfg = config(launcher="thread", evaluate=EvaluationConfig(where="off"))
    result, trainer = run(cfg, strategy=UntilTwoHaveLeft(), stop=MaxSeconds(60))
    assert trainer.actors == 1
    assert [actor["left"] for actor in result.actors.values()] == [0, 1, 1]
    ledger = result.ledger
    assert ledger["produced"] == ledger["stored"] + ledger["dropped"] + ledger["lost"]
    assert ledger["lost"] == 0
