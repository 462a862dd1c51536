"""What do many deaths cost a run? Actors are killed at random while it trains.

A calm stretch first, for comparison. Then one actor after another is killed with SIGKILL, at a
steady rate, each when the one before has come back. The environments count their own steps and the
replay looks at each transition that it is given, so that what a kill cost is known without the
ledger, and what the ledger says is checked.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psutil

from asyncrl.transport.zeromq import ZmqTransportConfig
from benchmarks.chaos.figures import median, percentile
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.stage import DEADLINE_S, Stage
from benchmarks.chaos.worlds import Incarnation
from benchmarks.common import note

_UNSENT = 2
"""Messages of an actor that no window counts: one that waits for credit, one that is filled."""


@dataclass(slots=True)
class KillStorm:
    """A script: calm, then kills, then calm again."""

    kills: int
    seconds: float
    calm_s: float
    killed: list[Incarnation] = field(default_factory=list)
    killed_at: list[float] = field(default_factory=list)
    away_s: list[float] = field(default_factory=list)
    noticed_s: list[float] = field(default_factory=list)
    """From each kill to the line in the log that names the signal."""

    env_steps_per_s: dict[str, float] = field(default_factory=dict)
    descriptors: list[int] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0

    def __call__(self, stage: Stage) -> Iterator[None]:
        """Train undisturbed, then under the storm, until all actors are back."""
        draw = random.Random(0)  # noqa: S311  # no secret
        yield from stage.begins()
        yield from self._calm(stage)
        self.began = time.monotonic()
        steps = _env_steps(stage)
        for number in count(1):
            due = self.began + self.seconds * number / self.kills
            yield from stage.for_s(due - time.monotonic())
            if number > self.kills:
                break
            yield from self._kill(stage, draw)
        self.ended = time.monotonic()
        self.env_steps_per_s["storm"] = (_env_steps(stage) - steps) / (self.ended - self.began)
        self._note_size()

    def _calm(self, stage: Stage) -> Iterator[None]:
        steps, began = _env_steps(stage), time.monotonic()
        yield from stage.for_s(self.calm_s)
        passed_s = time.monotonic() - began
        self.env_steps_per_s["calm"] = (_env_steps(stage) - steps) / passed_s
        self._note_size()

    def _kill(self, stage: Stage, draw: random.Random) -> Iterator[None]:
        """Kill an actor, and learn on until its slot has had a new transition stored."""
        victim = draw.choice(stage.incarnations.living())
        newest = max(stage.audit.first_at)
        self.killed.append(victim)
        self.killed_at.append(time.monotonic())
        os.kill(victim.pid, signal.SIGKILL)
        what = f"a transition of the actor that follows number {len(self.killed)}"
        yield from stage.until(lambda: max(stage.audit.first_at) > newest, DEADLINE_S, what)
        self.away_s.append(stage.audit.first_at[max(stage.audit.first_at)] - self.killed_at[-1])
        reported_at, _ = stage.notices.since(self.killed_at[-1], "SIGKILL")[0]
        self.noticed_s.append(reported_at - self.killed_at[-1])
        if len(self.killed) % 100 == 0:
            note(f"{len(self.killed)} of {self.kills} killed")

    def _note_size(self) -> None:
        process = psutil.Process()
        self.rss_mib.append(process.memory_info().rss / 2**20)
        self.descriptors.append(process.num_fds())


def _env_steps(stage: Stage) -> int:
    return sum(one.steps for one in stage.incarnations.all()) * stage.world.n_envs


def measure(size: Size, directory: Path) -> list[Finding]:
    """Run the storm, and say what it cost."""
    storm = KillStorm(30, 18.0, 4.0) if size == "small" else KillStorm(1000, 600.0, 30.0)
    stage = Stage(directory)
    stage.play(storm)
    return findings(storm, stage)


def findings(storm: KillStorm, stage: Stage) -> list[Finding]:
    """Return what a storm that is over has cost."""
    return [
        _noticed(storm),
        _away(storm),
        _pauses(storm, stage),
        _loss(storm, stage),
        *_throughput(storm, stage),
    ]


def _noticed(storm: KillStorm) -> Finding:
    middle, worst = median(storm.noticed_s), percentile(storm.noticed_s, 99)
    return Finding(
        target=1,
        what=f"{storm.kills} actors killed beside a learner that learns",
        measured=f"median {1000 * middle:.1f} ms, p99 {1000 * worst:.1f} ms",
        promised="p99 <= 50 ms",
        passed=worst <= 0.05,
        timed=True,
        numbers={"median_s": middle, "p99_s": worst, "longest_s": max(storm.noticed_s)},
    )


def _away(storm: KillStorm) -> Finding:
    middle, worst = median(storm.away_s), percentile(storm.away_s, 99)
    return Finding(
        target=2,
        what=f"{storm.kills} kills of actors, started by a fork server",
        measured=f"median {middle:.2f} s, p99 {worst:.2f} s, longest {max(storm.away_s):.2f} s",
        promised="median <= 0.5 s, p99 <= 1.5 s",
        passed=middle <= 0.5 and worst <= 1.5,
        timed=True,
        numbers={"median_s": middle, "p99_s": worst, "longest_s": max(storm.away_s)},
    )


def _pauses(storm: KillStorm, stage: Stage) -> Finding:
    """Look at the gaps that end while an actor is away."""
    gaps = [
        gap
        for at, away_s in zip(storm.killed_at, storm.away_s, strict=True)
        for gap in stage.gaps_s(at, at + away_s)
    ]
    calm = stage.gaps_s(end=storm.began)
    return Finding(
        target=4,
        what="gradient steps while 1 of 2 actors is away",
        measured=f"longest gap {1000 * max(gaps):.0f} ms ({1000 * max(calm):.0f} ms in calm)",
        promised="<= 200 ms",
        passed=max(gaps) <= 0.2,
        timed=True,
        numbers={"longest_s": max(gaps), "p99_s": percentile(gaps, 99), "calm_s": max(calm)},
    )


def _loss(storm: KillStorm, stage: Stage) -> Finding:
    """Look at what each kill cost, as the environments and the replay have it."""
    lost = [stage.lost(one) / stage.message for one in storm.killed]
    most = ZmqTransportConfig().window + _UNSENT
    balance = stage.balance(5, f"{storm.kills} kills of actors")
    return Finding(
        target=5,
        what=balance.what,
        measured=f"at most {max(lost):.1f} batches lost by a kill, {sum(lost) / len(lost):.1f} in "
        f"the mean; {balance.measured}",
        promised=f"<= {most - _UNSENT} sent batches and {_UNSENT} unsent; {balance.promised}",
        passed=balance.passed and max(lost) <= most,
        numbers={**balance.numbers, "most_lost_batches": max(lost)},
    )


def _throughput(storm: KillStorm, stage: Stage) -> list[Finding]:
    rates = storm.env_steps_per_s
    share = rates["storm"] / rates["calm"]
    restarts = sum(actor["restarts"] for actor in stage.result.actors.values())
    back_s = storm.away_s[-1]
    took_s = storm.ended - storm.began
    return [
        Finding(
            target=6,
            what=f"{storm.kills} kills in {took_s:.0f} s: slots filled again",
            measured=f"{restarts:.0f} of {storm.kills}",
            promised="all, and no other",
            passed=restarts == storm.kills == len(storm.away_s),
            numbers={"restarts": restarts, "kills": storm.kills, "seconds": took_s},
        ),
        Finding(
            target=6,
            what="environment steps a second under the storm",
            measured=f"{share:.0%} of those in calm ({rates['storm']:,.0f} of "
            f"{rates['calm']:,.0f}); all back {back_s:.2f} s after the last kill",
            promised=">= 60 %; all back <= 2 s",
            passed=share >= 0.6 and back_s <= 2,
            timed=True,
            numbers={"share": share, "back_s": back_s, **rates},
        ),
        Finding(
            target=6,
            what="the learner's open files after the storm",
            measured=f"{storm.descriptors[1]} after {storm.descriptors[0]}; memory "
            f"{storm.rss_mib[1]:.0f} MiB after {storm.rss_mib[0]:.0f}",
            promised="none is left open for each kill",
            passed=storm.descriptors[1] < storm.descriptors[0] + 6,
        ),
    ]
