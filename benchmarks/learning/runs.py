"""What is kept of each training: one line of JSON, in a file for each algorithm and task."""

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
    """One training."""

    algorithm: str
    task: str
    mode: str
    """`async`, `sync`, or, of trainings of equal environment steps, whose they are."""

    seed: int
    settings: Mapping[str, Any]
    """All of them, as plain values."""

    score: float
    """Mean return of episodes that had no part in training."""

    score_std: float
    """Of these episodes' returns."""

    reached: bool = False
    """Whether an evaluation during training was at the bar."""

    wall_s: float
    """Until the bar; or, where it was not reached, until training ended."""

    env_steps: int
    opt_steps: int = 0
    stop_reason: str = ""
    lag_opt_steps: float | None = None
    """Median over the run of how far behind the sampled experience was; None where it cannot be."""

    lag_s: float | None = None
    curve: Sequence[Point] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """Of a peer: its version and its settings."""

    origin: Mapping[str, Any] = field(default_factory=dict)
    """Date, code, machine and its load."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Return what there is one of."""
        return (self.algorithm, self.task, self.mode, self.seed)

    @property
    def name(self) -> str:
        """Return algorithm and task, as the command line calls them."""
        return f"{self.algorithm}/{self.task}"


def origin() -> dict[str, Any]:
    """Return where and when a run that begins now is made."""
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
    """Whether a run that was made with `before` is one of `now`.

    Settings that did not exist then, or that are gone now, are taken to be such that nothing
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
