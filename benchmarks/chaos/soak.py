"""A long run with a fault at random every few seconds: what grows, what slows down?

Faults are kills, hangs asleep and in native code, stops, exceptions, a pause of the learner and a
checkpoint on demand. After a while of warming up, memory, open files and threads of the learner
and its helper are noted, in moments when all actors are there; growth is the slope of a line
through them. The environments and the replay say what was stored, beside the ledger.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import psutil

from asyncrl.run.run_config import RunConfig
from benchmarks.chaos.figures import median, slope_per_h
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.stage import DEADLINE_S, Stage, supervision
from benchmarks.chaos.worlds import Incarnation, Order
from benchmarks.common import note

_STEP_TIMEOUT_S = 2.0
_PAUSE_S = 1.0
_REPORT_S = 60.0
_SHARE = 1 / 12
"""Of the time, for warming up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, and how often something breaks."""

    seconds: float
    fault_every_s: float
    rss_slope_bytes_per_h: float
    """That is allowed; over minutes a line through noise is steep."""


_PLANS: Mapping[Size, Plan] = {"small": Plan(240.0, 5.0, 200e6), "full": Plan(7200.0, 30.0, 1e6)}


@dataclass(frozen=True, slots=True)
class Sample:
    """The learner's process and its helper at one moment."""

    at: float
    rss_bytes: int
    descriptors: int
    threads: int
    env_steps: int
    opt_steps: int


@dataclass(slots=True)
class Soak:
    """A script that breaks something again and again."""

    plan: Plan
    samples: list[Sample] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    _noted_at: float = 0.0

    def __call__(self, stage: Stage) -> Iterator[None]:
        """Break, wait until all is well, note sizes, and again."""
        draw = random.Random(0)  # noqa: S311  # no secret
        yield from stage.begins()
        began = time.monotonic()
        due = began
        while time.monotonic() < began + self.plan.seconds:
            due += self.plan.fault_every_s
            yield from self._break(stage, draw)
            yield from stage.until(partial(_all_there, stage), DEADLINE_S, "all actors")
            yield from stage.for_s(due - time.monotonic())
            self._note(stage, began)

    def _break(self, stage: Stage, draw: random.Random) -> Iterator[None]:
        name = draw.choice(sorted(_FAULTS))
        self.faults[name] = self.faults.get(name, 0) + 1
        victim = draw.choice(stage.incarnations.living())
        before = stage.notices.messages[-1:]
        _FAULTS[name](stage, victim)
        if name not in _QUIET:
            yield from stage.until(
                lambda: stage.notices.messages[-1:] != before, DEADLINE_S, f"a report of {name}"
            )

    def _note(self, stage: Stage, began: float) -> None:
        process = psutil.Process()
        family = [process, *process.children()]
        now = time.monotonic()
        self.samples.append(
            Sample(
                at=now,
                rss_bytes=sum(each.memory_info().rss for each in family),
                descriptors=sum(each.num_fds() for each in family),
                threads=sum(each.num_threads() for each in family),
                env_steps=stage.trainer.proxy.ledger.env_steps,
                opt_steps=stage.opt_steps,
            )
        )
        if now - self._noted_at >= _REPORT_S:
            self._noted_at = now
            note(f"{now - began:,.0f} of {self.plan.seconds:,.0f} s: {self.samples[-1]}")


def _all_there(stage: Stage) -> bool:
    return len(stage.incarnations.living()) == stage.config.actors


def _kill(_: Stage, victim: Incarnation) -> None:
    os.kill(victim.pid, signal.SIGKILL)


def _pause(_: Stage, __: Incarnation) -> None:
    """Stop this process; a shell continues it."""
    script = f"kill -STOP {os.getpid()}; sleep {_PAUSE_S}; kill -CONT {os.getpid()}"
    subprocess.run(["sh", "-c", script], check=True)  # noqa: S603, S607


def _save(stage: Stage, _: Incarnation) -> None:
    stage.trainer.interrupter.save_requested = True


def _order(order: Order, _: Stage, victim: Incarnation) -> None:
    victim.order = order


_FAULTS: Mapping[str, Callable[[Stage, Incarnation], None]] = {
    "kill": _kill,
    "sleep": partial(_order, Order.SLEEP),
    "hold": partial(_order, Order.HOLD),
    "stop": partial(_order, Order.STOP),
    "raise": partial(_order, Order.RAISE),
    "pause": _pause,
    "save": _save,
}
_QUIET = ("pause", "save")
"""Faults that need no report."""


