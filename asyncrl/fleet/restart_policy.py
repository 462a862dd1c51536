"""What to do about actors that die and environments that fail. Pure: no clock, no process.

The backoff grows with each failure of the same slot, and each slot has a budget of restarts within
a window of time. An actor that crashes again and again ends the run with the reason instead of
crashing forever. Many actors may each fail now and then. A slot's window does not advance while
its actor hangs; otherwise an actor that always hangs would never use up its budget.

Exceptions are handled by `RestartPolicyConfig.on_exception`:

    raise         the run ends
    restart       the actor's process is restarted, as after a crash
    restart_env   the process continues, and only its environments are rebuilt; an exception from
                  elsewhere, or beyond the budget, ends the run
    drop_actor    the run continues without the actor, while `min_actors` are left
"""

from __future__ import annotations

import random
import signal
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from asyncrl.core.errors import ConfigError, ConnectionLost
from asyncrl.core.launcher import ActorExit
from asyncrl.core.types import ActorId
from asyncrl.fleet.config import RestartPolicyConfig

_MEND = "Fix what raised it."
SEE_STACKS = "look at the stacks of its threads below, if it could still write them."
"""Advice that ends a sentence, before the stacks."""
_OR_BEAR = ", or, if it is known to fail at times, set supervision.restart.on_exception to "
RAISE_LIMIT = "Raise the limit, or run fewer environments in each actor."
_NEED_LESS = "Run fewer actors, or fewer environments in each."
_MAKE_ROOM = (
    "Run fewer actors, or raise the system's limit of processes, of open files or of memory; if a "
    "disk is full, free space on it, or set TMPDIR to a directory on another one."
)

_LOOK_AT_NETWORK = "If that happens often, look for the reason in the network between them."

_JITTER = 0.1
"""Random share of a backoff, so that many actors do not restart at the same moment."""


class Cause(NamedTuple):
    """Why an actor ended."""

    how: str
    """Continues a sentence that begins with the actor's name."""

    advice: str
    """What to do about it: a sentence."""

    wasted_s: float = 0.0
    """Seconds without progress, or with too little, before this was noticed."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart the slot, or rebuild its environments."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Continue without the slot."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run."""

    why: str
    """Why the run ends, beyond why the actor ended; may be empty."""

    advice: str
    """What to do about it: a sentence."""


class RestartPolicy:
    """Remembers recent failures and decides what to do."""

    def __init__(self, config: RestartPolicyConfig, seed: int) -> None:
        self._config = config
        self._recent, self._breaks = _Recent(config, seed), _Recent(config, seed)
        self._ever_started = False

    def on_exit(
        self,
        ended: ActorExit,
        *,
        now: float,
        others_work: bool = False,
        others_left: int | None = None,
        cause: Cause | None = None,
    ) -> Restart | Drop | GiveUp:
        """Decide what follows an unexpected exit.

        Args:
            ended: The exit.
            now: Its time.
            others_work: Whether any other actor has made a step.
            others_left: Number of other actors in the run; None if the process is not an actor.
            cause: Why, if `cause_of` cannot know.
        """
        self._ever_started |= others_work or ended.last.turns > 0
        _, advice, wasted_s = cause or cause_of(ended)
        if lost_connection(ended):
            if ended.last.turns:
                breaks, wait_s = self._breaks.add(ended.peer.actor_id, now)
                return Restart(wait_s if breaks > 1 else 0.0)
        elif ended.code == 1 and ended.error and ended.began:
            decision = self._on_exception(ended, advice, others_left)
            if decision is not None:
                return decision
        if not (self._ever_started or lost_connection(ended)):
            why = "no actor had made a single step before, so a restart would not help"
            return GiveUp(why, advice)
        spent, wait_s = self._recent.add(ended.peer.actor_id, now, wasted_s)
        if spent > self._config.max_restarts:
            return GiveUp(_spent(f"its failure number {spent}", self._config), advice)
        return Restart(wait_s)

    def on_replacement(self) -> None:
        """Reset the backoff after an actor that worked was replaced, which is not a failure."""
        self._ever_started = True

    def _on_exception(
        self, ended: ActorExit, advice: str, others_left: int | None
    ) -> Drop | GiveUp | None:
        """Decide what follows an exception; None if it is treated as a crash."""
        match self._config.on_exception:
            case "raise":
                kinds = "restart" if others_left is None else "restart_env, restart or drop_actor"
                return GiveUp("", f"{advice.removesuffix('.')}{_OR_BEAR}{kinds}.")
            case "restart_env" if others_left is not None and ended.last.turns:
                # Before its first step it had no environments to rebuild: it never started.
                return GiveUp("rebuilding environments does not help against that", advice)
            case "drop_actor" if others_left is not None:
                fewest = self._config.min_actors
                if others_left >= fewest:
                    return Drop()
                why = f"{others_left} would be left, and supervision.restart.min_actors is {fewest}"
                return GiveUp(why, advice)
        return None


