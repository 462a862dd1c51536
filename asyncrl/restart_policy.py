"""Whether an actor that died is started again, and when. Pure: no clock, no process.

Back-off grows with each death of the same slot, and a budget over a window of time bounds the
deaths of all of them together: a cluster of crashes ends the run with the reason, in place of
crashing for ever.
"""

from __future__ import annotations

import random
import signal
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Literal

from asyncrl.errors import ConfigError
from asyncrl.launcher import ActorExit
from asyncrl.types import ActorId

__all__ = ["GiveUp", "Restart", "RestartPolicy", "RestartPolicyConfig", "describe_exit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicyConfig:
    """How many deaths a run bears, and how soon an actor comes back."""

    max_restarts: int = 10
    """Deaths of all actors together, within the window, that are answered by a restart; 0: none."""

    window_s: float = 600.0
    """Seconds after which a death no longer counts."""

    backoff_s: float = 0.1
    """Seconds before the first restart of a slot."""

    backoff_factor: float = 2.0
    """By how much longer each further death within the window lets it wait."""

    backoff_max_s: float = 30.0
    """The longest wait."""

    jitter: float = 0.1
    """Share of the wait that is random, so that many actors do not come back as one."""

    on_exception: Literal["raise", "restart"] = "raise"
    """An exception in an actor is a defect of the environment or the agent, and ends the run;
    `restart` treats it as a crash, for environments that are known to fail at times."""

    def __post_init__(self) -> None:
        for name in ("max_restarts", "backoff_s", "backoff_max_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"restart.{name} must be 0 or more, got {getattr(self, name)}")
        if self.window_s <= 0:
            raise ConfigError(f"restart.window_s must be positive, got {self.window_s}")
        if not 1 <= self.backoff_factor <= 1000:
            raise ConfigError(
                f"restart.backoff_factor must lie in [1, 1000], got {self.backoff_factor}"
            )
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"restart.jitter must lie in [0, 1], got {self.jitter}")
        if self.on_exception not in {"raise", "restart"}:
            raise ConfigError(
                f"restart.on_exception must be raise or restart, got {self.on_exception!r}"
            )


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the slot again."""

    after_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run."""

    reason: str
    """To follow the actor's name in a sentence."""


class RestartPolicy:
    """Remembers recent deaths, and decides."""

    def __init__(self, config: RestartPolicyConfig, seed: int) -> None:
        self._config = config
        self._random = random.Random(seed)  # noqa: S311  # jitter is no secret
        self._deaths: defaultdict[ActorId, deque[float]] = defaultdict(deque)
        self._ever_lived = False

    def on_exit(
        self, ended: ActorExit, *, now: float, how: str = "", others_work: bool = False
    ) -> Restart | GiveUp:
        """Decide what an end that nobody asked for leads to.

        Args:
            ended: The end.
            now: When it came.
            how: In words that follow the actor's name, if `describe_exit` cannot know.
            others_work: Whether any other actor has made a step.
        """
        self._ever_lived |= others_work or ended.last.turns > 0
        how = how or describe_exit(ended)
        if ended.code == 1 and ended.error and self._config.on_exception == "raise":
            return GiveUp(how)
        if not self._ever_lived:
            return GiveUp(
                f"{how} before any actor had made a single step, so a restart would not help"
            )
        self._deaths[ended.peer.actor_id].append(now)
        spent = self._count(now)
        if spent > self._config.max_restarts:
            return GiveUp(
                f"{how}; that is death {spent} of an actor within "
                f"{self._config.window_s:g} s, and restart.max_restarts is "
                f"{self._config.max_restarts}"
            )
        return Restart(self._backoff_s(len(self._deaths[ended.peer.actor_id])))

    def _count(self, now: float) -> int:
        """Forget deaths that are long past, and return how many are not."""
        for deaths in self._deaths.values():
            while deaths and deaths[0] <= now - self._config.window_s:
                deaths.popleft()
        return sum(map(len, self._deaths.values()))

    def _backoff_s(self, deaths: int) -> float:
        config = self._config
        # 64 deaths reach any limit, and no power of so few overflows.
        wait = config.backoff_s * config.backoff_factor ** min(deaths - 1, 64)
        return min(config.backoff_max_s, wait) * (1.0 - config.jitter * self._random.random())


def describe_exit(ended: ActorExit) -> str:
    """Say in words how an actor ended, to follow its name in a sentence."""
    if ended.error:
        return f"failed: {ended.error}"
    when = f" after {ended.last.turns} steps" if ended.last.turns else ""
    if ended.code < 0:
        return f"was ended by {_signal_name(-ended.code)}{when}{_guess(ended)}"
    if ended.code == 0:
        return f"ended{when} without being asked to; look for os._exit"
    return f"exited with code {ended.code}{when}, which none of asyncrl does; look for os._exit"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _guess(ended: ActorExit) -> str:
    match -ended.code:
        case signal.SIGKILL:
            peak = f"; it held up to {ended.peak_bytes / 2**20:.0f} MiB" if ended.peak_bytes else ""
            return f" (killed from outside; the system does so when memory runs out{peak})"
        case signal.SIGSEGV | signal.SIGBUS | signal.SIGILL | signal.SIGABRT | signal.SIGFPE:
            return " (a crash in native code)"
        case _:
            return ""