def _configured(config: RunConfig) -> RunConfig:
    return replace(config, supervision=supervision(_STEP_TIMEOUT_S))


def measure(size: Size, directory: Path) -> list[Finding]:
    """Soak, and say what has grown."""
    plan = _PLANS[size]
    soak = Soak(plan)
    stage = Stage(directory, configure=_configured)
    stage.keeps_times = False
    stage.play(soak, checkpoint_dir=directory / "checkpoints")
    restarts = sum(actor["restarts"] for actor in stage.result.actors.values())
    wanted = sum(count for name, count in soak.faults.items() if name not in _QUIET)
    after = soak.samples[0].at + _SHARE * plan.seconds
    warm = [sample for sample in soak.samples if sample.at >= after]
    balance = stage.balance(
        24, f"{sum(soak.faults.values())} faults in {plan.seconds / 60:.0f} min"
    )
    return [
        replace(
            balance,
            measured=f"{restarts:.0f} restarts for {wanted} that need one; {balance.measured}",
            promised=f"one for each; {balance.promised}",
            passed=balance.passed and restarts == wanted,
            numbers={**balance.numbers, **soak.faults},
        ),
        _growth(plan, warm),
        _open(warm),
        _drift(warm),
        _words(stage, plan),
    ]


def _growth(plan: Plan, warm: list[Sample]) -> Finding:
    slope = slope_per_h([s.at for s in warm], [s.rss_bytes for s in warm])
    first, last = warm[0].rss_bytes, warm[-1].rss_bytes
    return Finding(
        target=24,
        what=f"memory of the learner and its helper over {plan.seconds / 60:.0f} min",
        measured=f"{slope / 1e6:+.1f} MB/h; {first / 1e6:.1f} MB at first, {last / 1e6:.1f} MB "
        "at the end",
        promised=f"<= {plan.rss_slope_bytes_per_h / 1e6:g} MB/h",
        passed=slope <= plan.rss_slope_bytes_per_h,
        numbers={"slope_bytes_per_h": slope, "first_bytes": first, "last_bytes": last},
    )


def _open(warm: list[Sample]) -> Finding:
    """Compare medians of the first and the last quarter: a thread may come and go."""
    quarter = max(1, len(warm) // 4)
    pairs = {
        name: (
            median([getattr(s, name) for s in warm[:quarter]]),
            median([getattr(s, name) for s in warm[-quarter:]]),
        )
        for name in ("descriptors", "threads")
    }
    return Finding(
        target=24,
        what="open files and threads of the learner and its helper",
        measured=", ".join(f"{name} {a:g}, then {b:g}" for name, (a, b) in pairs.items()),
        promised="the same",
        passed=all(b <= a for a, b in pairs.values()),
        numbers={f"{name}_last": b for name, (_, b) in pairs.items()},
    )


def _drift(warm: list[Sample]) -> Finding:
    """Compare the second half with the first."""
    middle = warm[len(warm) // 2]
    rates = [
        (b.env_steps - a.env_steps) / (b.at - a.at)
        for a, b in ((warm[0], middle), (middle, warm[-1]))
    ]
    drift = rates[1] / rates[0] - 1
    return Finding(
        target=24,
        what="environment steps a second, second half and first",
        measured=f"{drift:+.1%} ({rates[0]:,.0f}, then {rates[1]:,.0f})",
        promised="within 3 %",
        passed=abs(drift) <= 0.03,
        timed=True,
        numbers={"drift": drift},
    )


def _words(stage: Stage, plan: Plan) -> Finding:
    """Judge the amount of log; more faults an hour produce more."""
    reported = sum(len(text) + 1 for _, text in stage.notices.messages)
    faults_per_h = 120
    faults = plan.seconds / plan.fault_every_s
    per_h = reported / faults * faults_per_h
    return Finding(
        target=24,
        what=f"the log, for {faults_per_h} faults an hour",
        measured=f"{per_h / 1e6:.2f} MB/h",
        promised="<= 1 MB/h",
        passed=per_h <= 1e6,
        numbers={"bytes_per_h": per_h},
    )
