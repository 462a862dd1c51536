"""What becomes of actors that die and of environments that fail. Pure: no clock, no process.

Back-off grows with each death of the same slot, and each slot has a budget over a window of time:
one that crashes again and again ends the run with the reason, in place of crashing for ever, and
many actors may fail now and then without that. A slot's window stands still while it hangs, or one
that always does would never spend its budget.

An exception is a case of its own, `RestartPolicyConfig.on_exception`:

    raise         the run ends
    restart       a crash like any other: the actor's process is started again
    restart_env   the process lives on, and only its environments are made anew; an exception that
                  comes from elsewhere, or once too often, ends the run
    drop_actor    the run goes on without the actor, as long as `min_actors` are left
"""

from __future__ import annotations

import random
import signal
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Literal, NamedTuple

from asyncrl.core.declared import (
    Count,
    Natural,
    NotNegative,
    Positive,
    Share,
    Within,
    check_declared,
)
from asyncrl.core.launcher import ActorExit
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId

_MEND = "Mend what raised it."
SEE_STACKS = "look at where its threads stood, which is told below if they could still tell."
"""Advice that ends a sentence, before the stacks."""
_OR_BEAR = (
    ", or, if it may happen at times, set supervision.restart.on_exception to restart_env, restart "
    "or drop_actor."
)
RAISE_LIMIT = "Raise the limit, or run fewer environments in each actor."
_NEED_LESS = "Run fewer actors, or fewer environments in each."
_MAKE_ROOM = (
    "Run fewer actors, or raise the system's limit of processes, of open files or of memory; if a "
    "disk is full, make room on it, or set TMPDIR to a directory on another one."
)

