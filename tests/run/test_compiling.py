"""Optimisation steps are compiled during a run where that pays, and a run never depends on it."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from torch import nn

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.callback import Callback
from asyncrl.core.recorder import Record
from asyncrl.core.segment import SegmentConfig
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig
from asyncrl.learner.stop_conditions import MaxSeconds
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.run import compiling
from asyncrl.run.compiling import CompilerSpec, CompilesInMidRun, compiled_in_mid_run, saved_s
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer, train
from tests.agents.parts.test_one_graph import OWN, traced  # noqa: F401  # a fixture
from tests.contracts.test_agent import CASES, batch_for
from tests.support.helpers import wait_until

DEADLINE_S = 60.0
AGENT = DQNConfig(hidden=(16,), accelerate="auto")


def config(**changes: Any) -> RunConfig:
    base = RunConfig(
        agent=AGENT,
        actors=1,
        segment=SegmentConfig(length=4),
        limiter=RateLimiterConfig(samples_per_insert=16.0, min_size=50),
        trainer=AsyncTrainerConfig(batch_size=16),
        record=RecordConfig(interval_s=0.2),
        evaluate=EvaluationConfig(where="off"),
        max_seconds=DEADLINE_S,
    )
    return replace(base, **changes)


@pytest.fixture
def eager_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it pay for the shortest run."""
    monkeypatch.setattr(compiling, "_WORTH_S", 1e-9)
    monkeypatch.setattr(compiling, "_LOOK_S", 0.01)


@dataclass(frozen=True, slots=True)
class Does(CompilerSpec):
    """Does what a test says: by default it only reports that it has compiled."""

    what: str = "reports"

    def run(self, peer: Any, progress: Any) -> None:
        match self.what:
            case "fails":
                raise OSError("no space left")
            case "dies":
                os._exit(3)
            case "hangs":
                time.sleep(10 * DEADLINE_S)
            case "compiles":
                CompilerSpec.run(self, peer, progress)
            case "reports":
                assert self.form["obs"][0][0] == 16
                progress.turn(1)


class Run:
    """What callbacks see of a run that has learned from one batch."""

    def __init__(self) -> None:
        self.agent: Any = CASES["dqn"].changed(accelerate="auto").build()
        self.agent.opt(batch_for(CASES["dqn"], 0))
        self.opt_steps = 0

    @property
    def last_record(self) -> Record:
        self.opt_steps += 1
        return {"opt_steps": float(self.opt_steps), "ms/opt": 1.0}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


# --- whether it pays ------------------------------------------------------------------------------

FIRST = {"opt_steps": 100.0, "env_steps": 1000.0, "train_s": 10.0, "ms/opt": 8.0}
NEWEST = {"opt_steps": 1100.0, "env_steps": 2000.0, "train_s": 20.0, "ms/opt": 8.0}


@pytest.mark.parametrize(
    ("limits", "steps_left"),
    [
        ({}, 1000),
        ({"env_steps": 12_000.0}, 10_000),
        ({"opt_steps": 6100.0}, 5000),
        ({"train_s": 320.0}, 30_000),
        ({"train_s": 320.0, "opt_steps": 6100.0}, 5000),
        ({"opt_steps": 1100.0}, 0),
        ({"mine/score": 3.0}, 1000),
    ],
)
def test_what_compiling_saves_is_a_share_of_the_steps_ahead(
    limits: dict[str, float], steps_left: int
) -> None:
    share = saved_s(FIRST, NEWEST, {}) / (1000 * 0.008)
    assert 0.0 < share < 0.5
    assert saved_s(FIRST, NEWEST, limits) == pytest.approx(share * steps_left * 0.008)


def test_learner_that_waits_for_actors_gains_nothing() -> None:
    assert not saved_s(FIRST, {**NEWEST, "share/learner_wait": 0.9}, {"opt_steps": 1e9})


