"""Records as a run of MLflow, by its tracking client; loads MLflow only when one is made."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import Record
from asyncrl.core.settings import flatten

T = TypeVar("T")

# MLflow takes so many at once, and values of parameters of so many characters.
_MAX_PARAMS = 100
_MAX_METRICS = 1000
_MAX_CHARACTERS = 500


class MlflowRecorder:
    """Draws every metric over `env_steps`, and keeps the configuration as parameters.

    Makes a run in an experiment, and the experiment if it is new; a run that is resumed is another
    one there. Configuration is flattened with dots: `trainer.batch_size`.

    Args:
        experiment: Its name.
        run_name: The run's; without one, MLflow makes one up.
        tracking_uri: Where MLflow keeps it; without it, as MLflow is set up.
    """

    def __init__(
        self,
        experiment: str = "asyncrl",
        *,
        run_name: str | None = None,
        tracking_uri: str | None = None,
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
        self._client: Any = None
        self._run_id = ""

    def start(self, config: Mapping[str, object]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = MlflowClient(self._tracking_uri)
        known = client.get_experiment_by_name(self._experiment)
        where = known.experiment_id if known else client.create_experiment(self._experiment)
        self._run_id = client.create_run(where, run_name=self._run_name).info.run_id
        self._client = client
        params = [
            Param(key_of(name), str(value)[:_MAX_CHARACTERS]) for name, value in flatten(config)
        ]
        for some in _in_parts(params, _MAX_PARAMS):
            client.log_batch(self._run_id, params=some)

    def write(self, record: Record) -> None:
        from mlflow.entities import Metric

        if self._client is None:
            raise ValueError("no run of MLflow is open: write comes between start and close")
        now_ms, step = int(time.time() * 1000), int(record.get("env_steps", 0))
        metrics = [
            Metric(key_of(name), float(value), now_ms, step)
            for name, value in record.items()
            if name != "env_steps"
        ]
        for some in _in_parts(metrics, _MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=some)

    def close(self, *, failed: bool) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.set_terminated(self._run_id, status="FAILED" if failed else "FINISHED")


def key_of(name: str) -> str:
    """Return a name as MLflow takes it: a path of letters, digits and a few other characters."""
    parts = ["_" if part in {"", ".", ".."} else part for part in name.split("/")]
    return re.sub(r"[^\w./ -]", "_", "/".join(parts))


def _in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
