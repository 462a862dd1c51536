"""Environments that hang: asleep, in native code that holds the interpreter's lock, or stopped.

Each hangs in its next step on request and notes when. It counts as found when it is reported;
replaced is when the slot has had a new transition stored. Where Python still runs, or native code
was called by it, the line in the log must say where.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from asyncrl.training.config import AsyncConfig
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.stage import DEADLINE_S, Stage, supervision
from benchmarks.chaos.worlds import Order
from benchmarks.common import note

_STEP_TIMEOUT_S = 1.0
_STACKS = {Order.SLEEP: "in wait", Order.HOLD: "in match"}
"""What the stack of each hang must name; a stopped process can write none."""


@dataclass(frozen=True, slots=True)
class Hang:
    """One of them."""

    order: Order
    found_s: float
    """After it began."""

    replaced_s: float
    """After it was found."""

    has_stack: bool


@dataclass(slots=True)
class Hangs:
    """A script that lets one environment after another hang."""

    count: int
    seen: list[Hang] = field(default_factory=list)

    def __call__(self, stage: Stage) -> Iterator[None]:
        """Let them hang, each way in turn."""
        orders = (Order.SLEEP, Order.HOLD, Order.STOP)
        yield from stage.begins()
        for number in range(self.count):
            yield from self._hang(stage, orders[number % len(orders)])
            if (number + 1) % 10 == 0:
                note(f"{number + 1} of {self.count} have hung")

    def _hang(self, stage: Stage, order: Order) -> Iterator[None]:
        incarnation = stage.incarnations.living()[0]
        newest = max(stage.audit.first_at)
        given_at = time.monotonic()
        incarnation.order = order
        words = "made no step for"
        yield from stage.until(
            lambda: stage.notices.since(given_at, words), DEADLINE_S, f"{order.name} to be found"
        )
        at, text = stage.notices.since(given_at, words)[0]
        yield from stage.until(
            lambda: max(stage.audit.first_at) > newest, DEADLINE_S, f"{order.name} to be replaced"
        )
        back = stage.audit.first_at[max(stage.audit.first_at)]
        self.seen.append(
            Hang(order, at - incarnation.obeyed_at, back - at, _STACKS.get(order, "") in text)
        )


def _configured(config: AsyncConfig) -> AsyncConfig:
    return replace(config, supervision=supervision(_STEP_TIMEOUT_S))


def measure(size: Size, directory: Path) -> list[Finding]:
    """Let environments hang, and return the findings."""
    hangs = Hangs(3 if size == "small" else 150)
    stage = Stage(directory, configure=_configured)
    stage.play(hangs)
    found = max(hang.found_s for hang in hangs.seen)
    replaced = max(hang.replaced_s for hang in hangs.seen)
    stacks = [hang.has_stack for hang in hangs.seen if hang.order in _STACKS]
    restarts = sum(actor["restarts"] for actor in stage.result.actors.values())
    return [
        Finding(
            target=3,
            what=f"{hangs.count} hangs, asleep, holding the lock and stopped",
            measured=f"found at most {found:.2f} s after they began, where a step may take "
            f"{_STEP_TIMEOUT_S:g} s; replaced at most {replaced:.2f} s later",
            promised=f"<= {_STEP_TIMEOUT_S + 1:g} s; <= 2 s",
            passed=found <= _STEP_TIMEOUT_S + 1 and replaced <= 2,
            timed=True,
            numbers={"found_s": found, "replaced_s": replaced},
        ),
        Finding(
            target=3,
            what="hangs with a reported stack",
            measured=f"{sum(stacks)} of {len(stacks)}; {restarts:.0f} of {hangs.count} restarted",
            promised="all; one restart for each",
            passed=all(stacks) and restarts == hangs.count,
            # A process has half a second to write its stacks.
            timed=restarts == hangs.count and any(stacks),
            numbers={"stacks": sum(stacks), "hangs": hangs.count, "restarts": restarts},
        ),
        stage.balance(5, f"{hangs.count} hangs"),
    ]
