"""The entries of the chaos bench: what each does, where it is, and how long it takes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from benchmarks.chaos.finding import Size
from benchmarks.common import fingerprint

_GRACE = 4.0
"""How much longer than usual an entry may take on a machine that is busy."""

_SLACK_S = 120.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A module with `measure(size, directory)`, which returns findings."""

    module: str
    sentence: str
    small_s: float
    """Roughly, on two cores."""

    full_s: float

    def expected_s(self, size: Size) -> float:
        """Return how long it takes, roughly."""
        return self.small_s if size == "small" else self.full_s

    def deadline_s(self, size: Size) -> float:
        """Return after what time it is taken to hang."""
        return _SLACK_S + _GRACE * self.expected_s(size)

    def code(self) -> str:
        """Return a hash of what is measured and of what measures it."""
        found = find_spec(self.module)
        own = Path(found.origin).read_bytes() if found and found.origin else b""
        return f"{fingerprint()}-{hashlib.sha256(own).hexdigest()[:8]}"


_ROWS: tuple[tuple[str, str, float, float], ...] = (
    (
        "nonsense",
        "hosts, actors and strangers that speak nonsense while honest actors work",
        8,
        650,
    ),
    ("kill_storm", "actors that are killed, one after the other, at a steady rate", 30, 650),
    (
        "orphans",
        "learners that are killed with stuck actors: processes and files that are left",
        20,
        900,
    ),
    ("checkpoint_pause", "checkpoints of 100 MB: which process pauses", 28, 300),
    ("partition", "a network that stalls, or swallows what is sent", 55, 80),
    ("hosts", "hosts that join late, die, hang, flap, are cut off or refused", 90, 400),
    ("on_ray", "hosts on Ray that are killed, or lose their node or the cluster", 65, 65),
    (
        "ranks",
        "learners of which one is killed, frozen, slow, differs or fails; resuming",
        100,
        900,
    ),
    ("full_disk", "a disk that fills up while a run writes to it", 40, 300),
    ("soak", "a fault at random every few seconds, for long", 245, 7210),
)
"""Name, which is that of the module here, what it does, and seconds of small and full."""

ENTRIES: Mapping[str, Entry] = MappingProxyType(
    {
        name: Entry(f"benchmarks.chaos.{name}", sentence, small_s, full_s)
        for name, sentence, small_s, full_s in _ROWS
    }
)
