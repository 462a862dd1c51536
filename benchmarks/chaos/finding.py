"""What an entry of the chaos bench hands back: numbers, and whether they keep a promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Size = Literal["small", "full"]
"""Small is for every change, within minutes; full is for a release."""

_NOT_RUN = "not run: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One measurement beside what was promised."""

    target: int
    """Which line of `targets.txt`."""

    what: str
    """Was measured, in a few words."""

    measured: str
    """In one line of a table."""

    promised: str
    passed: bool
    timed: bool = False
    """Whether passing depends on the clock of a machine that others use, too."""

    numbers: Mapping[str, float | int | str] = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        """Whether it could be measured here."""
        return not self.measured.startswith(_NOT_RUN)

    @property
    def verdict(self) -> str:
        """Return the verdict in one word."""
        if not self.ran:
            return "not run"
        if self.passed:
            return "kept"
        return "missed" if self.timed else "broken"


def not_run(target: int, what: str, promised: str, reason: str) -> Finding:
    """Return what is said of a measurement that this machine does not allow."""
    measured = f"{_NOT_RUN}{reason}"
    return Finding(target=target, what=what, measured=measured, promised=promised, passed=False)


def in_time(target: int, what: str, seconds: float, limit_s: float, *, note: str = "") -> Finding:
    """Return what is said of something that must happen within a time."""
    return Finding(
        target=target,
        what=what,
        measured=f"{seconds:.2f} s{note}",
        promised=f"<= {limit_s:g} s",
        passed=seconds <= limit_s,
        timed=True,
        numbers={"seconds": seconds},
    )
