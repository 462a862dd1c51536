"""One step of an actor: wait for a grant, load the newest model, act, step, process, push.

Does not know the process that it runs in.

This is where experience begins. `step_processor.py` turns a step into rows, `outbox.py` rows into
messages; the link carries them to `replay_buffer_proxy.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from asyncrl.actor.acting_model import ActingModel, NoAnswer, OwnModel
from asyncrl.actor.outbox import Outbox
from asyncrl.actor.step_processor import OneStep, Step, StepProcessor
from asyncrl.core.agent import (
    Act,
    Policy,
    acted,
    as_number,
    counter_of,
    forget,
    recorded,
)
from asyncrl.core.env import BatchEnv, EnvStep
from asyncrl.core.env_checks import checked
from asyncrl.core.messages import ActorReport, EnvChange, Experience, Hello, Peer
from asyncrl.core.transport import ActorLink
from asyncrl.core.types import Array, IntArray
from asyncrl.metrics.stopwatch import Stopwatch, processor_s, waited_for_cores_s

if TYPE_CHECKING:
    from asyncrl.core.launcher import Progress

_WAIT_S = 0.1
"""Length of one wait; between two waits the actor checks whether it must finish."""

_KEPT_BYTES = 1 << 14
"""Limit of the observations that wait to be stored: more would leave the cache meanwhile."""

_REPORT_INTERVAL_S = 1.0
_BUSY = 0.9
"""Share of their time in which environments compute; above it none of it counts as sleep."""

_DRAIN_S = 10.0
"""Total time that a finishing actor may take to send what it has."""


class NewEnv(NamedTuple):
    """Environments that replace failed ones, and what starts over with them."""

    env: BatchEnv
    obs: Array
    """Their first observations."""

    processor: StepProcessor


class EnvRebuilder(Protocol):
    """Rebuilds failed environments, as often as the restart policy allows."""

    def allow(self, error: BaseException, *, env_steps: int) -> float:
        """Close the failed environments; return the backoff in seconds, or raise to end the actor.

        `env_steps` are the environment steps that the actor has made so far.
        """
        ...

    def make(self) -> NewEnv:
        """Build new environments; may fail, too."""
        ...


class EnvChanges(Protocol):
    """Rebuilds environments with other keyword arguments."""

    @property
    def change_number(self) -> int:
        """Number of the change that the environments have; 0 before the first."""
        ...

    def change(self, change: EnvChange) -> NewEnv:
        """Close the environments and build those of this change."""
        ...


class Actor:
    """Steps a batch of environments with a policy and sends the experience.

    Steps in which no episode ends are kept, and stored together: when a segment may be complete, an
    episode ends, or a report is due, and after 16 KiB of observations. Between two steps, other
    processes replace this one's data in the cache: with 64 actors of one environment each on 2
    cores, an actor takes 13 % less CPU time.

    With a `rebuilder` it survives failures of its environments. A step that fails is not stored:
    its outcome is unknown. The steps before it are stored, and all episodes of the batch are cut at
    their last observation, as when an actor stops. So no transition connects the old environments
    with the new ones, and no episode counts as ended: neither as terminated, which would teach that
    a failure has the value 0, nor as truncated, which no environment reported.

    With `changes` it rebuilds its environments with other keyword arguments when the learner has
    published some and the next episode of one of them is over. The other episodes of the batch are
    cut there.
    """

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
        model: ActingModel | None = None,
        rebuilder: EnvRebuilder | None = None,
        changes: EnvChanges | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peer = peer
        self._env = checked(env)
        self._policy = policy
        self._forget = getattr(policy, "forget", None)
        self._counter = counter_of(policy)
        self._processor = processor
        # Other processors may hold rows back, and a cut would end what they collect.
        self._cuts = isinstance(processor, OneStep)
        # What another processor has produced is known only when it has processed each step.
        merges = type(processor) is OneStep and processor.merges
        turn_bytes = max(1, env.n_envs * env.spec.observation.nbytes)
        self._most_kept = _KEPT_BYTES // turn_bytes if merges else 0
        self._kept: list[Step] = []
        self._kept_env_steps = 0
        self._outbox = outbox
        self._link = link
        self._progress = progress
        self._model = model or OwnModel(policy, link)
        self._rebuilder = rebuilder
        self._rebuilt = 0
        self._changes = changes
        self._episodes_looked = 0
        self._clock = clock
        self._meter = EpisodeMeter(env.n_envs)
        self._watch = Stopwatch()
        self._env_busy_s = 0.0
        self._waited_for_cores_s = waited_for_cores_s()
        self._reported_at = clock()
        self._finish_by = float("inf")
        self._has_given_up = False

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return self._meter.env_steps + self._kept_env_steps

    def run(self, hello: Hello, seed: int) -> None:
        """Wait for a model, step until asked to finish, and send the final report."""
        self._arrive(hello)
        self.start(seed)
        while not self._must_finish():
            if not self._link.may_begin(self._outbox.next_seq):
                self._wait_for_grant()
                continue
            self.run_step()
            self._complete_segments()
            self._progress.turn(self._outbox.produced + self._kept_env_steps)
            if self._clock() - self._reported_at >= _REPORT_INTERVAL_S:
                self._reported_at = self._clock()
                self._link.send(self.report(), timeout_s=_WAIT_S)
        self.finish()

    def _arrive(self, hello: Hello) -> None:
        """Wait until the learner admits this actor, or the manager kills it.

        Sends no heartbeat meanwhile, since nothing shows that the actor makes progress. The manager
        has a timeout for starts. It counts only time in which the learner ran.
        """
        while not self._link.hello(hello, _WAIT_S):
            pass

    def start(self, seed: int) -> None:
        """Wait for the first model, then reset the environments, unless it must finish."""
        self._watch.start()
        self._policy.train()
        while self._model.version < 0 and self.may_wait():
            self._model.sync(timeout_s=_WAIT_S)
        self._progress.waiting(False)
        self._watch.lap("wait")
        if self._must_finish():  # a slow reset would delay the end of the run
            return
        self._obs = self._env.reset(seed)
        forget(self._policy, np.ones(self._env.n_envs, np.bool_))
        self._env_busy_s += self._watch.lap("env")

    def run_step(self) -> None:
        """Step all environments once."""
        self._model.sync()
        counted = self._counted()
        try:
            act = acted(self._policy, self._obs)
        except NoAnswer:  # this actor must finish
            return
        self._watch.lap("policy")
        busy_s = processor_s()
        try:
            outcome = self._env.step(act.action)
        except NoAnswer:  # as above, where a program's own loop steps
            return
        except BaseException as error:
            # BaseException includes `sys.exit` in an environment.
            if self._rebuilder is None:
                raise
            self._rebuild_env(self._rebuilder, error)
            return
        self._watch.lap("env")
        self._env_busy_s += processor_s() - busy_s
        self._take_back(outcome, counted)
        self._keep(act, outcome)
        self._obs = outcome.obs
        begins = outcome.begins
        if self._forget is not None:
            self._forget(begins)
        # What is complete, or lacks only a successor, is sent at once.
        is_full = len(self._kept) >= min(self._most_kept, self._outbox.room - 1)
        is_first = not self._meter.env_steps  # a column that was declared wrongly is refused now
        if is_full or is_first or not outcome.is_plain or np.count_nonzero(begins):
            self._store()
            self._send_ready()
        self._watch.lap("send")
        if self._changes is not None and self._meter.episodes != self._episodes_looked:
            self._episodes_looked = self._meter.episodes
            self._change_env(self._changes)

    def _counted(self) -> int:
        """Return the environment steps that the policy knows of; 0 if it knows none."""
        return 0 if self._counter is None else self._counter.env_steps

    def _take_back(self, outcome: EnvStep, before: int) -> None:
        """Let the policy count no step where an environment resets, if it counts rows at all."""
        if self._counter is None or outcome.stepped is None:
            return
        if self._counter.env_steps > before:
            self._counter.env_steps -= len(outcome.stepped) - outcome.env_steps

    def _keep(self, act: Act, outcome: EnvStep) -> None:
        """Keep a step until it is stored; a policy may use its own arrays again meanwhile."""
        if outcome.action is not None:
            act = Act(outcome.action, act.extras)
        obs = self._obs
        if self._most_kept > 1:
            obs = obs.copy()
            extras = {name: np.asarray(rows).copy() for name, rows in act.extras.items()}
            act = Act(np.asarray(act.action).copy(), extras)
        self._kept.append(Step(obs, act, outcome, self._model.version))
        self._kept_env_steps += outcome.env_steps

    def _store(self) -> None:
        """Count the steps that were kept, and push their rows."""
        steps, self._kept, self._kept_env_steps = self._kept, [], 0
        for step in steps[:-1]:
            self._meter.add(step.outcome)
        for step in steps[-1:]:  # only this one can have ended episodes
            self._meter.update(step.outcome)
        if isinstance(self._processor, OneStep) and len(steps) > 1:
            rows_of_all = self._processor.process_all(steps)
        else:
            rows_of_all = (rows for step in steps for rows in self._processor.process(step))
        for rows in rows_of_all:
            self._outbox.push(rows)

    def finish_streams(self, *, goes_on: bool = False) -> None:
        """Cut every stream at its current row and send the segments; see `Outbox.finish`."""
        self._store()
        for rows in self._processor.finish(self._obs):
            self._outbox.push(rows)
        self._outbox.finish(goes_on=goes_on)
        self._send_ready()

    def finish(self) -> None:
        """Send the remaining experience and the final report, and wait until all of it is stored.

        At the end of the run the wait has a deadline. An actor that is replaced during the run
        waits without one, as it does for credit.
        """
        if self.env_steps:
            self.finish_streams()
        report = self.report(final=True)
        self._link.send(report, timeout_s=_WAIT_S)
        while not self._link.stopping():
            self._progress.waiting(True)
            if self._link.drain(_WAIT_S):
                return
        self._link.drain(self._time_left_s())

    def report(self, *, final: bool = False) -> ActorReport:
        """Report what happened since the last report."""
        self._store()
        returns, lengths = self._meter.take()
        info = self._meter.take_info()
        policy = {**recorded(self._policy), **self._processor.record()}
        if self._rebuilder is not None:
            policy["env_restarts"] = self._rebuilt
        return ActorReport(
            peer=self._peer,
            produced=self._outbox.produced,
            env_steps=self._meter.env_steps,
            episodes=self._meter.episodes,
            shares=self._take_shares(),
            episode_returns=returns,
            episode_lengths=lengths,
            info_sums={name: total for name, (total, _) in info.items()},
            info_counts={name: count for name, (_, count) in info.items()},
            policy={name: as_number(name, value) for name, value in policy.items()},
            final=final,
        )

    def _take_shares(self) -> dict[str, float]:
        """Return the seconds by phase since the last report, those asleep apart from `env`."""
        shares = {phase: seconds for phase, (seconds, _) in self._watch.take().items()}
        before_s, self._waited_for_cores_s = self._waited_for_cores_s, waited_for_cores_s()
        busy_s = self._env_busy_s + self._waited_for_cores_s - before_s
        self._env_busy_s, env_s = 0.0, shares.get("env", 0.0)
        if busy_s < env_s * _BUSY:  # never if the time without a core is unknown, nan
            shares |= {"env": busy_s, "sleep": env_s - busy_s}
        return shares

    def _must_finish(self) -> bool:
        """Whether the run ends, or this actor will be replaced."""
        return self._link.stopping() or self._progress.finishing()

    def may_wait(self) -> bool:
        """Report a wait, and return whether it may go on: False if this actor must finish."""
        self._progress.waiting(True)
        return not self._must_finish()

    def _rebuild_env(self, rebuilder: EnvRebuilder, error: BaseException) -> None:
        """Continue in new environments, unless the actor must finish before they are built."""
        self._watch.lap("env")
        wait_s = rebuilder.allow(error, env_steps=self.env_steps)
        self.finish_streams()
        while True:
            self._pause(wait_s)
            if self._must_finish():
                return
            self._progress.waiting(True)  # the time to build them does not count as a slow step
            try:
                new = rebuilder.make()
            except BaseException as again:
                wait_s = rebuilder.allow(again, env_steps=self.env_steps)
            else:
                break
        self._rebuilt += 1
        self._begin_in(new)

    def _change_env(self, changes: EnvChanges) -> None:
        """Continue in environments with other keyword arguments, if the learner wants that."""
        wanted = self._link.env_change(changes.change_number)
        if wanted is None:
            return
        self.finish_streams()
        self._progress.waiting(True)  # the time to build them does not count as a slow step
        self._begin_in(changes.change(wanted))

    def _begin_in(self, new: NewEnv) -> None:
        self._env, self._obs, self._processor = new
        self._progress.waiting(False)
        self._meter.reset()
        forget(self._policy, np.ones(self._env.n_envs, np.bool_))
        self._env_busy_s += self._watch.lap("env")

    def _pause(self, seconds: float) -> None:
        """Wait for this time, and meanwhile receive models and send what is ready."""
        self._watch.lap("env")
        until = self._clock() + seconds
        while (left_s := until - self._clock()) > 0 and self.may_wait():
            self._model.sync(timeout_s=min(_WAIT_S, left_s))
        self._progress.waiting(False)
        self._watch.lap("wait")

    def _complete_segments(self) -> None:
        """Cut segments that lack only a successor, if the step that brings it is not granted.

        The last transitions would wait for the next grant otherwise, and be stored a round late.
        """
        if not self._cuts or not self._outbox.awaits_successors:
            return
        if not self._link.may_begin(self._outbox.next_seq + 1):
            self.finish_streams(goes_on=True)

    def _wait_for_grant(self) -> None:
        """Wait until the learner grants the next message, or until the actor must finish.

        Waiting is the normal state of an actor whose learner is the slower side.
        """
        while self.may_wait() and not self._link.may_begin(self._outbox.next_seq, _WAIT_S):
            self._model.sync()
            self._send_ready()
        self._progress.waiting(False)
        self._watch.lap("wait")

    def _send_ready(self) -> None:
        while not self._has_given_up:
            message = self._outbox.take(self._model.version, self._meter.env_steps)
            if message is None:
                return
            if not self._link.send(message, timeout_s=0.0):
                self._watch.lap("send")
                self._has_given_up = not self._wait_for_credit(message)
                self._watch.lap("wait")

    def _wait_for_credit(self, message: Experience) -> bool:
        """Send as soon as there is credit; return False if there was none in time.

        After a message that was given up no other is sent, so that their numbers have no gaps.
        """
        self._progress.waiting(True)
        while not (sent := self._link.send(message, timeout_s=_WAIT_S)):
            self._progress.waiting(True)
            if self._link.stopping() and self._time_left_s() <= 0:
                break
        self._progress.waiting(False)
        return sent

    def _time_left_s(self) -> float:
        """Return how much longer finishing may take; the time starts with the first call."""
        now = self._clock()
        self._finish_by = min(self._finish_by, now + _DRAIN_S)
        return max(0.0, self._finish_by - now)


class EpisodeMeter:
    """Counts steps and episodes, and sums returns, over a batch of environments."""

    def __init__(self, n_envs: int) -> None:
        self._return = np.zeros(n_envs, np.float64)
        self._turns = 0
        self._begun_at = np.zeros(n_envs, np.int64)
        """Turn in which each episode began, or later by those that did not step."""
        self._ended: list[tuple[Array, IntArray]] = []
        self._info: dict[str, tuple[float, int]] = {}
        self.env_steps = 0
        self.episodes = 0

    def add(self, outcome: EnvStep) -> None:
        """Count one step of all environments, in which no episode ended."""
        self._return += outcome.scored
        self._turns += 1
        self.env_steps += outcome.env_steps
        if outcome.stepped is not None:
            self._begun_at += ~outcome.stepped

    def update(self, outcome: EnvStep) -> None:
        """Count one step of all environments, and the episodes that ended in it."""
        self.add(outcome)
        ended = outcome.counted[1].nonzero()[0]
        if len(ended):
            self.episodes += len(ended)
            self._ended.append((self._return[ended], self._turns - self._begun_at[ended]))
            self._return[ended] = 0.0
            self._begun_at[ended] = self._turns
        for name, row in (outcome.info or {}).items():
            total, count = self._info.get(name, (0.0, 0))
            self._info[name] = total + np.nansum(row).item(), count + np.sum(~np.isnan(row)).item()

    def reset(self) -> None:
        """Discard the unfinished episodes."""
        self._return[:] = 0.0
        self._begun_at[:] = self._turns

    def take_info(self) -> dict[str, tuple[float, int]]:
        """Return sums and counts of numbers of infos since the last call, by name."""
        info, self._info = self._info, {}
        return info

    def take(self) -> tuple[Array, IntArray]:
        """Return returns and lengths of the episodes that ended since the last call."""
        ended, self._ended = self._ended, []
        if not ended:
            return np.empty(0, np.float64), np.empty(0, np.int64)
        returns, lengths = zip(*ended, strict=True)
        return np.concatenate(returns), np.concatenate(lengths)
