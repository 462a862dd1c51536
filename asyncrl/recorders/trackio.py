"""Records as a run of Trackio, in its SQLite file. The package is loaded by a recorder only."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import Record
from asyncrl.core.settings import flatten

logger = logging.getLogger(__name__)


class TrackioRecorder:
    """Logs every metric over `env_steps`, and the configuration, flattened with dots.

    The file is in Trackio's directory, which the variable TRACKIO_DIR names. `trackio show` draws
    it. A resumed run continues the run of the same name.

    Args:
        project: Name of the project.
        run_name: Name of the run. None lets Trackio generate one.
    """

    def __init__(self, project: str, *, run_name: str | None = None) -> None:
        try:
            import trackio  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "TrackioRecorder needs a package that is not installed: "
                "pip install asyncrl[trackio]"
            ) from error
        self._project = project
        self._run_name = run_name
        self._resume = "never"
        self._run: Any = None

    def resume_at(self, *, env_steps: int, opt_steps: int) -> None:
        """Continue the run of this name. Trackio keeps records from after this position, too."""
        logger.debug("resumed at %d environment and %d optimisation steps", env_steps, opt_steps)
        self._resume = "allow"

    def start(self, config: Mapping[str, object]) -> None:
        import trackio

        with _quiet():
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
        self._run.log(dict(record), step=int(record.get("env_steps", 0)))

    def close(self, *, failed: bool) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            with _quiet():
                run.finish()
            logger.debug("closed the run of Trackio%s", ", which failed" if failed else "")


@contextmanager
def _quiet() -> Iterator[None]:
    """Log at level debug what Trackio prints, since standard output is for results."""
    with redirect_stdout(io.StringIO()) as printed:
        yield
    logger.debug("Trackio: %s", printed.getvalue())
