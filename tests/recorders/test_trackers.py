"""Weights & Biases, Trackio and MLflow get the records: their real clients, without a network."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncrl.cli.flags import Output
from asyncrl.cli.train import recorder_of
from asyncrl.core.errors import ConfigError
from asyncrl.recorders import wandb
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.recorders.mlflow import MlflowRecorder
from asyncrl.recorders.trackio import TrackioRecorder
from asyncrl.recorders.wandb import WandbRecorder
from asyncrl.run.named_parts import NamedParts
from asyncrl.run.run_config import RunConfig
from tests.support.helpers import wait_until

needs_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="needs the extra wandb")
needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="needs the extra mlflow")
needs_trackio = pytest.mark.skipif(find_spec("trackio") is None, reason="needs the extra trackio")

CONFIG = {"seed": 3, "trainer": {"batch_size": 128}}


SCORED = {
    "env_steps": 100.0,
    "eval_reward": 7.5,
    "eval/model_version": 20.0,
    "lag/histogram/0": 3.0,
    "lag/histogram/4": 5.0,
}


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    videos = tmp_path / "videos"
    videos.mkdir()
    (videos / "20.mp4").write_bytes(b"a film")
    return videos


@needs_mlflow
def test_mlflow_gets_films_and_continues_a_run(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # later versions ask for it
    store = str(tmp_path / "store")
    for step in (100, 200):
        recorder = MlflowRecorder(tracking_uri=store, directory=tmp_path, videos=videos)
        recorder.start(CONFIG | {"seed": step})
        recorder.write(SCORED | {"env_steps": float(step)})
        recorder.close(failed=False)
    (film,) = tmp_path.glob("store/*/*/artifacts/videos/20.mp4")
    assert film.read_bytes() == b"a film"
    (metric,) = tmp_path.glob("store/*/*/metrics/eval_reward")
    rows = [line.split()[1:] for line in metric.read_text().splitlines()]
    assert rows == [["7.5", "100"], ["7.5", "200"]], "both are of one run"


@needs_wandb
def test_wandb_keeps_records_and_films_offline_and_continues_a_run(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for step in (100, 200):
        recorder = WandbRecorder("mine", tmp_path, videos=videos)
        recorder.start(CONFIG)
        recorder.write(SCORED | {"env_steps": float(step), "fps": 77.5})
        recorder.close(failed=False)
        recorder.close(failed=False)
    import_module("wandb").teardown()
    files = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len({path.name for path in files}) == 1, "both are of one run"
    data = b"".join(path.read_bytes() for path in files)
    assert data.count(b"77.5") >= 2
    assert all(word in data for word in (b"batch_size", b'"histogram"'))
    films = tmp_path.glob("wandb/offline-run-*/files/media/videos/*.mp4")
    assert {film.read_bytes() for film in films} == {b"a film"}


@needs_trackio
def test_trackio_keeps_records_and_films_and_continues_a_run(
    videos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The client reads it when it is imported: no other test may import it.
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    for step in (100, 200):
        recorder = TrackioRecorder("mine", run_name="first", videos=videos)
        if step == 200:
            recorder.resume_at(env_steps=100, opt_steps=10)
        recorder.start(CONFIG)
        recorder.write(SCORED | {"env_steps": float(step), "fps": 77.5})
        recorder.close(failed=False)
        recorder.close(failed=False)
    (path,) = tmp_path.glob("*.db")
    with closing(sqlite3.connect(path)) as database:
        found = database.execute("select run_name, step, metrics from metrics order by step")
        rows = found.fetchall()
    assert [row[:2] for row in rows] == [("first", 100), ("first", 200)]
    assert all("77.5" in str(row[2]) for row in rows)
    assert all("trackio.histogram" in str(row[2]) for row in rows)
    films = list(tmp_path.glob("media/mine/first/*00/*.mp4"))
    assert [film.read_bytes() for film in films] == [b"a film"] * 2
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("wandb", lambda path: WandbRecorder("mine", path)),
        ("trackio", lambda _: TrackioRecorder("mine")),
        ("mlflow", lambda _: MlflowRecorder()),
    ],
)
def test_missing_package_is_named(
    name: str, make: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"pip install asyncrl\[{name}\]"):
        make(tmp_path)


class Hanging(MemoryRecorder):
    """Never gets through with its first record."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs, self.released = threading.Event(), threading.Event()

    def write(self, record: object) -> None:
        self.hangs.set()
        self.released.wait(60)


@pytest.mark.parametrize("which", ["tracker", "own"])
def test_recorder_that_hangs_loses_its_own_numbers_only(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, other = Hanging(), MemoryRecorder()
    for limit in ("_SERVICE_CLOSE_S", "_OWN_CLOSE_S"):
        monkeypatch.setattr(f"asyncrl.cli.train.{limit}", 0.05)
    slow, own = (other, hanging) if which == "own" else (hanging, other)
    monkeypatch.setattr(wandb, "WandbRecorder", lambda *_, **__: slow)
    monkeypatch.setattr(NamedParts, "make_recorders", lambda _: [own])
    recorder = recorder_of(RunConfig(), tmp_path, Output(quiet=True, wandb="mine"))
    recorder.start({})
    records = tmp_path / "metrics.jsonl"
    try:
        for step in range(3):
            recorder.write({"env_steps": float(step)})
        assert hanging.hangs.wait(60)
        wait_until(lambda: len(records.read_text().splitlines()) == 3, 60, "all records")
        wait_until(lambda: len(other.records) == 3, 60, "the records of the other one")
        recorder.close(failed=False)
        assert "Hanging hangs; abandoned after 0.05 s" in caplog.text
    finally:
        hanging.released.set()
        recorder.close(failed=False)


def fake_client(monkeypatch: pytest.MonkeyPatch, init: Callable[..., object]) -> None:
    fake = SimpleNamespace(
        init=init,
        Settings=lambda **_: None,
        setup=lambda: SimpleNamespace(settings=SimpleNamespace(mode="offline")),
    )
    for name in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, fake)


def test_offline_runs_are_drawn_over_opt_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes: list[str] = []
    steps: list[int] = []

    def init(**_: object) -> SimpleNamespace:
        return SimpleNamespace(
            log=lambda _, step=-1: steps.append(step),
            define_metric=lambda _, step_metric: axes.append(step_metric),
        )

    fake_client(monkeypatch, init)
    for recorder in (WandbRecorder("mine", tmp_path), TrackioRecorder("mine")):
        recorder.start({})
        for opt_steps in (500.0, 1000.0):
            recorder.write({"env_steps": 0.0, "opt_steps": opt_steps, "eval_reward": 1.0})
    assert axes == ["opt_steps"]
    assert steps == [-1, -1, 500, 1000]


def test_missing_account_is_said_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = SimpleNamespace(settings=SimpleNamespace(mode="online"))
    fake = SimpleNamespace(setup=lambda: online, login=lambda *, prompt: prompt)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(ConfigError, match="run `wandb login`, or set WANDB_MODE=offline"):
        WandbRecorder("mine", tmp_path)
