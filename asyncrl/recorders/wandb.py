"""Records as a run of Weights & Biases, by its own client, which is loaded by a recorder only."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import Record, axis_of
from asyncrl.recorders.not_scalars import with_media

logger = logging.getLogger(__name__)

_ID = "run-id"
_OFFLINE = "or set WANDB_MODE=offline to keep the numbers on this machine"


class WandbRecorder:
    """Logs every metric over `env_steps`, histograms, films, and the configuration.

    Offline runs, which have no environment steps, are logged over `opt_steps`.

    The client keeps its files in a directory, and so does the recorder the id of the run: a later
    recorder of the same directory continues this run. The variables WANDB_ENTITY and WANDB_MODE
    work as with any other program.

    Args:
        project: Name of the project.
        directory: Directory of the client's files.
        run_name: Name of the run. None lets the client generate one.
        videos: Directory of the run's films, which are logged with the evaluations.
    """

    def __init__(
        self,
        project: str,
        directory: Path | str,
        *,
        run_name: str | None = None,
        videos: Path | None = None,
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "WandbRecorder needs a package that is not installed: pip install asyncrl[wandb]"
            ) from error
        self._project = project
        self._directory = Path(directory).absolute()  # the working directory may change
        self._run_name = run_name
        self._videos = videos and videos.absolute()
        self._run: Any = None
        self._axis = ""
        if wandb.setup().settings.mode == "online":
            self._log_in()

    def start(self, config: Mapping[str, object]) -> None:
        import wandb

        self._directory.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=self._project,
            name=self._run_name,
            id=self._id(),
            resume="allow",
            dir=str(self._directory),
            config=dict(config),
            # The terminal is the live view's, and asyncrl records the machine itself.
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def write(self, record: Record) -> None:
        if self._run is None:
            raise ValueError("no W&B run is open: write was called before start or after close")
        import wandb

        if self._axis != (axis := axis_of(record)):
            self._axis = axis
            self._run.define_metric("*", step_metric=axis)
        values = with_media(record, self._videos, wandb)
        self._run.log(values)

    def close(self, *, failed: bool) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.finish(exit_code=int(failed))

    def _id(self) -> str:
        """Return the id of the run: the same one in each run in this directory."""
        path = self._directory / _ID
        if not path.exists() or not path.stat().st_size:  # empty: the disk was full
            path.write_text(secrets.token_hex(4), encoding="ascii")
        return path.read_text(encoding="ascii").strip()

    def _log_in(self) -> None:
        """Raise if there is no account: the client would ask for one at the terminal."""
        import wandb

        try:
            known = wandb.login(prompt=False)
        except Exception as error:
            raise ConfigError(f"cannot log in to W&B: {error}; {_OFFLINE}") from error
        if not known:
            raise ConfigError(f"W&B has no account on this machine: run `wandb login`, {_OFFLINE}")
