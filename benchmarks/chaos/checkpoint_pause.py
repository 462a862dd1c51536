"""What does a checkpoint of 100 MB cost a run while it is taken and written?

The network's parameters, their targets and the optimiser's moments are 100 MB; a full replay is
saved with them. The learner pauses while all of it is copied, and measures the pause; another
thread writes it. The benchmark compares the pauses between two gradient steps, and between two
arrivals of experience, with and without a checkpoint in progress.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from asyncrl.agents.dqn import DQNConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.learner.config import RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig, SaveConfig
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.run.run_config import RunConfig
from benchmarks.chaos.figures import median, percentile
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.stage import DEADLINE_S, Stage
from benchmarks.chaos.worlds import Numbered
from benchmarks.common import note

_AGENT = DQNConfig(hidden=(2200, 2200), device="cpu", threads=1)
_PAUSE_S = 0.05
_CAPACITY = 20_000
_WORLD = Numbered(n_envs=16, pace_s=0.0, width=250)
_APART_S = 1.5
"""Between the end of one checkpoint and the request of the next."""


@dataclass(slots=True)
class Saves:
    """A script that has one checkpoint after another taken."""

    count: int
    directory: Path
    spans: list[tuple[float, float]] = field(default_factory=list)
    """From the request of each until it was on disk."""

    def __call__(self, stage: Stage) -> Iterator[None]:
        """Fill the replay, then save."""
        checkpoints = Checkpointer(self.directory)
        yield from stage.begins()
        yield from stage.until(
            lambda: stage.audit.total() > _CAPACITY, 2 * DEADLINE_S, "a replay that is full"
        )
        for number in range(self.count):
            yield from stage.for_s(_APART_S)
            began = time.monotonic()
            newest = checkpoints.latest()
            stage.trainer.interrupter.save_requested = True
            is_newer = lambda before=newest: checkpoints.latest() != before  # noqa: E731
            yield from stage.until(is_newer, DEADLINE_S, "a checkpoint")
            self.spans.append((began, time.monotonic()))
            note(f"checkpoint {number + 1} of {self.count}")
        yield from stage.for_s(_APART_S)

    def during(self, moments: Sequence[float]) -> tuple[list[float], list[float]]:
        """Return the gaps between moments that touch a save, and the others."""
        saving: list[float] = []
        others: list[float] = []
        for before, after in pairwise(moments):
            touched = any(before < end and after > begin for begin, end in self.spans)
            (saving if touched else others).append(after - before)
        return saving, others


def _configured(config: RunConfig) -> RunConfig:
    return replace(
        config,
        limiter=RateLimiterConfig(samples_per_insert=0.0, min_size=500),
        trainer=replace(config.trainer, batch_size=8, batches_per_draw=1),
        save=SaveConfig(interval_opt_steps=0, interval_s=0.0),
        record=RecordConfig(interval_s=0.25),
    )


def measure(size: Size, directory: Path) -> list[Finding]:
    """Take checkpoints, and measure how long each process paused."""
    checkpoints = directory / "checkpoints"
    saves = Saves(2 if size == "small" else 60, checkpoints)
    stage = Stage(directory, world=_WORLD, configure=_configured, capacity=_CAPACITY)
    stage.audit.keeps_times = True
    recorder = MemoryRecorder()
    stage.play(saves, agent=_AGENT, checkpoint_dir=checkpoints, recorder=recorder)
    groups = Checkpointer(checkpoints).load_latest().groups
    sizes = {name: sum(a.nbytes for a in arrays.values()) / 1e6 for name, arrays in groups.items()}
    copied_s = [record["ms/save"] / 1000 for record in recorder.records if "ms/save" in record]
    shown = " and ".join(f"{megabytes:.0f} MB of {name}" for name, megabytes in sizes.items())
    return [
        _pause(shown, copied_s, saves.during(stage.learned_at)),
        _intake(shown, *saves.during(stage.audit.pushed_at)),
        stage.balance(5, "checkpoints while experience comes in"),
    ]


def _pause(shown: str, copied_s: list[float], gaps_s: tuple[list[float], list[float]]) -> Finding:
    """Say how long the learner stood still."""
    saving, others = gaps_s
    longest = max(copied_s)
    return Finding(
        target=14,
        what=f"the learner's pause for a checkpoint of {shown}",
        measured=f"longest {1000 * longest:.0f} ms, median {1000 * median(copied_s):.0f} ms; "
        f"between two gradient steps {1000 * max(saving):.0f} ms at most while one is taken or "
        f"written, {1000 * max(others):.0f} ms otherwise",
        promised=f"<= {1000 * _PAUSE_S:.0f} ms",
        passed=longest <= _PAUSE_S,
        timed=True,
        numbers={
            "longest_s": longest,
            "median_s": median(copied_s),
            "gap_saving_s": max(saving),
            "gap_calm_s": max(others),
        },
    )


def _intake(shown: str, saving: list[float], others: list[float]) -> Finding:
    """Say how long no experience was taken in."""
    added = max(saving) - max(others)
    return Finding(
        target=14,
        what=f"arrivals of experience during a checkpoint of {shown}",
        measured=f"{1000 * max(saving):.0f} ms apart at most, p99 "
        f"{1000 * percentile(saving, 99):.0f} ms; otherwise {1000 * max(others):.0f} ms, p99 "
        f"{1000 * percentile(others, 99):.0f} ms",
        promised="no longer apart than without",
        passed=added <= _PAUSE_S,
        timed=True,
        numbers={"longest_s": max(saving), "longest_calm_s": max(others)},
    )
