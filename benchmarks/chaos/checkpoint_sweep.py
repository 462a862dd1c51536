"""A save ends at any of its system calls: killed there, or refused by the disk (target 11).

`strace` kills the saving process, or returns "no space left" or "input/output error", at one
system call after another of a row of saves. Afterwards every checkpoint that can be seen must
load, hold what one save wrote, and the next save must go well and clear what was left over. This
proves that no moment exists at which a crash or a full disk costs a checkpoint.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.chaos.finding import Finding, Size, not_run
from benchmarks.chaos.traced_saves import BROKEN, FULL, KILL, Sweep, sweep, traced_saves
from benchmarks.common import note

_PROMISED = "the newest checkpoint loads in all"
_ROWS: dict[Size, tuple[str, ...]] = {
    "small": ("6,best,7",),
    "full": ("6,best,7,best,8", "other,6,7,8,best", "6,6,best,best,7", "9,5,best,10,other"),
}
_MOST: dict[Size, dict[str, int | None]] = {
    "small": {KILL: 40, FULL: 20, BROKEN: 20},
    "full": {KILL: None, FULL: None, BROKEN: None},
}
_TELL_EVERY = 50


def measure(size: Size, directory: Path) -> list[Finding]:
    """Sweep over kills, and over refusals of the disk."""
    if shutil.which("strace") is None:
        reason = "strace, which injects the faults, is not installed"
        return [not_run(11, what, _PROMISED, reason) for what in ("kills", "refusals")]
    found: dict[str, list[Sweep]] = {KILL: [], FULL: [], BROKEN: []}
    with traced_saves(directory) as traced:
        for names in _ROWS[size]:
            for fault, most in _MOST[size].items():
                note(f"saves of {names}, {fault}")
                found[fault].append(sweep(traced, directory, names, fault, most, _tell))
    refusals = found[FULL] + found[BROKEN]
    least = 40 if size == "small" else 300
    return [_finding("kills", found[KILL], least), _finding("refusals", refusals, least)]


def _tell(points: int) -> None:
    if points % _TELL_EVERY == 0:
        note(f"{points} system calls")


def _finding(what: str, sweeps: list[Sweep], least: int) -> Finding:
    points, felt = sum(each.points for each in sweeps), sum(each.felt for each in sweeps)
    broken = [wrong for each in sweeps for wrong in each.broken]
    for wrong in broken:
        note(wrong)
    return Finding(
        target=11,
        what=what,
        measured=f"whole after {points - len(broken)} of {points}, of which {felt} ended the save",
        promised=_PROMISED,
        passed=not broken and points >= least and felt > points / 2,
        numbers={"points": points, "felt": felt, "broken": len(broken)},
    )
