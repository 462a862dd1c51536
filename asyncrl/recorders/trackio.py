"""Records as a run of Trackio, in its SQLite file. The package is loaded by a recorder only."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import Record, axis_of
from asyncrl.core.settings import flatten
from asyncrl.recorders.not_scalars import with_media

logger = logging.getLogger(__name__)


class TrackioRecorder:
    """Logs metrics over `env_steps`, histograms, films, and the configuration, flattened with dots.

    Offline runs, which have no environment steps, are logged over `opt_steps`.

    The file is in Trackio's directory, which the variable TRACKIO_DIR names. `trackio show` draws
    it. A resumed run continues the run of the same name.

    Args:
        project: Name of the project.
        run_name: Name of the run. None lets Trackio generate one.
        videos: Directory of the run's films, which are logged with the evaluations.
    """

    def __init__(
        self, project: str, *, run_name: str | None = None, videos: Path | None = None
    ) -> None:
        try:
            import trackio  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "TrackioRecorder needs a package that is not installed: "
                "pip install asyncrl[trackio]"
            ) from error
        self._project = project
        self._run_name = run_name
        self._videos = videos and videos.absolute()
        self._resume = "never"
        self._run: Any = None

    def resume_at(self, *, env_steps: int, opt_steps: int) -> None:
        """Continue the run of this name. Trackio keeps records from after this position, too."""
        logger.debug("resumed at %d environment and %d optimisation steps", env_steps, opt_steps)
        self._resume = "allow"

    def start(self, config: Mapping[str, object]) -> None:
        import trackio

        with silenced():
            self._run = trackio.init(
                project=self._project,
                name=self._run_name,
                config=dict(flatten(config)),
                resume=self._resume,
                auto_log_cpu=False,  # asyncrl records the machine itself
                auto_log_gpu=False,
            )

    def write(self, record: Record) -> None:
        if self._run is None:
            raise ValueError("no Trackio run is open: write was called before start or after close")
        import trackio

        values = with_media(record, self._videos, trackio)
        self._run.log(values, step=int(record.get(axis_of(record), 0)))

    def close(self, *, failed: bool) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            with silenced():
                run.finish()
            logger.debug("closed the run of Trackio%s", ", which failed" if failed else "")


@contextmanager
def silenced() -> Iterator[None]:
    """Log at level debug what this thread prints, since standard output is for results.

    What other threads print meanwhile is printed.
    """
    before = sys.stdout
    output = _ThreadOutput(before)
    sys.stdout = stream = cast(TextIO, output)
    try:
        yield
    finally:
        output.thread = None  # a live view that began meanwhile may keep it
        if sys.stdout is stream:
            sys.stdout = before
        logger.debug("Trackio: %s", "".join(output.kept))


class _ThreadOutput:
    """Keeps what the thread that made it prints; passes on everything else."""

    def __init__(self, others: TextIO) -> None:
        self.thread: int | None = threading.get_ident()
        self.kept: list[str] = []
        self._others = others

    def write(self, text: str) -> int:
        if threading.get_ident() != self.thread:
            return self._others.write(text)
        self.kept.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._others, name)
