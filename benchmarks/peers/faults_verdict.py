"""Derives the outcome of a run from observations. Pure functions: no processes, no files."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.faults_in_process import CAUSE
from benchmarks.peers.faulty import Heartbeat

ACTORS = 2

_STILL_S = 5.0
"""A process that made a step within this time counts as working: training pauses to learn."""

_NOTES = 5
_LONGEST = 120
_CLUE = re.compile(
    r"\b(\w*Error|\w*Exception|\w*Fault|WARNING|warning|died|dead|killed|SIGKILL|failed|unhealthy"
    r"|timed? ?out|restart\w*|replaced|NaN|nan)\b"
)
_PREFIX = re.compile(
    r"^(\([^()]*\bpid=\d+[^()]*\) ?)?(\d{4}-\d\d-\d\d [\d:,.]+\s+)?([A-Z]+ [\w.]+:\d+ -- )?"
)
"""Source, time and place of a log line."""

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

Note = Mapping[str, Any]


class Strength:
    """Follows how many processes have worked since the fault."""

    def __init__(self, fault_at: float) -> None:
        self._fault_at = fault_at
        self._first: dict[int, float] = {}
        self.full_since: float | None = None
        """Start of the current period with all actors."""

    def look(self, beats: Mapping[int, Heartbeat], now: float) -> int:
        """Read the heartbeats of the processes; return how many work."""
        since = max(self._fault_at, now - _STILL_S)
        working = {pid: beat for pid, beat in beats.items() if beat.at > since}
        for pid in set(self._first) - set(working):
            del self._first[pid]
        for pid, beat in working.items():
            self._first.setdefault(pid, beat.at)
        if len(working) < ACTORS:
            self.full_since = None
        elif self.full_since is None:
            self.full_since = sorted(self._first.values())[ACTORS - 1]
        return len(working)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything observed of a run; times are from one clock, in seconds."""

    fault_at: float
    until: float
    """When it was asked to stop, or had ended by itself."""

    ended: bool
    """By itself."""

    exit_code: int | None
    """None: it did not end when asked to, and was killed."""

    full_since: float | None
    working: int
    """Processes that worked in the end."""

    made: int
    """Environment steps in total."""

    notes: Sequence[Note]
    said: str
    """What it printed after the fault."""


def judge(seen: Observed) -> dict[str, Any]:
    """Return how the run went, in the form that is saved.

    `outcome` is `recovered`, `ended`, `hung`, `short` (continued with fewer) or `learned` (from bad
    numbers). `after_s` is the time from the fault to full strength, or to the end, or until the
    benchmark gave up; `pause_s` the longest time without learning after the fault. `lost` are
    environment steps that were never learned from; in runs that end, all since they last learned.
    `message` is the error, or the first line about the fault. `cause` says where
    the environment's exception appears: in the `error`, on the `screen`, or nowhere.
    """
    progress = [note for note in seen.notes if note["event"] == "progress"]
    errors = [note for note in seen.notes if note["event"] == "error"]
    last = progress[-1] if progress else {"bad_rows": 0, "bad_params": False}
    outcome = _outcome(seen, progress, bad=bool(last["bad_rows"] or last["bad_params"]))
    until = seen.until
    if outcome in {"recovered", "learned"} and seen.full_since is not None:
        until = seen.full_since
    elif outcome == "ended" and errors:
        until = errors[0]["at"]
    return {
        "outcome": outcome,
        "after_s": round(max(0.0, until - seen.fault_at), 2),
        "pause_s": round(_longest_pause(seen, progress), 2),
        "lost": _lost(seen, progress),
        "bad_rows": last["bad_rows"],
        "bad_params": last["bad_params"],
        "working": seen.working,
        "exit_code": seen.exit_code,
        "message": _error_text(errors, seen.said),
        "cause": _cause(errors, seen.said),
    }


def shorten(text: str, longest: int = _LONGEST) -> str:
    """Return the start of the first line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = " ".join(lines[0].split()) if lines else ""
    return first if len(first) <= longest else first[: longest - 3].rstrip() + "..."


def _outcome(seen: Observed, progress: Sequence[Note], *, bad: bool) -> str:
    if seen.ended:
        return "ended"
    if seen.full_since is not None:
        return "learned" if bad else "recovered"
    half = (seen.fault_at + seen.until) / 2
    return "short" if any(note["at"] > half for note in _steps_ahead(progress)) else "hung"


def _steps_ahead(progress: Sequence[Note]) -> list[Note]:
    """Return the notes of turns that learned from new experience."""
    ahead: list[Note] = []
    for note in progress:
        if not ahead or note["received"] > ahead[-1]["received"]:
            ahead.append(note)
    return ahead


def _longest_pause(seen: Observed, progress: Sequence[Note]) -> float:
    times = [note["at"] for note in _steps_ahead(progress)]
    before = [at for at in times if at <= seen.fault_at][-1:]
    after = [at for at in times if seen.fault_at < at < seen.until]
    moments = [*before, *after, seen.until]
    return max((b - a for a, b in pairwise(moments)), default=0.0)


def _lost(seen: Observed, progress: Sequence[Note]) -> int:
    if not progress:
        return seen.made
    if seen.ended:
        return max(0, seen.made - int(progress[-1]["received"]))
    if "lost" in progress[-1]:
        return int(progress[-1]["lost"])
    behind = [(note["at"], int(note["made"]) - int(note["received"])) for note in progress]
    before = [steps for at, steps in behind if at <= seen.fault_at][-_NOTES:]
    after = [steps for _, steps in behind][-_NOTES:]
    return max(0, round(statistics.median(after) - statistics.median(before or after)))


def _cause(errors: Sequence[Note], said: str) -> str:
    if any(CAUSE in error["message"] for error in errors):
        return "error"
    return "screen" if CAUSE in said else ""


def _error_text(errors: Sequence[Note], said: str) -> str:
    if errors:
        message = shorten(errors[0]["message"])
        return shorten(f"{errors[0]['type']}: {message}".removesuffix(": "))
    lines = [_PREFIX.sub("", line) for line in _ESCAPES.sub("", said).splitlines()]
    clues = [line for line in lines if line[:1].strip() and _CLUE.search(line)]
    return shorten(clues[0]) if clues else ""
