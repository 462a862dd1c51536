"""An environment that raises at random, in a run with `on_exception="restart"`.

Every exception must be reported with class, message and traceback, and followed by a restart after
a backoff that grows with each failure of a slot; none may be stored as the end of an episode. Then
the same with a small restart budget, which must end the run and say so, and with the default, which
must end the run with the environment's own message.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from asyncrl.core.errors import ActorFailed
from asyncrl.supervision.restart_policy import RestartPolicyConfig
from asyncrl.training.config import AsyncConfig
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.stage import DEADLINE_S, Stage
from benchmarks.chaos.worlds import Order

_WORDS = "ValueError: the wheel came off"
_BUDGET = 3
_BACKOFF = RestartPolicyConfig(
    on_exception="restart", max_restarts=1_000_000, backoff_s=0.05, backoff_max_s=0.8, jitter=0.0
)


@dataclass(slots=True)
class Failures:
    """A script that lets actor after actor raise."""

    count: int
    seconds_apart: float = 0.0
    waits_s: dict[int, list[float]] = field(default_factory=dict)
    """Slot -> from each failure to the first stored transition of the next incarnation."""

    def __call__(self, stage: Stage) -> Iterator[None]:
        """Let them raise, each when the one before has come back."""
        draw = random.Random(0)  # noqa: S311  # no secret
        yield from stage.begins()
        for _ in range(self.count):
            yield from stage.for_s(draw.uniform(0, self.seconds_apart))
            yield from self._raise(stage, draw)

    def _raise(self, stage: Stage, draw: random.Random) -> Iterator[None]:
        newest, began = max(stage.audit.first_at), time.monotonic()
        draw.choice(stage.incarnations.living()).order = Order.RAISE
        yield from stage.until(
            lambda: stage.notices.since(began, _WORDS), DEADLINE_S, "the exception to be reported"
        )
        at, text = stage.notices.since(began, _WORDS)[0]
        yield from stage.until(
            lambda: max(stage.audit.first_at) > newest, DEADLINE_S, "the slot to be filled again"
        )
        slot = int(text.split()[1])
        back = stage.audit.first_at[max(stage.audit.first_at)]
        self.waits_s.setdefault(slot, []).append(back - at)


def _with_restarts(restart: RestartPolicyConfig, config: AsyncConfig) -> AsyncConfig:
    return replace(config, supervision=replace(config.supervision, restart=restart))


def measure(size: Size, directory: Path) -> list[Finding]:
    """Let environments raise under three policies."""
    failures = Failures(10 if size == "small" else 300, 0.2)
    stage = Stage(directory, configure=lambda config: _with_restarts(_BACKOFF, config))
    stage.play(failures)
    return [
        *_borne(stage, failures),
        stage.balance(5, f"{failures.count} exceptions"),
        *_not_borne(directory),
    ]


def _borne(stage: Stage, failures: Failures) -> list[Finding]:
    reported = stage.notices.since(0.0, _WORDS)
    whole = [text for _, text in reported if "Traceback" in text and "in on_step" in text]
    result = stage.result
    restarts = sum(actor["restarts"] for actor in result.actors.values())
    episodes = sum(actor["episodes"] for actor in result.actors.values())
    planned = [[_backoff_s(number) for number in range(len(w))] for w in failures.waits_s.values()]
    early = sum(
        wait < plan
        for waits, plans in zip(failures.waits_s.values(), planned, strict=True)
        for wait, plan in zip(waits, plans, strict=True)
    )
    return [
        Finding(
            target=5,
            what=f"{failures.count} exceptions of environments: reported, then a restart",
            measured=f"{len(whole)} reported with tracebacks, {restarts:.0f} restarts, "
            f"{episodes:.0f} of them taken for an episode's end",
            promised="all, all, 0",
            passed=len(whole) == restarts == failures.count and not episodes,
            numbers={"reported": len(whole), "restarts": restarts, "episodes": episodes},
        ),
        Finding(
            target=6,
            what="a slot that fails again and again waits longer each time",
            measured=f"{early} restarts came before their time; the last ones waited "
            + ", ".join(f"{waits[-1]:.2f} s" for waits in failures.waits_s.values()),
            promised=f"0; {_BACKOFF.backoff_s:g} s, doubled each time, up to "
            f"{_BACKOFF.backoff_max_s:g} s",
            passed=not early and _grows(failures),
        ),
    ]


def _backoff_s(deaths: int) -> float:
    return min(_BACKOFF.backoff_max_s, _BACKOFF.backoff_s * _BACKOFF.backoff_factor**deaths)


def _grows(failures: Failures) -> bool:
    """Whether the plan ever makes a wait longer than the previous one."""
    return all(
        max(waits) >= _backoff_s(len(waits) - 1) and any(b > a for a, b in pairwise(waits))
        for waits in failures.waits_s.values()
        if len(waits) > 1
    )


def _not_borne(directory: Path) -> list[Finding]:
    budget = replace(_BACKOFF, max_restarts=_BUDGET)
    refusing = replace(_BACKOFF, on_exception="raise")
    ends = {
        "a budget of few restarts": (budget, f"failure number {_BUDGET + 1} within"),
        "a run that bears no exception": (refusing, _WORDS),
    }
    return [
        _end(directory / str(number), what, restart, words)
        for number, (what, (restart, words)) in enumerate(ends.items())
    ]


def _end(directory: Path, what: str, restart: RestartPolicyConfig, words: str) -> Finding:
    """Let more environments raise than the policy allows; return how the run ended."""
    directory.mkdir()
    stage = Stage(directory, configure=lambda config: _with_restarts(restart, config))
    said = "the run went on"
    try:
        # Enough that one slot has spent its budget, whichever is drawn, plus one.
        stage.play(Failures(_BUDGET * stage.config.actors + 2))
    except ActorFailed as error:
        said = str(error).partition("\n")[0]
        complete = words in said and _WORDS in said and "Traceback" in str(error)
    else:
        complete = False
    return Finding(
        target=6,
        what=f"{what} ends with the reason",
        measured=said,
        promised=f"an error with {words!r}, the exception and its traceback",
        passed=complete,
    )
