"""Records as MLflow gets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.recorders.mlflow import MlflowRecorder
from tests.support.fake_mlflow import MlflowException, Store, install

CONFIG = {"seed": 3, "trainer": {"batch_size": 128, "layers": [64, 64], "eps": None}}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    return install(monkeypatch)


def test_configuration_is_kept_as_parameters_flattened_with_dots(store: Store) -> None:
    MlflowRecorder().start(CONFIG)
    (run,) = store.runs.values()
    assert run.params == {
        "seed": "3",
        "trainer.batch_size": "128",
        "trainer.layers": "[64, 64]",
        "trainer.eps": "None",
    }


def test_recorder_of_the_same_directory_continues_the_run(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step, rate in ((100, "0.1"), (200, "0.2")):
        recorder = MlflowRecorder(directory=tmp_path / "mlflow")
        recorder.start({"rate": rate, f"only {step}": "yes"})
        recorder.write({"env_steps": float(step), "fps": 5.0})
        (run,) = store.runs.values()
        assert run.status == "RUNNING"
        recorder.close(failed=False)
    assert [metric.step for metric in run.metrics["fps"]] == [100, 200]
    assert run.params == {"rate": "0.1", "only 100": "yes", "only 200": "yes"}
    assert not caplog.text
    store.runs.clear()
    MlflowRecorder(directory=tmp_path / "mlflow").start({})
    assert len(store.runs) == 1
    assert "MLflow does not continue run run 0, but creates another" in caplog.text


@pytest.mark.parametrize(
    ("experiment", "run_name", "continues"),
    [("mine", None, True), ("other", None, False), ("mine", "another", False)],
)
def test_run_is_continued_only_as_what_it_is(
    store: Store, tmp_path: Path, experiment: str, run_name: str | None, continues: bool
) -> None:
    directory = tmp_path / "one" / "mlflow"
    MlflowRecorder("mine", directory=directory).start({})
    MlflowRecorder(experiment, run_name=run_name, directory=directory).start({})
    named = [(run.experiment, run.name) for run in store.runs.values()]
    made = [] if continues else [(f"id of {experiment}", run_name or "one")]
    assert named == [("id of mine", "one"), *made]


def test_run_that_was_deleted_is_not_continued(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    MlflowRecorder(directory=tmp_path).start({})
    store.runs["run 0"].lifecycle_stage = "deleted"
    MlflowRecorder(directory=tmp_path).start({})
    assert list(store.runs) == ["run 0", "run 1"]
    assert "creates another: it was deleted" in caplog.text


@pytest.mark.parametrize(("failed", "status"), [(False, "FINISHED"), (True, "FAILED")])
def test_end_is_marked_with_how_the_run_ended(store: Store, failed: bool, status: str) -> None:
    recorder = MlflowRecorder()
    recorder.start({})
    recorder.close(failed=failed)
    recorder.close(failed=not failed)
    assert [run.status for run in store.runs.values()] == [status]


def test_server_that_refuses_gets_no_second_run(store: Store, tmp_path: Path) -> None:
    MlflowRecorder(directory=tmp_path).start({})
    store.refusal = MlflowException("who are you?", "UNAUTHENTICATED")
    with pytest.raises(MlflowException, match="who are you"):
        MlflowRecorder(directory=tmp_path).start({})
    assert list(store.runs) == ["run 0"]
