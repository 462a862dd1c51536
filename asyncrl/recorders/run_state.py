"""The state of a run as far as its records show it: newest values, progress, bottleneck.

Draws nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from asyncrl.core.recorder import Record
from asyncrl.metrics.metrics import METRICS
from asyncrl.metrics.verdict import Facts, Setup, Verdict, judge

_WINDOW = 60
_SHARES = ("share/learner_", "share/actor_")
_VISIBLE_SHARE = 0.005
_ORDER = {name: place for place, name in enumerate(METRICS)}


class RunState:
    """The newest value of every metric, and averages of those that are rates or shares."""

    def __init__(
        self,
        limits: Mapping[str, float],
        target: tuple[str, float] | None,
        setup: Setup | None = None,
    ) -> None:
        self.limits = {name: limit for name, limit in limits.items() if limit > 0}
        self.target = target
        self.values: dict[str, float] = {}
        self.ended: str = ""
        """How the run ended, in one word; empty while it runs."""

        self._setup = setup
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._seconds: dict[str, float] = {}
        self._began_s: float | None = 0.0
        """Where the averages begin on the axis of `wall_s`; None: at the next record."""
        self._history: deque[dict[str, float]] = deque(maxlen=_WINDOW)
        self._moved_at: dict[str, float] = {}
        self._phases: set[str] = set()

    def resume_at(self, *, env_steps: int, opt_steps: int) -> None:
        """Continue a run from here; averages do not cover the time before."""
        self.values |= {"env_steps": float(env_steps), "opt_steps": float(opt_steps)}
        if env_steps or opt_steps:  # else a new run: its recorders forget an earlier one
            self._began_s = None

    def update(self, record: Record) -> None:
        """Add a record. Metrics that it lacks keep their values."""
        for prefix in _SHARES:
            # The shares of one record sum to 1; an old share among them would break the sum.
            if any(name.startswith(prefix) for name in record):
                self.values = {k: v for k, v in self.values.items() if not k.startswith(prefix)}
        for name, value in record.items():
            parts = name.split("/")
            if len(parts) == 3 and parts[2] == "env_steps" and self.values.get(name) != value:
                self._moved_at[parts[1]] = record.get("wall_s", self.wall_s)
            self.values[name] = float(value)
        self._add_up(record)
        self._history.append(
            {name: self.values.get(name, 0.0) for name in ("wall_s", *self.limits)}
        )
        for name, value in record.items():
            if name.startswith(_SHARES) and value >= _VISIBLE_SHARE:
                self._phases.add(name)

    def finish(self, ended: str) -> None:
        """Set how the run ended. From now on, rates and shares are averages of the whole run.

        Shares of a resumed run are those of the part since then.
        """
        self.ended = ended
        for name, total in self._sums.items():
            self.values[name] = total / (self._seconds[_group(name)] - (self._began_s or 0.0))
        for rate, steps in (("fps", "env_steps"), ("opt_steps_per_sec", "opt_steps")):
            if rate in self.values and self.wall_s > 0:
                self.values[rate] = self.values.get(steps, 0.0) / self.wall_s

    @property
    def verdict(self) -> Verdict | None:
        """The bottleneck by the newest record; None until a record shows it."""
        if not any(name.startswith(_SHARES) for name in self.values):
            return None
        # In a synchronous run, the learner's process steps its only actor and never waits for it.
        actors = 0 if "share/learner_act" in self.values else len(self.actors())
        setup = self._setup or Setup(actors=actors)
        if "actors" in self.values:  # their number may change during a run
            setup = replace(setup, actors=int(self.values["actors"]))
        return judge(Facts.of_record(self.values, setup))

    @property
    def wall_s(self) -> float:
        """Seconds since training began."""
        return self.values.get("wall_s", 0.0)

    @property
    def fraction(self) -> float | None:
        """Progress towards the nearest limit, 0 to 1; None without limits."""
        if not self.limits:
            return None
        done = (self.values.get(name, 0.0) / limit for name, limit in self.limits.items())
        return min(max(done), 1.0)

    @property
    def eta_s(self) -> float | None:
        """Seconds until the first limit at the recent rate; None if unknown."""
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
        """Yield the phases below a prefix in a fixed order, without those that have taken no time.

        A phase that has taken time once stays, so that lines do not come and go.
        """
        for name in sorted(self._phases, key=lambda name: _ORDER.get(name, len(_ORDER))):
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
        """Return the seconds since an actor's last step."""
        return self.wall_s - self._moved_at.get(slot, self.wall_s)

    def _add_up(self, record: Record) -> None:
        """Add the metrics that are averaged, weighted by the seconds that the record covers."""
        averaged = {name: value for name, value in record.items() if name.startswith(_SHARES)}
        averaged |= {name: v for name, v in record.items() if name.endswith("_percent")}
        if self._began_s is None:
            self._began_s = self.wall_s
        for group in {_group(name) for name in averaged}:
            before_s = self._seconds.get(group, self._began_s)
            self._seconds[group] = max(self.wall_s, before_s, self._began_s + 1e-6)
            seconds = self._seconds[group] - before_s
            for name, value in averaged.items():
                if _group(name) == group:
                    self._sums[name] += value * seconds


