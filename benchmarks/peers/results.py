"""Results of the comparison with peers: saved measurements, medians and tables.

Knows nothing about how anything is measured.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import is_clean, write_json
from benchmarks.peers.interface import STAGES, UNITS

MARKS = "<!-- peers: written by peers/compare.py -->", "<!-- end of peers -->"

ROUNDS = 5
"""Rounds that a number needs to be shown."""

OURS = "asyncrl"
LABELS: Mapping[str, str] = {
    OURS: "asyncrl",
    "sb3": "Stable-Baselines3",
    "torchrl": "TorchRL",
    "tianshou": "Tianshou",
    "rllib": "RLlib",
    "sample_factory": "Sample Factory",
    "cleanrl_style": "plain loops",
    "envpool": "EnvPool",
    "cpprb": "cpprb",
}
"""Side -> its display name, in the order of the table."""

TITLES: Mapping[str, str] = {
    "sampling": "Sampling, a 64x64 policy in the loop",
    "env": "Environments alone",
    "updates-sac": "SAC updates",
    "updates-dqn": "DQN updates",
    "per": "prioritized replay",
    "score-dqn": "DQN to 475",
    "score-sac": "SAC to -200",
}

_GROUPS = (("sampling",), ("env",), ("updates-sac", "updates-dqn", "per"))
_SCORES = ("score-dqn", "score-sac")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A quantity measured on several sides."""

    stage: str
    env: str

    @property
    def title(self) -> str:
        """Return its short name."""
        env = self.env.removeprefix("ALE/")
        return env if self.stage in {"sampling", "env"} else f"{TITLES[self.stage]}, {env}"

    @property
    def less_is_better(self) -> bool:
        """Whether lower is better: a time, not a rate."""
        return UNITS[self.stage] == "s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number of one side, and all that it depends on."""

    side: str
    stage: str
    env: str
    round: int
    value: float | None
    """None: it failed, or never reached the score; `note` says which."""

    failed: bool
    version: str
    note: str
    date: str
    commit: str
    load_before: float
    identity: str
    """Hash of the measured code, its settings and duration."""

    wall_s: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def quantity(self) -> Quantity:
        """Return what was measured."""
        return Quantity(stage=self.stage, env=self.env)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """All rounds of one quantity and side."""

    side: str
    version: str
    median: float
    """Infinite where most rounds never reached the score; NaN where it could not be measured."""

    values: Sequence[float]
    ahead: float
    """Speed of asyncrl relative to this side: the median ratio of rounds, or, of times, the
        ratio of medians."""

    ahead_by_round: Sequence[float]
    notes: Sequence[str]


def quantities() -> list[Quantity]:
    """Return all measurements, in order."""
    return [Quantity(stage=stage, env=env) for stage, envs in STAGES.items() for env in envs]