@pytest.mark.parametrize(
    ("case", "changes", "compiler", "why"),
    [
        ("dqn", {}, "no-such-compiler", "compiler"),
        ("dqn", {"accumulate": 2}, "true", "accumulate"),
        ("ppo", {}, "true", "trajectories"),
        ("dqn", {"network": lambda _: nn.Linear(3, 4)}, "true", "network"),
        ("own", {}, "true", "asyncrl's"),
        ("dqn", {}, "true", ""),
    ],
)
def test_what_cannot_be_compiled_begins_no_process(
    case: str,
    changes: dict[str, Any],
    compiler: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CXX", compiler)
    caplog.set_level(logging.DEBUG, compiling.__name__)
    one = CASES.get(case, OWN).changed(accelerate="auto", **changes)
    plan: Any = SimpleNamespace(agent=one.config, spec=one.spec, setup=SimpleNamespace(learners=1))
    assert len(compiled_in_mid_run(plan, one.build(), {})) == (not why)
    assert [why in said.getMessage() for said in caplog.records] == [True] * bool(why)


# --- runs -----------------------------------------------------------------------------------------


class Counts(Callback):
    """Ends the run some steps after it has changed to compiled ones."""

    def __init__(self) -> None:
        self.before = self.after = 0

    def step(self, trainer: Any) -> None:
        if "agent/compile_s" not in trainer.last_record:
            self.before = trainer.opt_steps
        elif trainer.opt_steps >= self.before + 50:
            self.after = trainer.opt_steps - self.before
            trainer.interrupter.stop("it continues")


@pytest.mark.processes
@pytest.mark.usefixtures("traced", "eager_to_compile")
def test_run_changes_to_compiled_steps_and_learns_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiling, "CompilerSpec", Does)
    caplog.set_level(logging.INFO, compiling.__name__)
    counts, recorder = Counts(), MemoryRecorder()
    result = train(config(), callbacks=[counts], recorder=recorder, checkpoint_dir=tmp_path)
    assert counts.before > 0
    assert counts.after >= 50
    (said,) = [one.getMessage() for one in caplog.records if one.name == compiling.__name__]
    assert "compiled" in said
    # A resumed run that compiles nothing misses nothing.
    plain = config(agent=replace(AGENT, accelerate="off"), max_opt_steps=result.opt_steps + 20)
    resumed = train(plain, recorder=None, checkpoint_dir=tmp_path, resume=True)
    assert resumed.opt_steps == result.opt_steps + 20
    assert not [said for said in warnings(caplog) if CompilesInMidRun.__name__ in said]


@pytest.mark.processes
@pytest.mark.usefixtures("eager_to_compile")
def test_run_that_ends_does_not_wait_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "CompilerSpec", partial(Does, what="hangs"))
    assert train(config(), stop=MaxSeconds(2.0), recorder=None).opt_steps > 0


@pytest.mark.usefixtures("eager_to_compile")
def test_runs_that_repeat_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("compiles")

    monkeypatch.setattr(compiling.LocalLauncher, "launch", refuse)
    states = []
    for how in ("auto", "off"):
        sync = config(mode="sync", agent=replace(AGENT, accelerate=how), max_opt_steps=100)
        with build_trainer(sync, recorder=None) as trainer:
            for batch in trainer.batches():
                trainer.learn(batch)
        states.append(trainer.agent.state())
    assert states[0].keys() == states[1].keys()
    assert all((value == states[1][name]).all() for name, value in states[0].items())


# --- the process ----------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.usefixtures("eager_to_compile")
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("fails", "no space left"),
        ("dies", "code 3"),
        ("hangs", "more than"),
        ("compiles", "agent.accelerate=off"),
    ],
)
def test_process_that_does_not_compile_leaves_the_run_as_it_is(
    what: str, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "_TIMEOUT_S", 0.5 if what == "hangs" else DEADLINE_S)
    monkeypatch.setenv("CXX", "false")  # a compiler that fails
    case, run = CASES["dqn"].changed(accelerate="auto"), Run()
    callback: Any = CompilesInMidRun(Does(case.config, case.spec, what=what), {})
    try:
        wait_until(lambda: callback.step(run) or callback.is_over, DEADLINE_S, "the process ends")
    finally:
        callback.close(run)
    (said,) = warnings(caplog)
    assert why in said


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.timeout(300)  # machine code takes half a minute to make
@pytest.mark.usefixtures("eager_to_compile")
def test_run_has_its_steps_compiled_and_learns_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncrl")
    counts = Counts()
    train(config(max_seconds=240.0), callbacks=[counts], recorder=None)
    assert counts.after >= 50
    assert not warnings(caplog)
