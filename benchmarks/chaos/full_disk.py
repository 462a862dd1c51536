"""A file system that fills up while a run writes to it: what is lost, and what is reported?

The run directory is on a separate small file system. Another file fills it while the run learns
and saves. In one run it is removed after a while; in the other the disk stays full to the end.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.checkpoint.checkpoint import Checkpointer
from benchmarks.chaos.finding import Finding, Size, not_run
from benchmarks.chaos.learner import wait_until
from benchmarks.chaos.stage import DEADLINE_S
from benchmarks.common import ASYNCRL, ROOT
from benchmarks.machines import no_mounts, small_disk

_ARGUMENTS = """train dqn --quiet --actors 1 --envs-per-actor 2 --limiter.min-size 64
    --trainer.batch-size 16 --record.interval-s 0.1 --evaluate.where off
    --replay.capacity 5000 --agent.device cpu --agent.hidden 64
    --save.interval-opt-steps 200 --save.keep 2
    --max-seconds 8""".split()
_RUN_S, _FULL_S = 8.0, 2.0
_DISK = "16M"
_WORDS = "No space left on device"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is there after a run whose disk was full."""

    code: int
    said: str
    full_at: int
    """Optimisation steps of the newest checkpoint when the disk was filled."""

    newest: int
    """Of the newest one that loads, at the end."""

    recorded_s: float
    """When its newest record was written, in seconds of the run."""

    broken_lines: int
    """Lines of the metrics that are not whole."""

    def has_saved(self, *, stays_full: bool) -> bool:
        """Whether earlier checkpoints still exist, and later ones if there was space again."""
        return self.newest >= self.full_at if stays_full else self.newest > self.full_at

    @property
    def reported(self) -> list[str]:
        """What was reported about the disk."""
        return [line for line in self.said.splitlines() if _WORDS in line]


def measure(size: Size, directory: Path) -> list[Finding]:
    """Fill the disk of two runs, or more."""
    what, promised = "a disk that is full", "the run continues; the newest checkpoint loads"
    if why := no_mounts():
        return [not_run(11, what, promised, why)]
    findings = []
    for stays_full in (False, True):
        outcomes = []
        for number in range(1 if size == "small" else 10):
            with small_disk(directory / f"{stays_full}-{number}", _DISK) as disk:
                outcomes.append(_run_on(disk, stays_full=stays_full))
        findings += _judge(outcomes, stays_full=stays_full)
    return findings


def _run_on(disk: Path, *, stays_full: bool) -> Outcome:
    """Run for a while on this disk, which is full for part of the time or to the end."""
    run_dir = disk / "run"
    command = [*ASYNCRL, *_ARGUMENTS, "--run-dir", str(run_dir)]
    checkpoints = Checkpointer(run_dir / "checkpoints")
    with subprocess.Popen(  # noqa: S603  # our own module
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            wait_until(
                lambda: checkpoints.latest() or process.poll() is not None,
                DEADLINE_S,
                "a checkpoint",
            )
            filler = disk / "filler"
            _fill(filler)
            full_at = int(checkpoints.latest() or 0)
            if not stays_full:
                time.sleep(_FULL_S)
                filler.unlink()
            said = process.communicate(timeout=DEADLINE_S)[0]
        finally:
            process.kill()
    filler.unlink(missing_ok=True)
    records, broken = _records(run_dir / "metrics.jsonl")
    newest = int(checkpoints.load_latest().meta["opt_steps"])
    return Outcome(
        code=process.returncode,
        said=said,
        full_at=full_at,
        newest=newest,
        recorded_s=max(record["wall_s"] for record in records),
        broken_lines=broken,
    )


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def _records(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the records that are whole, and how many lines are not."""
    records, broken = [], 0
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            broken += 1
    return records, broken


def _judge(outcomes: Sequence[Outcome], *, stays_full: bool) -> list[Finding]:
    """Compare what is there with what should be, after each run."""
    what = "a disk that is full to the end" if stays_full else f"a disk full for {_FULL_S:g} s"
    codes = sorted({outcome.code for outcome in outcomes})
    saved = sum(outcome.has_saved(stays_full=stays_full) for outcome in outcomes)
    reported = [outcome.reported[-1] for outcome in outcomes if outcome.reported]
    found = [
        Finding(
            target=11,
            what=f"{what}: the newest checkpoint",
            measured=f"loads and is {'the one' if stays_full else 'newer than the one'} saved "
            f"before in {saved} of {len(outcomes)} runs; exit code {', '.join(map(str, codes))}",
            promised="that one, at least; exit code not 0"
            if stays_full
            else "a newer one; exit code 0",
            passed=saved == len(outcomes) and all((code != 0) == stays_full for code in codes),
            numbers={"runs": len(outcomes), "saved": saved},
        ),
        Finding(
            target=11,
            what=f"{what}: it is reported",
            measured=f"{len(reported)} of {len(outcomes)} times"
            + (f": {reported[0]}" if reported else ""),
            promised=f"{_WORDS!r}, and what is lost",
            passed=len(reported) == len(outcomes),
            numbers={"runs": len(outcomes), "reported": len(reported)},
        ),
    ]
    return found if stays_full else [*found, _records_resume(what, outcomes)]


def _records_resume(what: str, outcomes: Sequence[Outcome]) -> Finding:
    recorded_s = min(outcome.recorded_s for outcome in outcomes)
    broken = sum(outcome.broken_lines for outcome in outcomes)
    return Finding(
        target=11,
        what=f"{what}: the records of {len(outcomes)} runs of {_RUN_S:g} s",
        measured=f"the newest is of {recorded_s:.1f} s at least; {broken} broken",
        promised="they continue when there is space; no line is broken",
        passed=recorded_s > _RUN_S - 1.0 and not broken,
        numbers={"recorded_s": recorded_s, "broken_lines": broken},
    )