OnException = Literal["raise", "restart", "restart_env", "drop_actor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicyConfig:
    """How often failed actors are restarted, and how soon."""

    max_restarts: Natural = 10
    """Maximum restarts of one actor, or of the evaluator, within `window_s`. 0 allows none. Rebuilt
    environments are counted separately."""

    window_s: Positive = 600.0
    """Seconds after which a failure no longer counts. Time in which the actor hung is excluded."""

    backoff_s: NotNegative = 0.1
    """Seconds before the first restart of an actor."""

    backoff_factor: Annotated[float, Within("[1, 1000]")] = 2.0
    """Factor by which the backoff grows with each further failure within `window_s`."""

    backoff_max_s: NotNegative = 30.0
    """Maximum backoff in seconds."""

    jitter: Share = 0.1
    """Random share of the backoff, so that many actors do not restart at the same moment."""

    on_exception: OnException = "raise"
    """What to do after an exception in an actor. `raise` ends the run, since it is a defect. For
    environments known to fail at times: `restart` restarts the actor's process, as after a crash;
    `restart_env` rebuilds all environments of the actor in the same process; `drop_actor` continues
    without the actor. The evaluator's process is restarted in every case but `raise`."""

    min_actors: Count = 1
    """Minimum number of actors for `drop_actor`. An exception that would leave fewer ends the
    run."""

    def __post_init__(self) -> None:
        check_declared(self, "supervision.restart")


class Cause(NamedTuple):
    """Why an actor's life is over."""

    how: str
    """To follow the actor's name in a sentence."""

    advice: str
    """What to do about it: a sentence."""

    wasted_s: float = 0.0
    """How long it had done nothing, or not enough, when that was found."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the slot, or make its environments, again."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Go on without the slot."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run."""

    why: str
    """What else is to be said than how the actor's life ended; may be empty."""

    advice: str
    """What to do about it: a sentence."""


class RestartPolicy:
    """Remembers recent deaths, and decides."""

    def __init__(self, config: RestartPolicyConfig, seed: int) -> None:
        self._config = config
        self._recent = _Recent(config, seed)
        self._ever_lived = False

    def on_exit(
        self,
        ended: ActorExit,
        *,
        now: float,
        others_work: bool = False,
        others_left: int | None = None,
        cause: Cause | None = None,
    ) -> Restart | Drop | GiveUp:
        """Decide what an end that nobody asked for leads to.

        Args:
            ended: The end.
            now: When it came.
            others_work: Whether any other actor has made a step.
            others_left: How many other actors the run has; None if the dead process is no actor.
            cause: Why, if `cause_of` cannot know.
        """
        self._ever_lived |= others_work or ended.last.turns > 0
        _, advice, wasted_s = cause or cause_of(ended)
        if ended.code == 1 and ended.error and ended.began:
            decision = self._on_exception(ended, advice, others_left)
            if decision is not None:
                return decision
        if not self._ever_lived:
            why = "no actor had made a single step before, so a restart would not help"
            return GiveUp(why, advice)
        spent, wait_s = self._recent.add(ended.peer.actor_id, now, wasted_s)
        if spent > self._config.max_restarts:
            return GiveUp(_spent(f"its death number {spent}", self._config), advice)
        return Restart(wait_s)

    def on_replacement(self) -> None:
        """Note that an actor that has worked is replaced, which is no death."""
        self._ever_lived = True

    def _on_exception(
        self, ended: ActorExit, advice: str, others_left: int | None
    ) -> Drop | GiveUp | None:
        """Decide what an exception leads to; None if it is a crash like any other."""
        match self._config.on_exception:
            case "raise":
                return GiveUp("", advice.removesuffix(".") + _OR_BEAR)
            case "restart_env" if others_left is not None and ended.last.turns:
                # Before its first step there was nothing to be made anew: it has not started.
                return GiveUp("making environments anew does not help against that", advice)
            case "drop_actor" if others_left is not None:
                fewest = self._config.min_actors
                if others_left >= fewest:
                    return Drop()
                why = f"{others_left} would be left, and supervision.restart.min_actors is {fewest}"
                return GiveUp(why, advice)
        return None


class EnvRestartPolicy:
    """Remembers recent failures of one actor's environments, and decides: `restart_env`."""

    def __init__(self, config: RestartPolicyConfig, seed: int) -> None:
        self._config = config
        self._recent = _Recent(config, seed)

    def on_failure(self, *, now: float, env_steps: int) -> Restart | GiveUp:
        """Decide whether environments are made anew.

        Args:
            now: When they failed.
            env_steps: How many steps they have made in this life of the actor.
        """
        if not env_steps:
            why = "that was before their first step, so others would fail too"
            return GiveUp(why, _MEND)
        spent, wait_s = self._recent.add(ActorId(0), now)
        if spent > self._config.max_restarts:
            return GiveUp(
                _spent(f"failure {spent} of this actor's environments", self._config), _MEND
            )
        return Restart(wait_s)


class _Recent:
    """Deaths within the window, each slot's for itself."""

    def __init__(self, config: RestartPolicyConfig, seed: int) -> None:
        self._config = config
        self._random = random.Random(seed)  # noqa: S311  # jitter is no secret
        self._deaths: defaultdict[ActorId, deque[float]] = defaultdict(deque)
        self._wasted_s: defaultdict[ActorId, float] = defaultdict(float)

    def add(self, slot: ActorId, now: float, wasted_s: float = 0.0) -> tuple[int, float]:
        """Return how many the slot has had with this one, and how long it waits."""
        self._wasted_s[slot] += wasted_s
        now -= self._wasted_s[slot]
        deaths = self._deaths[slot]
        deaths.append(now)
        while deaths[0] <= now - self._config.window_s:
            deaths.popleft()
        return len(deaths), self._backoff_s(len(deaths))

    def _backoff_s(self, deaths: int) -> float:
        config = self._config
        # 64 deaths reach any limit, and no power of so few overflows.
        wait = config.backoff_s * config.backoff_factor ** min(deaths - 1, 64)
        return min(config.backoff_max_s, wait) * (1.0 - config.jitter * self._random.random())


def cause_of(ended: ActorExit) -> Cause:
    """Say in words how an actor ended, and what to do about it."""
    if not ended.began:
        return Cause(f"could not begin: {ended.error.rstrip('.')}", _MAKE_ROOM)
    if ended.error:
        failed = f"failed: {ended.error.rstrip('.')}"  # a sentence goes on behind it
        if not ended.error.partition(":")[0].endswith("MemoryError"):  # numpy has one of its own
            return Cause(failed, _MEND)
        return Cause(failed + (f" ({held})" if (held := _held(ended)) else ""), _NEED_LESS)
    when = f" after {ended.last.turns} steps" if ended.last.turns else ""
    if ended.code < 0:
        guess, advice = _guess(ended)
        return Cause(f"was ended by {signal_name(-ended.code)}{when}{guess}", advice)
    look = "Look for os._exit in the environment, or in what it uses."
    if ended.code == 0:
        return Cause(f"ended{when} without being asked to", look)
    return Cause(f"exited with code {ended.code}{when}, which none of asyncrl does", look)


def hung(silent_s: float, limit_s: float, *, starts: bool) -> Cause:
    """Say why an actor was killed that gave no sign of life."""
    what, setting = ("first step", "start") if starts else ("step", "step")
    return Cause(
        f"made no {what} for {silent_s:.0f} s and was killed",
        f"If one may take so long, raise supervision.{setting}_timeout_s, now {limit_s:g}; else "
        + SEE_STACKS,
        wasted_s=silent_s,
    )


def lagged(
    steps_per_s: float, median_steps_per_s: float, *, min_pace: float, window_s: float
) -> Cause:
    """Say why an actor was killed that was much slower than the others."""
    return Cause(
        f"made {steps_per_s:.3g} steps/s over {window_s:g} s where the median actor made "
        f"{median_steps_per_s:.3g}, and was killed",
        f"If its environments are meant to be slower, lower supervision.min_pace, now "
        f"{min_pace:g}; else {SEE_STACKS}",
        wasted_s=window_s,
    )


def too_large_to_start(held_bytes: int, limit_bytes: int) -> Cause:
    """Say why an actor was killed that reached its memory limit before it made a step."""
    return Cause(
        f"{at_limit(held_bytes, limit_bytes)}, before its first step, and was killed",
        f"A new actor needs more than that. {RAISE_LIMIT}",
    )


def overstayed(held_bytes: int, limit_bytes: int, silent_s: float, timeout_s: float) -> Cause:
    """Say why an actor was killed that was asked to finish at its memory limit."""
    return Cause(
        f"{at_limit(held_bytes, limit_bytes)}, did not finish within {silent_s:.0f} s and was "
        "killed",
        f"If a step may take so long, raise supervision.stop_timeout_s, now {timeout_s:g}; else "
        + SEE_STACKS,
        wasted_s=silent_s,
    )


_LIVES_COMPARED = 3
_MOST_STARTING = 0.5
"""Share of the time of so many lives in a row. Above it the run ends."""


@dataclass(slots=True)
class MemoryWatch:
    """How the processes of one slot grow up to the memory limit, and what replacing them costs."""

    _replaces: bool = False
    _fresh_bytes: int = 0
    _starting_s: float = 0.0
    _working_s: float = 0.0
    _past: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_LIVES_COMPARED))

    def begin(self, *, replaces: bool) -> None:
        """Begin a life; `replaces` says that the one before had reached the limit."""
        self._replaces = replaces
        self._fresh_bytes, self._starting_s, self._working_s = 0, 0.0, 0.0
        if not replaces:
            self._past.clear()

    def look(self, passed_s: float, held_bytes: int, *, works: bool, waits: bool) -> None:
        """Note what it holds now, and what it did since the last look; look often."""
        if works:
            self._fresh_bytes = self._fresh_bytes or held_bytes
            self._working_s += passed_s
        elif not waits:
            self._starting_s += passed_s

    def growth(self, held_bytes: int) -> str:
        """Say in words how this life has grown to what it holds now."""
        per_min = (held_bytes - self._fresh_bytes) / max(self._working_s, 1e-9) * 60.0
        return f"held {_mib(self._fresh_bytes)} at its first step and grew by {_mib(per_min)}/min"

    def on_limit(self, held_bytes: int) -> GiveUp | None:
        """Decide whether the run ends, since it would go on starting this actor; ask once a life.

        The first life does not count: its start may include the loading of modules.
        """
        if self._replaces:
            self._past.append((self._starting_s, self._working_s))
        if len(self._past) < _LIVES_COMPARED:
            return None
        starting_s, working_s = map(sum, zip(*self._past, strict=True))
        share = starting_s / max(starting_s + working_s, 1e-9)
        if share <= _MOST_STARTING:
            return None
        return GiveUp(
            f"its last {_LIVES_COMPARED} replacements spent {share:.0%} of their time starting; "
            f"the last one {self.growth(held_bytes)}",
            f"{RAISE_LIMIT} If it is a leak, mend it.",
        )