class EnvRestartPolicy:
    """Decides about failures of one actor's environments: `restart_env`."""

    def __init__(self, config: RestartPolicyConfig, seed: int) -> None:
        self._config = config
        self._recent = _Recent(config, seed)

    def on_failure(self, *, now: float, env_steps: int) -> Restart | GiveUp:
        """Decide whether environments are rebuilt.

        Args:
            now: When they failed.
            env_steps: Steps that this incarnation of the actor has made.
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
    """Failures within the window, counted per slot."""

    def __init__(self, config: RestartPolicyConfig, seed: int) -> None:
        self._config = config
        self._random = random.Random(seed)  # noqa: S311  # jitter is no secret
        self._failures: defaultdict[ActorId, deque[float]] = defaultdict(deque)
        self._wasted_s: defaultdict[ActorId, float] = defaultdict(float)

    def add(self, slot: ActorId, now: float, wasted_s: float = 0.0) -> tuple[int, float]:
        """Add a failure; return the slot's number of recent failures, and its backoff."""
        self._wasted_s[slot] += wasted_s
        now -= self._wasted_s[slot]
        deaths = self._failures[slot]
        deaths.append(now)
        while deaths[0] <= now - self._config.window_s:
            deaths.popleft()
        return len(deaths), self._backoff_s(len(deaths))

    def _backoff_s(self, deaths: int) -> float:
        config = self._config
        # 64 failures reach any limit, and the power cannot overflow.
        wait = config.backoff_s * 2.0 ** min(deaths - 1, 64)
        return min(config.backoff_max_s, wait) * (1.0 - _JITTER * self._random.random())


def lost_connection(ended: ActorExit) -> bool:
    """Whether an actor's connection to the learner broke: no failure of one that had worked."""
    # Not by the name alone: libraries that environments use have exceptions of the same name.
    return ended.error.startswith(f"{ConnectionLost.__name__}: {ConnectionLost.START}")


def cause_of(ended: ActorExit) -> Cause:
    """Describe how an actor exited, and what to do about it."""
    if not ended.began:
        # The launcher raises a `ConfigError` for what no host, or not this one, can start.
        advice = _MEND if ended.error.startswith(ConfigError.__name__) else _MAKE_ROOM
        return Cause(f"could not start: {ended.error.rstrip('.')}", advice)
    when = f" after {ended.last.turns} steps" if ended.last.turns else ""
    if lost_connection(ended):
        return Cause(f"lost its connection to the learner{when}", _LOOK_AT_NETWORK)
    if ended.error:
        return _of_error(ended)
    if ended.code < 0:
        guess, advice = _guess(ended)
        return Cause(f"was killed by {signal_name(-ended.code)}{when}{guess}", advice)
    look = "Look for os._exit in the environment, or in what it uses."
    if ended.code == 0:
        return Cause(f"exited{when} without being asked to", look)
    return Cause(f"exited with code {ended.code}{when}, which asyncrl does not use", look)


def _of_error(ended: ActorExit) -> Cause:
    failed = f"failed: {ended.error.rstrip('.')}"  # the sentence continues after it
    if not ended.error.partition(":")[0].endswith("MemoryError"):  # numpy has one, too
        return Cause(failed, _MEND)
    return Cause(failed + (f" ({held})" if (held := _held(ended)) else ""), _NEED_LESS)


def hung(silent_s: float, limit_s: float, *, starts: bool) -> Cause:
    """Describe an actor that was killed after a timeout without a heartbeat."""
    what, setting = ("first step", "start") if starts else ("step", "step")
    return Cause(
        f"made no {what} for {silent_s:.0f} s and was killed",
        f"If it needs more time, raise supervision.{setting}_timeout_s, now {limit_s:g}; else "
        + SEE_STACKS,
        wasted_s=silent_s,
    )


