"""Records as TensorBoard sees them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.util import tensor_util

from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig
from asyncrl.recorders.tensorboard import TensorBoardRecorder

CONFIG = {"seed": 3, "trainer": {"batch_size": 128, "layers": [64, 64], "eps": None}}


def record_run(
    directory: Path, steps: range, *, failed: bool = False, resumed_at: int | None = None
) -> None:
    recorder = TensorBoardRecorder(directory)
    if resumed_at is not None:
        recorder.resume_at(env_steps=resumed_at, opt_steps=7)
    recorder.start(CONFIG)
    for step in steps:
        recorder.write({"env_steps": float(step), "fps": step / 2})
    recorder.close(failed=failed)


def load(directory: Path) -> EventAccumulator:
    events = EventAccumulator(str(directory))
    events.Reload()
    return events


def test_histograms_and_films_are_drawn(tmp_path: Path) -> None:
    film = pytest.importorskip("asyncrl.envs.film")
    pytest.importorskip("av")
    with film.filmed(EnvConfig(id="tests.envs.test_film:Screen"), tmp_path / "20.mp4") as env:
        env.reset(0)
        for _ in range(5):
            env.step(np.zeros(1, np.int64))
    recorder = TensorBoardRecorder(tmp_path, videos=tmp_path)
    recorder.start({})
    scored = {"env_steps": 100.0, "eval/model_version": 20.0}
    recorder.write(scored | {"lag/histogram/0": 3.0, "lag/histogram/2": 5.0})
    recorder.close(failed=False)
    events = load(tmp_path)
    (bins,) = events.Tensors("lag/histogram")
    expected = [[0, 1, 3], [1, 2, 0], [2, 4, 5]]
    assert tensor_util.make_ndarray(bins.tensor_proto).tolist() == expected
    assert events.SummaryMetadata("lag/histogram").plugin_data.plugin_name == "histograms"
    (image,) = events.Images("video")
    assert (image.step, image.width, image.height) == (100, 96, 64)
    with Image.open(io.BytesIO(image.encoded_image_string)) as animation:
        assert (animation.format, animation.n_frames) == ("GIF", 5)


def test_configuration_is_kept_as_hyperparameters(tmp_path: Path) -> None:
    record_run(tmp_path, range(0), failed=True)
    content = load(tmp_path).PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    assert start.hparams["trainer.batch_size"].number_value == 128
    assert start.hparams["trainer.eps"].string_value == "None"
    end = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG])
    assert end.status == api_pb2.STATUS_FAILURE


@pytest.mark.parametrize(
    ("resumed_at", "shown"),
    [(None, [100, 200, 300, 400]), (300, [100, 200, 300, 300, 400]), (100, [100, 300, 400])],
)
def test_resumed_run_hides_what_was_beyond_its_checkpoint(
    resumed_at: int | None, shown: list[int], tmp_path: Path
) -> None:
    record_run(tmp_path, range(100, 600, 100))
    record_run(tmp_path, range(300, 500, 100), resumed_at=resumed_at)
    events = load(tmp_path)
    assert [s.step for s in events.Scalars("fps")] == shown
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
