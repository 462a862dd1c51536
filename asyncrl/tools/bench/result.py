"""The measurement of one quantity of one stage, with its limit. Converts to JSON and back."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.core.errors import ConfigError
from asyncrl.metrics.machine import PACKAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What a stage measures; a stage may measure several."""

    stage: str
    case: str = ""
    """Which of a stage's measurements; empty if it has one."""

    env: str
    unit: str
    """Unit of value and limit: something per second."""

    limit_is: str
    """What the limit does, in words."""

    frame_skip: int = 1
    """Simulation frames per agent step, if the unit is agent steps."""

    unit_bytes: int = 0
    """Bytes of one transition that is moved; 0 if it is not shown."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the number depends on; only numbers with the same settings can be compared."""


@dataclass(frozen=True, slots=True)
class Round:
    """Value and limit, measured next to each other."""

    value: float
    limit: float

    @property
    def ratio(self) -> float:
        """Return the ratio of value to limit."""
        return self.value / self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One quantity, its limit and their ratio: medians over the rounds, and every round."""

    stage: str
    case: str
    env: str
    value: float
    unit: str
    limit: float
    limit_is: str
    ratio: float
    """Median of the ratios of adjacent measurements, not the ratio of the medians."""

    spread: Mapping[str, Sequence[float]]
    """Lowest and highest of `value`, `limit` and `ratio`."""

    repeats: Sequence[Mapping[str, float]]
    """Every round, in order."""

    frame_skip: int = 1
    frames_per_s: float | None = None
    """Simulation frames per second behind `value`; None if it does not count agent steps."""

    bytes_per_s: float | None = None
    """Bytes per second behind `value`, if bytes are moved."""

    seconds: float
    """Duration of each measurement."""

    load_before: float
    """Load average of the last minute when the stage began."""

    settings: Mapping[str, Any]
    machine: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what distinguishes it from other results of one call."""
        return self.stage, self.case, self.env, self.unit

    @property
    def name(self) -> str:
        """Return the stage and the case in words."""
        return f"{self.stage} {self.case}".rstrip()


def summarise(
    quantity: Quantity,
    rounds: Sequence[Round],
    *,
    seconds: float,
    load_before: float,
    machine: Mapping[str, Any],
) -> Result:
    """Return medians and spread of rounds; needs at least one round."""
    series = {
        "value": [r.value for r in rounds],
        "limit": [r.limit for r in rounds],
        "ratio": [r.ratio for r in rounds],
    }
    median = {name: statistics.median(values) for name, values in series.items()}
    counts_steps = quantity.unit == "agent steps/s"
    return Result(
        stage=quantity.stage,
        case=quantity.case,
        env=quantity.env,
        value=median["value"],
        unit=quantity.unit,
        limit=median["limit"],
        limit_is=quantity.limit_is,
        ratio=median["ratio"],
        spread={name: [min(values), max(values)] for name, values in series.items()},
        repeats=[{"value": r.value, "limit": r.limit, "ratio": r.ratio} for r in rounds],
        frame_skip=quantity.frame_skip,
        frames_per_s=median["value"] * quantity.frame_skip if counts_steps else None,
        bytes_per_s=median["value"] * quantity.unit_bytes if quantity.unit_bytes else None,
        seconds=seconds,
        load_before=load_before,
        settings=dict(quantity.settings),
        machine=machine,
    )


def save_results(results: Iterable[Result], path: Path) -> None:
    """Write results as one JSON array, atomically."""
    text = json.dumps([dataclasses.asdict(result) for result in results], indent=2)
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(f"{text}\n", encoding="utf-8")
    unfinished.replace(path)


def load_results(path: Path) -> list[Result]:
    """Load a file of `save_results`, or JSON lines as `--json` prints them."""
    try:
        text = path.read_text(encoding="utf-8")
        lines = [text] if text.lstrip().startswith("[") else text.splitlines()
        loaded = [json.loads(line) for line in lines if line.strip()]
        rows = loaded[0] if loaded and isinstance(loaded[0], list) else loaded
        return [Result(**row) for row in rows]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} holds no results of `asyncrl bench` ({error}); write such a file with --save"
        ) from error


HARDWARE = ("processor", "cores", "usable_cores", "gpus")
"""Fields that distinguish two machines; the others are versions, and memory."""


def title(described: Mapping[str, Any]) -> str:
    """Format a fingerprint in one line."""
    cores = f"{described['usable_cores']} of {described['cores']} cores"
    gpus = [f"GPU {name}" for name in described["gpus"]] or ["no GPU"]
    versions = [
        f"Python {described['python']}",
        *(f"{name} {described[name]}" for name in PACKAGES),
    ]
    hardware = [
        described["processor"] or "unknown processor",
        cores,
        f"{described['memory_gib']} GiB",
    ]
    return ", ".join([*hardware, *gpus, *versions])


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences between two fingerprints, hardware first."""
    names = [*HARDWARE, *(name for name in now if name not in HARDWARE)]
    return [
        f"{name} {_shown(before.get(name))} -> {_shown(now.get(name))}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "unknown" if value is None else str(value)
