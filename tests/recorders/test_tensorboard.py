"""Records as TensorBoard sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, metadata

from asyncrl.core.errors import ConfigError
from asyncrl.recorders.tensorboard import TensorBoardRecorder

CONFIG = {"seed": 3, "trainer": {"batch_size": 128, "layers": [64, 64], "eps": None}}


def record_run(directory: Path, steps: range, *, failed: bool = False) -> None:
    recorder = TensorBoardRecorder(directory)
    recorder.start(CONFIG)
    for step in steps:
        recorder.write({"env_steps": float(step), "fps": step / 2})
    recorder.close(failed=failed)


def load(directory: Path) -> EventAccumulator:
    events = EventAccumulator(str(directory))
    events.Reload()
    return events


def test_metrics_are_drawn_over_env_steps(tmp_path: Path) -> None:
    record_run(tmp_path, range(100, 400, 100))
    scalars = load(tmp_path).Scalars("fps")
    assert [(s.step, s.value) for s in scalars] == [(100, 50.0), (200, 100.0), (300, 150.0)]


def test_charts_say_unit_and_meaning(tmp_path: Path) -> None:
    record_run(tmp_path, range(100, 300, 100))
    description = load(tmp_path).SummaryMetadata("fps").summary_description
    assert description == "environment steps of all actors together [env steps/s]"


def test_configuration_is_kept_as_text_flattened_with_dots(tmp_path: Path) -> None:
    record_run(tmp_path, range(0))
    (text,) = load(tmp_path).Tensors("config")
    table = text.tensor_proto.string_val[0].decode()
    assert "| trainer.batch_size | `128` |" in table
    assert "| trainer.layers | `[64, 64]` |" in table


def test_configuration_is_kept_as_hyperparameters(tmp_path: Path) -> None:
    record_run(tmp_path, range(0))
    content = load(tmp_path).PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    assert start.hparams["trainer.batch_size"].number_value == 128
    assert start.hparams["trainer.eps"].string_value == "None"


@pytest.mark.parametrize(
    ("failed", "status"), [(False, api_pb2.STATUS_SUCCESS), (True, api_pb2.STATUS_FAILURE)]
)
def test_end_is_marked_with_how_the_run_ended(tmp_path: Path, failed: bool, status: int) -> None:
    record_run(tmp_path, range(0), failed=failed)
    content = load(tmp_path).PluginTagToContent("hparams")
    end = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG])
    assert end.status == status


def test_record_is_readable_before_the_run_has_ended(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path)
    recorder.start({})
    recorder.write({"env_steps": 1.0, "fps": 2.0})
    assert [s.value for s in load(tmp_path).Scalars("fps")] == [2.0]
    recorder.close(failed=False)


def test_resumed_run_hides_what_was_beyond_its_checkpoint(tmp_path: Path) -> None:
    record_run(tmp_path, range(100, 600, 100))
    record_run(tmp_path, range(300, 500, 100))
    events = load(tmp_path)
    assert [s.step for s in events.Scalars("fps")] == [100, 200, 300, 400]
    assert "config" in events.Tags()["tensors"]


def test_directory_that_has_gone_is_begun_again(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path / "run")
    recorder.start(CONFIG)
    recorder.write({"env_steps": 1.0, "fps": 2.0})
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    recorder.write({"env_steps": 2.0, "fps": 3.0})
    recorder.close(failed=False)
    assert [s.value for s in load(tmp_path / "elsewhere").Scalars("fps")] == [2.0]
    again = load(tmp_path / "run")
    assert [s.value for s in again.Scalars("fps")] == [3.0]
    assert "environment steps" in again.SummaryMetadata("fps").summary_description
    assert "config" in again.Tags()["tensors"]


def test_missing_package_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(ConfigError, match=r"pip install asyncrl\[tensorboard\]"):
        TensorBoardRecorder(tmp_path)


def test_neither_torch_nor_tensorflow_is_loaded(tmp_path: Path) -> None:
    """Not even where TensorFlow is installed, which TensorBoard's usual writer would load."""
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("")
    code = f"""
import sys
from asyncrl.recorders.tensorboard import TensorBoardRecorder
assert "tensorboard" not in sys.modules
recorder = TensorBoardRecorder({str(tmp_path / "events")!r})
recorder.start({{"a": 1}})
recorder.write({{"env_steps": 1.0, "fps": 2.0}})
recorder.close(failed=False)
print([name for name in ("torch", "tensorflow") if name in sys.modules])
"""
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.stdout.strip() == "[]"
