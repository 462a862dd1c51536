"""An actor's turn: newest model, act, step, process, push. Does not know its process.

This is where experience begins. `step_processor.py` turns a step into rows, `outbox.py` rows into
messages; the link carries them to `replay_buffer_proxy.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from asyncrl.agent import Policy, Remembers, forget
from asyncrl.env import BatchEnv, EnvStep
from asyncrl.launcher import Progress
from asyncrl.messages import ActorReport, Experience, Hello, Peer
from asyncrl.outbox import Outbox
from asyncrl.step_processor import Step, StepProcessor
from asyncrl.timing import Stopwatch
from asyncrl.transport import ActorLink
from asyncrl.types import ModelVersion

__all__ = ["Actor", "EpisodeMeter"]

_WAIT_S = 0.1
"""One slice of waiting; between two slices the actor looks whether it is to finish."""

_REPORT_INTERVAL_S = 1.0
_DRAIN_S = 10.0
"""What an actor that is to finish may take, in all, to get rid of what it has."""


class Actor:
    """Steps a batch of environments with a policy and sends what happened."""

    def __init__(
        self,
        peer: Peer,
        env: BatchEnv,
        policy: Policy,
        processor: StepProcessor,
        outbox: Outbox,
        link: ActorLink,
        *,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peer = peer
        self._env = env
        self._policy = policy
        self._remembers = isinstance(policy, Remembers)  # asked here, since asking takes a while
        self._processor = processor
        self._outbox = outbox
        self._link = link
        self._progress = progress
        self._clock = clock
        self._meter = EpisodeMeter(env.n_envs)
        self._watch = Stopwatch()
        self._version = ModelVersion(-1)
        self._reported_at = clock()
        self._finish_by = float("inf")
        self._gave_up = False

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return self._meter.env_steps

    def run(self, hello: Hello, seed: int) -> None:
        """Live a whole life: first model, steps until asked to finish, and the last words."""
        self._link.hello(hello)
        self.start(seed)
        while not self._link.stopping():
            self.run_step()
            self._progress.turn(self._outbox.produced)
            if self._clock() - self._reported_at >= _REPORT_INTERVAL_S:
                self._reported_at = self._clock()
                self._link.send(self.report(), timeout_s=_WAIT_S)
        self.finish()

    def start(self, seed: int) -> None:
        """Wait for a first real model, then reset the environments: nothing acts before it."""
        self._watch.start()
        self._policy.train()
        while self._version < 0 and not self._link.stopping():
            self._progress.waiting(True)
            self._sync_model(timeout_s=_WAIT_S)
        self._progress.waiting(False)
        self._watch.lap("wait")
        self._obs = self._env.reset(seed)
        forget(self._policy, np.ones(self._env.n_envs, np.bool_))
        self._watch.lap("env")

    def run_step(self) -> None:
        """Take one step in all environments."""
        self._sync_model()
        act = self._policy.act(self._obs)
        self._watch.lap("policy")
        outcome = self._env.step(act.action)
        self._watch.lap("env")
        self._meter.update(outcome)
        for rows in self._processor.process(Step(self._obs, act, outcome, self._version)):
            self._outbox.push(rows)
        self._obs = outcome.obs
        if self._remembers:
            forget(self._policy, outcome.begins)
        self._send_ready()
        self._watch.lap("send")

    def finish_streams(self) -> None:
        """Cut every stream where it stands, and send what that leaves."""
        for rows in self._processor.finish(self._obs):
            self._outbox.push(rows)
        self._outbox.finish()
        self._send_ready()

    def finish(self) -> None:
        """Send the tail, give the last report, and wait until all of it is stored."""
        if self._outbox.produced:
            self.finish_streams()
        self._link.send(self.report(final=True), timeout_s=_WAIT_S)
        self._link.drain(self._time_left_s())

    def report(self, *, final: bool = False) -> ActorReport:
        """Tell what happened since the last report."""
        returns, lengths = self._meter.take()
        return ActorReport(
            peer=self._peer,
            produced=self._outbox.produced,
            env_steps=self._meter.env_steps,
            episodes=self._meter.episodes,
            shares={phase: seconds for phase, (seconds, _) in self._watch.take().items()},
            episode_returns=returns,
            episode_lengths=lengths,
            policy=_floats({**self._policy.record(), **self._processor.record()}),
            final=final,
        )

    def _sync_model(self, timeout_s: float = 0.0) -> None:
        info = self._link.latest_model("act", self._version, timeout_s)
        if info is not None:
            self._policy.sync_model(info)
            self._version = info.version

    def _send_ready(self) -> None:
        while not self._gave_up:
            message = self._outbox.take(self._version, self._meter.env_steps)
            if message is None:
                return
            if not self._link.send(message, timeout_s=0.0):
                self._watch.lap("send")
                self._gave_up = not self._wait_for_credit(message)
                self._watch.lap("wait")

    def _wait_for_credit(self, message: Experience) -> bool:
        """Send, as soon as the learner allows it; False if it did not while there was time.

        Waiting is the normal state of an actor whose learner is the slower one. After a message
        that was given up no other is sent: their numbers have no gaps.
        """
        self._progress.waiting(True)
        while not (sent := self._link.send(message, timeout_s=_WAIT_S)):
            self._progress.waiting(True)
            if self._link.stopping() and self._time_left_s() <= 0:
                break
        self._progress.waiting(False)
        return sent

    def _time_left_s(self) -> float:
        """Return how much longer finishing may take; the time runs from the first call on."""
        now = self._clock()
        self._finish_by = min(self._finish_by, now + _DRAIN_S)
        return max(0.0, self._finish_by - now)


class EpisodeMeter:
    """Counts steps and episodes, and adds up returns, over a batch of environments."""

    def __init__(self, n_envs: int) -> None:
        self._return = np.zeros(n_envs, np.float64)
        self._length = np.zeros(n_envs, np.int64)
        self._ended: list[tuple[float, int]] = []
        self.env_steps = 0
        self.episodes = 0

    def update(self, outcome: EnvStep) -> None:
        """Take one step of all environments into account."""
        reward, over = outcome.counted
        self._return += reward
        if outcome.stepped is None:
            self._length += 1
            self.env_steps += len(outcome.reward)
        else:
            self._length += outcome.stepped
            self.env_steps += int(np.count_nonzero(outcome.stepped))
        ended = over.nonzero()[0]
        if len(ended):
            self.episodes += len(ended)
            self._ended += zip(
                self._return[ended].tolist(), self._length[ended].tolist(), strict=True
            )
            self._return[ended] = 0.0
            self._length[ended] = 0

    def take(self) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Return returns and lengths of the episodes that ended since the last call."""
        ended, self._ended = self._ended, []
        return tuple(r for r, _ in ended), tuple(n for _, n in ended)


def _floats(record: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in record.items()}
