"""Records of training runs: one line of JSON each, in one file per algorithm and task."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, fingerprint, provenance

DIRECTORY = RESULTS / "learning"

Point = tuple[int, float, float]
"""Environment steps of a model, seconds until its score was known, its score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run."""

    algorithm: str
    task: str
    mode: str
    """`async`, `sync`, or, in comparisons with equal environment steps, the framework."""

    seed: int
    settings: Mapping[str, Any]
    """All settings, as plain values."""

    score: float
    """Mean return of episodes that were not used in training."""

    score_std: float
    """Standard deviation of these episodes' returns."""

    reached: bool = False
    """Whether an evaluation during training was at the bar."""

    wall_s: float
    """Seconds until the bar, or, if it was not reached, until training ended."""

    env_steps: int
    opt_steps: int = 0
    stop_reason: str = ""
    lag_opt_steps: float | None = None
    """Median policy lag of the sampled experience; None where there can be none."""

    lag_s: float | None = None
    curve: Sequence[Point] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """For a peer: its version and settings."""

    origin: Mapping[str, Any] = field(default_factory=dict)
    """Date, code, machine and its load."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Return what identifies a run."""
        return (self.algorithm, self.task, self.mode, self.seed)

    @property
    def name(self) -> str:
        """Return algorithm and task, as the command line calls them."""
        return f"{self.algorithm}/{self.task}"


def origin() -> dict[str, Any]:
    """Return the origin of a run that starts now."""
    return {**provenance(), "code": fingerprint(), "time": time.strftime("%H:%M")}


def kept(directory: Path) -> list[Run]:
    """Return all runs, in the order of files and of lines."""
    return [run for path in sorted(directory.glob("*.jsonl")) for run in _read(path)]


def keep(directory: Path, run: Run) -> Path:
    """Add a run; an earlier one of the same key moves to the folder `replaced`."""
    path = directory / f"{run.algorithm}_{run.task}.jsonl"
    before = _read(path)
    replaced = [other for other in before if other.key == run.key]
    if replaced:
        older = directory / "replaced" / path.name
        _write(older, [*_read(older), *replaced])
    _write(path, [*(other for other in before if other.key != run.key), run])
    return path


def of_same_settings(before: object, now: object) -> bool:
    """Whether settings `before` are the same as `now`.

    Settings that were added or removed since are taken to be such that nothing
    changed.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        both = before.keys() & now.keys()
        return all(of_same_settings(before[name], now[name]) for name in both)
    if isinstance(before, list) and isinstance(now, list | tuple):
        return len(before) == len(now) and all(map(of_same_settings, before, now))
    return before == now


def _write(path: Path, runs: Sequence[Run]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(run), allow_nan=False) for run in runs]
    unfinished = path.with_suffix(".part")
    unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _read(path: Path) -> list[Run]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Run(**json.loads(line)) for line in lines]