def _group(name: str) -> str:
    """Return the group that is averaged together: the shares of one side, or one metric."""
    return next((prefix for prefix in _SHARES if name.startswith(prefix)), name)


_STEPS = ((1e12, "T", 2), (1e9, "G", 2), (1e6, "M", 2), (1e3, "k", 1))


def count(value: float) -> str:
    """Format a number of things, or of things per second: `7`, `2.5`, `812`, `48.1 k`, `1.25 M`."""
    if not math.isfinite(value):
        return str(value)
    for step, letter, digits in _STEPS:
        # Above it, rounding would show 1000 of the smaller unit.
        if abs(value) >= 0.9995 * step:
            return f"{value / step:.{digits}f} {letter}"
    if value == int(value) or abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}"


def measure(value: float) -> str:
    """Format a return, a loss or the like: `3204.5`, `12.35`, `0.0123`, `1.2e-05`."""
    size = abs(value)
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if size < 0.001:
        return f"{value:.1e}"
    if size >= 99_999.5:
        return count(value)
    digits = 4 if size < 1 else 2 if size < 100 else 1
    return f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units: `12 s`, `2 m 05 s`, `3 h 20 m`."""
    if not math.isfinite(seconds):
        return str(seconds)
    whole = round(seconds)
    for big, small, big_s, small_s in (("d", "h", 86400, 3600), ("h", "m", 3600, 60)):
        if whole >= big_s:
            return f"{whole // big_s} {big} {whole % big_s // small_s:02d} {small}"
    return f"{whole // 60} m {whole % 60:02d} s" if whole >= 100 else f"{whole} s"


def byte_size(value: float) -> str:
    """Format a number of bytes: `412 MB`, `1.3 GB`."""
    return f"{value / 1e9:.1f} GB" if value >= 999.5e6 else f"{value / 1e6:.0f} MB"


def percent(share: float) -> str:
    """Format a share of 1 in whole percent."""
    return f"{share:.0%}".replace("%", " %") if math.isfinite(share) else str(share)


_Rows = Mapping[str, Mapping[str, float]]

_MOST_SLOTS = 6
_MESSAGES = {
    "malformed": "malformed",
    "refused": "refused",
    "impostor": "in another's name",
    "fenced": "of actors lost with their host",
    "foreign_run": "of another run",
    "foreign_protocol": "of another version",
    "unknown": "from unknown peers",
    "stale": "from earlier incarnations",
    "undelivered": "not delivered",
    "after_gap": "after lost ones",
}
"""What users read for each reason; the metrics of `link/` that count connections are not here."""

_CONNECTIONS = {"handshake_failed": "refused", "flood": "too many"}


def fault_phrases(values: Mapping[str, float], actors: _Rows) -> list[str]:
    """Return the faults so far, the worst first; empty without faults.

    The ledger shows what they lost.

    Args:
        values: The newest metrics of the run.
        actors: The newest metrics of each actor, by slot.
    """
    phrases = [*_of_actors(actors)]
    if lost := values.get("hosts/lost"):
        phrases.append(_several(lost, "host", "lost"))
    if failures := values.get("checkpoint/failures"):
        phrases.append(_several(failures, "checkpoint", "not written"))
    for thing, reasons in (("message", _MESSAGES), ("connection", _CONNECTIONS)):
        for reason, words in reasons.items():
            if number := values.get(f"link/{reason}"):
                phrases.append(_several(number, thing, words))
    return phrases


def _of_actors(actors: _Rows) -> Iterator[str]:
    for metric, thing, words in (
        ("dropped", "actor", "dropped"),
        ("restarts", "restart", ""),
        ("memory_restarts", "restart", "at the memory limit"),
        ("env_restarts", "rebuild", "of environments"),
    ):
        found = {slot: row[metric] for slot, row in actors.items() if row.get(metric)}
        if found:
            yield f"{_several(sum(found.values()), thing, words)} ({_slots([*found])})"


def _slots(slots: list[str]) -> str:
    if len(slots) > _MOST_SLOTS:
        return f"{len(slots)} actors"
    return f"actor{'s' if len(slots) > 1 else ''} {', '.join(slots)}"


def _several(number: float, thing: str, words: str) -> str:
    return f"{count(number)} {thing}{'' if number == 1 else 's'} {words}".rstrip()
