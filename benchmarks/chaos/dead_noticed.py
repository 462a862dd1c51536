"""How soon is it known that an actor's process is gone? Actors are killed while a run trains.

Noticed is when the user is told: from the kill to the line in the log that names the actor and the
signal. The learner is busy with gradient steps meanwhile, as it is in any run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.chaos.figures import median, percentile
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.stage import DEADLINE_S, Stage
from benchmarks.common import note

_PROMISED_S = 0.05


@dataclass(slots=True)
class Deaths:
    """A script that kills actors and waits until each death is told."""

    kills: int
    noticed_s: list[float] = field(default_factory=list)

    def __call__(self, stage: Stage) -> Iterator[None]:
        """Kill one after another."""
        yield from stage.begins()
        for number in range(self.kills):
            victim = stage.lives.living()[0]
            began = time.monotonic()
            os.kill(victim.pid, signal.SIGKILL)
            told = partial(stage.notices.since, began, "SIGKILL")
            yield from stage.until(told, DEADLINE_S, "the news")
            self.noticed_s.append(told()[0][0] - began)
            yield from stage.until(
                lambda: len(stage.lives.living()) == stage.config.actors, DEADLINE_S, "a new life"
            )
            if (number + 1) % 100 == 0:
                note(f"{number + 1} of {self.kills} killed")


def measure(size: Size, directory: Path) -> list[Finding]:
    """Kill, and say how long it took to be told."""
    deaths = Deaths(10 if size == "small" else 500)
    stage = Stage(directory)
    stage.play(deaths)
    times = deaths.noticed_s
    middle, worst = median(times), percentile(times, 99)
    return [
        Finding(
            target=1,
            what=f"{deaths.kills} actors killed beside a learner that learns",
            measured=f"median {1000 * middle:.1f} ms, p99 {1000 * worst:.1f} ms",
            promised=f"p99 <= {1000 * _PROMISED_S:.0f} ms",
            passed=worst <= _PROMISED_S,
            timed=True,
            numbers={"median_s": middle, "p99_s": worst, "longest_s": max(times)},
        ),
        stage.books(5, f"{deaths.kills} actors killed"),
    ]
