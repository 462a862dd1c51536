"""The learner's turn, and the order in which a run begins and ends. Nothing here is a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.checkpoint.resume import first_incarnation
from asyncrl.core.errors import ActorFailed, CheckpointError, ConfigError, TransportError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import EnvChange, Experience, Hello, ModelInfo
from asyncrl.core.recorder import Record
from asyncrl.core.types import Array, Columns, IntArray
from asyncrl.fleet.actor_manager import ActorStatus
from asyncrl.learner.actor_source import Actors, ActorSource
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.observer import Observer
from asyncrl.learner.progress import Counts
from asyncrl.learner.rate_limiter import build_limiter
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.learner.staleness import Lag
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from tests.support.fakes import ConstantAgent, DirectSaver, FakeCheckpointer, FakeSite
from tests.support.helpers import wait_until
from tests.support.local_transport import LocalActorLink, LocalLearnerLink, LocalTransport
from tests.support.services import services_config
from tests.support.streams import PEER, make_outbox, play, schema

BATCH_SIZE = 8
LENGTH = 4
SCHEMA = schema(LENGTH, 1)
FED = 28  # transitions that 32 steps send; the last segment is still open


class Log(list[str]):
    """What happened, in words; raises once when a certain word is written into it."""

    trips_at = ""

    def append(self, word: str) -> None:
        super().append(word)
        if word == self.trips_at:
            self.trips_at = ""
            raise OSError(f"at {word}")

    def of(self, part: object, **words: str) -> None:
        """Write a word after each call of a part's method, in which {0} is its first argument."""
        for name, word in words.items():
            setattr(part, name, partial(self._call, getattr(part, name), word))

    def _call(self, method: Callable[..., Any], word: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        finally:
            self.append(word.format(*args))


class FakeManager:
    """Stands for the actors: does at their start, and at their end, what a test says."""

    next_incarnation = 1
    size = 2
    asked = 0
    waited_s: float | None = None

    def __init__(self, at_start: Callable[[], object]) -> None:
        self.at_start = at_start
        self.at_stop: Callable[[], object] = lambda: None

    def resize(self, actors: int) -> None:
        self.size = self.asked = actors

    def fleet(self) -> list[ActorStatus]:
        return []

    def start(self) -> None:
        self.at_start()

    def expect_ends(self) -> None: ...

    def stop(self, timeout_s: float | None = None) -> None:
        self.waited_s = timeout_s
        self.at_stop()


class Steps:
    """A custom training loop: a number of turns that learn, or none at all."""

    def __init__(self, count: int, after: Callable[[], object] = lambda: None) -> None:
        self.count = count
        self.after = after

    def run(self, trainer: AsyncTrainer) -> None:
        done = 0
        while done < self.count and not trainer.should_stop:
            done += trainer.run_step()
        self.after()


class Stage:
    """A trainer with all its parts; `feed` is its actor."""

    def __init__(self, *, agent: ConstantAgent | None = None, **parts: Any) -> None:
        self.log, self.draws = Log(), Log()
        self.agent = agent or ConstantAgent()
        self.interrupter = Interrupter()
        transport = LocalTransport()
        self.link: Any = LocalLearnerLink(transport)
        self.actor_link = LocalActorLink(transport)
        self._outbox = make_outbox(1, LENGTH, 1)
        self.manager = FakeManager(self.say_hello)
        self.recorder, self.saves, self.site = MemoryRecorder(), FakeCheckpointer(), FakeSite()
        samples_per_insert = parts.pop("samples_per_insert", 0.0)
        limiter = RateLimiterConfig(samples_per_insert=samples_per_insert, min_size=16)
        replay = parts.pop("replay", UniformReplayConfig(capacity=500))
        self.proxy = ReplayBufferProxy(
            self.link,
            replay.build(SCHEMA, seed=0),
            build_limiter(limiter, max_insert=LENGTH, batch_size=BATCH_SIZE),
            self.interrupter,
            lag=Lag(0.0, parts.pop("max_lag_opt_steps", 0)),
            observers=parts.pop("observers", ()),
        )
        log = self.log
        log.of(self.link, publish="publish {0.version}", stop_actors="stop actors")
        log.of(self.link, close="close link")
        log.of(self.proxy, start="start proxy", drain="drain", close="close proxy")
        self.draws.of(self.proxy, sample="{0}")
        log.of(self.manager, start="start actors", expect_ends="expect ends", stop="actors ended")
        log.of(self.recorder, start="start recorder", close="close recorder")
        log.of(self.saves, save="save {0}")
        log.of(self.site, request="evaluate {0.version}")
        services = {"record_interval_s": 0.0, "evaluate_interval_opt_steps": 0}
        services |= parts.pop("services", {})
        config = AsyncTrainerConfig(batch_size=BATCH_SIZE, sync_interval_opt_steps=5)
        closing = ExitStack()
        closing.callback(log.append, "close the rest")
        manager: Any = self.manager
        publishes = "strategy" not in parts
        actors = Actors(link=self.link, proxy=self.proxy, manager=manager, publishes=publishes)
        source = ActorSource(actors, config)
        self.trainer = AsyncTrainer(
            self.agent,
            source,
            interrupter=self.interrupter,
            evaluation=self.site,
            services=services_config(**services),
            closing=closing,
            **{"recorder": self.recorder, "checkpointer": self.saves} | parts,
        )
        if "checkpointer" not in parts:
            self.trainer.services._saver = DirectSaver(self.saves, self.interrupter)

    @property
    def drawn(self) -> list[int]:
        """Numbers of batches that were drawn together."""
        return [int(drawn) // BATCH_SIZE for drawn in self.draws]

    @property
    def published(self) -> list[str]:
        return [word for word in self.log if word.startswith("publish")]

    def say_hello(self) -> None:
        self.actor_link.hello(Hello(peer=PEER, schema_hash=SCHEMA.hash()))

    def feed(self, steps: int = 32) -> None:
        """Send steps of an environment, as an actor does."""
        for message in play([[""] * steps], self._outbox, finish=False)[1]:
            assert self.actor_link.send(message, timeout_s=10.0)

    def train(self) -> Any:
        """Run with an actor that says hello and feeds the trainer."""
        self.manager.at_start = lambda: (self.say_hello(), self.feed())
        return self.trainer.train()


# --- the end of what is evaluated in -------------------------------------------------------------


def test_trainer_that_is_not_to_train_releases_all_of_it_whatever_fails() -> None:
    def hang() -> None:
        raise ActorFailed("its launcher hangs")

    def fail(_: float) -> None:
        raise ArithmeticError("no")

    stage = Stage()
    saver = stage.trainer.services._saver
    stage.manager.at_stop, saver.close = hang, fail  # type: ignore[union-attr, method-assign]
    with pytest.raises(ActorFailed, match="its launcher hangs") as caught:
        stage.trainer.close()
    assert "ArithmeticError: no" in caught.value.__notes__[0]
    stage.trainer.close()
    assert stage.log == ["actors ended", "close link", "close the rest"]


# --- priorities ----------------------------------------------------------------------------------


class Wrong(ConstantAgent):
    def priorities(self) -> Array:
        return np.arange(BATCH_SIZE, dtype=np.float32)


def test_replay_gets_td_errors() -> None:
    agent = Wrong()
    stage = Stage(agent=agent, strategy=Steps(3), replay=PrioritizedReplayConfig(capacity=500))
    counts: list[tuple[int, int]] = []

    def note(index: IntArray, td_error: Array) -> None:
        assert td_error.tolist() == list(range(BATCH_SIZE))
        np.testing.assert_array_equal(index, agent.batches[-1]["index"])
        counts.append((agent.opt_steps, stage.trainer.services.counts.opt_steps))

    stage.proxy.buffer.update_priorities = note  # type: ignore[attr-defined]
    stage.train()
    assert counts == [(1, 0), (2, 1), (3, 2)], "right after each step"


def test_prioritized_replay_needs_an_agent_that_reports_priorities() -> None:
    with pytest.raises(ConfigError, match="ConstantAgent has none"):
        Stage(replay=PrioritizedReplayConfig(capacity=500))


def test_priorities_of_actors_need_a_replay_that_has_some() -> None:
    class Storing(ConstantAgent):
        stores_values = True

    with pytest.raises(ConfigError, match=r"agent\.actor_priorities.*Uniform.*replay="):
        Stage(agent=Storing())


# --- turns ---------------------------------------------------------------------------------------


def test_turn_without_data_waits_a_little_and_learns_nothing() -> None:
    turns: list[bool] = []
    now_s = [0.0]

    class OneTurn:
        def run(self, trainer: AsyncTrainer) -> None:
            turns.append(trainer.run_step())

    def wait(_: int, timeout_s: float) -> bool:
        now_s[0] += timeout_s
        return False

    stage = Stage(strategy=OneTurn())
    stage.proxy.wait_may_sample = wait  # type: ignore[method-assign]
    result = stage.trainer.train()
    assert turns == [False]
    assert (result.opt_steps, stage.agent.batches) == (0, [])
    assert now_s[0] > 0
    assert "save 0" not in stage.log, "there is nothing to save"


def test_each_phase_of_the_learner_has_a_share_and_a_mean_time() -> None:
    intervals = ("evaluate", "record", "save")
    services = {f"{name}_interval_opt_steps": 2 for name in intervals}
    stage = Stage(strategy=Steps(6), services=services)
    phases = {"sample", "opt", "publish", "eval", "record", "save"}
    assert set(stage.train().learner_shares) == phases | {"wait", "other"}
    means = {name for record in stage.recorder.records for name in record if name[:3] == "ms/"}
    assert means == {f"ms/{phase}" for phase in (*phases, "recv", "push")}


def test_batches_are_drawn_together_and_learned_from_one_by_one() -> None:
    stage = Stage(strategy=Steps(6))
    stage.train()
    assert stage.drawn == [1, 32], "the first shows how large they are"
    batches = [batch["obs"] for batch in stage.agent.batches]
    assert [len(obs) for obs in batches] == [BATCH_SIZE] * 6
    assert not np.array_equal(batches[0], batches[1])
    assert len({obs.tobytes() for obs in batches}) == 6, "no batch is there twice"


def test_no_more_batches_are_drawn_together_than_turns_are_to_come() -> None:
    class Rounds:
        def run(self, trainer: AsyncTrainer) -> None:
            for _ in range(3):
                for left in (5, 4, 3, 2, 1):
                    assert trainer.run_step(turns_left=left)

    stage = Stage(strategy=Rounds())
    stage.train()
    assert stage.drawn == [1, 4, 5, 5]


def test_fewer_batches_are_drawn_together_where_the_limiter_allows_no_more() -> None:
    # 28 stored transitions allow 12 * 8 samples, and a band of 4 * 8 + 8 more: 17 batches in all,
    # of which 16 stored ones allow the first 5.
    stage = Stage(strategy=Steps(17), samples_per_insert=8.0)
    stage.train()
    assert (stage.drawn[0], sum(stage.drawn)) == (1, 17)
    assert 4 <= max(stage.drawn) < AsyncTrainerConfig().batches_per_draw


@pytest.mark.parametrize(
    ("agent", "replay"),
    [(Wrong, PrioritizedReplayConfig(capacity=500)), (ConstantAgent, TrajectoryQueueConfig())],
)
def test_batches_with_priorities_or_handed_out_once_are_drawn_one_by_one(
    agent: type[ConstantAgent], replay: Any
) -> None:
    stage = Stage(agent=agent(), strategy=Steps(2), replay=replay)
    stage.train()
    assert stage.drawn == [1, 1]


def test_large_batches_are_drawn_one_by_one() -> None:
    config = AsyncTrainerConfig()
    counts = [config.draw_at_once({"obs": np.zeros(n, np.uint8)}) for n in (1, 1 << 16, 1 << 20)]
    assert counts == [config.batches_per_draw, 8, 1]


@pytest.mark.fault("F21")
def test_resumed_run_continues_from_the_checkpoint(tmp_path: Path) -> None:
    stage = Stage(strategy=Steps(4))
    stage.manager.next_incarnation = 7
    stage.trainer.services._saver = DirectSaver(Checkpointer(tmp_path), stage.interrupter)
    stage.manager.at_stop = lambda: stage.feed(64)  # what comes at the end counts, too
    before = stage.train()
    assert before.env_steps == 64
    saved = Checkpointer(tmp_path).load("4")
    assert first_incarnation(saved) == 7, "more than any actor has had"
    resumed = Stage(strategy=Steps(3), checkpoint=saved)
    assert resumed.trainer.services.counts == Counts(env_steps=before.env_steps, opt_steps=4)
    assert resumed.agent.opt_steps == 4
    assert len(resumed.proxy.buffer) == len(stage.proxy.buffer) > 0
    after = resumed.train()
    assert after.opt_steps == 7
    assert after.env_steps == before.env_steps + 32
    assert after.ledger["stored"] == before.ledger["stored"] + 28
    incomplete = Checkpoint({"model": {}}, saved.meta, Path("saved"))
    with pytest.raises(CheckpointError, match=r"resume from checkpoint saved: .* contain agent"):
        Stage(checkpoint=incomplete)


def test_a_resumed_run_has_as_many_actors_as_before_or_says_how_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(strategy=Steps(4))
    stage.trainer.services._saver = DirectSaver(Checkpointer(tmp_path), stage.interrupter)
    stage.trainer.set_actors(5)
    stage.train()
    saved = Checkpointer(tmp_path).load("4")
    assert Stage(checkpoint=saved).trainer.actors == 5

    def refuse(_: FakeManager, actors: int) -> None:
        raise ConfigError(f"{actors} are too many")

    monkeypatch.setattr(FakeManager, "resize", refuse)
    with pytest.raises(CheckpointError, match=r"5 are too many.*--actors 5, in Python actors=5"):
        Stage(checkpoint=saved)
    monkeypatch.setattr(FakeManager, "size", 3)  # the settings were changed meanwhile
    assert Stage(checkpoint=saved).trainer.actors == 3


@pytest.mark.behaviour(number=28)
def test_models_are_published_at_the_start_and_at_intervals() -> None:
    stage = Stage(strategy=Steps(12))
    stage.train()
    assert stage.published == ["publish 0", "publish 5", "publish 10"]
    newest = stage.actor_link.latest_model("act", newer_than=-1)
    assert newest
    assert (newest.version, int(newest.params["action"])) == (10, 0)
    assert newest.env_steps == 32


@pytest.mark.fault("F31")
@pytest.mark.parametrize(("limit", "warned"), [(0, False), (9, True), (10, False)])
def test_experience_of_too_old_a_model_is_warned_of_at_once(
    limit: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = Steps(12)
    stage = Stage(strategy=strategy, max_lag_opt_steps=limit)

    def send_old_experience() -> None:  # model 10 has been published, and the actor acts with 0
        before = stage.proxy.ledger.balance().stored
        stage.feed(steps=8)
        wait_until(lambda: stage.proxy.ledger.balance().stored > before, 10.0, "it is stored")

    strategy.after = send_old_experience
    stage.train()
    words = "actor 0 comes from a model that is"
    assert any(words in record.message for record in caplog.records) is warned


# --- the beginning and the end -------------------------------------------------------------------


BEGINNING = ["start recorder", "start proxy", "publish 0", "start actors"]
ENDING = ["expect ends", "drain", "stop actors", "actors ended", "close proxy", "save 2"]
ENDING += ["close link", "close recorder", "close the rest"]


def test_actors_start_after_all_services_and_end_without_losing_experience() -> None:
    stage = Stage(strategy=Steps(2), services={"evaluate_interval_opt_steps": 100})
    result = stage.train()
    assert stage.log == [*BEGINNING, "evaluate 2", "save best", *ENDING]
    assert (result.last_score, result.best_opt_steps) == (2.0, 2)


@pytest.mark.fault("F10")
@pytest.mark.parametrize("word", BEGINNING + ENDING)
def test_step_that_fails_does_not_keep_those_of_the_end_from_happening(word: str) -> None:
    stage = Stage(strategy=Steps(2))
    stage.log.trips_at = word
    with pytest.raises(OSError, match=f"at {word}"):
        stage.train()
    begun = word in ENDING
    ending = [step for step in ENDING if begun or not step.startswith("save")]
    if word == "start recorder":  # nothing of the source has begun
        ending = ["actors ended", "close link", "close recorder", "close the rest"]
    assert stage.log[-len(ending) :] == ending
    assert stage.agent.opt_steps == 2 * begun


@pytest.mark.fault("F10")
def test_link_is_not_closed_under_a_thread_that_hangs() -> None:
    stage = Stage(strategy=Steps(2))
    close = stage.proxy.close

    def hangs(timeout_s: float = 30.0) -> None:
        close(timeout_s)
        stage.proxy.hangs = True
        raise TransportError("it hangs")

    stage.proxy.close = hangs  # type: ignore[method-assign]
    with pytest.raises(TransportError, match="it hangs"):
        stage.train()
    assert stage.log[1 - len(ENDING) :] == [step for step in ENDING if step != "close link"]


# --- failures ------------------------------------------------------------------------------------


class Failing(ConstantAgent):
    def opt(self, batch: Columns) -> Mapping[str, float]:
        if self.opt_steps == 4:
            raise ArithmeticError("no")
        return super().opt(batch)


@pytest.mark.fault("F10")
def test_actors_are_not_waited_for_once_nothing_is_received() -> None:
    def fails(*_: object) -> Any:
        raise OSError("no descriptor is left")

    stage = Stage()
    stage.manager.at_start = lambda: setattr(stage.link, "poll", fails)
    with pytest.raises(OSError, match="no descriptor is left"):
        stage.trainer.train()
    assert stage.manager.waited_s == 0.0


@pytest.mark.fault("F12")
def test_run_that_is_interrupted_ends_well_and_in_a_hurry() -> None:
    stage = Stage(
        strategy=Steps(3, after=lambda: stage.interrupter.stop("a signal", urgent=True)),
        services={"evaluate_interval_opt_steps": 100},
    )
    result = stage.train()
    assert result.stop_reason == "a signal"
    assert stage.log.index("save 3") < stage.log.index("actors ended"), "there may be no time"
    assert "evaluate 3" not in stage.log
    assert stage.recorder.failed is False


# --- an own loop ---------------------------------------------------------------------------------


def test_own_loop_may_use_the_parts_by_hand() -> None:
    class ByHand:
        def run(self, trainer: AsyncTrainer) -> None:
            while trainer.services.counts.opt_steps < 3:
                batch = trainer.sample()
                if batch is not None:
                    trainer.learn(batch)
                    trainer.publish()
                trainer.run_services()

    stage = Stage(strategy=ByHand())
    result = stage.train()
    assert [len(batch["obs"]) for batch in stage.agent.batches] == [BATCH_SIZE] * 3
    assert stage.published == [f"publish {version}" for version in range(4)]
    assert result.stop_reason == "the loop ended"
    assert result.opt_steps == 3


def test_own_loop_takes_no_step_if_the_resumed_run_is_at_its_limit() -> None:
    stage = Stage(stop=MaxOptSteps(3))
    stage.trainer.services.counts.opt_steps = 3
    with stage.trainer as trainer:
        assert list(trainer.batches()) == []
    assert trainer.should_stop
    assert "start actors" not in stage.log


def interrupt() -> None:
    raise KeyboardInterrupt


class Disk(DirectSaver):
    """Shows whether it is waited for."""

    waited: bool | None = None

    def close(self, timeout_s: float) -> None:
        self.waited = not self._interrupter.hurry


@pytest.mark.fault("F12")
def test_first_ctrl_c_without_a_handler_ends_the_run_as_well() -> None:
    stage = Stage(strategy=Steps(3, after=interrupt))
    stage.trainer.services._saver = disk = Disk(stage.saves, stage.interrupter)
    with pytest.raises(KeyboardInterrupt):
        stage.train()
    assert "save 3" in stage.log
    assert stage.recorder.failed is False
    assert disk.waited
    assert stage.manager.waited_s is None, "actors have the time that they always have"


@pytest.mark.fault("F13")
def test_second_interruption_waits_neither_for_actors_nor_for_the_disk() -> None:
    stage = Stage(strategy=Steps(1, after=interrupt))
    stage.trainer.services._saver = disk = Disk(stage.saves, stage.interrupter)
    stage.link.stop_actors = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        stage.train()
    assert stage.interrupter.hurry, "which both look at while they wait"
    assert disk.waited is False
    assert "close link" in stage.log


# --- other arguments of environments -------------------------------------------------------------


def test_arguments_of_environments_reach_those_that_run_and_those_that_start() -> None:
    stage = Stage(strategy=Steps(0))
    stage.manager.at_start = stage.say_hello
    with stage.trainer as trainer:
        wait_until(
            lambda: stage.actor_link.hello(Hello(peer=PEER, schema_hash="")), 10.0, "welcome"
        )
        for level in (1, 2, 2):
            trainer.set_env_kwargs({"level": level})
        assert stage.actor_link.env_change(0) == trainer.env_change
        assert trainer.env_change == EnvChange(number=2, kwargs={"level": 2})
        trainer.interrupter.stop("enough")


# --- observers -----------------------------------------------------------------------------------


class Counting(Observer):
    """Counts what it sees, and records how many transitions were sampled."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def begin(self) -> None:
        self.seen["begun"] += 1

    def message(self, message: Experience) -> None:
        self.seen["transitions"] += message.transitions

    def sampled(self, batch: Columns, count: int) -> None:
        assert len(batch["obs"]) == count
        self.seen["sampled"] += count

    def learns(self, env_steps: int) -> None:
        self.seen["learned"] += 1

    def published(self, model: ModelInfo) -> None:
        self.seen["published"] += 1

    def record(self) -> Record:
        return {"mine/sampled": float(self.seen["sampled"])}

    def close(self) -> None:
        self.seen["closed"] += 1


def test_observers_see_what_is_stored_sampled_learned_and_published() -> None:
    one = Counting()
    stage = Stage(strategy=Steps(1), observers=[one])
    stage.train()
    seen = {"begun": 1, "transitions": FED, "sampled": BATCH_SIZE, "learned": 1}
    assert one.seen == {**seen, "published": 1, "closed": 1}
    assert stage.recorder.records[-1]["mine/sampled"] == BATCH_SIZE
