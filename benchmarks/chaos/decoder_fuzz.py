"""Millions of hostile messages for the decoder (target 15).

Messages of all kinds are changed at random: bytes, fields and frames are set, put in, taken out,
doubled and exchanged. Nothing but the decoder's own error may be raised. The time of each is that
of the thread, so that what else runs does not count. The memory of a part of them, and of
messages made to grow, is compared with their size. Where `atheris` is installed, the full size
also feeds it inputs that are chosen by which lines of the decoder they reach.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from benchmarks.chaos.finding import Finding, Size, not_run
from benchmarks.chaos.hostile_messages import CONSTANT_BYTES, accepted, bombs, costs, hostile
from benchmarks.common import ROOT, note

_INPUTS: dict[Size, int] = {"small": 300_000, "full": 10_000_000}
_MEASURED: dict[Size, int] = {"small": 1_000, "full": 50_000}
"""Of which the memory is measured, which takes time."""

_GUIDED = 3_000_000
_WORST_MS = 50.0
_GROWTH = 8.0
_TELL_EVERY = 500_000


def measure(size: Size, directory: Path) -> list[Finding]:
    """Feed the decoder, and look at time and memory."""
    seed = random.SystemRandom().getrandbits(64) if size == "full" else 0
    found = [*_decoded(_INPUTS[size], seed), _memory(_MEASURED[size], seed)]
    if size == "full":
        found.append(_guided(directory))
    return found


def growth(frames: list[bytes]) -> float:
    """Return how much memory decoding takes, beyond a constant, as a multiple of the message."""
    size = sum(map(len, frames))
    return max(0.0, costs(frames) - CONSTANT_BYTES) / max(size, 1)


def _decoded(inputs: int, seed: int) -> list[Finding]:
    chance = random.Random(seed)  # noqa: S311  # no secret
    fine, worst_s, uncaught = 0, 0.0, ""
    for number in range(inputs):
        frames = hostile(chance)
        began = time.thread_time()
        try:
            fine += accepted(frames)
        except Exception as error:  # that is what is looked for
            uncaught = f"{error!r} at input {number} of seed {seed}"
            note(f"{uncaught}: {frames!r:.2000}")
            break
        worst_s = max(worst_s, time.thread_time() - began)
        if (number + 1) % _TELL_EVERY == 0:
            note(f"{number + 1:,} inputs, worst {1000 * worst_s:.1f} ms")
    promised = "nothing is raised but the decoder's own error"
    return [
        Finding(
            target=15,
            what="inputs",
            measured=uncaught or f"{inputs:,}, of which {fine / inputs:.0%} were read, none raised",
            promised=promised,
            passed=not uncaught,
            numbers={"inputs": inputs, "seed": str(seed), "read": fine},
        ),
        Finding(
            target=15,
            what="worst input",
            measured=f"{1000 * worst_s:.1f} ms",
            promised=f"<= {_WORST_MS:g} ms",
            passed=1000 * worst_s <= _WORST_MS,
            timed=True,
            numbers={"worst_s": worst_s},
        ),
    ]


def _memory(inputs: int, seed: int) -> Finding:
    chance = random.Random(seed + 1)  # noqa: S311  # no secret
    made_to_grow = [frames for _, frames in bombs()]
    worst = max(growth(frames) for frames in made_to_grow)
    for _ in range(inputs):
        worst = max(worst, growth(hostile(chance)))
    return Finding(
        target=15,
        what="memory",
        measured=f"at most {worst:.1f} x the message of {inputs + len(made_to_grow):,}, beyond "
        f"{CONSTANT_BYTES >> 10} KiB",
        promised=f"<= {_GROWTH:g} x",
        passed=worst <= _GROWTH,
        numbers={"growth": worst, "inputs": inputs, "bombs": len(made_to_grow)},
    )


def _guided(directory: Path) -> Finding:
    what, promised = "inputs chosen by coverage", "none raises"
    if find_spec("atheris") is None:
        return not_run(15, what, promised, "atheris is not installed")
    note(f"{_GUIDED:,} inputs chosen by coverage")
    command = [sys.executable, "-m", "benchmarks.chaos.guided_fuzz", str(_GUIDED), str(directory)]
    done = subprocess.run(  # noqa: S603  # our own module
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        note(done.stderr[-5000:])
    return Finding(
        target=15,
        what=what,
        measured=f"{_GUIDED:,}, "
        + (f"code {done.returncode}" if done.returncode else "none raised"),
        promised=promised,
        passed=done.returncode == 0,
        numbers={"inputs": _GUIDED},
    )