def shown(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return comparable measurements: rounds in which asyncrl was measured at the same commit.

    Changes that are in no commit count for nothing, nor do fewer than `ROUNDS` rounds; whatever
    failed or never got to its score needs no more.
    """
    taken = [m for m in measurements if is_clean({"commit": m.commit})]
    ours = {(m.quantity, m.round): m.commit for m in taken if m.side == OURS}
    beside = [m for m in taken if ours.get((m.quantity, m.round)) == m.commit]
    rounds = Counter((m.quantity, m.side) for m in beside)
    over = {(m.quantity, m.side) for m in beside if m.value is None}
    return [
        m for m in beside if rounds[m.quantity, m.side] >= ROUNDS or (m.quantity, m.side) in over
    ]


def find(measurements: Iterable[Measurement], quantity: Quantity) -> dict[str, Found]:
    """Return what each side has, asyncrl first."""
    sides: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        if measurement.quantity == quantity:
            sides.setdefault(measurement.side, []).append(measurement)
    ours = {m.round: m for m in sides.get(OURS, [])}
    return {side: _found(sides[side], ours, quantity) for side in LABELS if side in sides}


def _found(
    taken: Sequence[Measurement], ours: Mapping[int, Measurement], quantity: Quantity
) -> Found:
    values = {m.round: _number(m) for m in taken}
    ahead = {
        number: _ahead(_number(ours[number]), value, quantity)
        for number, value in values.items()
        if number in ours
    }
    median = _median(values.values())
    ratio = _median(ahead.values())
    if quantity.less_is_better:  # seeds of two sides have nothing in common
        ratio = _ahead(_median(map(_number, ours.values())), median, quantity)
    return Found(
        side=taken[-1].side,
        version=next((m.version for m in taken if m.version), ""),
        median=median,
        values=[value for value in values.values() if not math.isnan(value)],
        ahead=ratio,
        ahead_by_round=[value for value in ahead.values() if math.isfinite(value)],
        notes=sorted({m.note for m in taken if m.note}),
    )


def _number(measurement: Measurement) -> float:
    if measurement.value is not None:
        return measurement.value
    return math.nan if measurement.failed else math.inf


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def _ahead(ours: float, theirs: float, quantity: Quantity) -> float:
    if quantity.less_is_better:
        ours, theirs = theirs, ours
    if math.isinf(ours) and math.isinf(theirs):
        return math.nan
    return ours / theirs if theirs else math.inf


def load_measurements(path: Path) -> tuple[dict[str, Any], list[Measurement]]:
    """Return the machine and the measurements of a file; nothing if there is no such file."""
    if not path.exists():
        return {}, []
    kept = json.loads(path.read_text(encoding="utf-8"))
    return kept["machine"], [Measurement(**taken) for taken in kept["measurements"]]


def save_measurements(
    path: Path, machine: Mapping[str, Any], measurements: Sequence[Measurement]
) -> None:
    """Write the file, whole or not at all."""
    measured = [asdict(measurement) for measurement in measurements]
    write_json(path, {"machine": dict(machine), "measurements": measured})


def render(machine: Mapping[str, Any], measurements: Sequence[Measurement]) -> str:
    """Return the tables of comparable results, what is missing, and the machines."""
    valid, notes = shown(measurements), list[str]()
    if not valid:
        return f"\nNothing is shown: no number was taken in {ROUNDS} rounds at one commit yet.\n"
    lines = [_heading(machine, valid)]
    for stages in _GROUPS:
        columns = [q for q in quantities() if q.stage in stages]
        found = {q: find(valid, q) for q in columns}
        columns = [q for q in columns if found[q]]
        if columns:
            lines += ["", *_table(columns, found, notes)]
    lines += ["", *_score_table(valid)]
    lines += ["", *(f"{i}. {note}." for i, note in enumerate(notes, 1))]
    there = {m.quantity for m in valid}
    if missing := [q for q in quantities() if q not in there]:
        words = ", ".join(f"{q.stage} of {q.env}" for q in missing)
        lines += ["", f"Not taken in {ROUNDS} rounds at one commit: {words}."]
    return "\n".join(["", *lines, ""])


def _heading(machine: Mapping[str, Any], taken: Sequence[Measurement]) -> str:
    versions = {m.side: m.version for m in taken if m.version}
    named = [
        f"{LABELS[side]} {versions[side]}"
        for side in LABELS
        if side in versions and side not in {OURS, "cleanrl_style"}
    ]
    packages = [f"{name} {machine[name]}" for name in ("torch", "numpy", "gymnasium")]
    loads = [m.load_before for m in taken]
    commits = ", ".join(sorted({m.commit for m in taken}))
    dates = sorted({m.date for m in taken})
    where = f"**{machine['processor']}, {machine['cores']} cores**, Python {machine['python']}"
    return (
        f"{', '.join([where, *packages, *named])}; commits {commits}, {', '.join(dates)}; load "
        f"before a measurement {min(loads):.1f} to {max(loads):.1f}; {ROUNDS} rounds or more."
    )


def _score_table(taken: Sequence[Measurement]) -> list[str]:
    """Return a row for each side that learned, with its steps, since settings differ."""
    rows = []
    for quantity in (q for q in quantities() if q.stage in _SCORES):
        found = find(taken, quantity)
        for side in found:
            own = [m for m in taken if (m.quantity, m.side) == (quantity, side)]
            rows.append(_score_row(quantity, found[side], own))
    if not rows:
        return []
    head = ["to a score", "side", "env steps", "updates", "networks, batches", "cores"]
    head += ["seconds", "speed-up of asyncrl"]
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *rows]


def _score_row(quantity: Quantity, found: Found, own: Sequence[Measurement]) -> str:
    reached = [m.details for m in own if m.value is not None]
    steps = [
        f"{statistics.median(details[name] for details in reached):,.0f}" if reached else ""
        for name in ("env_steps", "opt_steps")
    ]
    settings = own[0].settings
    widths = "x".join(map(str, settings.get("hidden") or settings["policy_kwargs"]["net_arch"]))
    batch = settings.get("batch") or settings["batch_size"]
    seconds = "not reached"
    if math.isfinite(found.median):
        seconds = f"{_short(found.median)} ({_span(found.values)}; n = {len(found.values)})"
    ratio = "" if found.side == OURS or not reached else f"**{_short(found.ahead)}**"
    cells = [
        quantity.title,
        LABELS[found.side],
        *steps,
        f"{widths}, {batch}",
        str(settings["cores"] if found.side == OURS else settings.get("threads", 1)),
        seconds,
        ratio,
    ]
    return f"| {' | '.join(cells)} |"


def _table(
    columns: Sequence[Quantity], found: Mapping[Quantity, Mapping[str, Found]], notes: list[str]
) -> list[str]:
    first = columns[0].stage
    corner = f"{TITLES[first]}, {UNITS[first]}" if first in {"sampling", "env"} else "Learning"
    heads = [q.title if first in {"sampling", "env"} else _with_unit(q) for q in columns]
    lines = [f"| {' | '.join([corner, *heads])} |", f"|{' --- |' * (len(columns) + 1)}"]
    for side, label in LABELS.items():
        cells = [
            _cell(found[q][side], q, notes, label) if side in found[q] else "" for q in columns
        ]
        if any(cells):
            lines.append(f"| {' | '.join([label, *cells])} |")
    return lines


def _with_unit(quantity: Quantity) -> str:
    return f"{quantity.title}, {UNITS[quantity.stage]}"


def _cell(found: Found, quantity: Quantity, notes: list[str], label: str) -> str:
    marks = ""
    for note in found.notes:
        said = f"{label}, {quantity.stage}, {quantity.env}: {note.rstrip('.')}"
        if said not in notes:
            notes.append(said)
        marks += f" [{notes.index(said) + 1}]"
    if math.isnan(found.median):
        return f"none{marks}"
    if found.side == OURS:
        return f"{_short(found.median)} ({_span(found.values)}){marks}"
    if math.isinf(found.median):
        return f"not reached{marks}"
    if math.isnan(found.ahead):
        return f"{_short(found.median)}{marks}"
    span = f" ({_span(found.ahead_by_round)})" if found.ahead_by_round else ""
    return f"{_short(found.median)}, **{_short(found.ahead)}x**{span}{marks}"


def _span(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "never"
    low, high = _short(min(finite)), _short(max(finite))
    text = low if low == high else f"{low} to {high}"
    missing = len(values) - len(finite)
    return f"{text}, {missing} never" if missing else text


def _short(value: float) -> str:
    if math.isinf(value):
        return "never"
    if value >= 100:  # runs agree in fewer than three digits
        return f"{round(value, 3 - len(str(int(value)))):,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
