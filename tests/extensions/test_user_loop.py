"""A loop of the user's as the environment of an actor: who waits for whom, and what is stored."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from asyncrl.actor.acting_model import NoAnswer
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, EnvStep, PackedSpec
from asyncrl.core.errors import ConfigError, TransportClosed, TransportError
from asyncrl.extensions.connect.user_loop import UserLoop
from tests.support.helpers import wait_until

DEADLINE_S = 30.0
SPEC = EnvSpec(
    BoxSpec((2,), "float32", np.full(2, -9, "float32"), np.full(2, 9, "float32")), DiscreteSpec(4)
)
PIXELS = replace(SPEC, observation=replace(SPEC.observation, dtype="uint8"))
SEVERAL = replace(
    SPEC,
    observation=PackedSpec((("a", PIXELS.observation), ("b/1", SPEC.observation))),  # type: ignore[arg-type]
)


class ActorSide:
    """The actor's calls, in a thread; what they return is kept."""

    def __init__(self, loop: UserLoop, runs: Callable[[ActorSide], object] | None = None) -> None:
        self.finish = threading.Event()
        self.steps: list[EnvStep] = []
        self.error: Exception | None = None
        self.env = loop.make_env()
        self.run = lambda *_: (runs or ActorSide.steps_on)(self)
        self._thread = threading.Thread(target=loop._run, args=(self, None, 0))
        self._thread.start()

    def may_wait(self) -> bool:
        return not self.finish.is_set()

    def steps_on(self) -> None:
        try:
            self.first = self.env.reset(0)
            while not self.finish.is_set():
                self.steps.append(self.env.step(np.array([len(self.steps) % 4])))
        except NoAnswer as error:
            self.error = error
            raise

    def end(self) -> None:
        self.finish.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def loop() -> UserLoop:
    return UserLoop(SPEC, DEADLINE_S)


def test_an_observation_may_have_several_arrays() -> None:
    loop = UserLoop(SEVERAL, DEADLINE_S)
    actor = ActorSide(loop)
    loop.act({"b/1": [0.5, 2], "a": [3, 4]})
    actor.end()
    packed = SEVERAL.observation.unpack(actor.first)  # type: ignore[union-attr]
    np.testing.assert_array_equal(packed["a"], [[3, 4]])
    np.testing.assert_array_equal(packed["b/1"], [[0.5, 2]])
    for wrong in ({"a": [3, 4]}, {"a": [3], "b/1": [0, 0]}, [3, 4]):
        with pytest.raises(ConfigError, match=r"^(a|b/1|an observation) must be .* of shape"):
            loop.act(wrong)


def test_steps_are_those_of_the_loop(loop: UserLoop) -> None:
    actor = ActorSide(loop)
    assert loop.act([0, 1]) == 0
    loop.observe(0.5)
    assert loop.act([0, 2]) == 1
    loop.override(3)
    loop.observe(1.5, truncated=True, obs=[0, 3], info={"is_success": True})
    assert loop.act([5, 5]) == 2
    loop.observe(1.0, terminated=True)
    actor.end()
    assert actor.error is None, "the last step was complete, so it is kept"
    np.testing.assert_array_equal(actor.first, [[0, 1]])
    first, second, third = actor.steps
    assert (first.reward, first.truncated, first.action) == (0.5, False, [0])
    assert first.final_obs is first.obs
    np.testing.assert_array_equal(first.obs, [[0, 2]])
    assert second.action is not None
    assert (second.reward, second.truncated, second.action) == (1.5, True, [3])
    np.testing.assert_array_equal(second.final_obs, [[0, 3]])
    np.testing.assert_array_equal(second.obs, [[5, 5]])
    assert second.info == {"success": [1.0]}
    assert third.terminated
    np.testing.assert_array_equal(third.final_obs, [[5, 5]])


def test_an_actor_that_must_finish_waits_no_longer(loop: UserLoop) -> None:
    before = ActorSide(loop)
    before.end()
    assert "observation" in str(before.error)
    acts = ActorSide(loop)
    loop.act([0, 1])
    acts.end()
    assert "outcome" in str(acts.error)
    after = ActorSide(loop)
    loop.observe(7.0)  # of the actor before, whose episode was cut
    assert loop.act([0, 2]) == 0
    loop.observe(8.0, terminated=True)
    after.end()
    assert [step.reward for step in after.steps] == [8.0]


def test_an_action_that_is_late_is_that_of_the_next_call(loop: UserLoop) -> None:
    loop.why_waiting = "the learner is away"
    with pytest.raises(TransportError, match=r"no action within 0.01 s: the learner is away"):
        loop.act([0, 1], timeout_s=0.01)
    actor = ActorSide(loop)
    assert loop.act([0, 1]) == 0
    with pytest.raises(ConfigError, match="call observe"):
        loop.act([0, 2])
    actor.end()


def test_another_observation_gets_no_action_of_the_one_before(loop: UserLoop) -> None:
    with pytest.raises(TransportError):
        loop.act([0, 1], timeout_s=0.01)
    with pytest.raises(TransportError):
        loop.act([0, 2], timeout_s=0.01)  # no actor has the first one
    actor = ActorSide(loop, lambda one: (one.env.reset(0), one.finish.wait(DEADLINE_S)))
    wait_until(lambda: loop._taken is not None, DEADLINE_S, "the actor to take it")
    with pytest.raises(ConfigError, match=r"another observation .* array\(\[0\., 2\.\]"):
        loop.act([0, 3], timeout_s=0.01)
    actor.end()
    with pytest.raises(TransportError):
        loop.act([0, 3], timeout_s=0.01)


def test_actor_that_ends_late_takes_nothing_from_the_next_one(loop: UserLoop) -> None:
    killed = ActorSide(loop, lambda one: one.finish.wait(DEADLINE_S))
    wait_until(lambda: loop._actor is killed, DEADLINE_S, "it to begin")
    after = ActorSide(loop)
    wait_until(lambda: loop._actor is after, DEADLINE_S, "the next one to begin")
    with pytest.raises(TransportError):
        loop.act([0, 1], timeout_s=0.0)
    wait_until(lambda: loop._action is not None, DEADLINE_S, "the action")
    killed.end()
    assert loop.act([0, 1]) == 0
    after.end()


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (lambda loop: loop.act([1]), r"must be float32 of shape \(2,\), got int64 of shape"),
        (lambda loop: loop.act([np.nan, 0]), "must be finite"),
        (lambda _: UserLoop(PIXELS, 1.0).act([0.5, 0]), "an observation must be uint8"),
        (lambda loop: loop.act("a picture"), "an observation must be"),
        (lambda loop: loop.observe(1.0), "call act before observe"),
        (lambda loop: loop.observe(np.inf), "reward must be finite"),
        (lambda loop: loop.observe(1.0, info={"is_success": "yes"}), "is_success of an info"),
        (lambda loop: loop.observe(1.0, truncated=True), "needs its last observation"),
        (lambda loop: loop.override(1), "call override between act and observe"),
        (lambda loop: loop.override([1]), r"of shape \(\), got int64 of shape \(1,\)"),
        (lambda loop: loop.override(0.5), "an action must be int64"),
        (lambda loop: loop.override(4), "from 0 to 3, got 4"),
        (lambda loop: loop.override(-1), "from 0 to 3, got -1"),
    ],
)
def test_misfits_are_refused(loop: UserLoop, does: Callable[..., object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        does(loop)


def test_the_end_is_raised(loop: UserLoop) -> None:
    loop.end(TransportClosed("the run has ended"))
    with pytest.raises(TransportClosed, match="the run has ended"):
        loop.act([0, 1])
