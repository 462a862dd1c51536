"""Checkpoints are damaged at random: flipped bits, cuts, zeros, swapped files, noise (target 12).

Each damage is done to one file of the newest checkpoint. Loading it must be refused by that file's
name before any array of it is built, and the run must go on from the checkpoint before. How long
that takes is measured with 100 MB of parameters, damaged in the last byte of the last file, so
that all of it is read before the damage is seen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np

from asyncrl.checkpoint import array_file, checkpoint
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.errors import CheckpointError
from asyncrl.core.types import Array
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.traced_saves import groups, value_of
from benchmarks.common import note

_COUNT: dict[Size, int] = {"small": 500, "full": 10_000}
_FALLBACKS: dict[Size, int] = {"small": 3, "full": 20}
_LARGE_BYTES = 100_000_000
_FALLBACK_S = 2.0
_TELL_EVERY = 1000
_WAYS = ("flip", "cut", "zeros", "swap", "insert", "noise")


def measure(size: Size, directory: Path) -> list[Finding]:
    """Damage many small checkpoints, then some large ones."""
    count = _COUNT[size]
    wrong = unnoticed(directory / "small", count)
    for each in wrong:
        note(each)
    times = [fallback_s(directory / f"large-{i}", _LARGE_BYTES) for i in range(_FALLBACKS[size])]
    worst = max(times)
    return [
        Finding(
            target=12,
            what="damages",
            measured=f"{count - len(wrong):,} of {count:,} refused before an array was built",
            promised="all",
            passed=not wrong,
            numbers={"damages": count, "unnoticed": len(wrong)},
        ),
        Finding(
            target=12,
            what="going back to the checkpoint before, 100 MB",
            measured=f"{worst:.2f} s at worst of {len(times)}",
            promised=f"<= {_FALLBACK_S:g} s",
            passed=worst <= _FALLBACK_S,
            timed=True,
            numbers={"worst_s": worst, "median_s": float(np.median(times))},
        ),
    ]


def damage(path: Path, other: Path, generator: np.random.Generator) -> str:
    """Change a file at random; return how, or nothing if it is as it was."""
    data = path.read_bytes()
    at = int(generator.integers(len(data)))
    way = str(generator.choice(_WAYS))
    changed = _changed(data, at, way, other.read_bytes(), generator)
    if changed == data:
        return ""
    path.write_bytes(changed)
    return f"{way} at {at} of {path.name}"


def _changed(data: bytes, at: int, way: str, other: bytes, generator: np.random.Generator) -> bytes:
    changed = bytearray(data)
    match way:
        case "flip":
            changed[at] ^= 1 << int(generator.integers(8))
        case "cut":
            del changed[at:]
        case "zeros":
            changed[at : at + 64] = bytes(len(changed[at : at + 64]))
        case "swap":
            changed = bytearray(other)
        case "insert":
            changed[at:at] = generator.bytes(int(generator.integers(1, 9)))
        case _:
            changed[at:] = generator.bytes(len(data) - at)
    return bytes(changed)


def unnoticed(directory: Path, count: int, seed: int = 0) -> list[str]:
    """Damage the newer of two checkpoints so many times; return what went wrong, and how."""
    checkpointer = Checkpointer(directory)
    checkpointer.save("90", groups(90), {"opt_steps": 90})
    good = checkpointer.save("100", groups(100), {"opt_steps": 100})
    files = sorted(good.iterdir())
    whole = {path: path.read_bytes() for path in files}
    generator = np.random.default_rng(seed)
    wrong: list[str] = []
    done = 0
    while done < count:
        i, j = generator.choice(len(files), 2, replace=False)
        if how := damage(files[i], files[j], generator):
            wrong += [f"{how}: {what}" for what in _faults(checkpointer, files[i])]
            files[i].write_bytes(whole[files[i]])
            done += 1
            if done % _TELL_EVERY == 0:
                note(f"{done:,} damages")
    return wrong


def _faults(checkpointer: Checkpointer, damaged: Path) -> list[str]:
    """Load with one file damaged; return what should not have happened."""
    wrong: list[str] = []

    def read_watched(path: Path) -> Mapping[str, Array]:
        if path.parent.samefile(damaged.parent):
            wrong.append(f"built arrays of {path.name}")
        return array_file.read_arrays(path)

    with patch.object(checkpoint, "read_arrays", read_watched):
        try:
            checkpointer.load("100")
        except CheckpointError as error:
            if damaged.name not in str(error).partition("also there")[0]:
                wrong.append(f"{damaged.name} is not named")
        else:
            wrong.append("it was loaded")
        with suppress(CheckpointError):
            if value_of(checkpointer.load_latest()) == 90:
                return wrong
    return [*wrong, "the one before was not found"]


def fallback_s(directory: Path, size_bytes: int) -> float:
    """Return how long it takes to find the newest of two damaged and to load the one before."""
    checkpointer = Checkpointer(directory)
    for name in ("1", "2"):
        weights = np.full(size_bytes // 4, float(name), np.float32)
        saved = checkpointer.save(name, {"model": {"weight": weights}}, {})
    with (saved / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    began = time.perf_counter()
    found = checkpointer.load_latest()
    took_s = time.perf_counter() - began
    assert found.groups["model"]["weight"][-1] == 1, "the one before"
    return took_s
