"""Records as TensorBoard event files, written with TensorBoard's own parts.

Needs neither torch nor TensorFlow, and loads TensorBoard only when a recorder is made.
"""

from __future__ import annotations

import io
import logging
import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.core.errors import ConfigError, describe_error
from asyncrl.core.recorder import Record, axis_of
from asyncrl.core.settings import flatten
from asyncrl.metrics.metrics import describe
from asyncrl.recorders.not_scalars import Histogram, film_of, split

logger = logging.getLogger(__name__)

_MOST_PICTURES, _MOST_PIXELS, _FPS = 150, 320, 30.0
"""Pictures of an animation and pixels of their longer side; and a film's rate if it has none."""


class TensorBoardRecorder:
    """Logs every metric over `env_steps`, and the configuration as text and hyperparameters.

    Offline runs, which have none, are logged over `opt_steps`.

    Histograms have a separate tab. Films are among the images, as animations of at most 150
    pictures, since TensorBoard shows no videos.

    TensorBoard can also draw them over relative and wall time. Each chart shows unit and meaning of
    its metric. A directory that already has events is continued: on resume, what the interrupted
    run wrote after the checkpoint is hidden. If the file is removed or the directory renamed, a new
    file is created. Nested settings are flattened with dots: `trainer.batch_size`.

    Args:
        directory: Directory of the event files.
        videos: Directory of the run's films, which are logged with the evaluations.
    """

    def __init__(self, directory: Path | str, *, videos: Path | None = None) -> None:
        try:
            import tensorboard.summary.writer.record_writer  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "TensorBoardRecorder needs a package that is not installed: "
                "pip install asyncrl[tensorboard]"
            ) from error
        self._directory = Path(directory).absolute()  # the working directory may change
        self._videos = videos and videos.absolute()
        self._config: Mapping[str, object] = {}
        self._path = self._directory
        self._writer: Any = None
        self._started = False
        self._at: Record = {}
        self._described: set[str] = set()

    def resume_at(self, *, env_steps: int, opt_steps: int) -> None:
        self._at = {"env_steps": env_steps, "opt_steps": opt_steps}

    def start(self, config: Mapping[str, object]) -> None:
        # `EventFileWriter`, which wraps this one, would load TensorFlow if it is installed, and
        # start a second thread.
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._config = config
        self._directory.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}"
        self._path = self._directory / f"{name}.{time.monotonic_ns()}"
        self._writer = RecordWriter(self._path.open("xb"))
        self._add(file_version="brain.Event:2")
        if flat := dict(flatten(config)):
            self._add(summary=_hyperparameters(flat))
            self._add(summary=_text("config", flat))
        self._writer.flush()

    def write(self, record: Record) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            raise ValueError(
                f"{self._directory} is not open: write was called before start or after close"
            )
        if not self._path.exists():
            self._begin_again()
        step = int(record.get(axis_of(record), 0))
        if step and not self._started:
            # Makes TensorBoard hide the events of earlier files from this step on.
            first = int(self._at.get(axis_of(record), step - 1)) + 1
            self._add(step=first, session_log=SessionLog(status=SessionLog.START))
        self._started = True
        scalars, histograms = split(record)
        values = [
            Summary.Value(tag=name, simple_value=float(value), metadata=self._metadata(name))
            for name, value in scalars.items()
            if name != "env_steps"
        ]
        values += [_histogram(name, histogram) for name, histogram in histograms.items()]
        self._add(step=step, summary=Summary(value=values))
        self._writer.flush()
        if film := film_of(record, self._videos):  # takes seconds, and the run may be killed then
            self._add(step=step, summary=Summary(value=_animations("video", film)))
            self._writer.flush()

    def close(self, *, failed: bool) -> None:
        if self._writer is not None:
            try:
                self._add(summary=_session_end(failed))
            finally:
                self._writer.close()
                self._writer = None

    def _begin_again(self) -> None:
        """Write to a new file, which describes every metric again."""
        before, gone = self._writer, self._path
        self._described.clear()
        self.start(self._config)
        before.close()
        logger.warning("%s was removed or renamed; records continue in a new file", gone)

    def _add(self, **content: object) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **content).SerializeToString())

    def _metadata(self, name: str) -> object:
        """Return a metric's unit and meaning the first time, None later."""
        from tensorboard.compat.proto.summary_pb2 import SummaryMetadata

        if name in self._described:
            return None
        self._described.add(name)
        metric = describe(name)
        unit = f" [{metric.unit}]" if metric and metric.unit else ""
        return SummaryMetadata(
            # Without these two, TensorBoard guesses them and loses the description.
            plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"),
            data_class="DATA_CLASS_SCALAR",
            summary_description=f"{metric.meaning}{unit}" if metric else "",
        )


def _hyperparameters(flat: Mapping[str, object]) -> object:
    from tensorboard.plugins.hparams import summary_v2

    return summary_v2.hparams_pb(
        {name: v if isinstance(v, (bool, int, float, str)) else str(v) for name, v in flat.items()}
    )


def _histogram(tag: str, histogram: Histogram) -> object:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.histogram import metadata
    from tensorboard.util import tensor_util

    edges = histogram.edges
    bins = np.array([edges[:-1], edges[1:], histogram.counts]).T
    return Summary.Value(
        tag=tag,
        metadata=metadata.create_summary_metadata(display_name=tag, description=""),
        tensor=tensor_util.make_tensor_proto(bins),
    )


def _animations(tag: str, film: Path) -> list[object]:
    """Return a film as a picture that moves; none, with a warning, if that fails."""
    try:
        return [_animation(tag, film)]
    except Exception as error:
        logger.warning("%s is not in TensorBoard: %s", film, describe_error(error))
        return []


def _animation(tag: str, film: Path) -> object:
    import av
    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary

    with av.open(str(film)) as file:
        stream = file.streams.video[0]
        every = max(1, math.ceil(stream.frames / _MOST_PICTURES))
        fps = float(stream.average_rate or _FPS)
        pictures = [
            Image.fromarray(frame.to_ndarray(format="rgb24"))
            for i, frame in enumerate(file.decode(stream))
            if i % every == 0
        ]
    for picture in pictures:
        picture.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
    encoded = io.BytesIO()
    pictures[0].save(
        encoded, "GIF", save_all=True, append_images=pictures[1:], duration=1000 * every / fps
    )
    width, height = pictures[0].size
    image = Summary.Image(
        height=height, width=width, colorspace=3, encoded_image_string=encoded.getvalue()
    )
    return Summary.Value(tag=tag, image=image)


def _session_end(failed: bool) -> object:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    info = plugin_data_pb2.SessionEndInfo(
        status=api_pb2.STATUS_FAILURE if failed else api_pb2.STATUS_SUCCESS,
        end_time_secs=time.time(),
    )
    data = plugin_data_pb2.HParamsPluginData(session_end_info=info)
    value = Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(data),
        tensor=metadata.NULL_TENSOR,
    )
    return Summary(value=[value])


def _text(tag: str, flat: Mapping[str, object]) -> object:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.plugins.text import metadata

    rows = "".join(f"| {name} | `{value}` |\n" for name, value in flat.items())
    table = f"| setting | value |\n| --- | --- |\n{rows}"
    value = Summary.Value(
        tag=tag,
        metadata=metadata.create_summary_metadata(display_name=tag, description=""),
        tensor=TensorProto(dtype="DT_STRING", string_val=[table.encode()]),
    )
    return Summary(value=[value])
