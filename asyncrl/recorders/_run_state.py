"""What is known of a run from its records so far: newest values, progress, who stands still.

Draws nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from asyncrl.recorder import Record

__all__ = ["RunState"]

_WINDOW = 60
_SHARES = ("share/learner_", "share/actor_")
_VISIBLE_SHARE = 0.005


class RunState:
    """The newest value of every metric, and what follows from how they moved."""

    def __init__(self, limits: Mapping[str, float], target: tuple[str, float] | None) -> None:
        self.limits = {name: limit for name, limit in limits.items() if limit > 0}
        self.target = target
        self.values: dict[str, float] = {}
        self.ended: str = ""
        """How the run ended, in a word; empty while it goes on."""

        self._history: deque[dict[str, float]] = deque(maxlen=_WINDOW)
        self._moved_at: dict[str, float] = {}
        self._phases: dict[str, None] = {}

    def update(self, record: Record) -> None:
        """Take in a record. What it does not mention keeps its value."""
        for prefix in _SHARES:
            # Shares of one record belong together; an old one beside them would break their sum.
            if any(name.startswith(prefix) for name in record):
                self.values = {k: v for k, v in self.values.items() if not k.startswith(prefix)}
        for name, value in record.items():
            parts = name.split("/")
            if len(parts) == 3 and parts[2] == "env_steps" and self.values.get(name) != value:
                self._moved_at[parts[1]] = record.get("wall_s", self.wall_s)
            self.values[name] = float(value)
        self._history.append(
            {name: self.values.get(name, 0.0) for name in ("wall_s", *self.limits)}
        )
        for name, value in record.items():
            if name.startswith(_SHARES) and value >= _VISIBLE_SHARE:
                self._phases[name] = None

    @property
    def wall_s(self) -> float:
        """Seconds since training began."""
        return self.values.get("wall_s", 0.0)

    @property
    def fraction(self) -> float | None:
        """How far the run has come towards the nearest limit, 0 to 1; None without limits."""
        if not self.limits:
            return None
        done = (self.values.get(name, 0.0) / limit for name, limit in self.limits.items())
        return min(max(done), 1.0)

    @property
    def eta_s(self) -> float | None:
        """Seconds until the first limit, at the pace of the last records; None if unknown."""
        if len(self._history) < 2:
            return None
        first, last = self._history[0], self._history[-1]
        seconds = last["wall_s"] - first["wall_s"]
        left = [
            (limit - last[name]) * seconds / (last[name] - first[name])
            for name, limit in self.limits.items()
            if last[name] > first[name]
        ]
        return max(min(left), 0.0) if left else None

    def shares(self, prefix: str) -> Iterator[tuple[str, float]]:
        """Yield the phases below a prefix, with those left out that never took any time.

        One that took some stays, so that lines do not come and go.
        """
        for name in self._phases:
            if name.startswith(prefix):
                yield name.removeprefix(prefix), self.values.get(name, 0.0)

    def actors(self) -> dict[str, dict[str, float]]:
        """Return the newest values of each actor, by slot."""
        rows: dict[str, dict[str, float]] = {}
        for name, value in self.values.items():
            head, _, rest = name.partition("/")
            slot, _, metric = rest.partition("/")
            if head == "actor" and metric:
                rows.setdefault(slot, {})[metric] = value
        return dict(sorted(rows.items(), key=lambda row: (len(row[0]), row[0])))

    def idle_s(self, slot: str) -> float:
        """Return how long an actor has made no step."""
        return self.wall_s - self._moved_at.get(slot, self.wall_s)
