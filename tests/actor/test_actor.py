"""An actor's run: a model first, then turns, then the remaining rows; every wait ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.actor.actor import Actor, EpisodeMeter, NewEnv
from asyncrl.actor.outbox import Outbox
from asyncrl.actor.step_processor import OneStep, StepProcessor
from asyncrl.core.agent import Act
from asyncrl.core.env import EnvStep
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import (
    ACTOR_PHASES,
    ActorReport,
    EnvChange,
    EvaluationReport,
    Experience,
    Hello,
    ModelInfo,
    Peer,
)
from asyncrl.core.segment import END, TERMINATED, TRUNCATED, ColumnSpec, SegmentConfig, make_schema
from asyncrl.core.transport import Topic
from asyncrl.core.types import ActorId, Array, ModelVersion
from tests.support.fakes import COUNTING_SPEC, ConstantAgent, CountingBatch, CountingMemory
from tests.support.scale import examples

PEER = Peer(actor_id=ActorId(3), incarnation=1)
HELLO = Hello(peer=PEER, schema_hash="x")
SCHEMA = make_schema(OneStep().columns(COUNTING_SPEC, ()), length=2, lookahead=1)
DRAIN_S = 10.0


class FakeLink:
    """An actor's end whose learner does as the test says; its waits take time on a hand clock."""

    def __init__(self, *versions: int) -> None:
        self.now_s = 0.0
        self.models = [
            ModelInfo(version=ModelVersion(v), params={"action": np.array(v % 10)})
            for v in versions
        ]
        self.open = True
        self.credit = 10**9
        self.granted = 10**9
        self.stop = False
        self.calls: list[str] = []
        self.experience: list[Experience] = []
        self.reports: list[ActorReport] = []
        self.drained_s: list[float] = []
        self.drained_at_s = float("inf")
        self.waits = 0
        self.on_wait: Callable[[], None] = lambda: None
        self.wanted = EnvChange()

    def clock(self) -> float:
        return self.now_s

    def hello(self, message: Hello, timeout_s: float = 0.0) -> bool:
        self.calls.append("hello")
        if not self.open:
            self._wait(timeout_s)
        return self.open

    def may_begin(self, seq: int, timeout_s: float = 0.0) -> bool:
        if seq > self.granted:
            self._wait(timeout_s)
        return seq <= self.granted

    def send(self, message: Experience | ActorReport | EvaluationReport, timeout_s: float) -> bool:
        if isinstance(message, ActorReport):
            self.calls.append("final report" if message.final else "report")
            self.reports.append(message)
            return True
        assert isinstance(message, Experience)
        if not self.credit:
            self._wait(timeout_s)
            return False
        self.credit -= 1
        self.calls.append("experience")
        self.experience.append(message)
        return True

    def latest_model(
        self, topic: Topic, newer_than: int, timeout_s: float = 0.0
    ) -> ModelInfo | None:
        assert topic == "act"
        newer = [model for model in self.models if model.version > newer_than]
        if not newer:
            self._wait(timeout_s)
        return newer[-1] if newer else None

    def env_change(self, newer_than: int) -> EnvChange | None:
        return self.wanted if self.wanted.number > newer_than else None

    def stopping(self) -> bool:
        return self.stop

    def drain(self, timeout_s: float) -> bool:
        self.calls.append("drain")
        self.drained_s.append(timeout_s)
        self.now_s += timeout_s
        return self.now_s >= self.drained_at_s

    def close(self) -> None: ...

    def _wait(self, timeout_s: float) -> None:
        self.now_s += timeout_s
        if timeout_s:
            self.waits += 1
            self.on_wait()


