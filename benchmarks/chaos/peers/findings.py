"""Keeps what was found, cell by cell, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos.peers.verdict import Finding

FILE = "peers.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A finding, and where it comes from."""

    finding: Finding
    version: str
    date: str
    commit: str
    load_before: float
    patience_s: float
    """For how long an end of the fault was waited for."""

    machine: Mapping[str, Any] = field(default_factory=dict)


def load(path: Path) -> dict[str, Kept]:
    """Return what was kept, by the name of the cell; nothing if there is no file."""
    if not path.exists():
        return {}
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Kept(**{**values, "finding": Finding(**values["finding"])})
        for name, values in stored.items()
    }


def save(path: Path, found: Mapping[str, Kept]) -> None:
    """Write all of it, or leave the file as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    plain = {name: asdict(kept) for name, kept in sorted(found.items())}
    unfinished.write_text(json.dumps(plain, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    unfinished.replace(path)
