"""Records as an MLflow run, through its tracking client. Imports MLflow when a recorder is made."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import VIDEOS
from asyncrl.core.recorder import Record, axis_of
from asyncrl.core.settings import flatten
from asyncrl.recorders.not_scalars import film_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RUN = "run.json"

# Limits of MLflow: parameters per call, and characters per parameter value.
_MAX_PARAMS = 100
_MAX_METRICS = 1000
_MAX_CHARACTERS = 500


class MlflowRecorder:
    """Logs every metric over `env_steps`, and the configuration as parameters.

    Offline runs, which have no environment steps, are logged over `opt_steps`.

    Creates a run in an experiment, and the experiment if it does not exist. Nested settings are
    flattened with dots: `trainer.batch_size`. MLflow changes no parameter of a run: one that is
    continued keeps those of its start.

    Args:
        experiment: Name of the experiment.
        run_name: Name of the run. None takes that of the directory around `directory`, without
            which MLflow generates one.
        tracking_uri: The MLflow server or directory. None uses MLflow's configuration.
        directory: Directory of a file that names the run: a later recorder of the same directory
            continues it, unless it is given another experiment or run name. None always creates
            one.
        videos: Directory of the run's films, which are logged as artifacts in `videos`.
    """

    def __init__(
        self,
        experiment: str = "asyncrl",
        *,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        directory: Path | None = None,
        videos: Path | None = None,
    ) -> None:
        try:
            import mlflow  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "MlflowRecorder needs a package that is not installed: pip install asyncrl[mlflow]"
            ) from error
        self._experiment = experiment
        self._run_name = run_name
        self._tracking_uri = tracking_uri
        # The working directory may change.
        self._file = None if directory is None else directory.absolute() / _RUN
        self._videos = videos and videos.absolute()
        self._client: Any = None
        self._run_id = ""

    def start(self, config: Mapping[str, object]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = MlflowClient(self._tracking_uri)
        self._run_id = self._continued(client) or self._created(client)
        self._client = client
        known = client.get_run(self._run_id).data.params
        values = {key_of(name): str(value)[:_MAX_CHARACTERS] for name, value in flatten(config)}
        params = [Param(key, value) for key, value in values.items() if key not in known]
        for some in _in_parts(params, _MAX_PARAMS):
            client.log_batch(self._run_id, params=some)

    def _continued(self, client: Any) -> str:
        """Return the id of the run to continue; an empty string without one."""
        from mlflow.exceptions import MlflowException

        if self._file is None or not self._file.exists():
            return ""
        try:
            kept = json.loads(self._file.read_text(encoding="utf-8"))
        except ValueError:  # the disk was full
            logger.warning("MLflow creates a run: %s, which named one, is damaged", self._file)
            return ""
        run_id = str(kept["run_id"])
        other_name = self._run_name is not None and self._run_name != kept["run_name"]
        if other_name or self._experiment != kept["experiment"]:
            why = f"it is {kept['run_name']!r} of the experiment {kept['experiment']!r}"
        else:
            try:
                deleted = client.get_run(run_id).info.lifecycle_stage == "deleted"
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                why = str(error)
            else:
                if not deleted:
                    client.update_run(run_id, status="RUNNING")
                    return run_id
                why = "it was deleted"
        logger.warning("MLflow does not continue run %s, but creates another: %s", run_id, why)
        return ""

    def _created(self, client: Any) -> str:
        known = client.get_experiment_by_name(self._experiment)
        where = known.experiment_id if known else client.create_experiment(self._experiment)
        name = self._run_name
        if name is None and self._file is not None:
            name = self._file.parent.parent.name or None
        run_id = str(client.create_run(where, run_name=name).info.run_id)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            made = {"run_id": run_id, "experiment": self._experiment, "run_name": name}
            self._file.write_text(json.dumps(made), encoding="utf-8")
        return run_id

    def write(self, record: Record) -> None:
        from mlflow.entities import Metric

        if self._client is None:
            raise ValueError("no MLflow run is open: write was called before start or after close")
        now_ms, step = int(time.time() * 1000), int(record.get(axis_of(record), 0))
        metrics = [
            Metric(key_of(name), float(value), now_ms, step)
            for name, value in record.items()
            if name != "env_steps"
        ]
        for some in _in_parts(metrics, _MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=some)
        if film := film_of(record, self._videos):
            self._client.log_artifact(self._run_id, str(film), VIDEOS)

    def close(self, *, failed: bool) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.set_terminated(self._run_id, status="FAILED" if failed else "FINISHED")


def key_of(name: str) -> str:
    """Return a name in the form that MLflow accepts: a path of letters, digits, `_-. ` and `/`."""
    parts = ["_" if part in {"", ".", ".."} else part for part in name.split("/")]
    return re.sub(r"[^\w./ -]", "_", "/".join(parts))


def _in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