class WatchedProgress:
    """Keeps what an actor says of its progress, and may act on each turn."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.waits: list[bool] = []
        self.replaced = False
        self.on_turn: Callable[[], None] = lambda: None

    def turn(self, produced: int) -> None:
        self.turns.append(produced)
        self.on_turn()

    def waiting(self, waiting: bool) -> None:
        self.waits.append(waiting)

    def finishing(self) -> bool:
        return self.replaced


class WatchedBatch(CountingBatch):
    """A counting batch that keeps the seeds it was reset with and the actions it was given."""

    def __init__(self, n_envs: int = 2, length: int = 3) -> None:
        super().__init__(n_envs, length)
        self.seeds: list[int] = []
        self.actions: list[list[int]] = []

    def reset(self, seed: int) -> Array:
        self.seeds.append(seed)
        return super().reset(seed)

    def step(self, action: Array) -> EnvStep:
        self.actions.append(action.tolist())
        return super().step(action)


class Stage:
    """An actor, and fakes of all it uses."""

    def __init__(
        self,
        *versions: int,
        policy: ConstantAgent | None = None,
        processor: StepProcessor | None = None,
        **env: int,
    ) -> None:
        self.link = FakeLink(*versions)
        self.env = WatchedBatch(**env)
        self.policy = policy or ConstantAgent(9)
        self.progress = WatchedProgress()
        config = SegmentConfig(length=2)
        self.outbox = Outbox(PEER, SCHEMA, config, self.env.n_envs)
        self.actor = Actor(
            PEER,
            self.env,
            self.policy,
            processor or OneStep(),
            self.outbox,
            self.link,
            progress=self.progress,
            clock=self.link.clock,
        )

    def stop_after(self, turns: int, *, seconds_a_turn: float = 0.0) -> None:
        def on_turn() -> None:
            self.link.now_s += seconds_a_turn
            self.link.stop = len(self.progress.turns) >= turns

        self.progress.on_turn = on_turn

    def sent(self) -> list[tuple[list[float], int]]:
        """Return observation and action of all transitions that were sent, in order."""
        found = []
        for number, message in enumerate(self.link.experience, start=1):
            assert message.seq == number
            for k, rows in enumerate(message.rows):
                for t in range(min(SCHEMA.length, rows)):
                    if message.columns["flags"][k, t] < END:
                        action = int(message.columns["action"][k, t])
                        found.append((message.columns["obs"][k, t].tolist(), action))
        return found


def test_whole_session_in_order() -> None:
    stage = Stage(4)
    stage.stop_after(5)
    stage.actor.run(HELLO, seed=7)
    assert stage.env.seeds == [7]
    assert stage.env.actions == [[4, 4]] * 5
    assert stage.link.calls == [
        "hello",
        *["experience"] * len(stage.link.experience),
        "final report",
        "drain",
    ]
    assert stage.progress.turns == [2, 4, 6, 8, 10]
    expected = [([float(i), float(t % 3)], 4) for i in range(2) for t in range(5)]
    assert sorted(stage.sent()) == sorted(expected)
    assert sum(message.transitions for message in stage.link.experience) == 10


@pytest.mark.fault("F16")
def test_actor_that_is_not_let_in_waits_and_leaves_its_manager_to_judge() -> None:
    """The manager counts only silence during which it ran: no other process knows that."""
    stage = Stage(4)
    stage.stop_after(1)
    stage.link.open = False

    def open_after_an_hour() -> None:
        assert stage.progress.waits == stage.progress.turns == []
        assert stage.env.seeds == []
        stage.link.open = stage.link.now_s > 3600

    stage.link.on_wait = open_after_an_hour
    stage.actor.run(HELLO, seed=7)
    assert set(stage.link.calls[: stage.link.waits]) == {"hello"}
    assert stage.link.waits > 10_000, "it waits in slices"
    assert stage.env.actions == [[4, 4]]


@pytest.mark.behaviour(number=31)
@pytest.mark.fault("F31")
def test_nothing_acts_before_the_first_model() -> None:
    stage = Stage()

    def publish_on_the_third_wait() -> None:
        assert stage.env.seeds == []
        slices = stage.link.waits
        assert stage.progress.waits == [True] * slices, "said again with each slice of the wait"
        if stage.link.waits == 3:
            stage.link.models = FakeLink(0).models

    stage.link.on_wait = publish_on_the_third_wait
    stage.policy.train(False)
    stage.actor.start(seed=1)
    assert stage.link.waits == 3
    assert stage.policy.training, "it explores"
    assert stage.progress.waits == [True] * 4 + [False]
    stage.actor.run_step()
    assert stage.env.actions == [[0, 0]]


class EachStep(OneStep):
    """Steps that another processor turns into rows are stored at once."""


FORMS: dict[str, Callable[[Array], Any]] = {
    "rows": lambda value: value,
    "list": lambda value: value.tolist(),
    "number": lambda value: float(value[0]),
    "tensor": torch.from_numpy,
    "sometimes integers": lambda value: value.astype(np.int64) if value[0] % 200 else value,
}


class Reusing(ConstantAgent):
    """Returns the same arrays from each act, with new numbers."""

    def __init__(self, n_envs: int, form: str) -> None:
        super().__init__()
        self._act = Act(np.zeros(n_envs, np.int64))
        self._value = np.zeros(n_envs, np.float32)
        self._form = FORMS[form]
        self._acts = 0

    def act(self, obs: Array) -> Act:
        self._acts += 1
        self._act.action[:] = self.params["action"] + self._acts % 3
        self._value[:] = 100 * self._acts + np.arange(len(obs))
        self._act.extras["value"] = self._form(self._value)
        return self._act


class ReusingBatch(CountingBatch):
    """Returns the same rewards and flags from each step, and two observations in turn.

    Its infos have numbers in some steps that end no episode.
    """

    _reused: tuple[Array, ...] = ()

    def reset(self, seed: int) -> Array:
        obs = super().reset(seed)
        self._turn_about = [obs.copy(), obs.copy()]
        return obs

    def step(self, action: Array) -> EnvStep:
        out = super().step(action)
        if not self._reused:
            self._reused = out[1:4]
        for array, new in zip(self._reused, out[1:4], strict=True):
            array[:] = new
        reward, terminated, truncated = self._reused
        if out.obs is out.final_obs:
            obs = self._turn_about[int(self._steps.sum()) % 2]
            obs[:] = out.obs
            out = out._replace(obs=obs, final_obs=obs)
        info = {"steps": self._steps.astype(np.float32)} if self._steps[0] % 5 == 0 else None
        return EnvStep(out.obs, reward, terminated, truncated, out.final_obs, info=info)


def sent_in(
    processor: OneStep,
    *,
    n_envs: int,
    episode: int,
    length: int,
    lookahead: int,
    form: str,
    granted: int,
    cut_each: int,
) -> list[Any]:
    """Return all that an actor sends, with the turn of each message.

    Each wait grants messages, and after some turns streams are cut in the middle of episodes.
    """
    columns = processor.columns(COUNTING_SPEC, (ColumnSpec("value", "float32"),))
    schema = make_schema(columns, length=length, lookahead=lookahead)
    link, progress = FakeLink(0), WatchedProgress()
    link.granted = 0
    actor = Actor(
        PEER,
        ReusingBatch(n_envs, episode),
        Reusing(n_envs, form),
        processor,
        Outbox(PEER, schema, SegmentConfig(length=length), n_envs),
        link,
        progress=progress,
        clock=link.clock,
    )
    found: list[Any] = []

    def look() -> None:
        turn = len(progress.turns)
        for m in link.experience:
            columns = {name: column.tolist() for name, column in m.columns.items()}
            counts = m.seq, m.produced, m.env_steps, m.transitions, m.model_version
            found.append((turn, counts, m.rows.tolist(), columns))
        link.experience.clear()
        link.models += FakeLink(turn // 5).models
        link.stop = turn >= 80
        link.now_s += 0.3  # so that a report comes every few steps
        if turn % cut_each == 0:
            actor.finish_streams(goes_on=True)

    def grant() -> None:
        link.granted += granted

    progress.on_turn, link.on_wait = look, grant
    actor.run(HELLO, seed=7)
    look()
    for r in link.reports:
        episodes = r.episode_returns.tolist(), r.episode_lengths.tolist()
        found.append((r.produced, r.env_steps, r.info_sums, episodes))
    return [*found, progress.turns]


@given(
    n_envs=st.integers(1, 3),
    episode=st.integers(1, 30),
    length=st.integers(1, 20),
    lookahead=st.integers(1, 3),
    form=st.sampled_from(sorted(FORMS)),
    granted=st.integers(1, 4),
    cut_each=st.integers(1, 60),
)
@settings(max_examples=examples(60, usual=15), deadline=None)
def test_steps_that_are_kept_arrive_like_steps_that_are_stored_at_once(**course: Any) -> None:
    assert sent_in(OneStep(), **course) == sent_in(EachStep(), **course)


def test_first_step_is_stored_at_once_and_those_that_follow_together() -> None:
    schema = make_schema(OneStep().columns(COUNTING_SPEC, ()), length=20, lookahead=1)
    actor: Any = Stage(0, length=100).actor
    stored: list[int] = []
    actor._outbox, store = Outbox(PEER, schema, SegmentConfig(length=20), 2), actor._store
    actor._store = lambda: (stored.append(len(actor._kept)), store())
    actor.start(seed=1)
    for _ in range(10):
        actor.run_step()
    assert stored == [1], "what was declared wrongly is refused now"


def test_columns_of_changing_shape_are_refused_by_name() -> None:
    stage = Stage(0, length=100)
    acts = iter([Act(np.zeros(2, np.int64)), Act(np.zeros(2, np.int64), {"value": np.zeros(2)})])
    stage.policy.act = lambda _: next(acts)  # type: ignore[method-assign]
    stage.actor.start(seed=1)
    stage.actor.run_step()
    with pytest.raises(ConfigError, match="rows have a column 'value'"):
        stage.actor.run_step()


def test_actor_acts_for_what_is_granted_with_the_newest_model() -> None:
    """It holds still beforehand, so that nothing it makes is old when it is stored."""
    stage = Stage(0, length=100)
    stage.stop_after(4)
    stage.link.granted = 1

    def want_more_on_the_third_wait() -> None:
        assert stage.progress.waits[-1] is True
        assert stage.env.actions == [[0, 0]] * 2, "all of the first message"
        assert len(stage.sent()) == 4, "which is sent without the step that follows it"
        stage.link.models += FakeLink(stage.link.waits).models
        if stage.link.waits == 3:
            stage.link.granted = 2

    stage.link.on_wait = want_more_on_the_third_wait
    stage.actor.run(HELLO, seed=1)
    assert stage.link.waits == 3
    assert stage.progress.waits[-1] is False
    assert stage.env.actions[2:] == [[3, 3]] * 2
    assert sum(stage.link.reports[-1].shares.values()) > 0


@pytest.mark.fault("F30")
def test_actor_without_credit_waits_for_it() -> None:
    stage = Stage(0)
    stage.link.credit = 1

    def credit_on_the_fifth_wait() -> None:
        assert stage.progress.waits[-1] is True
        if stage.link.waits == 5:
            stage.link.credit = 10**9

    stage.link.on_wait = credit_on_the_fifth_wait
    stage.stop_after(12)
    stage.actor.run(HELLO, seed=1)
    assert stage.link.waits == 5
    model, credit = [True, False], [True] * 6 + [False]
    assert stage.progress.waits == model + credit
    assert len(stage.sent()) == stage.outbox.produced == 24
    assert stage.link.reports[-1].shares["wait"] >= 0


def test_nothing_is_sent_after_a_message_that_was_given_up() -> None:
    """A gap would make the learner count messages as missing that never left."""
    stage = Stage(0, n_envs=6)
    stage.outbox._n_segments = 1
    stage.link.credit = 0
    waited_out = False

    def credit_when_it_is_too_late() -> None:
        nonlocal waited_out
        stage.link.stop = True
        waited_out = stage.link.now_s > DRAIN_S

    stage.link.on_wait = credit_when_it_is_too_late
    stage.actor.start(seed=1)
    while not waited_out:
        stage.actor.run_step()
    stage.link.credit = 10**9
    stage.actor.finish()
    assert stage.link.experience == []
    assert stage.link.calls == ["final report", "drain"]
    assert stage.link.drained_s == [0.0], "the time is used up"


@pytest.mark.fault("F3", "F30")
@pytest.mark.parametrize("ends", [False, True])
def test_actor_that_is_replaced_waits_for_the_learner_while_the_run_continues(
    *, ends: bool
) -> None:
    stage = Stage(0, n_envs=6)
    stage.outbox._n_segments = 1
    stage.link.credit = 2
    stage.link.drained_at_s = 10 * DRAIN_S

    def time_passes() -> None:
        stage.progress.replaced = stage.link.now_s >= 3.0
        if stage.link.now_s >= 5 * DRAIN_S:
            stage.link.stop = ends
            stage.link.credit = 0 if ends else 10**9

    stage.link.on_wait = time_passes
    stage.actor.run(HELLO, seed=1)
    lost = stage.outbox.produced - len(stage.sent())
    if ends:
        assert lost > 0
        assert stage.link.now_s <= 6 * DRAIN_S + 1.0, "the end of the run has a deadline"
    else:
        assert lost == 0, "however late the learner gives credit"
        assert stage.link.now_s == pytest.approx(10 * DRAIN_S, abs=0.2)
        assert set(stage.progress.waits[-100:]) == {True}, "signs of life"
    assert stage.link.reports[-1].final


def test_reports_come_at_intervals_and_report_what_is_new() -> None:
    stage = Stage(0, n_envs=2, length=3)
    stage.stop_after(12, seconds_a_turn=0.25)
    stage.actor.run(HELLO, seed=1)
    *reports, final = stage.link.reports
    assert [report.env_steps for report in reports] == [8, 16, 24]
    assert [report.final for report in reports] == [False, False, False]
    assert final.final
    assert [report.episodes for report in stage.link.reports] == [2, 4, 8, 8]
    assert [len(report.episode_returns) for report in stage.link.reports] == [2, 2, 4, 0]
    assert reports[0].episode_returns.tolist() == [0.0, 30.0]
    assert reports[0].episode_lengths.tolist() == [3, 3]
    assert all(report.peer == PEER for report in stage.link.reports)
    assert {"env", "policy", "wait", "send"} <= set(reports[0].shares) <= set(ACTOR_PHASES)


# --- environments that fail ----------------------------------------------------------------------


class Failing(WatchedBatch):
    """Raises at one of its steps, counted from 1; its rows begin with its number."""

    def __init__(self, at_step: int, error: BaseException, *, name: int = 0) -> None:
        super().__init__(length=10**6)
        self._at_step, self._error, self._name = at_step, error, name

    def step(self, action: Array) -> EnvStep:
        if len(self.actions) + 1 == self._at_step:
            raise self._error
        return super().step(action)

    def _obs(self, steps: Array) -> Array:
        return super()._obs(steps) + np.array([100.0 * self._name, 0.0], np.float32)


class Rebuilder:
    """Gives an actor new environments from a list, and keeps the failures."""

    def __init__(self, *envs: CountingBatch | Exception, wait_s: float = 0.0) -> None:
        self.envs = list(envs)
        self.wait_s = wait_s
        self.failures: list[tuple[str, int]] = []
        self.allowed = 10**9

    def allow(self, error: BaseException, *, env_steps: int) -> float:
        self.failures.append((str(error), env_steps))
        if len(self.failures) > self.allowed:
            raise RuntimeError("once too often") from error
        return self.wait_s

    def make(self) -> NewEnv:
        env = self.envs.pop(0)
        if isinstance(env, Exception):
            raise env
        return NewEnv(env, env.reset(seed=1), OneStep())


def failing_stage(rebuilder: Rebuilder, *, policy: ConstantAgent | None = None) -> Stage:
    stage = Stage(0, policy=policy)
    stage.actor._env = Failing(4, RuntimeError("the physics exploded"))
    stage.actor._rebuilder = rebuilder
    return stage


def runs(stage: Stage, name: int) -> list[list[float]]:
    """Return the steps at which transitions of the first environment of a batch begin."""
    return sorted(obs for obs, _ in stage.sent() if obs[0] == 100 * name)


@pytest.mark.fault("F4")
def test_actor_continues_in_new_environments_and_the_failed_step_leaves_no_trace() -> None:
    rebuilder = Rebuilder(Failing(3, SystemExit("again"), name=1), Failing(0, OSError(), name=2))
    stage = failing_stage(rebuilder)
    stage.stop_after(9)
    stage.actor.run(HELLO, seed=1)
    assert rebuilder.failures == [("the physics exploded", 6), ("again", 10)]
    assert runs(stage, 0) == [[0, 0], [0, 1], [0, 2]], "it was the fourth step that failed"
    assert runs(stage, 1) == [[100, 0], [100, 1]]
    assert runs(stage, 2) == [[200, 0], [200, 1]]
    assert len(stage.sent()) == stage.outbox.produced == 14
    assert stage.progress.turns == [2, 4, 6, 6, 8, 10, 10, 12, 14]
    assert stage.link.reports[-1].policy["env_restarts"] == 2


@pytest.mark.fault("F4")
def test_episodes_of_failed_environments_are_cut_not_ended() -> None:
    stage = failing_stage(Rebuilder(Failing(0, OSError(), name=1)))
    stage.stop_after(6)
    stage.actor.run(HELLO, seed=1)
    followed = set()
    for message in stage.link.experience:
        obs, flags = message.columns["obs"], message.columns["flags"]
        for k, rows in enumerate(message.rows):
            assert not (flags[k, :rows] & (TERMINATED | TRUNCATED)).any()
            for t in range(rows - 1):
                if flags[k, t] < END:
                    followed.add((*obs[k, t], *obs[k, t + 1]))
    assert {(a, b, a, b + 1) for a in (0, 1) for b in (0, 1, 2)} <= followed
    assert all(here == there for here, _, there, _ in followed), "none leads to another batch"
    assert (stage.link.reports[-1].episodes, stage.link.reports[-1].env_steps) == (0, 10)


@pytest.mark.fault("F4")
def test_memory_of_a_policy_is_cleared_with_the_environments() -> None:
    policy = CountingMemory()
    stage = failing_stage(Rebuilder(Failing(0, OSError())), policy=policy)
    stage.stop_after(4)
    stage.actor.run(HELLO, seed=1)
    assert policy.forgotten == [[True, True], *[[False, False]] * 3, [True, True]]


@pytest.mark.fault("F4", "F6")
def test_actor_sends_heartbeats_and_takes_models_while_it_waits_for_environments() -> None:
    stage = failing_stage(Rebuilder(ValueError("no licence"), Failing(0, OSError()), wait_s=1.0))
    stage.stop_after(5)
    stage.link.on_wait = lambda: stage.link.models.extend(FakeLink(3).models)
    stage.actor.run(HELLO, seed=1)
    rebuilder = stage.actor._rebuilder
    assert isinstance(rebuilder, Rebuilder)
    assert [words for words, _ in rebuilder.failures] == ["the physics exploded", "no licence"]
    assert stage.link.now_s == pytest.approx(2.0 + DRAIN_S)
    assert stage.progress.waits.count(True) >= 20
    assert stage.progress.waits[-1] is False
    assert isinstance(stage.actor._env, Failing)
    assert stage.actor._env.actions == [[3, 3]]


@pytest.mark.fault("F4")
def test_actor_that_is_to_finish_does_not_wait_for_environments() -> None:
    stage = failing_stage(Rebuilder(wait_s=1000.0))

    def stop() -> None:
        stage.link.stop = True

    stage.link.on_wait = stop
    stage.actor.run(HELLO, seed=1)
    assert stage.link.now_s == pytest.approx(0.1 + DRAIN_S)
    assert stage.link.calls[-2:] == ["final report", "drain"]
    assert len(stage.sent()) == stage.outbox.produced == 6


# --- the meter -----------------------------------------------------------------------------------


def outcome(
    reward: list[float], ended: list[int], stepped: tuple[int, int] = (1, 1), *, cut: bool = False
) -> EnvStep:
    obs, never = np.zeros((2, 1)), np.zeros(2, bool)
    ends = (never, np.array(ended, bool))[:: 1 if cut else -1]
    return EnvStep(obs, np.array(reward, np.float32), *ends, obs, np.array(stepped, bool))


def taken(meter: EpisodeMeter) -> tuple[tuple[float, ...], tuple[int, ...]]:
    returns, lengths = meter.take()
    return tuple(returns.tolist()), tuple(lengths.tolist())


def test_meter_adds_up_each_environment_on_its_own_without_steps_that_only_reset() -> None:
    meter = EpisodeMeter(2)
    meter.update(outcome([1, 10], [0, 1]))
    meter.update(outcome([2, 0], [0, 0], (1, 0)))
    assert taken(meter) == ((10.0,), (1,))
    meter.update(outcome([4, 30], [1, 1], cut=True))
    assert (meter.env_steps, meter.episodes) == (5, 3)
    assert taken(meter) == ((7.0, 30.0), (3, 1))


def test_meter_counts_the_environments_score_not_the_learners_reward() -> None:
    meter = EpisodeMeter(2)
    failures = outcome([1, 1], [1, 1])
    score, over = np.array([7, 20], np.float32), np.array([False, True])
    meter.update(failures._replace(score=score, over=over))
    meter.update(failures)
    assert meter.episodes == 3
    assert taken(meter) == ((20.0, 8.0, 1.0), (1, 2, 1))
