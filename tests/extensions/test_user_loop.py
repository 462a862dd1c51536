"""A loop of the user's as the environment of an actor: who waits for whom, and what is stored."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncrl.actor.acting_model import NoAnswer
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, EnvStep
from asyncrl.core.errors import ConfigError, TransportClosed, TransportError
from asyncrl.extensions.connect.user_loop import UserLoop
from tests.support.helpers import wait_until

DEADLINE_S = 30.0
SPEC = EnvSpec(
    BoxSpec((2,), "float32", np.full(2, -9, "float32"), np.full(2, 9, "float32")), DiscreteSpec(4)
)


class ActorSide:
    """The actor's calls, in a thread; what they return is kept."""

    def __init__(self, loop: UserLoop) -> None:
        self.loop = loop
        self.finish = threading.Event()
        self.steps: list[EnvStep] = []
        self.error: Exception | None = None
        loop.begin(self.finish.is_set)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.first = self.loop.reset(0)
            while True:
                self.steps.append(self.loop.step(np.array([len(self.steps) % 4])))
                if self.finish.is_set():
                    return
        except NoAnswer as error:
            self.error = error

    def end(self) -> None:
        self.finish.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def loop() -> UserLoop:
    return UserLoop(SPEC)


def observe(loop: UserLoop, reward: float = 1.0, **more: Any) -> None:
    given = {"terminated": False, "truncated": False, "info": {}, "obs": None} | more
    loop.observe(reward, **given)


def test_steps_are_those_of_the_loop(loop: UserLoop) -> None:
    actor = ActorSide(loop)
    assert loop.act([0, 1], DEADLINE_S) == 0
    observe(loop, 0.5)
    assert loop.act([0, 2], DEADLINE_S) == 1
    loop.override(3)
    observe(loop, 1.5, truncated=True, obs=[0, 3], info={"is_success": True})
    assert loop.act([5, 5], DEADLINE_S) == 2
    observe(loop, terminated=True)
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
    assert "no observation" in str(before.error)
    acts = ActorSide(loop)
    loop.act([0, 1], DEADLINE_S)
    acts.end()
    assert "outcome" in str(acts.error)
    after = ActorSide(loop)
    observe(loop, 7.0)  # of the actor before, whose episode was cut
    assert loop.act([0, 2], DEADLINE_S) == 0
    observe(loop, 8.0, terminated=True)
    after.end()
    assert [step.reward for step in after.steps] == [8.0]


def test_an_action_that_is_late_is_that_of_the_next_call(loop: UserLoop) -> None:
    loop.why_waiting = "the learner is away"
    with pytest.raises(TransportError, match=r"no action within 0.01 s: the learner is away"):
        loop.act([0, 1], 0.01)
    actor = ActorSide(loop)
    assert loop.act([0, 1], DEADLINE_S) == 0
    with pytest.raises(ConfigError, match="call observe"):
        loop.act([0, 2], DEADLINE_S)
    actor.end()


def test_another_observation_gets_no_action_of_the_one_before(loop: UserLoop) -> None:
    with pytest.raises(TransportError):
        loop.act([0, 1], 0.01)
    with pytest.raises(TransportError):
        loop.act([0, 2], 0.01)  # no actor has the first one
    loop.begin(one := lambda: False)
    np.testing.assert_array_equal(loop.reset(0), [[0, 2]])
    with pytest.raises(ConfigError, match=r"another observation .* array\(\[0\., 2\.\]"):
        loop.act([0, 3], 0.01)
    assert loop.leave(one)
    with pytest.raises(TransportError):
        loop.act([0, 3], 0.01)


def test_actor_that_ends_late_takes_nothing_from_the_next_one(loop: UserLoop) -> None:
    loop.begin(killed := lambda: False)
    after = ActorSide(loop)
    with pytest.raises(TransportError):
        loop.act([0, 1], 0.0)
    wait_until(lambda: loop._action is not None, DEADLINE_S, "the action")
    assert not loop.leave(killed)
    assert loop.act([0, 1], DEADLINE_S) == 0
    after.end()


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (lambda loop: loop.act([1], 1.0), r"must be float32 of shape \(2,\), got int64 of shape"),
        (lambda loop: loop.act([np.nan, 0], 1.0), "must be finite"),
        (lambda loop: loop.act("a picture", 1.0), "an observation must be"),
        (observe, "call act before observe"),
        (lambda loop: observe(loop, np.inf), "reward must be finite"),
        (lambda loop: observe(loop, info={"is_success": "yes"}), "is_success of an info must be"),
        (lambda loop: observe(loop, truncated=True), "needs its last observation"),
        (lambda loop: loop.override(1), "call override between act and observe"),
        (lambda loop: loop.override([1]), r"of shape \(\), got int64 of shape \(1,\)"),
        (lambda loop: loop.override(0.5), "an action must be int64"),
        (lambda loop: loop.override(4), "from 0 to 3, got 4"),
        (lambda loop: loop.override(-1), "from 0 to 3, got -1"),
    ],
)
def test_what_does_not_fit_is_refused(
    loop: UserLoop, does: Callable[[UserLoop], object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        does(loop)


def test_the_end_is_raised(loop: UserLoop) -> None:
    loop.end(TransportClosed("the run has ended"))
    with pytest.raises(TransportClosed, match="the run has ended"):
        loop.act([0, 1], DEADLINE_S)