def too_large_to_start(held_bytes: int, limit_bytes: int) -> Cause:
    """Describe an actor that was killed at its memory limit before its first step."""
    return Cause(
        f"{at_limit(held_bytes, limit_bytes)} before its first step, and was killed",
        f"A new actor needs more than that. {RAISE_LIMIT}",
    )


def overstayed(held_bytes: int, limit_bytes: int, silent_s: float, timeout_s: float) -> Cause:
    """Describe an actor that was killed since it did not finish at its memory limit."""
    return Cause(
        f"{at_limit(held_bytes, limit_bytes)}, did not finish within {silent_s:.0f} s and was "
        "killed",
        f"If a step needs more time, raise supervision.stop_timeout_s, now {timeout_s:g}; else "
        + SEE_STACKS,
        wasted_s=silent_s,
    )


_INCARNATIONS_COMPARED = 3
_MOST_STARTING = 0.5
"""Maximum share of the time of the last incarnations spent on starting. Above it the run ends."""


@dataclass(slots=True)
class MemoryWatch:
    """Memory growth of one slot's processes up to the limit, and the cost of replacing them."""

    _replaces: bool = False
    _fresh_bytes: int = 0
    _starting_s: float = 0.0
    _working_s: float = 0.0
    _past: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=_INCARNATIONS_COMPARED)
    )

    def begin(self, *, replaces: bool) -> None:
        """Begin an incarnation; `replaces` says that the previous one reached the limit."""
        self._replaces = replaces
        self._fresh_bytes, self._starting_s, self._working_s = 0, 0.0, 0.0
        if not replaces:
            self._past.clear()

    def look(self, passed_s: float, held_bytes: int, *, works: bool, waits: bool) -> None:
        """Record its memory now, and what it did since the last call; call it often."""
        if works:
            self._fresh_bytes = self._fresh_bytes or held_bytes
            self._working_s += passed_s
        elif not waits:
            self._starting_s += passed_s

    def growth(self, held_bytes: int) -> str:
        """Describe how this incarnation's memory has grown."""
        per_min = (held_bytes - self._fresh_bytes) / max(self._working_s, 1e-9) * 60.0
        return f"held {_mib(self._fresh_bytes)} at its first step and grew by {_mib(per_min)}/min"

    def on_limit(self, held_bytes: int) -> GiveUp | None:
        """Decide whether this actor mostly restarts, so the run ends; call once per incarnation.

        The first incarnation does not count: its start may include the loading of modules.
        """
        if self._replaces:
            self._past.append((self._starting_s, self._working_s))
        if len(self._past) < _INCARNATIONS_COMPARED:
            return None
        starting_s, working_s = map(sum, zip(*self._past, strict=True))
        share = starting_s / max(starting_s + working_s, 1e-9)
        if share <= _MOST_STARTING:
            return None
        return GiveUp(
            f"its last {_INCARNATIONS_COMPARED} replacements spent {share:.0%} of their time "
            f"on starting; the last one {self.growth(held_bytes)}",
            f"{RAISE_LIMIT} If it is a leak, fix it.",
        )


def at_limit(held_bytes: int, limit_bytes: int) -> str:
    """Describe an actor at its memory limit; continues a sentence that begins with its name."""
    return (
        f"held {_mib(held_bytes)} of memory, more than supervision.memory_limit_bytes allows "
        f"({_mib(limit_bytes)})"
    )


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"


def _spent(what: str, config: RestartPolicyConfig) -> str:
    return (
        f"that is {what} within {config.window_s:g} s, and supervision.restart.max_restarts is "
        f"{config.max_restarts}"
    )


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


def _held(ended: ActorExit) -> str:
    return f"it held up to {ended.peak_bytes / 2**20:.0f} MiB" if ended.peak_bytes else ""


def _guess(ended: ActorExit) -> tuple[str, str]:
    """Return the likely reason for a signal, in parentheses, and what to do about it."""
    match -ended.code:
        case signal.SIGKILL:
            peak = f"; {held}" if (held := _held(ended)) else ""
            return (
                f" (killed from outside; the system does this when memory runs out{peak})",
                "If memory ran out, run fewer actors, or fewer environments in each.",
            )
        case signal.SIGSEGV | signal.SIGBUS | signal.SIGILL | signal.SIGABRT | signal.SIGFPE:
            return (
                " (a crash in native code)",
                "Look for it in what the environment calls; the stacks of its threads are below.",
            )
        case _:
            return "", "Find out what sent it: a scheduler, a person, or the environment itself."
