"""What holds for every recorder: order of calls, what is kept, how it ends."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from asyncrl.core.recorder import Recorder
from asyncrl.recorders.background import BackgroundRecorder
from asyncrl.recorders.csv import CsvRecorder
from asyncrl.recorders.jsonl import JsonlRecorder
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.recorders.mlflow import MlflowRecorder, key_of
from asyncrl.recorders.tensorboard import TensorBoardRecorder
from asyncrl.recorders.terminal import TerminalRecorder
from tests.support import fake_mlflow

CONFIG = {"seed": 3, "trainer": {"batch_size": 128, "name": None, "layers": [64, 64]}}


@dataclass
class Kept:
    """A recorder, and how to read back what it has kept of a metric; None if it keeps no values."""

    recorder: Recorder
    values: Callable[[str], list[float]] | None = None


def _memory(_: Path) -> Kept:
    recorder = MemoryRecorder()
    return Kept(recorder, lambda name: [r[name] for r in recorder.records if name in r])


def _background(_: Path) -> Kept:
    inner = MemoryRecorder()
    return Kept(
        BackgroundRecorder([inner]), lambda name: [r[name] for r in inner.records if name in r]
    )


def _jsonl(tmp_path: Path) -> Kept:
    path = tmp_path / "deep" / "metrics.jsonl"

    def values(name: str) -> list[float]:
        lines = path.read_text().splitlines() if path.exists() else []
        return [record[name] for record in map(json.loads, lines) if name in record]

    return Kept(JsonlRecorder(path), values)


def _csv(tmp_path: Path) -> Kept:
    path = tmp_path / "deep" / "metrics.csv"

    def values(name: str) -> list[float]:
        with path.open(newline="") if path.exists() else io.StringIO() as file:
            return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]

    return Kept(CsvRecorder(path), values)


def _tensorboard(tmp_path: Path) -> Kept:
    def values(name: str) -> list[float]:
        events = EventAccumulator(str(tmp_path))
        events.Reload()
        known = events.Tags()["scalars"]
        return [event.value for event in events.Scalars(name)] if name in known else []

    return Kept(TensorBoardRecorder(tmp_path), values)


def _mlflow(_: Path) -> Kept:
    store = fake_mlflow.installed()
    return Kept(MlflowRecorder(), lambda name: store.values(key_of(name)))


def _lines(_: Path) -> Kept:
    return Kept(TerminalRecorder(Console(file=io.StringIO()), limits={"env_steps": 100}))


def _live(_: Path) -> Kept:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    return Kept(TerminalRecorder(console, limits={"env_steps": 100}))


@pytest.fixture(params=[_memory, _background, _jsonl, _csv, _tensorboard, _mlflow, _lines, _live])
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    fake_mlflow.install(monkeypatch)
    make: Callable[[Path], Kept] = request.param
    return make(tmp_path)


def record(step: int, **more: float) -> dict[str, float]:
    return {"env_steps": 10.0 * step, "opt_steps": float(step), "wall_s": 0.5 * step, **more}


@pytest.mark.parametrize("make", [_jsonl, _csv, _tensorboard])
def test_files_stay_where_they_began_if_the_working_directory_changes(
    make: Callable[[Path], Kept], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, elsewhere = tmp_path / "begun", tmp_path / "elsewhere"
    begun.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(begun)
    kept = make(Path())
    monkeypatch.chdir(elsewhere)
    kept.recorder.start(CONFIG)
    kept.recorder.write(record(1))
    monkeypatch.chdir(tmp_path)
    kept.recorder.write(record(2, new=0.0))
    kept.recorder.close(failed=False)
    assert sorted(tmp_path.iterdir()) == [begun, elsewhere]
    assert not list(elsewhere.iterdir())
    monkeypatch.chdir(begun)
    assert kept.values is not None
    assert kept.values("opt_steps") == [1.0, 2.0]


@pytest.mark.behaviour(number=60)
def test_records_are_kept_in_order(kept: Kept) -> None:
    kept.recorder.start(CONFIG)
    bad = {"agent/loss": math.nan, "fps": math.inf, "eval_reward": -math.inf, "agent/big": 1e300}
    strange = ["user/deep/name", "agent/", "actor/x", "\u00fcn\u00ef [/x]", "actor/[/x]/[/y]"]
    more = {2: bad, 3: {**dict.fromkeys(strange, np.float32(7.5)), "agent/b": 3}}
    for step in range(1, 6):
        values = record(step, **more.get(step, {}))
        kept.recorder.write(values)
        values["opt_steps"] = 99.0  # the caller's again
    kept.recorder.close(failed=False)
    if kept.values:
        assert kept.values("opt_steps") == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert [kept.values(name) for name in strange] == [[7.5]] * len(strange)
        assert [type(value) for value in kept.values("agent/b")] == [float]


@pytest.mark.behaviour(number=61)
def test_failed_run_keeps_what_was_written(kept: Kept) -> None:
    kept.recorder.start(CONFIG)
    kept.recorder.write(record(1))
    kept.recorder.close(failed=True)
    kept.recorder.close(failed=False)  # does nothing
    if kept.values:
        assert kept.values("opt_steps") == [1.0]


def test_close_without_start_is_harmless(kept: Kept) -> None:
    """A run may fail before its recorder was started."""
    kept.recorder.close(failed=True)
    if kept.values:
        assert kept.values("opt_steps") == []