def at_limit(held_bytes: int, limit_bytes: int) -> str:
    """Say that an actor has reached its memory limit; to follow its name in a sentence."""
    return (
        f"held {_mib(held_bytes)} of memory where supervision.memory_limit_bytes allows "
        f"{_mib(limit_bytes)}"
    )


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"


def _spent(what: str, config: RestartPolicyConfig) -> str:
    return (
        f"that is {what} within {config.window_s:g} s, and supervision.restart.max_restarts is "
        f"{config.max_restarts}"
    )


def signal_name(number: int) -> str:
    """Return what a signal is called, as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


def _held(ended: ActorExit) -> str:
    return f"it held up to {ended.peak_bytes / 2**20:.0f} MiB" if ended.peak_bytes else ""


def _guess(ended: ActorExit) -> tuple[str, str]:
    """Return what is behind a signal, in parentheses, and what to do about it."""
    match -ended.code:
        case signal.SIGKILL:
            peak = f"; {held}" if (held := _held(ended)) else ""
            return (
                f" (killed from outside; the system does so when memory runs out{peak})",
                "If it was for memory, run fewer actors, or fewer environments in each.",
            )
        case signal.SIGSEGV | signal.SIGBUS | signal.SIGILL | signal.SIGABRT | signal.SIGFPE:
            return (
                " (a crash in native code)",
                "Look for it in what the environment calls; where threads stood is told below.",
            )
        case _:
            return "", "Look for who sends it: a scheduler, a person, or the environment itself."


_FEWEST = 3
"""Of two, nobody could say which one is slow and which one fast."""


class Slow(NamedTuple):
    """How slow an actor was, beside how fast the one in the middle was."""

    steps_per_s: float
    median_steps_per_s: float


@dataclass(slots=True)
class Stragglers:
    """Compares lives of actors over one window of time after the other."""

    min_share: float
    """Of the median actor's steps, for an actor not to count as slow."""

    window_s: float
    _since_s: float = float("-inf")
    _steps: dict[Peer, int] = field(default_factory=dict)
    _looked_s: float = float("-inf")
    _waited_s: dict[Peer, float] = field(default_factory=dict)

    def look(
        self, now_s: float, steps: Mapping[Peer, int], waiting: Collection[Peer] = ()
    ) -> dict[Peer, Slow]:
        """Return who has been slow in the window that is over, if one is; look often.

        `steps` are those that each life has made so far; not what has become of them, since whole
        trajectories are held back until they are over. A life that had made none when the window
        began is not judged by it: it may have been starting. Of the time in which it was seen to be
        `waiting`, for the learner or until it may make its environments anew, no steps are wanted,
        and the one that may be under way behind a wait counts as made.
        """
        for peer in waiting:
            since_s = max(self._looked_s, self._since_s)
            self._waited_s[peer] = self._waited_s.get(peer, 0.0) + now_s - since_s
        self._looked_s = now_s
        passed_s = now_s - self._since_s
        if passed_s < self.window_s:
            return {}
        before, self._since_s, self._steps = self._steps, now_s, dict(steps)
        waited_s, self._waited_s = self._waited_s, {}
        rates = {
            peer: (count - before[peer]) / passed_s
            for peer, count in steps.items()
            if before.get(peer, 0) > 0
        }
        if len(rates) < _FEWEST:
            return {}
        middle = median(rates.values())
        return {
            peer: Slow(rate, middle)
            for peer, rate in rates.items()
            if rate * passed_s + (peer in waited_s)
            < self.min_share * middle * (passed_s - waited_s.get(peer, 0.0))
        }
