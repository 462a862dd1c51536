"""A learner that is stopped for a while, as by Ctrl-Z or a sleeping laptop, and continues.

Its actors continue until their credit is spent, and then wait: their memory must stay within the
window, nothing may be dropped, no actor may be restarted, and experience must flow as soon as the
learner runs.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil

from asyncrl.core.segment import SegmentConfig
from asyncrl.transport.zeromq import ZmqTransportConfig
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.learner import Learner, wait_until
from benchmarks.chaos.stage import DEADLINE_S
from benchmarks.chaos.worlds import Numbered
from benchmarks.common import note

_WIDTH = 1000
_SLACK_BYTES = 10_000_000
_FILLED = 8_000
"""Transitions after which the replay is full and all memory is in use."""

_FLOWS_S = 0.5


def measure(size: Size, directory: Path) -> list[Finding]:
    """Stop a learner, continue it, and measure its actors."""
    pause_s = 5.0 if size == "small" else 60.0
    with Learner(directory / "run", actors=2, width=_WIDTH) as learner:
        learner.wait_for_steps()
        wait_until(lambda: learner.stored > _FILLED, DEADLINE_S, "a replay that is full")
        before = _held_bytes(learner)
        os.kill(learner.pid, signal.SIGSTOP)
        note(f"the learner is stopped for {pause_s:g} s")
        paused = _most_held_bytes(learner, pause_s)
        flows_s = _resumes(learner)
        after = _most_held_bytes(learner, 2.0)
        actors, balance = learner.end()
    restarts = sum(actor["restarts"] for actor in actors.values())
    return [
        _memory("actors while their learner is stopped", paused[1] - before[1], learner),
        _memory("the learner after that", after[0] - before[0], learner),
        Finding(
            target=21,
            what=f"experience flows after a pause of {pause_s:g} s",
            measured=f"from all actors {flows_s:.2f} s later",
            promised=f"<= {_FLOWS_S:g} s",
            passed=flows_s <= _FLOWS_S,
            timed=True,
            numbers={"flows_s": flows_s},
        ),
        Finding(
            target=21,
            what=f"a pause of {pause_s:g} s: transitions dropped or lost, actors started again",
            measured=f"{balance.numbers['dropped']}, {balance.numbers['lost']}, {restarts:.0f}; "
            f"{balance.measured}",
            promised=f"0, 0, 0; {balance.promised}",
            passed=balance.passed
            and not (balance.numbers["dropped"] or balance.numbers["lost"] or restarts),
            numbers=balance.numbers,
        ),
    ]


def _memory(whose: str, grown_bytes: int, learner: Learner) -> Finding:
    world = Numbered(width=_WIDTH)
    row_bytes = 4 * (3 + world.width)
    message = world.n_envs * SegmentConfig().length * row_bytes
    allowed = ZmqTransportConfig().window * message * learner.actors + _SLACK_BYTES
    return Finding(
        target=21,
        what=f"memory of {whose}",
        measured=f"at most {grown_bytes / 1e6:+.1f} MB",
        promised=f"<= {allowed / 1e6:.1f} MB: the window of each actor and 10 MB",
        passed=grown_bytes <= allowed,
        numbers={"grown_bytes": grown_bytes, "allowed_bytes": allowed},
    )


def _held_bytes(learner: Learner) -> tuple[int, int]:
    """Return what the learner and its actors hold for themselves, shared pages left out."""
    actors = [psutil.Process(one.pid) for one in learner.incarnations.living()]
    own, *others = [
        process.memory_full_info().uss for process in (psutil.Process(learner.pid), *actors)
    ]
    return own, sum(others)


def _most_held_bytes(learner: Learner, seconds: float) -> tuple[int, int]:
    own, others, end = 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        now = _held_bytes(learner)
        own, others = max(own, now[0]), max(others, now[1])
        time.sleep(0.2)
    return own, others


def _resumes(learner: Learner) -> float:
    """Continue it; return the time until it stores again and all its actors make steps."""
    found = learner.incarnations.living()
    steps, stored = [one.steps for one in found], learner.stored
    began = time.monotonic()
    os.kill(learner.pid, signal.SIGCONT)

    def flows() -> bool:
        moved = all(one.steps > before for one, before in zip(found, steps, strict=True))
        return moved and learner.stored > stored

    wait_until(flows, DEADLINE_S, "experience to flow again")
    return time.monotonic() - began
